"""Functions that change the values they get, or keep and change the ones they return, change nothing that was sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from dagster_flinkpy.datastream import (
    AggregateFunction,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    FlatMapFunction,
    GlobalWindows,
    KeyedStream,
    KeySelector,
    MapFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowedStream,
)
from dagster_flinkpy.errors import TypeMismatchError, UserFunctionError
from tests.examples import examples
from tests.runtime.harness import collect_all
from tests.runtime.programs import environment, event_time, events

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


def halved(one: Any, other: Any) -> Any:
    """Returns numbers, one of which may be an int for a float; the next call shows it."""
    last = 2 if other[2] > 7 else other[2] / 2
    return one[0], (31 * one[1] + other[1]) % 1_000_003 + (type(one[2]) is int), last


def halved_in_place(one: Any, other: Any) -> Any:
    one[0:3] = halved(one, other)
    other.total = -1
    return one


NUMBERS = Types.ROW_NAMED(["key", "total", "last"], [Types.LONG(), Types.LONG(), Types.DOUBLE()])
HALVED = {
    "in place": halved_in_place,
    "by position": lambda one, other: Row(*halved(one, other)),
    "by name": lambda one, other: NUMBERS.row(*halved(one, other)),
    "tuple": halved,
}


@pytest.mark.parametrize("function", HALVED.values(), ids=HALVED)
@given(
    given_records=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20),
    odd=st.booleans(),
    batch_size=st.integers(1, 20),
    cached=st.integers(1, 5),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(15))
def test_a_running_reduction_of_numbers_sees_each_as_it_was(
    tmp_path_factory: Any,
    function: Any,
    given_records: list[tuple[int, int, int]],
    odd: bool,
    batch_size: int,
    cached: int,
) -> None:
    def to_numbers(event: Any) -> Any:
        return Row(ord(event[0]), event[2], event[1] * 1.0 if odd else min(event[1], 7) * 1.0)

    given_events = [(chr(key), time, value) for key, time, value in given_records]
    totals: dict[int, Any] = {}
    expected = []
    for event in given_events:
        key, total, last = to_numbers(event)
        totals[key] = halved(totals[key], (key, total, last)) if key in totals else (key, total, last)
        expected.append(tuple(totals[key]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_flinkpy.state.columns.CACHED", cached)
        stream = events(environment(), given_events, batch_size=batch_size)
        rows = collect_all(
            stream.map(to_numbers, NUMBERS).key_by("key").reduce(function), tmp_path_factory.mktemp("run")
        )
    assert list(map(tuple, rows)) == expected


def test_a_reduction_to_another_type_is_refused(tmp_path: Path) -> None:
    stream = events(environment(), [("a", 1, 1), ("a", 2, 2)]).map(lambda e: Row(*e), EXACT)
    with pytest.raises(TypeMismatchError, match=r"field 'value'.*'x'"):
        collect_all(stream.key_by("key").reduce(lambda a, b: Row("a", 1, "x")).uid("reduced"), tmp_path)


def test_a_reduction_that_leaves_the_range_of_a_number_is_refused(tmp_path: Path) -> None:
    kind = Types.ROW_NAMED(["key", "total"], [Types.LONG(), Types.INT()])
    stream = events(environment(), [("a", 1, 2**30), ("a", 2, 2**30)]).map(lambda e: kind.row(1, e[2]), kind)
    with pytest.raises(TypeMismatchError, match=r"'reduced'.*field 'total'.*INT.*2147483648 is int, out of its range"):
        collect_all(stream.key_by("key").reduce(lambda a, b: kind.row(1, a.total + b.total)).uid("reduced"), tmp_path)


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


class PureList(AggregateFunction):
    """All records, in order of their values."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [*accumulator, value.value]

    def get_result(self, accumulator: list[Any]) -> Row:
        return Row("", 0, sum(i * value for i, value in enumerate(sorted(accumulator))))

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        return [*acc_a, *acc_b]


class ChangesAll(PureList):
    """The same; changes everything that it gets, and shares what it returns."""

    shared: list[Any] = []  # noqa: RUF012 - what users write

    def create_accumulator(self) -> list[Any]:
        return self.shared

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value.value)
        value.value = 1000
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Row:
        accumulator.sort()
        result = super().get_result(accumulator)
        accumulator.append(1000)
        return result

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        acc_a.extend(acc_b)
        acc_b.clear()
        return acc_a


class Sums(ProcessWindowFunction):
    def __init__(self, changes: bool) -> None:
        self._changes = changes

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield Row(key, 0, sum(element.value for element in elements))
        if self._changes:
            for element in elements:
                element.value = 1000
            elements.clear()


def latest(one: Any, other: Any) -> Any:
    return Row(other.key, other.time, one.value + other.value)


def latest_in_place(one: Any, other: Any) -> Any:
    other.value, one.value = one.value + other.value, 1000
    return other


