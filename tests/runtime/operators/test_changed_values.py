"""Functions that change the values they get, or keep and change the ones they return, change nothing that was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import (
    EventTimeTrigger,
    KeyedStream,
    MapFunction,
    SlidingEventTimeWindows,
    WindowedStream,
)
from dagster_flinkpy.errors import TypeMismatchError, UserFunctionError
from tests.examples import examples
from tests.runtime.harness import collect_all
from tests.runtime.programs import environment, events

NAMES = ["key", "time", "value"]
EXACT = Types.ROW_NAMED(NAMES, [Types.STRING(), Types.LONG(), Types.LONG()])
WIDE = Types.ROW_NAMED(NAMES, [Types.STRING(), Types.LONG(), Types.BIG_INT()])
UNNAMED = Types.ROW([Types.STRING(), Types.LONG(), Types.LONG()])
TUPLE = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])

records = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(-9, 9)), min_size=1, max_size=20)


def change(one: Any, other: Any) -> Any:
    one[2] += other[2]
    return one


def change_other(one: Any, other: Any) -> Any:
    other[2] += one[2]
    return other


def unnamed(one: Any, other: Any) -> Any:
    return Row(one[0], one[1], one[2] + other[2])


def other_order(one: Any, other: Any) -> Any:
    return Row(value=one["value"] + other["value"], time=other["time"], key=other["key"])


def in_turn(one: Any, other: Any) -> Any:
    key, time, total = other["key"], other["time"], one["value"] + other["value"]
    forms = Row(key=key, time=time, value=total), Row(key, time, total), Row(value=total, time=time, key=key)
    return forms[total % len(forms)]


def sums(given: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    totals: dict[str, int] = {}
    expected = []
    for key, _, value in given:
        totals[key] = totals.get(key, 0) + value
        expected.append((key, totals[key]))
    return expected


@pytest.mark.parametrize("type_info", [EXACT, WIDE, UNNAMED])
@given(given_records=records, batch_size=st.integers(1, 20), chained=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(8))
def test_a_running_reduction_sends_each_value_as_it_was(
    tmp_path_factory: Any, type_info: Any, given_records: list[tuple[str, int, int]], batch_size: int, chained: bool
) -> None:
    functions = [change, change_other, unnamed] + ([] if type_info is UNNAMED else [other_order, in_turn])
    for function in functions:
        stream = events(environment(), given_records, batch_size=batch_size).map(lambda e: Row(*e), type_info)
        reduced = stream.key_by(lambda e: e[0]).reduce(function)
        if chained:
            first, last = ("f0", "f2") if type_info is UNNAMED else ("key", "value")
            reduced = reduced.map(lambda e, f=first, v=last: Row(e[f], 0, e[v]), UNNAMED)
        rows = collect_all(reduced, tmp_path_factory.mktemp("run"))
        assert [(row[0], row[-1]) for row in rows] == sums(given_records), function


def test_a_reduction_to_another_type_is_refused(tmp_path: Path) -> None:
    stream = events(environment(), [("a", 1, 1), ("a", 2, 2)]).map(lambda e: Row(*e), EXACT)
    with pytest.raises(TypeMismatchError, match=r"field 'value'.*'x'"):
        collect_all(stream.key_by("key").reduce(lambda a, b: Row("a", 1, "x")).uid("reduced"), tmp_path)


class OwnTrigger(EventTimeTrigger):
    """Keeps the operator from using its fast form."""


def sliding(stream: KeyedStream) -> WindowedStream:
    return stream.window(SlidingEventTimeWindows.of(Time.milliseconds(9), Time.milliseconds(3)))


OVERLAPPING = {
    "sliding": sliding,
    "lateness": lambda stream: sliding(stream).allowed_lateness(5),
    "own trigger": lambda stream: sliding(stream).trigger(OwnTrigger()),
    "count": lambda stream: stream.count_window(3, 1),
}


@pytest.mark.parametrize("window", OVERLAPPING.values(), ids=OVERLAPPING)
@given(given_records=records, batch_size=st.integers(1, 20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(8))
def test_a_reduction_may_change_its_first_argument_though_a_record_is_in_several_windows(
    tmp_path_factory: Any, window: Any, given_records: list[tuple[str, int, int]], batch_size: int
) -> None:
    def results(function: Any) -> list[Any]:
        stream = events(environment(), given_records, batch_size=batch_size).map(lambda e: Row(*e), EXACT)
        reduced = window(stream.key_by("key")).reduce(function)
        return [tuple(row) for row in collect_all(reduced, tmp_path_factory.mktemp("run"))]

    assert results(change) == results(lambda one, other: Row(one.key, one.time, one.value + other.value))


class Keeps(MapFunction):
    """Returns the record that it got before, too, and changes it."""

    def __init__(self, keep: bool) -> None:
        self._keep, self._kept = keep, None

    def map(self, value: Any) -> Any:
        if self._kept is not None:
            self._kept.value = -1
        if self._keep:
            self._kept = value
        value.time += 1
        return value


@given(given_records=records, batch_size=st.integers(1, 20), keep=st.booleans(), least=st.integers(-9, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
def test_a_function_that_keeps_and_changes_records_changes_none_that_was_sent(
    tmp_path_factory: Any, given_records: list[tuple[str, int, int]], batch_size: int, keep: bool, least: int
) -> None:
    stream = events(environment(), given_records, batch_size=batch_size).map(lambda e: Row(*e), EXACT)
    kept = stream.filter(lambda e: e.value >= least)
    changed = (
        kept.map(Keeps(keep), EXACT)
        .map(Keeps(keep), EXACT)
        .map(lambda e: ("changed", *e), Types.TUPLE([Types.STRING(), *EXACT.field_types]))
    )
    beside = kept.map(lambda e: ("beside", *e), Types.TUPLE([Types.STRING(), *EXACT.field_types]))
    rows = collect_all(changed.union(beside), tmp_path_factory.mktemp("run"))
    expected = [record for record in given_records if record[2] >= least]
    assert [row[1:] for row in rows if row[0] == "beside"] == expected
    assert [row[1:] for row in rows if row[0] == "changed"] == [(k, t + 2, v) for k, t, v in expected]


class OneBuffer(MapFunction):
    """Returns the same bytes for each record, changed."""

    def __init__(self, make: Any) -> None:
        self._make, self._buffer = make, bytearray(b"-")

    def map(self, value: Any) -> Any:
        self._buffer[:] = str(value.value).encode()
        return self._make(value.time, self._buffer)


@pytest.mark.parametrize("make", [Row, lambda *fields: fields])
def test_bytes_that_a_function_changes_later_are_sent_as_they_were(tmp_path: Path, make: Any) -> None:
    fields = [Types.LONG(), Types.PRIMITIVE_ARRAY(Types.BYTE())]
    kind = Types.ROW(fields) if make is Row else Types.TUPLE(fields)
    rows = collect_all(events(environment(), [("a", 1, 1), ("b", 2, 22)]).map(OneBuffer(make), kind), tmp_path)
    assert list(map(tuple, rows)) == [(1, b"1"), (2, b"22")]


@pytest.mark.parametrize("make", [lambda e: Row(*e), tuple])
def test_an_error_of_a_map_names_the_record(tmp_path: Path, make: Any) -> None:
    def fails(event: Any) -> Any:
        return 1 // (event[2] - 2)

    stream = events(environment(), [("a", 1, 1), ("b", 2, 2), ("c", 3, 3)])
    stream = stream.map(make, EXACT if type(make((1, 2, 3))) is not tuple else TUPLE)
    with pytest.raises(UserFunctionError, match=r"ZeroDivisionError.*'b'.*2"):
        collect_all(stream.filter(lambda e: e[2] > 1).map(fails, Types.LONG()), tmp_path)
