"""Runs are divided by sort key."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files import runs as run_files
from dagster_flinkpy.state.files.cache import Run
from dagster_flinkpy.state.files.runs import PART_BYTES, divide
from dagster_flinkpy.state.handles import span_of
from tests.examples import examples

SPAN = span_of(KeyGroupRange(3, 6))
ROW = 8
"""Bytes of a row."""


def run(sort_keys: list[int]) -> Run:
    return Run.of(pa.table({"sort_key": pa.array(sorted(sort_keys), pa.uint64())}))


def keys_of(each: Run) -> list[int]:
    keys: list[int] = each.sort_keys.tolist()
    return keys


SORT_KEYS = st.builds(
    lambda group, hashed: (group << 32) + hashed,
    st.integers(3, 6),
    st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1), st.sampled_from([2**31, 2**32 - 1])),
)


@settings(max_examples=examples(50))
@given(
    runs=st.lists(st.lists(SORT_KEYS, max_size=12).map(run), min_size=1, max_size=3),
    most=st.integers(1, 20),
    by_bytes=st.booleans(),
)
def test_each_row_is_in_one_part_and_only_a_sort_key_is_larger_than_allowed(
    runs: list[Run], most: int, by_bytes: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SECTION_ROWS", 1000 if by_bytes else most)
        found = list(divide(runs, SPAN, ROW * most if by_bytes else PART_BYTES))
    assert all(before.stop <= after.start for (before, _), (after, _) in pairwise(found))
    for span, own in found:
        assert [keys_of(each) for each in own] == [[key for key in keys_of(each) if key in span] for each in runs]
        groups = {bound >> 32 for bound in (span.start, span.stop - 1)}
        assert len(groups) == 1 or span.start % 2**32 == span.stop % 2**32 == 0, "it ends where a key group does"
        keys = {key for each in own for key in keys_of(each)}
        assert keys, "it is not empty"
        assert len(keys) == 1 or sum(map(len, own)) <= most
    rows = sum(len(each) for _, own in found for each in own)
    assert rows == sum(map(len, runs))


@settings(max_examples=examples(50))
@given(keys=st.sets(st.integers(0, 2**32 - 1), max_size=60), most=st.integers(1, 40), runs=st.integers(1, 4))
def test_a_key_group_has_as_few_parts_as_its_rows_need(keys: set[int], most: int, runs: int) -> None:
    rows = [run([(4 << 32) + key for key in sorted(keys)[i::runs]]) for i in range(runs)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SECTION_ROWS", most)
        found = list(divide(rows, span_of(KeyGroupRange(4, 4)), PART_BYTES))
    assert len(found) == -(-len(keys) // most)


def test_key_groups_of_equal_size_are_not_divided() -> None:
    each = run([(group << 32) + np.uint32(i * 77777).item() for group in range(3, 7) for i in range(50)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "SECTION_ROWS", 100)
        spans = [span for span, _ in divide([each], SPAN, PART_BYTES)]
    assert spans == [span_of(KeyGroupRange(3, 4)), span_of(KeyGroupRange(5, 6))]
