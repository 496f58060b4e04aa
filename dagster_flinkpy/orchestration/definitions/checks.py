"""The asset checks of a job: can the last checkpoint be restored, and does the job keep up?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckKey, AssetCheckResult, AssetCheckSpec, AssetExecutionContext

from dagster_flinkpy.common.arguments import check_settings
from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec, WindowSpec
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, StorageError
from dagster_flinkpy.orchestration.dagster_internals import SENSOR_NAME_TAG
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.orchestration.flink_job import dagster_name
from dagster_flinkpy.orchestration.job_assets import JobAssets
from dagster_flinkpy.orchestration.upgrade.findings import SAME_ROWS, found_last

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.resources import CheckpointStorageResource

__all__ = ["FlinkAssetChecks", "JobChecks", "job_checks"]

_STORE_FAILED = (
    "- This says nothing about the checkpoint. Run the check again when the store answers; `flinkpy doctor --storage "
    "URL` shows whether it does."
)
LARGE_STATE = 1 << 28
"""Bytes of state of which the runs of a sensor do not read all again and again."""
_READ_ALL_STATE = ("snapshot_integrity", "restore_drill")

_UNREAD = ("files", "bytes", "records", "versions", "milliseconds")
"""What sources count, as in `SourceLag`."""
_DESCRIPTIONS = {
    "snapshot_integrity": "All state files of the last checkpoint match their checksums, and each key group has one "
    "owner.",
    "restore_drill": "Restoring the last checkpoint at another parallelism would find every row of state.",
    "lag": "The last checkpoint and its watermark are recent enough.",
    "source_lag": "The last epoch left little enough input unread.",
    "event_time": "No input without watermarks holds event time back.",
    "late_records": "The windows drop few enough records that come too late.",
    "lingering_transactions": "The sinks have no staged data that no checkpoint will commit.",
    "checkpoint_trend": "The last checkpoint took about as long, and wrote about as much, as the ones before it.",
    "state_evolution": "The program can continue from the state of the last checkpoint, and its operators have not "
    "changed.",
    SAME_ROWS: "The last proof of an upgrade has found the same rows of both versions, or the job was switched since.",
}


@dataclass(frozen=True)
class FlinkAssetChecks:
    """Asset checks of a job's last completed checkpoint, for ``flink_assets(checks=...)``.

    - ``snapshot_integrity``, of operators with state: every state file exists and matches its checksum, and every key
      group has an owner.
    - ``restore_drill``, of operators with state: reads the state as a restore at another parallelism would, and fails
      if a row is missing.
    - ``lag``, of the last operators: the time since the last checkpoint, and how far the watermark is behind.
    - ``source_lag``, of sources of jobs without time partitions: how much input the last epoch left unread, because of
      a limit such as ``max_bytes_per_epoch``.
    - ``event_time``, of operators with inputs: fails if windows and timers wait because an input gives no watermarks.
    - ``late_records``, of event-time windows that drop late records: how many they dropped since the event before.
    - ``lingering_transactions``, of sinks: fails if data is staged that no checkpoint will commit.
    - ``checkpoint_trend``, of operators with state, or of sources if there are none: compares duration and size of the
      last checkpoint with the median of the earlier ones.
    - ``state_evolution``, of operators with state, or of sources if there are none: compares the deployed program with
      the last checkpoint. It fails if the next run will be refused, and warns if an operator keeps its state but has
      changed.
    - ``same_rows``, of sinks of jobs without time partitions: what the upgrade job has found last. It fails if the rows
      of the two versions differ, until the next proof, or until the job is switched to another version.

    The check of a hidden operator is a check of the first asset that shows its numbers. Checks run in the step of the
    operators, after the checkpoint is complete. They can also be run alone; then the step does nothing else and needs
    no Spark. They read the state. The first two read all of it; a run that a sensor starts leaves them out if the state
    is larger than 256 MiB. If a run replaces a checkpoint while a check reads it, the check looks at the newer one. If
    the store fails, the step fails; a completed checkpoint stays complete.

    Raises:
        ConfigurationError: ``trend_factor`` is not above 1, or a number or a time is below 0.

    Examples:
        Fail if the last checkpoint is older than an hour:

        .. code-block:: python

            from datetime import timedelta

            from dagster_flinkpy.orchestration import FlinkAssetChecks, flink_assets

            # `words_env` builds the program
            assets = flink_assets(words_env, name="words", checks=FlinkAssetChecks(max_lag=timedelta(hours=1)))
    """

    max_lag: timedelta | None = None
    """``lag`` fails if the last checkpoint is older than this and input is left. Default: never."""
    max_event_time_lag: timedelta | None = None
    """``lag`` fails if the watermark is behind the clock by more than this. Default: never."""
    max_unread_files: int | None = None
    """``source_lag`` fails if the last epoch left more files than this unread. Default: never. As the next four."""
    max_unread_bytes: int | None = None
    max_unread_records: int | None = None
    max_unread_versions: int | None = None
    max_unread_milliseconds: int | None = None
    max_late_records: int | None = None
    """``late_records`` fails if a window dropped more late records than this. Default: never."""
    trend_factor: float = 3.0
    """``checkpoint_trend`` warns if duration or size of the last checkpoint is more than this many times the median."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.trend_factor > 1:  # also NaN
            raise ConfigurationError(
                f"trend_factor={self.trend_factor} must be above 1: half of all checkpoints are above the median"
            )
        for name in ("max_late_records", *(f"max_unread_{what}" for what in _UNREAD)):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ConfigurationError(f"{name}={number} must be 0 or more")
        for name in ("max_lag", "max_event_time_lag"):
            span = getattr(self, name)
            if span is not None and span < timedelta(0):
                raise ConfigurationError(f"{name}={span} is a negative time, with which the check would never pass")


