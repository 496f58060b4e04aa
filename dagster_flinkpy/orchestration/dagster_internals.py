"""Everything that the library uses from Dagster's private modules, with the reason for each.

No other module imports ``dagster._...``; ruff checks it. A new release of Dagster is checked against this list.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DefaultSensorStatus,
    SensorDefinition,
)

# The types of asset keys in the public signatures of Dagster's own decorators (`multi_asset(deps=...)`).
from dagster._core.definitions.assets.definition.asset_dep import CoercibleToAssetDep

# Data versions: Dagster uses these tags to decide whether an asset is stale. It does not set them on events that are
# recorded by hand, as for partitions of a range and for assets that a run materializes without being selected.
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    extract_data_version_from_entry,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.events import CoercibleToAssetKey

# Typed metadata under a namespace, as Dagster's own integrations declare it; and the standard keys for tables.
from dagster._core.definitions.metadata.metadata_set import NamespacedMetadataSet, TableMetadataSet, UriMetadataSet
from dagster._core.definitions.metadata.source_code import CodeReferencesMetadataSet

# What the public `define_asset_job` returns.
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

# What the context of an asset raises that a test calls directly, which has neither a run nor a code location.
from dagster._core.errors import DagsterInvalidPropertyError

# How the steps of a run ended. In a run of several jobs, each job is a step.
from dagster._core.execution.stats import StepEventStatus

# A check's evaluations. The public API gives the latest record, which is without a result while the check is planned.
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

# The statuses of runs that are queued or alive.
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

# Names of the tags by which Dagster marks the runs of backfills, partitions, sensors and retries, and their time limit;
# and of those that a user may set, such as their priority.
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    MAX_RUNTIME_SECONDS_TAG,
    PARTITION_NAME_TAG,
    ROOT_BACKFILL_ID_TAG,
    ROOT_RUN_ID_TAG,
    RUN_KEY_TAG,
    SENSOR_NAME_TAG,
    USER_EDITABLE_SYSTEM_TAGS,
    WILL_RETRY_TAG,
)

# What contexts raise that lack something.
from dagster_shared.check import CheckError

__all__ = [
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "BACKFILL_ID_TAG",
    "CODE_VERSION_TAG",
    "DATA_VERSION_IS_USER_PROVIDED_TAG",
    "DATA_VERSION_TAG",
    "DEFAULT_DATA_VERSION",
    "MAX_RUNTIME_SECONDS_TAG",
    "NOT_FINISHED_STATUSES",
    "NULL_EVENT_POINTER",
    "PARTITION_NAME_TAG",
    "ROOT_BACKFILL_ID_TAG",
    "ROOT_RUN_ID_TAG",
    "RUN_KEY_TAG",
    "SENSOR_NAME_TAG",
    "USER_EDITABLE_SYSTEM_TAGS",
    "WILL_RETRY_TAG",
    "CodeReferencesMetadataSet",
    "CoercibleToAssetDep",
    "CoercibleToAssetKey",
    "NamespacedMetadataSet",
    "StepEventStatus",
    "TableMetadataSet",
    "UnresolvedAssetJobDefinition",
    "UriMetadataSet",
    "assets_of_location",
    "delete_run",
    "extract_data_version_from_entry",
    "get_input_data_version_tag",
    "get_input_event_pointer_tag",
    "last_evaluation",
    "record_at_once",
    "run_of",
    "steps_of_job",
    "switch_sensor",
]


def delete_run(instance: DagsterInstance, run_id: str) -> None:
    """Deletes a run that has ended: its events, captured logs and tracebacks, and its file if events are in SQLite.

    Dagster empties that file, which has more bytes than the events of a short run, and leaves it. It does not know the
    tracebacks, which `as_failure` has written.

    Args:
        instance: Where the run is recorded.
        run_id: The run.
    """
    from dagster._core.storage.event_log import SqliteEventLogStorage

    instance.delete_run(run_id)
    instance.compute_log_manager.delete_logs(prefix=[run_id, "compute_logs"])
    folder = Path(instance.storage_directory(), run_id)
    for traceback in folder.glob("*.traceback.txt"):
        traceback.unlink(missing_ok=True)
    with suppress(OSError):  # it has other things of the run, or is not there
        folder.rmdir()
    if isinstance(instance.event_log_storage, SqliteEventLogStorage):
        file = Path(instance.event_log_storage.path_for_shard(run_id))
        for name in (file.name, f"{file.name}-wal", f"{file.name}-shm"):
            file.with_name(name).unlink(missing_ok=True)


def assets_of_location(context: AssetExecutionContext) -> set[AssetKey] | None:
    """Returns the assets of the code location that a step belongs to; None in ``materialize()`` and direct calls."""
    try:
        return set(context.repository_def.asset_graph.get_all_asset_keys())
    except (CheckError, DagsterInvalidPropertyError):
        return None


def run_of(context: AssetExecutionContext) -> DagsterRun | None:
    """Returns the run of a step; None if a test calls the asset directly, as with `build_asset_context()`."""
    try:
        return context.run
    except DagsterInvalidPropertyError:
        return None


def steps_of_job(context: AssetExecutionContext) -> list[AssetsDefinition]:
    """Returns what each step of the job of a run materializes or checks. Dagster does not promise ``asset_layer``."""
    return [each.assets_def for each in context.job_def.asset_layer.data]


def record_at_once(context: AssetExecutionContext, event: AssetMaterialization | AssetObservation) -> None:
    """Stores an event in the log of the run, and does not keep it for the executor until the step yields a result.

    A step that runs for days would keep all of its events in memory. Nothing but tests needs them there.
    ``consume_events`` is meant for Dagster itself.

    Args:
        context: Context of the step.
        event: The event.
    """
    context.log_event(event)
    for _ in context.consume_events():
        pass


def switch_sensor(instance: DagsterInstance, run: DagsterRun, sensor: SensorDefinition, *, on: bool) -> bool:
    """Switches a sensor on or off like the switch in the UI. Dagster has a GraphQL mutation for it, but no Python API.

    Args:
        instance: Where the sensor's state is stored.
        run: A run that was launched from the code location of the sensor.
        sensor: The sensor.
        on: Whether it is to run.

    Returns:
        Whether that changed anything.
    """
    # Imported here because this module takes 70 ms to import, which every code location would pay for.
    from dagster._core.definitions.run_request import InstigatorType
    from dagster._core.definitions.sensor_definition import SensorType
    from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData

    assert run.remote_job_origin is not None, "the run was launched from a code location"
    origin = run.remote_job_origin.repository_origin.get_instigator_origin(sensor.name)
    status = InstigatorStatus.RUNNING if on else InstigatorStatus.STOPPED
    data = SensorInstigatorData(
        min_interval=sensor.minimum_interval_seconds,
        last_sensor_start_timestamp=time.time() if on else None,
        sensor_type=SensorType.STANDARD,
    )
    wanted = InstigatorState(origin, InstigatorType.SENSOR, status, data)
    stored = instance.get_instigator_state(wanted.instigator_origin_id, wanted.selector_id)
    runs_now = sensor.default_status == DefaultSensorStatus.RUNNING if stored is None else stored.is_running
    if runs_now == on:
        return False
    if stored is None:
        instance.add_instigator_state(wanted)
        return True
    known = stored.instigator_data
    if on and isinstance(known, SensorInstigatorData):
        stored = stored.with_data(known.with_sensor_start_timestamp(time.time()))
    instance.update_instigator_state(stored.with_status(status))
    return True


def last_evaluation(instance: DagsterInstance, key: AssetCheckKey) -> AssetCheckEvaluation | None:
    """Returns what a check has found last, or None if it was never evaluated.

    Args:
        instance: Where its evaluations are stored.
        key: The check.
    """
    done = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=done):
        if record.event is not None and record.event.dagster_event is not None:
            return record.event.dagster_event.asset_check_evaluation_data
    return None
