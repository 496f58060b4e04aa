"""Records materializations of partitions with the tags from which Dagster derives which later partitions are stale.

Dagster follows event pointers: a partition is stale if a partition it depends on has a newer event with another data
version. For assets that depend on their own earlier partitions, in a step that materializes several assets, Dagster
takes these pointers too early; and in a run over a range, one pointer cannot be right for all partitions. So they are
set here.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterInstance, MaterializeResult

from dagster_flinkpy.orchestration.runs.job_run import JobRun
from dagster_flinkpy.orchestration.runs.report import asset_metadata, data_version

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch

__all__ = ["materialize_partitions", "record_completed"]


def materialize_partitions(
    run: JobRun, completed: Mapping[str, "CompletedEpoch"], attempt: int
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


def record_completed(run: JobRun, completed: Mapping[str, "CompletedEpoch"], attempt: int) -> None:
    """Records the partitions that a run completed before it failed. Arguments as for `materialize_partitions`."""
    for partition, epoch in completed.items():
        for uid, spec in run.specs.items():
            facts = asset_metadata(epoch, run.assets, uid, attempt)
            run.record(spec, facts, run.tags(spec, data_version(epoch)), partition=partition)


def _latest_tags(instance: DagsterInstance, key: AssetKey, partition: str) -> dict[str, str]:
    record = instance.get_latest_data_version_record(key, is_source=False, partition_key=partition)
    return dict(record.event_log_entry.tags or {}) if record else {}
