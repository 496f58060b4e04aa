"""The order of the rows of a state table."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.state import layout
from dagster_flinkpy.state.layout import sort_identities, sort_order

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.one_of(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1))),
    "byte": (pa.int8(), st.integers(-2, 2)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text("ab", max_size=2)),
    "bytes": (pa.binary(), st.binary(max_size=1)),
    "double": (pa.float64(), st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 2.5, math.inf, math.nan])),
    "time": (pa.timestamp("ms"), st.integers(-2, 2)),
    "date": (pa.date32(), st.integers(-2, 2)),
    "decimal": (pa.decimal128(4, 2), st.sampled_from([Decimal("-1.5"), Decimal(0), Decimal("0.01")])),
}


def rank(value: Any) -> Any:
    """Returns a sort key that orders values like Java, with nulls last."""
    if isinstance(value, dict):
        return (0, *map(rank, value.values()))
    if value is None:
        return (1,)
    if isinstance(value, float):
        return (0, math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    return (0, value)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], list[pa.Array[Any]]]:
    size = draw(st.integers(1, 12))
    sort_keys = draw(st.lists(st.sampled_from([0, 1, 2**40]), min_size=size, max_size=size))
    columns = []
    for name in draw(st.lists(st.sampled_from([*COLUMNS, "struct"]), min_size=1, max_size=3)):
        fields = draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, max_size=2)) if name == "struct" else [name]
        leaves = [
            pa.array(draw(st.lists(st.none() | COLUMNS[f][1], min_size=size, max_size=size)), type=COLUMNS[f][0])
            for f in fields
        ]
        column = leaves[0]
        if name == "struct":
            column = pa.StructArray.from_arrays(leaves, names=[f"f{i}" for i in range(len(leaves))])
        columns.append(column)
    return np.array(sort_keys, dtype=np.uint64), columns


@given(tables(), st.booleans())
def test_rows_are_ordered_by_sort_key_and_identity_and_keep_their_order_where_both_are_equal(
    table: tuple[np.ndarray[Any, Any], list[pa.Array[Any]]], as_runs: bool
) -> None:
    sort_keys, columns = table
    values = [column.to_pylist() for column in columns]
    ranks = [(int(sort_keys[i]), [rank(column[i]) for column in values]) for i in range(len(sort_keys))]
    expected = sorted(range(len(sort_keys)), key=lambda i: (ranks[i], i))
    with pytest.MonkeyPatch.context() as patch:
        if not as_runs:
            patch.setattr(layout, "_FEW_RUNS", 0)
        order, starts = sort_identities(sort_keys, columns)
    assert order.tolist() == expected
    assert starts.tolist() == [not i or ranks[expected[i]] != ranks[expected[i - 1]] for i in range(len(expected))]


@pytest.mark.parametrize("extremes", [[2**63 - 1, -(2**63), 0], [5, 3, 4]])
def test_ties_are_broken_by_any_longs(extremes: list[int]) -> None:
    order = sort_order(np.zeros(6, dtype=np.uint64), [pa.array(extremes * 2)])
    assert order.tolist() == sorted(range(6), key=lambda i: ((extremes * 2)[i], i))
