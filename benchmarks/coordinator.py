"""Measures the driver's work for a checkpoint of 10 operators with 1,000 subtasks each, without Spark.

It covers everything from the first acknowledgement to HEAD, and planning a restore with another parallelism. Each
subtask has two tables of keyed state, each with a base and a new delta.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.report import line
from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.instructions import EmitBarriers, ReplaceHead, WriteMetadata
from dagster_flinkpy.checkpoint.messages import AcknowledgeCheckpoint, Subtask
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.restore import RestorePlan, RestoreTarget, assign
from dagster_flinkpy.checkpoint.stimuli import (
    Acknowledge,
    CheckpointIdAssigned,
    CommitFinished,
    HeadReplaced,
    JobStatusChanged,
    MetadataWritten,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot
from dagster_flinkpy.storage.local import LocalObjectStore

OPERATORS, SUBTASKS, MAX_PARALLELISM, ROUNDS = 10, 1_000, 2_048, 5


def tasks() -> tuple[Subtask, ...]:
    return tuple(Subtask(f"operator-{o}", i) for o in range(OPERATORS) for i in range(SUBTASKS))


def _run(key_groups: KeyGroupRange, name: str, rows: int) -> RunHandle:
    digest = hashlib.sha256(name.encode()).hexdigest()
    counts = [rows // key_groups.number_of_key_groups] * key_groups.number_of_key_groups
    return RunHandle(
        path=f"shared/1-1-{digest}.parquet",
        sha256=digest,
        bytes=rows * 20,
        rows=sum(counts),
        key_groups=key_groups,
        rows_per_key_group=(key_groups.start, *counts),
        footer_bytes=900,
        footer_sha256=hashlib.sha256(digest.encode()).hexdigest(),
    )


def state(task: Subtask, checkpoint_id: int) -> SubtaskState:
    key_groups = compute_key_group_range_for_operator_index(MAX_PARALLELISM, SUBTASKS, task.subtask)
    runs = (
        _run(key_groups, f"{task} base", 100_000),
        _run(key_groups, f"{task} {checkpoint_id}", 1_000),
    )
    table = TableSnapshot("count", "VALUE", {"type": "STRING"}, None, None, {"type": "LONG"}, runs)
    metrics = {"records_in": 12_345 + task.subtask, "records_out": 12_345, "delta_bytes": 20_000}
    return SubtaskState(task.subtask, KeyedSnapshot(key_groups, (table,)), watermark=1_700_000_000_000, metrics=metrics)


def metadata(write: WriteMetadata, attempt: Attempt) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_id="job",
        checkpoint_id=write.checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        parent_id=None,
        timestamp_ms=write.trigger_ms,
        partition=None,
        fencing_token=attempt.token,
        graph_fingerprint="f" * 64,
        end_of_input=False,
        operators=tuple(
            OperatorState(uid, uid, SUBTASKS, MAX_PARALLELISM, subtasks=subtasks)
            for uid, subtasks in write.states.items()
        ),
        properties={},
    )


class Driver:
    """A coordinator and its store. The messages of the tasks are created beforehand."""

    def __init__(self, folder: str) -> None:
        self.objects = LocalObjectStore(folder)
        self.store = CompletedCheckpointStore(self.objects)
        self.attempt = self.store.begin_attempt("benchmark", 0)
        everybody = tasks()
        plan = CheckpointPlan(everybody[:SUBTASKS], everybody, everybody[-SUBTASKS:])
        self.coordinator = CheckpointCoordinator("job", self.attempt.token, plan, CoordinatorConfig(num_retained=100))
        self.coordinator.handle(JobStatusChanged(0, running=True))

    def messages(self, checkpoint_id: int) -> list[AcknowledgeCheckpoint]:
        return [
            AcknowledgeCheckpoint("job", checkpoint_id, self.attempt.token, t.uid, t.subtask, state(t, checkpoint_id))
            for t in tasks()
        ]

    def trigger(self) -> int:
        self.coordinator.handle(TriggerRequested(1, forced=True))
        checkpoint_id = self.store.assign_checkpoint_id(self.attempt)
        instructions = self.coordinator.handle(CheckpointIdAssigned(1, checkpoint_id))
        assert isinstance(instructions[-1], EmitBarriers)
        return checkpoint_id

    def complete(self, checkpoint_id: int, messages: list[AcknowledgeCheckpoint]) -> CheckpointMetadata:
        """Does everything between the first acknowledgement and the completed checkpoint."""
        instructions: list[Any] = []
        for message in messages:
            instructions = self.coordinator.handle(Acknowledge(2, message))
        (write,) = instructions
        written = metadata(write, self.attempt)
        self.store.write_metadata(self.attempt, written)
        assert self.coordinator.handle(MetadataWritten(3, checkpoint_id)) == [ReplaceHead(checkpoint_id)]
        self.store.complete(self.attempt, written)
        self.coordinator.handle(HeadReplaced(4, checkpoint_id))
        return written


def plan_restore(written: CheckpointMetadata, parallelism: int) -> RestorePlan:
    return assign(written, [RestoreTarget(o.uid, parallelism, MAX_PARALLELISM) for o in written.operators])


class Cpu:
    """Measures CPU seconds of this process, one entry per ``with``."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds.append(time.process_time() - self._started)


def run(peers: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yields median CPU seconds of the driver, and bytes of ``_metadata`` per subtask."""
    completing, same, other = Cpu(), Cpu(), Cpu()
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(folder)
        for _ in range(ROUNDS):
            checkpoint_id = driver.trigger()
            messages = driver.messages(checkpoint_id)
            with completing:
                written = driver.complete(checkpoint_id, messages)
            driver.coordinator.handle(CommitFinished(5, checkpoint_id))
            with same:
                plan_restore(written, SUBTASKS)
            with other:
                plan_restore(written, SUBTASKS * 9 // 10)
        size = driver.objects.head(f"chk-{checkpoint_id}/{METADATA_NAME}").size
    settings = {"operators": OPERATORS, "subtasks": SUBTASKS, "max_parallelism": MAX_PARALLELISM, "runs per subtask": 2}
    for metric, value, unit, bar in (
        ("checkpoint_completion_cpu", statistics.median(completing.seconds), "s", "<= 1"),
        ("restore_planning_same_parallelism_cpu", statistics.median(same.seconds), "s", "<= 2"),
        ("restore_planning_rescaled_cpu", statistics.median(other.seconds), "s", "<= 2"),
        ("metadata_bytes_per_subtask", size / len(tasks()), "bytes", "<= 300"),
    ):
        yield line(metric, value, unit, bar=bar, settings=settings)
