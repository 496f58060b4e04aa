from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.state.index import IntIndex


def sum_of(parts):
    return parts[0] + parts[1]


INTEGERS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
SMALL = st.integers(0, 2000)
BATCHES = st.lists(st.lists(SMALL, max_size=50), max_size=6)


@given(st.one_of(BATCHES, st.tuples(BATCHES, st.lists(st.lists(INTEGERS, max_size=50), max_size=6)).map(sum_of)))
def test_numbers_in_the_order_of_adding(batches):
    index, model = IntIndex(), {}
    for batch in batches:
        numbers, first = index.add(np.array(batch, dtype=np.int64))
        new = [i for i, value in enumerate(batch) if value not in model and value not in batch[:i]]
        for i in new:
            model[batch[i]] = len(model)
        assert first.tolist() == new
        assert numbers.tolist() == [model[value] for value in batch]
        assert len(index) == len(model)
    asked = np.array([*model, 6, 7, -1, 2**62, 3000], dtype=np.int64)
    assert index.find(asked).tolist() == [model.get(value, -1) for value in asked.tolist()]


def test_small_integers_that_are_joined_by_a_large_one_keep_their_numbers():
    index = IntIndex()
    small = np.arange(5000)[::-1]
    index.add(small)
    assert index.add(np.array([2**40, 7]))[0].tolist() == [5000, 4992]
    assert index.find(small).tolist() == list(range(5000))
    assert len(index) == 5001


def test_what_is_no_place_of_the_array_is_not_found():
    index = IntIndex()
    index.add(np.arange(1024))
    assert index.find(np.array([-1, 1023, -1024])).tolist() == [-1, 1023, -1]
    assert index.find(np.array([1024, -(2**63), 2**62, 7])).tolist() == [-1, -1, -1, 7]


def test_grows():
    index = IntIndex()
    many = np.arange(0, 50_000 * 1024, 1024, dtype=np.int64)
    assert index.add(many)[0].tolist() == list(range(50_000))
    assert index.find(many[::-1]).tolist() == list(reversed(range(50_000)))
