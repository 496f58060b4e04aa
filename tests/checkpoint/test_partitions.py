"""End states of partitions: the rule for what is kept, and how the store applies it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.head import Head, read_head
from dagster_flinkpy.checkpoint.partitions import PartitionEnd, PartitionRetention
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import ConfigurationError, CorruptMetadataError
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import content, metadata, operator

NOW = 1_700_000_000_000


def end(ordinal: int, checkpoint_id: int, based_on: int | None = None) -> PartitionEnd:
    return PartitionEnd(f"day-{ordinal}", ordinal, checkpoint_id, based_on)


def kept(retention: PartitionRetention, *ordinals: int, latest: int = -1) -> list[int]:
    return [e.ordinal for e in retention.kept([end(o, o + 100) for o in ordinals], latest + 100)]


def test_all_are_kept_by_default() -> None:
    assert kept(PartitionRetention(), 4, 0, 2) == [0, 2, 4]


def test_every_kth_counts_from_the_first_partition_of_the_job() -> None:
    assert kept(PartitionRetention(every=7), 5, 6, 12, 13, 14) == [6, 13]
    assert kept(PartitionRetention(every=7), 5, 6, latest=5) == [5, 6]


def test_the_last_ones_are_those_of_the_last_partitions() -> None:
    only_last = PartitionRetention(every=None, last=2)
    assert kept(only_last, 1, 2, 3, 4, latest=4) == [3, 4]
    assert kept(only_last, 1, 2, 3, 4, latest=1) == [1, 3, 4], (
        "the end state of the partition that has just run again is kept"
    )
    assert kept(PartitionRetention(every=3, last=1), 0, 1, 2, 3, 4) == [2, 4]


@given(st.sets(st.integers(0, 50), min_size=1), st.integers(1, 9), st.integers(1, 9))
def test_the_latest_is_always_kept(ordinals: set[int], every: int, last: int) -> None:
    for latest in ordinals:
        for retention in (PartitionRetention(every), PartitionRetention(None, last), PartitionRetention(every, last)):
            assert latest in kept(retention, *ordinals, latest=latest)


@pytest.mark.parametrize(("every", "last"), [(0, None), (1, 0), (None, None)])
def test_a_policy_that_keeps_nothing_is_refused(every: int | None, last: int | None) -> None:
    with pytest.raises(ConfigurationError, match="partition retention"):
        PartitionRetention(every, last)


def test_head_names_them() -> None:
    head = Head(3, 8, "chk-8/_metadata", "ab", (7, 8), (end(0, 7), end(1, 8, 7)))
    assert Head.from_bytes(head.to_bytes(), "HEAD") == head
    older = head.to_bytes().replace(b'"partitions"', b'"other"')
    assert Head.from_bytes(older, "HEAD").partitions == ()
    with pytest.raises(CorruptMetadataError):
        Head.from_bytes(head.to_bytes().replace(b'["day-1", 1, 8, 7]', b'["day-1"]'), "HEAD")


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def objects(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(str(tmp_path / "flights"))


def finish(
    store: CompletedCheckpointStore, attempt: Attempt, ordinal: int, retention: PartitionRetention | None = None
) -> PartitionEnd:
    """Completes a partition with its own state, and deletes what is no longer kept."""
    checkpoint_id = store.assign_checkpoint_id(attempt)
    state = operator(f"state-{checkpoint_id}")
    for index, path in enumerate(sorted(state.files())):
        store.store.put(path, content(f"state-{checkpoint_id}-{index}"))
    done = metadata(checkpoint_id, state, token=attempt.token)
    store.write_metadata(attempt, done)
    this = end(ordinal, checkpoint_id)
    store.complete(attempt, done, partition=this, partition_retention=retention)
    store.subsume(attempt, [])
    return this


def head(objects: LocalObjectStore) -> Head:
    found = read_head(objects)
    assert found is not None
    return found[0]


def folders(objects: LocalObjectStore) -> set[str]:
    return {info.key.split("/")[0] for info in objects.list("chk-")}


def test_an_end_state_outlives_later_checkpoints(objects: LocalObjectStore) -> None:
    store = CompletedCheckpointStore(objects, num_retained=1)
    attempt = store.begin_attempt("run", NOW)
    ends = [finish(store, attempt, ordinal) for ordinal in range(3)]
    assert head(objects).partitions == tuple(ends)
    assert head(objects).retained == (1, 2, 3)
    assert all(objects.head(path) for e in ends for path in store.load(e.checkpoint_id).files())


def test_a_partition_that_is_run_again_has_one_end_state(objects: LocalObjectStore) -> None:
    store = CompletedCheckpointStore(objects, num_retained=1)
    attempt = store.begin_attempt("run", NOW)
    for ordinal in (0, 1):
        finish(store, attempt, ordinal)
    again = finish(store, attempt, 0)
    assert head(objects).partitions == (again, end(1, 2))
    assert folders(objects) == {"chk-2", "chk-3"}


def test_what_is_no_longer_kept_is_deleted_by_whoever_comes_next(objects: LocalObjectStore) -> None:
    store = CompletedCheckpointStore(objects, num_retained=1)
    last = PartitionRetention(every=None, last=2)
    for ordinal in range(5):
        attempt = store.begin_attempt(f"run-{ordinal}", NOW)
        finish(store, attempt, ordinal, last)
        store.end_attempt(attempt)
    assert [e.ordinal for e in head(objects).partitions] == [3, 4]
    assert folders(objects) == {"chk-4", "chk-5"}
    named = {path for checkpoint_id in (4, 5) for path in store.load(checkpoint_id).files()}
    assert {info.key for info in objects.list("shared/")} == named
