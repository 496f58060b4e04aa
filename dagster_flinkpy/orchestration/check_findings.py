"""What asset checks find out about the last checkpoint. Imported when one runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import Any

from dagster import AssetCheckSeverity, AssetKey, DagsterInstance, IntMetadataValue, MetadataValue

from dagster_flinkpy.checkpoint import verify
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import CorruptMetadataError, CorruptStateError, FlinkPyError, StorageError
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_runs import active_runs
from dagster_flinkpy.runtime.committers import Committers
from dagster_flinkpy.storage import ObjectStore

__all__ = ["Finding", "look"]

_TREND_OVER = 20
_TREND_NEEDS = 5
_END_OF_TIME = 2**63 - 1
_TRIES = 5

WARN, ERROR = AssetCheckSeverity.WARN, AssetCheckSeverity.ERROR


@dataclass(frozen=True)
class _View:
    """What a check looks at."""

    job: FlinkJob
    uid: str
    asset: AssetKey
    assets: Sequence[AssetKey]
    """Of the whole job."""
    instance: DagsterInstance
    store: ObjectStore
    latest: CheckpointMetadata

    def of_operator(self) -> CheckpointMetadata:
        """The checkpoint, cut down to the operator."""
        return replace(self.latest, operators=tuple(o for o in self.latest.operators if o.uid == self.uid))


@dataclass(frozen=True)
class Finding:
    """What a check has to say about an operator."""

    passed: bool
    description: str
    metadata: dict[str, Any]
    severity: AssetCheckSeverity = ERROR


def look(
    check: str,
    job: FlinkJob,
    uid: str,
    asset: AssetKey,
    *,
    assets: Sequence[AssetKey],
    instance: DagsterInstance,
    store: ObjectStore,
    **limits: Any,
) -> Finding:
    """What a check finds of the latest checkpoint. A run may complete the next one and delete it meanwhile.

    Args:
        check: Name of the check.
        job: The job.
        uid: Of the operator.
        asset: Of the operator.
        assets: Of the whole job.
        instance: Where its runs are.
        store: Of its checkpoints.
        limits: Of the check.

    Raises:
        StorageError: The store fails, which says nothing about the checkpoint.
    """
    checkpoints, find = CompletedCheckpointStore(store), _FINDERS[check]
    seen: list[int] = []
    try:
        latest = checkpoints.latest()
        while latest is not None:
            finding = find(_View(job, uid, asset, assets, instance, store, latest), **limits)
            finding.metadata["flink/checkpoint_id"] = latest.checkpoint_id
            seen.append(latest.checkpoint_id)
            if finding.passed or (latest := checkpoints.latest()) is None or latest.checkpoint_id == seen[-1]:
                return finding
            if len(seen) == _TRIES:
                what = f"Checkpoints {seen} were each replaced while they were read. Check when no run is at work."
                return Finding(False, what, {}, WARN)
    except CorruptMetadataError as error:
        return Finding(False, str(error), {})
    return Finding(True, "There is no completed checkpoint yet.", {})


def _integrity(view: _View) -> Finding:
    found = verify.verify_checkpoint(view.of_operator(), view.store)
    facts: dict[str, Any] = {"files": found.files, "bytes": found.bytes}
    if not found.problems:
        return Finding(True, f"{found.files} files, {found.bytes:,} bytes, all with their checksums.", facts)
    facts["problems"] = MetadataValue.md("\n".join(f"- {line}" for line in found.problems))
    more = f", and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
    return Finding(False, f"{found.problems[0]}{more}. Restore a savepoint or an older checkpoint.", facts)


def _drill(view: _View) -> Finding:
    try:
        drill = verify.restore_drill(view.of_operator(), view.store)
    except (CorruptStateError, CorruptMetadataError) as error:
        return Finding(False, str(error), {})
    except StorageError:
        raise
    except FlinkPyError as error:
        return Finding(False, str(error), {}, WARN)
    rows = drill.after.get(view.uid, 0)
    return Finding(
        True,
        f"{rows:,} rows of keyed state and timers, the same at parallelism {drill.parallelism}.",
        {"rows": rows, "parallelism": drill.parallelism},
    )


def _lag(view: _View, max_lag: timedelta | None, max_event_time_lag: timedelta | None) -> Finding:
    now_ms, latest = time.time_ns() // 1_000_000, view.latest
    since = timedelta(milliseconds=max(now_ms - latest.timestamp_ms, 0))
    operator = latest.operator(view.uid)
    watermarks = [s.watermark for s in operator.subtasks if s.watermark is not None] if operator else []
    facts: dict[str, Any] = {"seconds_since_checkpoint": since.total_seconds()}
    said = f"The last checkpoint is {_span(since)} old"
    if latest.end_of_input:
        return Finding(True, f"{said}; it read the last of the input.", facts)
    passed = max_lag is None or since <= max_lag
    if watermarks and min(watermarks) < _END_OF_TIME:
        behind = timedelta(milliseconds=max(now_ms - min(watermarks), 0))
        facts["event_time_lag_seconds"] = behind.total_seconds()
        said += f", the watermark {_span(behind)} behind"
        passed &= max_event_time_lag is None or behind <= max_event_time_lag
    return Finding(passed, f"{said}.", facts)


def _lingering(view: _View) -> Finding:
    runs = active_runs(view.instance, view.job.job_id, view.assets)
    count = Committers(view.job.graph, view.job.job_id, attempt=2**63 - 1).lingering(view.latest).get(view.uid, 0)
    facts: dict[str, Any] = {"transactions": count}
    if runs and count:
        return Finding(True, f"{count} open transactions, of run {runs[0].run_id} that is at work.", facts)
    if count:
        what = f"{count} open transactions that no checkpoint names; the next run of the job aborts them."
        return Finding(False, what, facts, WARN)
    return Finding(True, "No transaction is open.", facts)


def _trend(view: _View, factor: float) -> Finding:
    records = view.instance.fetch_materializations(view.asset, limit=_TREND_OVER + 1).records
    said, facts, passed = [], dict[str, Any](), True
    for field, unit in (("duration_ms", "ms"), ("delta_bytes", "bytes")):
        events = (record.asset_materialization for record in records)
        found = (event.metadata.get(f"flink/{field}") for event in events if event)
        values = [entry.value for entry in found if isinstance(entry, IntMetadataValue) and entry.value is not None]
        if len(values) <= _TREND_NEEDS:
            continue
        usual = median(values[1:])
        facts |= {field: values[0], f"median_{field}": float(usual)}
        said.append(f"{field} {values[0]:,} {unit}, median of {len(values) - 1} before {usual:,.0f}")
        passed &= values[0] <= max(usual, 1) * factor
    if not said:
        return Finding(True, f"Fewer than {_TREND_NEEDS + 1} checkpoints to compare.", facts, WARN)
    return Finding(passed, "; ".join(said) + ".", facts, WARN)


def _span(duration: timedelta) -> str:
    return str(timedelta(seconds=round(duration.total_seconds())))


_FINDERS: dict[str, Callable[..., Finding]] = {
    "snapshot_integrity": _integrity,
    "restore_drill": _drill,
    "lag": _lag,
    "lingering_transactions": _lingering,
    "checkpoint_trend": _trend,
}
