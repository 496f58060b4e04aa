"""Counts the master's work for a checkpoint of many subtasks. Time would depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from benchmarks.counted_store import CountedStore
from benchmarks.scale import ROUNDS, Master, Tasks, measure
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.restore import RestoreTarget, assign
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore


@contextmanager
def calls() -> Iterator[list[int]]:
    """Counts the function calls in its body, including functions written in C."""
    count = [0]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            count[0] += 1

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)


def completed(subtasks: int) -> tuple[int, CheckpointMetadata, CountedStore]:
    objects = CountedStore().child("job")
    tasks = Tasks(subtasks, 10**9, objects)
    master = Master(tasks, objects)
    checkpoint_id = master.trigger()
    received = tasks.acknowledge(master.attempt.token, checkpoint_id)
    with calls() as count:
        written = master.complete(checkpoint_id, received)
    return count[0], written, objects


def test_work_grows_with_the_number_of_subtasks_and_no_faster() -> None:
    few, _, _ = completed(400)
    many, written, objects = completed(4_000)
    assert many < 11 * few
    assert many < 300 * 4_000
    assert objects.head(f"chk-1/{METADATA_NAME}").size < 300 * 4_000
    for parallelism in (2_000, 1_700):
        with calls() as count:
            assign(written, [RestoreTarget(o.uid, parallelism, o.max_parallelism) for o in written.operators])
        assert count[0] < 1_200 * 4_000


@pytest.mark.system
def test_the_requests_of_the_master_do_not_depend_on_the_number_of_subtasks() -> None:
    small, large = measure(20, 1), measure(80, 1)
    assert small["requests_of_master"] == large["requests_of_master"]
    assert large["requests_of_tasks"] > small["requests_of_tasks"]
    assert small["messages"] * 4 == large["messages"]


def test_the_files_that_checkpoints_name_stay_and_no_others() -> None:
    objects = CountedStore().child("job")
    tasks = Tasks(20, 10**9, objects)
    master = Master(tasks, objects)
    for _ in range(2 * ROUNDS):
        checkpoint_id = master.trigger()
        master.complete(checkpoint_id, tasks.acknowledge(master.attempt.token, checkpoint_id))
    checkpoints = CompletedCheckpointStore(objects)
    named = {path for kept in checkpoints.retained() for path in checkpoints.load(kept).files()}
    assert {info.key for info in objects.list("shared/")} == named
