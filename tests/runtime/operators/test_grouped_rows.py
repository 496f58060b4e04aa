from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.datastream.adapters import Accumulation
from dagster_flinkpy.runtime.operators.grouped_rows import IntegerOverflowError, Segments, accumulate

FLOATS = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, float("nan"), float("inf")]))


def loop(kind, values, groups, before):
    function, state, results = Accumulation(kind, 0), dict(before), []
    for value, group in zip(values, groups, strict=True):
        state[group] = value if group not in state else function.reduce(state[group], value)
        results.append(state[group])
    return results


def columns(kind, values, groups, before, dtype):
    array = np.array(values, dtype=dtype)
    segments = Segments.of(np.array(groups, dtype=np.int64))
    start = np.array([before.get(g, 77) for g in segments.groups.tolist()], dtype=dtype)
    fresh = np.array([g not in before for g in segments.groups.tolist()], dtype=bool)
    ordered = accumulate(kind, array, segments, start, fresh)
    results = np.empty_like(ordered)
    results[segments.order] = ordered
    return results


@given(
    kind=st.sampled_from(["sum", "min", "max"]),
    rows=st.lists(st.tuples(st.integers(0, 4), FLOATS), min_size=1),
    before=st.dictionaries(st.integers(0, 4), FLOATS),
    spread=st.booleans(),
)
def test_floats_are_bit_by_bit_those_of_a_loop(kind, rows, before, spread):
    groups, values = [g for g, _ in rows], [v for _, v in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagster_flinkpy.runtime.operators.grouped_rows._FEW", 0 if spread else 64)
        found = columns(kind, values, groups, before, np.float64)
    expected = np.array(loop(kind, values, groups, before))
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()


@given(
    kind=st.sampled_from(["sum", "min", "max"]),
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1)), min_size=1),
    before=st.dictionaries(st.integers(0, 4), st.integers(-(2**63), 2**63 - 1)),
)
def test_integers(kind, rows, before):
    groups, values = [g for g, _ in rows], [v for _, v in rows]
    expected = loop(kind, values, groups, before)
    wrong = [i for i, v in enumerate(expected) if not -(2**63) <= v < 2**63]
    if wrong:
        with pytest.raises(IntegerOverflowError) as caught:
            columns(kind, values, groups, before, np.int64)
        assert caught.value.row == wrong[0]
    else:
        assert columns(kind, values, groups, before, np.int64).tolist() == expected


def test_narrow_integers_overflow_their_own_type():
    assert columns("sum", [100, 27], [0, 0], {}, np.int8).tolist() == [100, 127]
    with pytest.raises(IntegerOverflowError):
        columns("sum", [100, 28], [0, 0], {}, np.int8)


def test_segments_keep_the_order_of_rows():
    segments = Segments.of(np.array([5, 2, 5, 2, 9]))
    assert segments.order.tolist() == [1, 3, 0, 2, 4]
    assert segments.groups.tolist() == [2, 5, 9]
    assert segments.order[segments.last].tolist() == [3, 2, 4]


def test_no_rows():
    segments = Segments.of(np.array([], dtype=np.int64))
    none = np.array([], dtype=np.float64)
    assert accumulate("min", none, segments, none, none.astype(bool)).tolist() == []


@pytest.mark.parametrize("kind", ["min_by", "max_by"])
def test_of_records_that_cannot_be_compared_the_first_stays(kind):
    nan = float("nan")
    assert Accumulation(kind, 0).reduce((nan, "first"), (nan, "second"))[1] == "first"
    assert Accumulation(kind, 0).reduce((float("nan"), "first"), (nan, "second"))[1] == "first"
