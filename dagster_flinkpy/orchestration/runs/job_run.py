"""A step that runs a job. It materializes all assets of the job, even if only some are selected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetRecordsFilter,
    AssetSpec,
    DagsterInstance,
    DataVersion,
    EventLogRecord,
    MaterializeResult,
)

from dagster_flinkpy.datastream.program.event_time import find_stalls
from dagster_flinkpy.orchestration.dagster_internals import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    extract_data_version_from_entry,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
    steps_of_job,
)
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.job_assets import JobAssets
from dagster_flinkpy.orchestration.runs.runs_of_job import refuse_other_location
from dagster_flinkpy.spark.user_logs import LogEntry, print_line

if TYPE_CHECKING:
    from dagster import DagsterLogManager

__all__ = ["UNCHANGED_TAG", "JobRun", "to_run"]

UNCHANGED_TAG = "flink/unchanged"
"""Tag of a materialization that is there only because other steps of its run read the asset, which has not changed."""


@dataclass(frozen=True)
class JobRun:
    """Knows which assets of a job a run has selected, and records the events of all of them.

    State and barriers belong to the job, so the step runs and materializes all of it. Dagster accepts only the
    results of selected assets. The other assets get events in the log of the same run, with the tags that Dagster would
    have set: data version, code version, and input versions. For selected assets, too, the input versions inside the
    job are set here: Dagster looks them up before the step runs, when unselected assets still have their previous
    version.
    """

    context: AssetExecutionContext
    assets: JobAssets
    """All assets of the job."""
    outside: Mapping[AssetKey, Mapping[str, str]]
    """The input tags of the assets outside the job, as they were when the step began; see `with_inputs_of`."""

    @property
    def specs(self) -> Mapping[str, AssetSpec]:
        """All assets of the job, by uid, in topological order."""
        return self.assets.specs

    @staticmethod
    def begin(context: AssetExecutionContext, assets: JobAssets) -> JobRun:
        """Begins a step. Logs it if only some assets of the job are selected, and warns of windows that never fire.

        Args:
            context: Context of the step.
            assets: The assets of the job.

        Raises:
            Failure: A run of another code location is working on the job.
        """
        job, specs = assets.job, assets.specs
        with flink_failures(context.log):
            refuse_other_location(context.instance, context.run, job.job_id, assets.keys)
        for stall in find_stalls(job.graph):
            context.log.warning(f"In job {job.job_id}, {stall}.")
        selected, own = context.selected_asset_keys, {spec.key for spec in specs.values()}
        others = [spec for spec in specs.values() if spec.key not in selected]
        if others:
            context.log.info(
                f"The selection {_names(spec for spec in specs.values() if spec.key in selected)} runs the whole "
                f"job {job.job_id} of {len(specs)} assets, because state and barriers belong to the job. So "
                f"these are materialized as well: {_names(others)}."
            )
        outside = {dep.asset_key for spec in specs.values() for dep in spec.deps} - own
        latest = context.instance.get_latest_data_version_record
        return JobRun(context, assets, {key: _tags_of(key, latest(key)) for key in outside})

    @property
    def owner(self) -> str:
        """The name of this try of the run, for attempts that find it leading the job or are fenced by it."""
        return f"Dagster run {self.context.run.run_id}, try {self.context.retry_number + 1}"

    def say(self, line: str) -> None:
        """Writes a line to the log of the run. If Dagster's database is away, as while it restarts, the job goes on.

        Dagster then says on standard error that it could not write the line.

        Args:
            line: The line.
        """
        with suppress(Exception):  # each storage of Dagster has its own
            self.context.log.info(line)

    def is_selected(self, spec: AssetSpec) -> bool:
        """Returns whether Dagster expects a result for this asset."""
        return spec.key in self.context.selected_asset_keys

    def is_read(self, spec: AssetSpec, *, by_checks: bool = True) -> bool:
        """Returns whether another step of the run reads this asset: without a result for it, Dagster would skip that.

        Args:
            spec: The asset.
            by_checks: Whether a step that only checks it counts.
        """
        own = set(self.context.assets_def.keys)
        others = [each for each in steps_of_job(self.context) if not own & set(each.keys) and (each.keys or by_checks)]
        return self.is_selected(spec) and any(spec.key in each.keys_by_input_name.values() for each in others)

    def unchanged_result(
        self, spec: AssetSpec, version: DataVersion, metadata: Mapping[str, Any]
    ) -> MaterializeResult[Any]:
        """Returns the result for an asset that has the data version that it had, but is read by other steps."""
        tags = {**self.outside_tags(spec), **self.input_tags(spec, version), UNCHANGED_TAG: "true"}
        return self.result(spec, version, metadata, tags)

    def known_results(self) -> Iterator[MaterializeResult[Any]]:
        """Yields the assets that other steps of the run read, as they were materialized last."""
        for spec in filter(self.is_read, self.specs.values()):
            entry = self.context.instance.get_latest_materialization_event(spec.key)
            event = entry.asset_materialization if entry else None
            version = (entry and extract_data_version_from_entry(entry)) or DEFAULT_DATA_VERSION
            yield self.unchanged_result(spec, version, event.metadata if event else {})

    def materialize(
        self, spec: AssetSpec, version: DataVersion, metadata: Mapping[str, Any], *, partition: str | None = None
    ) -> Iterator[MaterializeResult[Any]]:
        """Materializes an asset. Call it in topological order.

        Args:
            spec: The asset.
            version: Data version of all assets in the job.
            metadata: Metadata of the event.
            partition: Partition of the event, for assets that are not selected. Dagster knows it for the others.
        """
        if self.is_selected(spec):
            yield self.result(spec, version, metadata, self.input_tags(spec, version))
        else:
            self.record(spec, metadata, self.tags(spec, version), partition=partition)

    def result(
        self, spec: AssetSpec, version: DataVersion, metadata: Mapping[str, Any], tags: Mapping[str, str]
    ) -> MaterializeResult[Any]:
        """Returns the result of the step for a selected asset, which Dagster makes a materialization.

        Args:
            spec: The asset.
            version: Its data version.
            metadata: Metadata of the materialization. Metadata of the result would be in the event of the step's output
                as well.
            tags: Tags of the materialization.
        """
        self.context.add_asset_metadata(metadata, spec.key)
        return MaterializeResult(asset_key=spec.key, data_version=version, tags=tags)

    def record(
        self, spec: AssetSpec, metadata: Mapping[str, Any], tags: Mapping[str, str], *, partition: str | None
    ) -> None:
        """Records an event that is not a result of the step."""
        self.context.log_event(self.event(spec, metadata, tags, partition=partition))

    @staticmethod
    def event(
        spec: AssetSpec, metadata: Mapping[str, Any], tags: Mapping[str, str], *, partition: str | None = None
    ) -> AssetMaterialization:
        """Returns a materialization of an asset, with the tags that `tags` has returned."""
        return AssetMaterialization(spec.key, metadata=metadata, partition=partition, tags=tags)

    def with_inputs_of(self, trigger_ms: int) -> JobRun:
        """Returns this run with the input tags of the assets outside as they were when a checkpoint was triggered.

        The epoch of the checkpoint has read what was there then. Assets that were materialized since the step began are
        thus its input, but those that were materialized after the trigger may not be.

        Args:
            trigger_ms: When the checkpoint was triggered, in milliseconds since 1970.
        """
        instance = self.context.instance
        outside = {
            key: _tags_of(key, record) if (record := _newest(instance, key, trigger_ms / 1000)) else began
            for key, began in self.outside.items()
        }
        return replace(self, outside=outside)

    def tags(self, spec: AssetSpec, version: DataVersion) -> dict[str, str]:
        """Returns all tags from which Dagster later derives whether an asset is stale."""
        tags = {
            DATA_VERSION_TAG: version.value,
            DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
            CODE_VERSION_TAG: spec.code_version or self.context.run.run_id,
        }
        return tags | self.outside_tags(spec) | self.input_tags(spec, version)

    def outside_tags(self, spec: AssetSpec) -> dict[str, str]:
        """Returns the input tags of the assets outside the job on which an asset depends."""
        tags = dict[str, str]()
        for dep in spec.deps:
            tags |= self.outside.get(dep.asset_key, {})
        return tags

    def input_tags(self, spec: AssetSpec, version: DataVersion) -> dict[str, str]:
        """Returns the input tags of an asset inside the job: this version, in the newest event."""
        newest = str(self.context.instance.event_log_storage.get_maximum_record_id() or 0)
        own, tags = {each.key for each in self.specs.values()}, dict[str, str]()
        for dep in spec.deps:
            if dep.asset_key in own:
                tags[get_input_data_version_tag(dep.asset_key)] = version.value
                tags[get_input_event_pointer_tag(dep.asset_key)] = newest
        return tags


def _newest(instance: DagsterInstance, key: AssetKey, before: float) -> EventLogRecord | None:
    """Returns the newest materialization of an asset, or else its newest observation, before a time in seconds."""
    earlier = AssetRecordsFilter(key, before_timestamp=before)
    for fetch in (instance.fetch_materializations, instance.fetch_observations):
        for record in fetch(earlier, limit=1).records:
            return record
    return None


def _tags_of(key: AssetKey, record: EventLogRecord | None) -> dict[str, str]:
    version = extract_data_version_from_entry(record.event_log_entry) if record else None
    return {
        get_input_data_version_tag(key): (version or DEFAULT_DATA_VERSION).value,
        get_input_event_pointer_tag(key): str(record.storage_id) if record else NULL_EVENT_POINTER,
    }


def _names(specs: Iterable[AssetSpec]) -> str:
    return ", ".join(spec.key.to_user_string() for spec in specs)


def to_run(log: DagsterLogManager) -> Callable[[LogEntry], None]:
    """Returns a function that takes the entries: log records go to the run's log, printed lines to standard output.

    While Dagster's database is away, records are lost: no reason to end the job.

    Args:
        log: The log of the run.
    """

    def take(entry: LogEntry) -> None:
        if entry.level:
            with suppress(Exception):  # Dagster has said so on standard error
                # Dagster does not show a run that has records of other levels.
                log.log(min(entry.level // 10 * 10, logging.CRITICAL), str(entry))
        else:
            print_line(entry.text)

    return take
