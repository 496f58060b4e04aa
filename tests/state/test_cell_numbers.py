from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.state.cell_table import NamespacedCells


def test_the_cells_of_a_namespace_are_found_while_there_is_an_array():
    cells = NamespacedCells(Types.LONG())
    ids = np.array(cells.namespace_ids([7, 8]))
    many = np.arange(1_000)
    numbers, _ = cells.of(np.repeat(many, 2), np.tile(ids, len(many)))
    assert cells.of_namespace(ids[1]).tolist() == numbers[1::2].tolist()
    cells.of(np.array([2**31 - 1]), ids[:1])
    assert cells.of_namespace(ids[1]) is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=20), max_size=6))
def test_cells_keep_their_numbers_when_they_become_sparse(batches):
    cells, model = NamespacedCells(Types.LONG()), {}
    spread = [[(seat * 10_007, namespace) for seat, namespace in batch] for batch in batches]
    for batch in [[(seat, 0) for seat in range(50)], *spread]:
        seats = np.array([seat for seat, _ in batch])
        ids = np.array(cells.namespace_ids([namespace for _, namespace in batch]))
        numbers, first = cells.of(seats, ids)
        assert [batch[i] for i in first.tolist()] == [p for p in dict.fromkeys(batch) if p not in model]
        model |= {batch[i]: len(model) + n for n, i in enumerate(first.tolist())}
        assert numbers.tolist() == [model[pair] for pair in batch]
        assert cells.seats(numbers).tolist() == seats.tolist()
        assert cells.column(numbers).to_pylist() == [namespace for _, namespace in batch]
        assert len(cells) == len(model)


def test_the_first_record_may_be_that_of_one_of_many_keys():
    cells = NamespacedCells(Types.TUPLE([Types.LONG(), Types.LONG()]))
    seats = np.array([200_000, 0, 200_000])
    numbers, first = cells.of(seats, np.array(cells.namespace_ids([(0, 1)] * 3)))
    assert (numbers.tolist(), first.tolist(), len(cells)) == ([0, 1, 0], [0, 1], 2)
    assert cells.seats(numbers).tolist() == seats.tolist()


def test_a_number_that_was_released_is_released_once():
    cells = NamespacedCells(Types.LONG())
    first, second = cells.namespace_ids([1, 2])
    cells.release(first)
    cells.release(second)
    (again,) = cells.namespace_ids([1])
    cells.release(first)
    cells.release(second)
    assert len(set(cells.namespace_ids([1, 2, 3, 4]))) == 4
    assert again in (first, second)
