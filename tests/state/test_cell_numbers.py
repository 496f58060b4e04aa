from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.state.cell_numbers import NamespacedCells
from dagster_flinkpy.state.index import CellGrid


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3000)), min_size=1, max_size=30), max_size=6))
def test_numbers_in_the_order_of_adding(batches):
    grid, model = CellGrid(), {}
    for batch in batches:
        rows, columns = np.array(batch, dtype=np.int64).T
        assert grid.reserve(int(rows.max()) + 1, int(columns.max()) + 1, len(batch))
        numbers, first = grid.add(rows, columns)
        new = [i for i, pair in enumerate(batch) if pair not in model and pair not in batch[:i]]
        for i in new:
            model[batch[i]] = len(model)
        assert first.tolist() == new
        assert numbers.tolist() == [model[pair] for pair in batch]
        assert len(grid) == len(model)


def test_a_grid_that_would_be_nearly_empty_is_given_up():
    grid = CellGrid()
    grid.add(np.zeros(3, dtype=np.int64), np.arange(3))
    assert not grid.reserve(1_000, 1_000, 10)
    assert grid.reserve(1_000, 1_000, 200_000)
    assert grid.add(np.array([0, 999]), np.array([2, 999]))[0].tolist() == [2, 3]


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
