"""What functions yield is sent as it was when they yielded it, in any mixture of kinds of records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row, RowKind
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.function_operators import Collector

PLAIN = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
SINGLE = Types.ROW_NAMED(["a"], [Types.LONG()])
ROUNDED = Types.ROW_NAMED(["a", "b"], [Types.FLOAT(), Types.STRING()])
SIDE = OutputTag("side", Types.LONG())

MAKERS: list[Any] = [
    Row,
    lambda a, b: Row(a=a, b=b),
    lambda a, b: Row(b=b, a=a),
    lambda a, b: (a, b),
    lambda a, b: {"b": b, "a": a},
    lambda a, b: Row.of_kind(RowKind.DELETE, a, b),
    lambda a, b: (SIDE, a or 0),
]
fields = st.tuples(st.none() | st.integers(-9, 9), st.none() | st.sampled_from(["", "x"]))
given_results = st.lists(st.tuples(st.integers(0, len(MAKERS) - 1), fields), max_size=12)


def make(type_info: Any) -> tuple[Collector, list[tuple[str | None, Any]]]:
    sent: list[tuple[str | None, Any]] = []
    vertex = SimpleNamespace(uid="f", output_type=type_info, side_outputs={"side": Types.LONG()}.items())
    context: Any = SimpleNamespace(vertex=vertex, emit=lambda tag, batch: sent.append((tag, batch)))
    return Collector(context), sent


def expected(results: list[tuple[int, tuple[Any, Any]]], type_info: Any) -> tuple[list[Any], list[Any]]:
    main, side = [], []
    for time, (maker, values) in enumerate(results):
        if maker == len(MAKERS) - 1:
            side.append((time, values[0] or 0))
        else:
            main.append((time, Row(**dict(zip(type_info.field_names, values, strict=True)))))
    return main, side


def read(sent: list[tuple[str | None, Any]]) -> dict[str | None, list[Any]]:
    found: dict[str | None, list[Any]] = {None: [], "side": []}
    for tag, batch in sent:
        rows = batch.type_info.from_arrow(batch.column)
        found[tag] += zip(batch.timestamps.tolist(), rows, strict=True)
    return found


@pytest.mark.parametrize("type_info", [PLAIN, ROUNDED])
@pytest.mark.parametrize("each", [False, True])
@given(results=given_results, flush_at=st.integers(0, 12))
def test_records_of_any_kind_keep_their_order_and_times(
    type_info: Any, each: bool, results: list[tuple[int, tuple[Any, Any]]], flush_at: int
) -> None:
    collector, sent = make(type_info)
    if each:
        collector.collect_each([MAKERS[maker](*values) for maker, values in results], range(len(results)))
    else:
        for time, (maker, values) in enumerate(results):
            if time == flush_at:
                collector.flush()
            collector.collect((MAKERS[maker](*values) for _ in "1"), time)
    collector.flush()
    main, side = expected(results, type_info)
    assert read(sent) == {None: main, "side": side}
    assert all(len(batch) for _, batch in sent)


@pytest.mark.parametrize("type_info", [PLAIN, ROUNDED])
@pytest.mark.parametrize("row", [Row(1, "x"), Row(a=1, b="x"), Row(b="x", a=1), Row.of_kind(RowKind.DELETE, 1, "x")])
def test_a_row_that_changes_after_it_was_yielded_is_sent_as_it_was(type_info: Any, row: Any) -> None:
    collector, sent = make(type_info)

    def function() -> Any:
        for number in (1, 2, 3):
            row.set_field_names(["a", "b"]) if row._names is None else None
            row.a = number
            yield row
        row.a = 4

    collector.collect(function(), 0)
    row.a = 5
    collector.flush()
    assert [value.a for _, value in read(sent)[None]] == [1, 2, 3]


def test_rows_with_one_field_or_none() -> None:
    collector, sent = make(SINGLE)
    collector.collect([Row(1), Row(a=2)], 7)
    collector.flush()
    assert read(sent)[None] == [(7, Row(a=1)), (7, Row(a=2))]
    collector, sent = make(Types.ROW_NAMED([], []))
    collector.collect([Row(), Row()], 7)
    collector.flush()
    assert [len(batch) for _, batch in sent] == [2]


def test_who_reads_rows_of_another_type_learns_it() -> None:
    collector, sent = make(PLAIN)
    collector.collect([Row(1, "x"), Row("y", "x")], 0)
    collector.flush()
    with pytest.raises(TypeMismatchError, match=r"operator 'f': field 'a': declared LONG.*'y' is str"):
        _ = sent[0][1].column
    with pytest.raises(TypeMismatchError, match=r"operator 'f': declared 2 fields.*3"):
        collector.collect([Row(1, "x", 3)], 0)
        collector.flush()
        _ = sent[1][1].column