WINDOWS = {
    **OVERLAPPING,
    "tumbling": lambda stream: stream.window(TumblingEventTimeWindows.of(Time.milliseconds(5))).allowed_lateness(5),
    "sessions": lambda stream: stream.window(EventTimeSessionWindows.with_gap(Time.milliseconds(2))),
    "late sessions": lambda stream: stream.window(
        EventTimeSessionWindows.with_gap(Time.milliseconds(2))
    ).allowed_lateness(5),
    "own trigger of sessions": lambda stream: stream.window(
        EventTimeSessionWindows.with_gap(Time.milliseconds(2))
    ).trigger(OwnTrigger()),
    "each element": lambda stream: stream.window(GlobalWindows.create()).trigger(CountTrigger(1)),
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@given(given_records=records, batch_size=st.integers(1, 20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)
def test_functions_of_windows_may_change_everything_that_they_get(
    tmp_path_factory: Any, window: Any, given_records: list[tuple[str, int, int]], batch_size: int
) -> None:
    def results(apply: Any) -> list[Any]:
        stream = events(environment(), given_records, batch_size=batch_size, strategy=event_time(0)).map(
            lambda e: Row(*e), EXACT
        )
        rows = collect_all(apply(window(stream.key_by("key"))), tmp_path_factory.mktemp("run"))
        return [tuple(row) for row in rows]

    numbers = Types.LIST(Types.LONG())
    for pure, changing in [
        (lambda w: w.reduce(latest), lambda w: w.reduce(latest_in_place)),
        (
            lambda w: w.aggregate(PureList(), accumulator_type=numbers, output_type=EXACT),
            lambda w: w.aggregate(ChangesAll(), accumulator_type=numbers, output_type=EXACT),
        ),
        (lambda w: w.process(Sums(False), EXACT), lambda w: w.process(Sums(True), EXACT)),
    ]:
        assert results(changing) == results(pure)


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


def spoil(value: Any) -> None:
    """Changes a record, also one that is a tuple of changeable parts."""
    if isinstance(value, tuple):
        value[1].append(99)
    elif isinstance(value, list):
        value[0] = "spoilt"
    else:
        value.value = 99


class Spoils(TimestampAssigner, KeySelector):
    """Changes what it only has to look at."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        spoil(value)
        return 7

    def get_key(self, value: Any) -> str:
        spoil(value)
        return "key"


ANY = Types.PICKLED_BYTE_ARRAY()
FORMS: dict[str, tuple[Any, Any]] = {
    "row": (EXACT, lambda e: Row(*e)),
    "tuple with a list": (Types.TUPLE([Types.STRING(), Types.LIST(Types.LONG())]), lambda e: (e[0], [e[1], e[2]])),
    "pickled list": (ANY, list),
    "pickled tuple with a list": (ANY, lambda e: (e[0], [e[1], e[2]])),
}
READERS: dict[str, Any] = {
    "filter": lambda stream: stream.filter(lambda e: (spoil(e), True)[1]),
    "some filtered": lambda stream: stream.filter(lambda e, seen=[]: (spoil(e), seen.append(e), len(seen) != 2)[2]),
    "key_by": lambda stream: stream.key_by(Spoils()),
    "partition_custom": lambda stream: stream.partition_custom(lambda key, n: 0, Spoils()),
    "timestamps": lambda stream: stream.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Spoils())
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("chained", [False, True], ids=["shuffled", "chained"])
def test_a_function_that_only_looks_at_records_changes_none(
    tmp_path: Path, form: str, reader: str, chained: bool
) -> None:
    given_records = [("a", 1, 1), ("b", 2, 2), ("a", 3, 3)]
    kind, make = FORMS[form]
    stream = events(environment(), given_records).map(make, kind)
    stream = stream if chained else stream.rebalance()
    read = READERS[reader](stream)
    beside = stream.map(lambda e: ("beside", repr(e)), Types.TUPLE([Types.STRING()] * 2))
    after = read.map(lambda e: ("after", repr(e)), Types.TUPLE([Types.STRING()] * 2))
    rows = collect_all(after.union(beside), tmp_path)
    expected = [
        repr(make(each)) if kind != EXACT else repr(Row(**dict(zip(NAMES, each, strict=True))))
        for each in given_records
    ]
    assert sorted(row[1] for row in rows if row[0] == "beside") == sorted(expected)
    left = [each for i, each in enumerate(expected) if reader != "some filtered" or i != 1]
    assert sorted(row[1] for row in rows if row[0] == "after") == sorted(left)


@dataclass
class Counted:
    key: str
    time: int
    value: int


class Counts(FlatMapFunction):
    """Emits one object twice, and changes it after each time."""

    def flat_map(self, value: Any) -> Iterable[Any]:
        counted = Counted(value.key, value.time, value.value)
        for _ in range(2):
            yield counted
            counted.value += 1


@pytest.mark.parametrize("chained", [False, True])
def test_an_object_that_is_emitted_again_was_sent_as_it_was(chained: bool, tmp_path: Path) -> None:
    env = environment(1)
    stream = events(env, [("a", 1, 10), ("b", 2, 20)]).flat_map(Counts(), EXACT).uid("counts")
    if not chained:
        stream = stream.rebalance()
    values = stream.map(lambda counted: (counted.key, counted.value), Types.TUPLE([Types.STRING(), Types.LONG()]))
    assert sorted(collect_all(values.uid("values"), tmp_path)) == [("a", 10), ("a", 11), ("b", 20), ("b", 21)]
