"""Breaks rules of time partitions one at a time, and adds them to the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.checkpoint.starting_point import Restore
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.simulation.mutations import CALM, MUTATIONS, Wrapped, mutation

__all__ = ["MUTATIONS"]

_PARTITIONS = {**CALM, "partitioned": 1, "requests": 0, "upkeep": 0, "savepoint": 0}


@mutation(
    "retention drops the end state from which an active run has started",
    PartitionRetention,
    "kept",
    "is not kept, though its run is at work",
    partitioned=1,
)
def _(real: Wrapped, retention: PartitionRetention, ends: Any, newest: int | None, started_from: int | None) -> Any:
    return real(retention, ends, newest)


@mutation(
    "retention drops the end state that the next partition starts from",
    PartitionRetention,
    "kept",
    "is not kept, though the next partition starts from it",
    **_PARTITIONS,
)
def _(real: Wrapped, retention: PartitionRetention, ends: Any, newest: int | None, started_from: int | None) -> Any:
    return real(retention, ends, started_from)


@mutation(
    "a partition continues from the latest checkpoint, not from the previous partition",
    Restore,
    "load",
    "which no uninterrupted run would",
    **_PARTITIONS,
)
def _(real: Wrapped, restore: Restore, config: Any, graph: Any, store: Any, attempt: Attempt) -> Any:
    return attempt.latest


@mutation(
    "rows of a partition are deleted before the new ones exist",
    Committers,
    "commit",
    "its partition was not written again",
    **{**_PARTITIONS, "crash": 0.005},
)
def _(real: Wrapped, committers: Committers, metadata: CheckpointMetadata) -> Any:
    if metadata.partition is not None:
        for committer in committers:
            committer.replace_partition(metadata.partition, metadata.checkpoint_id)
    return real(committers, metadata)


@mutation(
    "rows of a partition stay when it is run again",
    StagedFileCommitter,
    "replace_partition",
    "though its partition was written again",
    **_PARTITIONS,
)
def _(real: Wrapped, committer: StagedFileCommitter, partition: str, checkpoint_id: int) -> int:
    return 0


@mutation(
    "a checkpoint that reads nothing replaces the rows of a partition",
    JobAttempt,
    "_create_metadata",
    "its partition was not written again",
    **{**_PARTITIONS, "upkeep": 0.6, "savepoint": 0.4},
)
def _(real: Wrapped, attempt: JobAttempt, write: Any) -> CheckpointMetadata:
    metadata: CheckpointMetadata = real(attempt, write)
    parent = attempt._deployed.contents.parent
    return metadata if metadata.partition or parent is None else replace(metadata, partition=parent.partition)


@mutation(
    "a fenced attempt takes rows that were replaced for lost",
    JobAttempt,
    "_commit",
    "CommittableLostError",
    **{**_PARTITIONS, "crash": 0.01, "pause": 0.03},
)
def _(real: Wrapped, attempt: JobAttempt, metadata: CheckpointMetadata) -> Any:
    return attempt._transactions.committers.commit(metadata)
