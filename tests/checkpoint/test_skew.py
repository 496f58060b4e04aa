from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.reports.skew import rows_by_key_group, skew
from dagster_flinkpy.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot, count_key_groups

MAX = 16


def run_of(groups: list[int]) -> RunHandle:
    """Returns a run with a row in each of these key groups."""
    counts = count_key_groups(np.array(sorted(groups)))
    return RunHandle(
        sha256="0" * 64,
        rows=len(groups),
        key_groups=KeyGroupRange(0, MAX - 1),
        rows_per_key_group=counts,
        data=b"123456789",
    )


@given(st.lists(st.integers(0, MAX - 1), min_size=1), st.integers(1, 5))
def test_rows_are_counted_once_however_many_subtasks_share_a_run(groups: list[int], parallelism: int) -> None:
    keyed = KeyedSnapshot(
        KeyGroupRange(0, MAX - 1),
        (TableSnapshot("count", "VALUE", {}, None, None, {}, (run_of(groups), run_of(groups))),),
    )
    shares = [compute_key_group_range_for_operator_index(MAX, parallelism, index) for index in range(parallelism)]
    subtasks = tuple(SubtaskState(index, keyed=keyed.restrict(share)) for index, share in enumerate(shares))
    rows = rows_by_key_group(OperatorState("count", "Count", parallelism, MAX, subtasks=subtasks))
    assert rows == [2 * groups.count(group) for group in range(MAX)]


def test_no_keyed_state_has_no_rows() -> None:
    assert rows_by_key_group(OperatorState("map", "Map", 1, 2, subtasks=(SubtaskState(0),))) == [0, 0]


@pytest.mark.parametrize(("loads", "expected"), [([5, 5], 1.0), ([0, 9, 0], 3.0), ([0, 0], None), ([], None)])
def test_skew(loads: list[int], expected: float | None) -> None:
    assert skew(loads) == expected
