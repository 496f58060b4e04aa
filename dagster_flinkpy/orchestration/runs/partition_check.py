"""The check that shows which partitions were computed from state that has changed since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetExecutionContext,
    AssetKey,
    MetadataValue,
    TimeWindowPartitionsDefinition,
)

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource
from dagster_flinkpy.orchestration.runs.partition_start import outdated, renumbered

__all__ = ["PARTITIONS_UP_TO_DATE", "partition_results", "record_partitions", "stored_outdated"]

PARTITIONS_UP_TO_DATE = "partitions_up_to_date"
"""Name of the check."""

_MOST_NAMED = 100


def stored_outdated(
    job: FlinkJob, storage: CheckpointStorageResource, partitions_def: TimeWindowPartitionsDefinition
) -> list[PartitionEnd]:
    """Returns the kept end states that are out of date, in order of time."""
    from dagster_flinkpy.checkpoint.traces import head_of_job

    head = head_of_job(storage.location().child(job.job_id).open())
    return outdated(renumbered(head.partitions if head else (), partitions_def, job_id=job.job_id))


def partition_results(
    context: AssetExecutionContext, assets: Iterable[AssetKey], stale: Sequence[PartitionEnd]
) -> Iterator[AssetCheckResult]:
    """Yields the result of the check for each asset. If the check is not selected, the result is recorded as an event.

    A run completes partitions whatever is selected. Without the event, the check would show an old result.

    Args:
        context: Context of the step.
        assets: The assets with the check.
        stale: The end states that are out of date.
    """
    selected = context.selected_asset_check_keys
    for asset in assets:
        if AssetCheckKey(asset, PARTITIONS_UP_TO_DATE) in selected:
            yield AssetCheckResult(asset_key=asset, check_name=PARTITIONS_UP_TO_DATE, **_finding(stale))
        else:
            record_partitions(context, [asset], stale)


def record_partitions(
    context: AssetExecutionContext, assets: Iterable[AssetKey], stale: Sequence[PartitionEnd]
) -> None:
    """Records the check in a run that fails. Takes the arguments of `partition_results`."""
    for asset in assets:
        context.log_event(AssetCheckEvaluation(asset, PARTITIONS_UP_TO_DATE, **_finding(stale)))


def _finding(stale: Sequence[PartitionEnd]) -> dict[str, Any]:
    said = "Each partition was computed from the current end state of the previous one."
    if stale:
        first, last = stale[0].partition, stale[-1].partition
        which = f"Partition {first} was" if len(stale) == 1 else f"{len(stale)} partitions, {first} to {last}, were"
        said = f"{which} computed before an earlier partition was run again. Run them again, in order."
    named = MetadataValue.json([end.partition for end in stale[:_MOST_NAMED]])
    facts = {"outdated": MetadataValue.int(len(stale)), "partitions": named}
    return {"passed": not stale, "severity": AssetCheckSeverity.WARN, "description": said, "metadata": facts}
