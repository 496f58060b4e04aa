"""Materializations of partitions, with provenance by which Dagster finds out which later partitions are stale.

Dagster tells whether a partition is stale by event pointers: has a partition it depends on a newer event, with another
data version? Of assets that depend on their own earlier partitions, in a step that materializes several assets, Dagster
takes these pointers too early, and in a run over a range of partitions one pointer cannot be right for all. So we give
them.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetSpec,
    DagsterInstance,
    MaterializeResult,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG, get_input_event_pointer_tag

from dagster_flinkpy.orchestration.report import data_version, operator_metadata

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.reports import CompletedEpoch

__all__ = ["materialize_partitions", "record_completed"]


def materialize_partitions(
    context: AssetExecutionContext,
    specs: Mapping[str, AssetSpec],
    completed: Mapping[str, "CompletedEpoch"],
    attempt: int,
) -> Iterator[MaterializeResult[Any]]:
    """The events of a run that has read all of its partitions; for the step to yield.

    Args:
        context: Of the step.
        specs: The job's assets by uid, in topological order.
        completed: Epochs by partition key, in order of time.
        attempt: Fencing token.
    """
    region, instance = {spec.key for spec in specs.values()}, context.instance
    *earlier, (_, last) = completed.items()
    version = data_version(last)  # Dagster records one for all partitions of a step
    for uid, spec in specs.items():
        facts = {} if earlier else operator_metadata(last, last.operator(uid), attempt)
        yield MaterializeResult(
            asset_key=spec.key, data_version=version, metadata=facts, tags=_pointers(spec, region, instance)
        )
    if not earlier:
        return
    # A partition of the range depends on the one before, whose event has only now been stored.
    tags = {spec.key: _pointers(spec, region, instance) for spec in specs.values()}
    for partition, epoch in completed.items():
        for uid, spec in specs.items():
            known = _latest_tags(instance, spec.key, partition)
            _record(context, spec, uid, partition, epoch, attempt, {**known, **tags[spec.key]})


def record_completed(
    context: AssetExecutionContext,
    specs: Mapping[str, AssetSpec],
    completed: Mapping[str, "CompletedEpoch"],
    attempt: int,
) -> None:
    """The events of partitions that a run completed before it failed; arguments as of `materialize_partitions`."""
    for partition, epoch in completed.items():
        for uid, spec in specs.items():
            _record(context, spec, uid, partition, epoch, attempt, {DATA_VERSION_TAG: data_version(epoch).value})


def _record(
    context: AssetExecutionContext,
    spec: AssetSpec,
    uid: str,
    partition: str,
    epoch: "CompletedEpoch",
    attempt: int,
    tags: Mapping[str, str],
) -> None:
    facts = operator_metadata(epoch, epoch.operator(uid), attempt)
    context.log_event(AssetMaterialization(spec.key, partition=partition, metadata=facts, tags=tags))


def _pointers(spec: AssetSpec, region: set[AssetKey], instance: DagsterInstance) -> dict[str, str]:
    """Pointers to the newest event there is, for what an asset depends on inside the region."""
    newest = str(instance.event_log_storage.get_maximum_record_id() or 0)
    return {get_input_event_pointer_tag(dep.asset_key): newest for dep in spec.deps if dep.asset_key in region}


def _latest_tags(instance: DagsterInstance, key: AssetKey, partition: str) -> dict[str, str]:
    record = instance.get_latest_data_version_record(key, is_source=False, partition_key=partition)
    return dict(record.event_log_entry.tags or {}) if record else {}
