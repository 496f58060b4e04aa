"""Which assets of a job a checkpoint has changed, so that Dagster materializes these and only observes the others.

Assets that depend on each other are materialized together, or none of them: otherwise Dagster would call those out of
date that come behind the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, DagsterInstance, DataVersion, EventLogRecord, MetadataValue

from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec, SinkSpec
from dagster_flinkpy.orchestration.dagster_internals import extract_data_version_from_entry
from dagster_flinkpy.orchestration.job_assets import JobAssets

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch

__all__ = ["LOOKED_AT", "ChangedTables", "metadata_of", "newest_events", "recorded_checkpoint"]

LOOKED_AT = 20
"""How many observations are searched. Few have neither a data version nor a watermark: late rows, savepoints."""


class ChangedTables:
    """The assets that have changed since they were last recorded.

    At first all have. If the last event of each asset names the checkpoint that a run continues from, none has.

    Args:
        assets: The assets of the job.
    """

    def __init__(self, assets: JobAssets) -> None:
        graph, self._parts = assets.job.graph, _parts(assets)
        self._sinks = {
            vertex.uid: self._parts[assets.shown_by(vertex.uid)]
            for vertex in graph.vertices
            if isinstance(vertex.spec, SinkSpec) and not isinstance(vertex.spec, BlockingEdgeSinkSpec)
        }
        self._assets = assets
        self._versions: dict[str, DataVersion] = {}
        self._changed = set(self._parts.values())

    def continues_from(self, checkpoint_id: int, instance: DagsterInstance) -> None:
        """Finds out which assets have not changed since their last materialization.

        Args:
            checkpoint_id: The checkpoint that the run continues from.
            instance: Where the events are.
        """
        recorded = set[str]()
        for uid, spec in self._assets.specs.items():
            found = instance.fetch_materializations(spec.key, limit=1).records
            version = extract_data_version_from_entry(found[0].event_log_entry) if found else None
            if version is not None and recorded_checkpoint(instance, spec.key) == checkpoint_id:
                self._versions[uid] = version
                recorded.add(uid)
        self._changed = {part for uid, part in self._parts.items() if uid not in recorded}

    def completed(self, epoch: CompletedEpoch) -> None:
        """Takes a checkpoint that was just completed."""
        for part in set(self._parts.values()):
            sinks = [uid for uid, of in self._sinks.items() if of == part]
            # Without a table, whatever the job does is the change.
            looked_at = sinks or [uid for uid, of in self._parts.items() if of == part]
            if any(_has_changed(epoch, uid) for uid in looked_at):
                self._changed.add(part)

    def recorded(self, versions: Mapping[str, DataVersion]) -> None:
        """Notes that events have the present state, with the data version of each asset."""
        self._versions.update(versions)
        self._changed.clear()

    def unchanged(self, uid: str) -> DataVersion | None:
        """Returns the data version of an asset that has not changed; None if it has."""
        return None if self._parts[uid] in self._changed else self._versions.get(uid)


def newest_events(instance: DagsterInstance, key: AssetKey, *, observations: int = LOOKED_AT) -> list[EventLogRecord]:
    """Returns the last materialization and the last observations of an asset, the newest first.

    Args:
        instance: Where the events are.
        key: The asset.
        observations: How many of them.
    """
    events = [
        *instance.fetch_materializations(key, limit=1).records,
        *instance.fetch_observations(key, limit=observations).records,
    ]
    return sorted(events, key=lambda event: event.storage_id, reverse=True)


def metadata_of(event: EventLogRecord) -> Mapping[str, MetadataValue[Any]]:
    """Returns the metadata of a materialization or observation."""
    recorded = event.asset_materialization or event.asset_observation
    return recorded.metadata if recorded else {}


def recorded_checkpoint(instance: DagsterInstance, key: AssetKey) -> object:
    """Returns the checkpoint up to which a run has recorded the rows of an asset; None if there is none.

    What a savepoint, a rescale or the like has observed does not count, and has no data version: it names a checkpoint
    whose rows no run may have recorded, because it was killed.

    Args:
        instance: Where the events are.
        key: The asset.
    """
    for event in newest_events(instance, key):
        if event.asset_materialization or extract_data_version_from_entry(event.event_log_entry) is not None:
            entry = metadata_of(event).get("flink/checkpoint_id")
            return None if entry is None else entry.value
    return None


def _has_changed(epoch: CompletedEpoch, uid: str) -> bool:
    report, state = epoch.operator(uid), epoch.metadata.operator(uid)
    committables = [c for subtask in state.subtasks for c in subtask.committables] if state else []
    # What is committed may be that of a checkpoint before, which has failed.
    return bool(report.records_in or report.records_out or any(each.get("rows", 1) for each in committables))


def _parts(assets: JobAssets) -> dict[str, str]:
    """Returns the part of each asset: assets that are connected have the same one."""
    uids = {spec.key: uid for uid, spec in assets.specs.items()}
    parts = {uid: uid for uid in assets.specs}
    for uid, spec in assets.specs.items():
        for upstream in {uids[dep.asset_key] for dep in spec.deps if dep.asset_key in uids}:
            mine, theirs = parts[uid], parts[upstream]
            parts = {each: theirs if part == mine else part for each, part in parts.items()}
    return parts
