"""Records partitions: their materializations, and the check that shows which were computed from outdated state.

Materializations get the tags from which Dagster derives which later partitions are stale.
Dagster follows event pointers: a partition is stale if a partition it depends on has a newer event with another data
version. For assets that depend on their own earlier partitions, in a step that materializes several assets, Dagster
takes these pointers too early; and in a run over a range, one pointer cannot be right for all partitions. So they are
set here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    MaterializeResult,
    MetadataValue,
    TimeWindowPartitionsDefinition,
)

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource
from dagster_flinkpy.orchestration.runs.job_run import JobRun
from dagster_flinkpy.orchestration.runs.partition_start import outdated, renumbered
from dagster_flinkpy.orchestration.runs.report import asset_metadata, data_version

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch

__all__ = [
    "PARTITIONS_UP_TO_DATE",
    "materialize_partitions",
    "partition_results",
    "record_completed",
    "record_partitions",
    "stored_outdated",
]

PARTITIONS_UP_TO_DATE = "partitions_up_to_date"
"""Name of the check."""
_MOST_NAMED = 100


def materialize_partitions(
    run: JobRun, completed: Mapping[str, CompletedEpoch], attempt: int
) -> Iterator[MaterializeResult[Any]]:
    """Yields the events of a run that has completed all of its partitions.

    Args:
        run: The step.
        completed: The epochs by partition key, in order of time.
        attempt: Fencing token of the attempt.
    """
    *earlier, (_, last) = completed.items()
    version = data_version(last)  # Dagster records one version for all partitions of a step
    for uid, spec in run.specs.items():
        facts = {} if earlier else asset_metadata(last, run.assets, uid, attempt)
        if run.is_selected(spec):
            yield from run.materialize(spec, version, facts)
        else:
            for partition in completed:
                yield from run.materialize(spec, version, facts, partition=partition)
    if not earlier:
        return
    # A partition of the range depends on the previous one, whose event was stored just before.
    inputs = {uid: run.input_tags(spec, version) for uid, spec in run.specs.items()}
    for partition, epoch in completed.items():
        for uid, spec in run.specs.items():
            known = _latest_tags(run.context.instance, spec.key, partition)
            facts = asset_metadata(epoch, run.assets, uid, attempt)
            run.record(spec, facts, {**known, **inputs[uid]}, partition=partition)


def record_completed(run: JobRun, completed: Mapping[str, CompletedEpoch], attempt: int) -> None:
    """Records the partitions that a run completed before it failed. Arguments as for `materialize_partitions`."""
    for partition, epoch in completed.items():
        for uid, spec in run.specs.items():
            facts = asset_metadata(epoch, run.assets, uid, attempt)
            run.record(spec, facts, run.tags(spec, data_version(epoch)), partition=partition)


def _latest_tags(instance: DagsterInstance, key: AssetKey, partition: str) -> dict[str, str]:
    record = instance.get_latest_data_version_record(key, is_source=False, partition_key=partition)
    return dict(record.event_log_entry.tags or {}) if record else {}


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