@dataclass(frozen=True)
class JobChecks:
    """The checks of a job's assets."""

    assets: JobAssets
    limits: Mapping[str, Mapping[str, Any]]
    """Further arguments of checks, by name."""
    operators: Mapping[AssetCheckKey, Sequence[str]]
    """The operators that each looks at."""

    @property
    def specs(self) -> list[AssetCheckSpec]:
        """The specs of the checks."""
        return [
            AssetCheckSpec(key.name, asset=key.asset_key, description=_DESCRIPTIONS[key.name]) for key in self.operators
        ]

    def run(self, context: AssetExecutionContext, storage: CheckpointStorageResource) -> Iterator[AssetCheckResult]:
        """Yields the results of the selected checks.

        Args:
            context: Context of the step.
            storage: Where checkpoints are kept.

        Raises:
            Failure: The store failed, or the latest checkpoint cannot be looked at.
        """
        chosen = {k: uids for k, uids in self.operators.items() if k in context.selected_asset_check_keys}
        if not chosen:
            return
        from dagster_flinkpy.orchestration.runs.check_findings import JobView, look, stored_bytes

        job = self.assets.job
        try:
            view = JobView(self.assets, context.instance, storage.location().child(job.job_id), context.run.run_id)
            # A sensor may start a run each minute. A run of checks alone was asked for.
            by_sensor = SENSOR_NAME_TAG in context.run.tags and bool(context.selected_asset_keys)
            spare = by_sensor and stored_bytes(view) > LARGE_STATE
            for key, uids in chosen.items():
                if spare and key.name in _READ_ALL_STATE:
                    of = key.asset_key.to_user_string()
                    context.log.info(f"Left out {key.name} of {of}: the state is large. Run the check at intervals.")
                elif key.name == SAME_ROWS:
                    yield found_last(context.instance, key, dagster_name(job.job_id))
                else:
                    finding = look(key.name, uids, key.asset_key, view, **self.limits.get(key.name, {}))
                    yield AssetCheckResult(asset_key=key.asset_key, check_name=key.name, **vars(finding))
        except StorageError as error:
            raise as_failure(error, _STORE_FAILED) from error
        except FlinkPyError as error:
            raise as_failure(error) from error


def job_checks(assets: JobAssets, settings: FlinkAssetChecks | None) -> JobChecks:
    """Makes the checks of a job.

    Args:
        assets: The job's assets.
        settings: The limits; None: there are no checks.
    """
    if settings is None:
        return JobChecks(assets, {}, {})
    limits: dict[str, dict[str, Any]] = {
        "lag": {"max_lag": settings.max_lag, "max_event_time_lag": settings.max_event_time_lag},
        "source_lag": {what: getattr(settings, f"max_unread_{what}") for what in _UNREAD},
        "late_records": {"max_late_records": settings.max_late_records},
        "checkpoint_trend": {"factor": settings.trend_factor},
    }
    looked_at: dict[AssetCheckKey, list[str]] = {}
    for name, uids in _checked_operators(assets).items():
        for uid in uids:
            looked_at.setdefault(AssetCheckKey(assets.specs[assets.shown_by(uid)].key, name), []).append(uid)
    return JobChecks(assets, limits, looked_at)


def _checked_operators(assets: JobAssets) -> dict[str, Sequence[str]]:
    """Returns the operators that each check looks at."""
    graph = assets.job.graph
    stateful = [v.uid for v in graph.vertices if v.spec.keeps_state and not isinstance(v.spec, (SourceSpec, SinkSpec))]
    sources = [v.uid for v in graph.vertices if not graph.inputs(v.uid)]
    windows = [
        v.uid
        for v in graph.vertices
        if isinstance(v.spec, WindowSpec) and v.spec.assigner.is_event_time() and v.spec.late_tag is None
    ]
    last = [v for v in graph.vertices if not graph.outputs(v.uid)]
    limited = sources
    sinks = [v.uid for v in last if isinstance(v.spec, SinkSpec)]
    partitioned = any(spec.partitions_def is not None for spec in assets.specs.values())
    if partitioned:
        # A partition is one epoch without limits. And a source depends on its own previous partition, with which
        # Dagster cannot run a check of it alone.
        limited, sources = [], [v.uid for v in last]
    return {
        "snapshot_integrity": stateful,
        "restore_drill": stateful,
        "lag": [v.uid for v in last],
        "source_lag": limited,
        "event_time": [v.uid for v in graph.vertices if graph.inputs(v.uid)],
        "late_records": windows,
        "lingering_transactions": sinks,
        "checkpoint_trend": stateful or sources,
        "state_evolution": stateful or sources,
        # No upgrade of a partitioned job is proved. A hidden sink has no page for it.
        SAME_ROWS: [] if partitioned else [uid for uid in sinks if uid in assets.specs],
    }
