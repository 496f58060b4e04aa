"""Runs asset checks on the last checkpoint. Imported only when a check runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from statistics import median
from typing import Any

from dagster import AssetCheckSeverity, AssetKey, DagsterInstance, IntMetadataValue, MetadataValue

from dagster_flinkpy.checkpoint import verify
from dagster_flinkpy.checkpoint.evolution import Change, StateOutcome
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.traces import head_of_job
from dagster_flinkpy.common.clock import current_millis, datetime_of_millis, epoch_millis
from dagster_flinkpy.datastream.connectors.base import SourceLag
from dagster_flinkpy.datastream.program.event_time import find_stalls, without_event_time
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CorruptMetadataError, CorruptStateError, FlinkPyError, StorageError
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_assets import JobAssets
from dagster_flinkpy.orchestration.program import RestoreForecast, forecast
from dagster_flinkpy.orchestration.runs.changed_tables import metadata_of, newest_events
from dagster_flinkpy.orchestration.runs.runs_of_job import active_runs, recent_runs
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.state.handles import EVENT_TIMERS
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["CheckFinding", "JobView", "look", "stored_bytes"]

_TREND_OVER = 20
_TREND_NEEDS = 5
_END_OF_TIME = 2**63 - 1
_TRIES = 5
_CHECKPOINT = "flink/checkpoint_id"

WARN, ERROR = AssetCheckSeverity.WARN, AssetCheckSeverity.ERROR


@dataclass(frozen=True)
class JobView:
    """What all checks of a job look at."""

    assets: JobAssets
    instance: DagsterInstance
    """Where its runs are recorded."""
    location: StorageLocation
    """The folder of its checkpoints."""
    run_id: str
    """The run that checks. It has ended its own work on the job."""
    _forecasts: dict[int, RestoreForecast] = field(default_factory=dict)

    @cached_property
    def store(self) -> ObjectStore:
        """Store of its checkpoints."""
        return self.location.open()

    def forecast(self, latest: CheckpointMetadata) -> RestoreForecast:
        """Returns what happens if the next run starts from a checkpoint; functions are opened once for all checks."""
        if latest.checkpoint_id not in self._forecasts:
            own = StoredCheckpoint(latest, self.location)
            found = forecast(self.job.graph, own, allow_pickled_state=True)  # as the job's runs read it
            self._forecasts[latest.checkpoint_id] = found
        return self._forecasts[latest.checkpoint_id]

    @property
    def job(self) -> FlinkJob:
        """The job."""
        return self.assets.job


@dataclass(frozen=True)
class _View:
    """What a check looks at."""

    of_job: JobView
    uid: str
    asset: AssetKey
    """The asset that shows the operator."""
    latest: CheckpointMetadata

    def of_operator(self) -> CheckpointMetadata:
        """Returns the checkpoint with only the operator in it."""
        return replace(self.latest, operators=tuple(o for o in self.latest.operators if o.uid == self.uid))


@dataclass(frozen=True)
class CheckFinding:
    """The result of a check."""

    passed: bool
    description: str
    metadata: dict[str, Any]
    severity: AssetCheckSeverity = ERROR


def look(check: str, uids: Sequence[str], asset: AssetKey, of_job: JobView, **limits: Any) -> CheckFinding:
    """Checks the latest checkpoint. If a run replaces and deletes it meanwhile, checks the newer one.

    Args:
        check: Name of the check.
        uids: Operators that it looks at.
        asset: The asset that shows them.
        of_job: The job.
        limits: Arguments of the check.

    Raises:
        StorageError: The store failed, which says nothing about the checkpoint.
    """
    found = {uid: _look(check, uid, asset, of_job, **limits) for uid in uids}
    if len(found) == 1:
        return found[uids[0]]
    failed = [each for each in found.values() if not each.passed]
    facts: dict[str, Any] = {}
    for uid, each in found.items():
        facts |= {name if name == _CHECKPOINT else f"{uid}/{name}": value for name, value in each.metadata.items()}
    said = "\n".join(f"{uid}: {each.description}" for uid, each in found.items())
    severity = ERROR if ERROR in [each.severity for each in failed] else WARN
    return CheckFinding(not failed, said, facts, severity)


def stored_bytes(of_job: JobView) -> int:
    """Returns the size of the state in the latest checkpoint, in bytes; 0 if there is none, or if it cannot be read."""
    try:
        latest = CompletedCheckpointStore(of_job.store).latest()
    except CorruptMetadataError:
        return 0  # what the checks find
    return 0 if latest is None else latest.state_bytes


def _look(check: str, uid: str, asset: AssetKey, of_job: JobView, **limits: Any) -> CheckFinding:
    checkpoints, find = CompletedCheckpointStore(of_job.store), _FINDERS[check]
    seen: list[int] = []
    try:
        latest = checkpoints.latest()
        while latest is not None:
            finding = find(_View(of_job, uid, asset, latest), **limits)
            finding.metadata[_CHECKPOINT] = latest.checkpoint_id
            seen.append(latest.checkpoint_id)
            if finding.passed or (latest := checkpoints.latest()) is None or latest.checkpoint_id == seen[-1]:
                return finding
            if len(seen) == _TRIES:
                what = f"Checkpoints {seen} were each replaced while they were read. Check again when no run is active."
                return CheckFinding(False, what, {}, WARN)
        head_of_job(of_job.store)  # the job is new, or its HEAD was lost
    except CorruptMetadataError as error:
        return CheckFinding(False, str(error), {})
    if find is _lingering:  # transactions may be open even though all checkpoints were deleted
        return _open_transactions(of_job, uid, None)
    if find is _lag:
        return _lag_of_new_job(of_job, **limits)
    return CheckFinding(True, "There is no completed checkpoint yet.", {})


def _integrity(view: _View) -> CheckFinding:
    found = verify.verify_checkpoint(view.of_operator(), view.of_job.store)
    facts: dict[str, Any] = {"files": found.files, "bytes": found.bytes}
    if not found.problems:
        return CheckFinding(True, f"{found.files} files, {found.bytes:,} bytes; all checksums match.", facts)
    facts["problems"] = MetadataValue.md("\n".join(f"- {line}" for line in found.problems))
    more = f", and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
    return CheckFinding(False, f"{found.problems[0]}{more}. Restore a savepoint or an older checkpoint.", facts)


def _drill(view: _View) -> CheckFinding:
    try:
        drill = verify.restore_drill(view.of_operator(), view.of_job.store)
    except (CorruptStateError, CorruptMetadataError) as error:
        return CheckFinding(False, str(error), {})
    except StorageError:
        raise
    except FlinkPyError as error:
        return CheckFinding(False, str(error), {}, WARN)
    rows = drill.after.get(view.uid, 0)
    return CheckFinding(
        True,
        f"{rows:,} rows of keyed state and timers, the same at parallelism {drill.parallelism}.",
        {"rows": rows, "parallelism": drill.parallelism},
    )


def _lag(view: _View, max_lag: timedelta | None, max_event_time_lag: timedelta | None) -> CheckFinding:
    now_ms, latest = current_millis(), view.latest
    since = timedelta(milliseconds=max(now_ms - latest.timestamp_ms, 0))
    operator = latest.operator(view.uid)
    watermarks = operator.watermarks if operator else []
    facts: dict[str, Any] = {"seconds_since_checkpoint": since.total_seconds()}
    said = f"The last checkpoint is {_span(since)} old"
    if latest.end_of_input:
        return CheckFinding(True, f"{said}; it read the last of the input.", facts)
    passed = max_lag is None or since <= max_lag
    if watermarks and min(watermarks) < _END_OF_TIME:
        behind = timedelta(milliseconds=max(now_ms - min(watermarks), 0))
        facts["event_time_lag_seconds"] = behind.total_seconds()
        said += f", the watermark {_span(behind)} behind"
        passed &= max_event_time_lag is None or behind <= max_event_time_lag
    return CheckFinding(passed, f"{said}.", facts)


def _lag_of_new_job(of_job: JobView, max_lag: timedelta | None, **_: Any) -> CheckFinding:
    """Looks at a job without a completed checkpoint: its runs may all have failed."""
    runs = recent_runs(of_job.instance, of_job.job.job_id, of_job.assets.keys)
    said = "There is no completed checkpoint yet"
    if not runs:
        return CheckFinding(True, f"{said}.", {})
    since = timedelta(milliseconds=max(current_millis() - epoch_millis(runs[-1].create_timestamp), 0))
    return CheckFinding(max_lag is None or since <= max_lag, f"{said}, {_span(since)} after the first run.", {})


def _event_time(view: _View) -> CheckFinding:
    graph, latest = view.of_job.job.graph, view.latest

    def watermark(uid: str) -> int | None:
        operator = latest.operator(uid)
        return max(operator.watermarks, default=None) if operator else None

    def silent(uid: str) -> list[str]:
        """Returns the nearest inputs that have no event time while others beside them have."""
        inputs = list(dict.fromkeys(edge.source for edge in graph.inputs(uid) if edge.source not in graph.static_uids))
        without = [each for each in inputs if watermark(each) is None]
        further = [found for each in without for found in silent(each)]
        return list(dict.fromkeys(further)) or (without if len(without) < len(inputs) else [])

    shown = {
        f"watermark of {each}": "none" if (found := watermark(each)) is None else _instant(found)
        for each in dict.fromkeys(edge.source for edge in graph.inputs(view.uid))
    }
    own = watermark(view.uid)
    if own is not None:
        return CheckFinding(True, f"Event time is at {_instant(own)}.", shown)
    held_by, operator = silent(view.uid), latest.operator(view.uid)
    if not held_by:
        never = _never_fires(graph, view.uid, operator)
        return CheckFinding(not never, never or "There is no event time yet.", shown)
    rows = operator.rows if operator else 0
    names, plural = ", ".join(map(repr, held_by)), len(held_by) > 1
    what = (
        f"Event time has not begun: the other inputs wait for {names}, which {'give' if plural else 'gives'} no "
        f"watermarks{f', with {rows:,} rows in state' if rows else ''}. Windows and timers do not fire. Give "
        f"{'them' if plural else 'it'} a strategy with watermarks, or with_idleness(), so that nobody waits."
    )
    return CheckFinding(False, what, shown)


def _never_fires(graph: JobGraph, uid: str, operator: OperatorState | None) -> str:
    """Returns which windows or timers wait for event time that no source gives; empty if there are none."""
    for stall in find_stalls(graph):
        if uid in stall.waiting:
            return f"In this job, {stall}."
    timers = sum(table.rows for table in operator.tables if table.name == EVENT_TIMERS) if operator else 0
    sources = ", ".join(map(repr, without_event_time(graph).get(uid, ())))
    if not timers or not sources:
        return ""
    return (
        f"{timers:,} event-time timers of {uid!r} never fire, because {sources} gives no watermarks and does not end. "
        "Give it a strategy with watermarks, or register processing-time timers."
    )


def _instant(millis: int) -> str:
    try:
        return "its end" if millis >= _END_OF_TIME else datetime_of_millis(millis).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{millis} ms"


def _source_lag(view: _View, **limits: int | None) -> CheckFinding:
    operator = view.latest.operator(view.uid)
    lag = SourceLag.from_position(operator.coordinator_state) if operator else None
    if lag is None:
        return CheckFinding(True, "The source does not count what it has not read.", {})
    unread = lag.to_json()
    said = ", ".join(f"{number:,} {what}" for what, number in unread.items() if number) or "Nothing"
    above = [what for what, most in limits.items() if most is not None and unread.get(what, 0) > most]
    more = "".join(f"; at most {limits[what]:,} {what} are allowed" for what in above)
    if above:
        more += ". Raise the limits of an epoch, or run the job more often"
    facts = {f"unread_{what}": number for what, number in unread.items()}
    return CheckFinding(not above, f"{said} left to read after the last checkpoint{more}.", facts)


def _late_records(view: _View, max_late_records: int | None) -> CheckFinding:
    dropped, since = _late_of_last_event(view), "since the event before"
    if dropped is None:
        operator = view.latest.operator(view.uid)
        dropped = sum(int(s.metrics.get(LATE_RECORDS_DROPPED, 0)) for s in operator.subtasks) if operator else 0
        since = "in the last epoch"
    said = f"{dropped:,} records came too late for any window {since} and were dropped"
    passed = max_late_records is None or dropped <= max_late_records
    if not passed:
        said += (
            f"; at most {max_late_records:,} are allowed. Give the watermarks a larger bound, or the window "
            "allowed_lateness() or side_output_late_data()"
        )
    return CheckFinding(passed, f"{said}.", {LATE_RECORDS_DROPPED: dropped})


def _late_of_last_event(view: _View) -> int | None:
    """Returns the number in the asset's last event; None if that is not of the last checkpoint."""
    events = newest_events(view.of_job.instance, view.asset, observations=1)
    metadata = metadata_of(events[0]) if events else {}
    name = "flink/late_records_dropped" if view.uid in view.of_job.assets.specs else f"{view.uid}/late_records_dropped"
    checkpoint, dropped = metadata.get(_CHECKPOINT), metadata.get(name)
    if checkpoint is None or checkpoint.value != view.latest.checkpoint_id or not isinstance(dropped, IntMetadataValue):
        return None
    return dropped.value


def _lingering(view: _View) -> CheckFinding:
    return _open_transactions(view.of_job, view.uid, view.latest)


def _open_transactions(of_job: JobView, uid: str, latest: CheckpointMetadata | None) -> CheckFinding:
    job = of_job.job
    runs = active_runs(of_job.instance, job.job_id, of_job.assets.keys, besides=of_job.run_id)
    watchdog = Watchdog(job.checkpointing.timeout)
    committers = Committers(job.graph, job.job_id, fencing_token=2**63 - 1, watchdog=watchdog)
    count = committers.lingering(latest).get(uid, 0)
    watchdog.close()
    facts: dict[str, Any] = {"transactions": count}
    if runs and count:
        return CheckFinding(
            True, f"{count} open transactions of run {runs[0].run_id}, which is working on the job.", facts
        )
    if count:
        what = f"{count} open transactions that no checkpoint will commit. The next run of the job aborts them."
        return CheckFinding(False, what, facts, WARN)
    return CheckFinding(True, "No transaction is open.", facts)


def _trend(view: _View, factor: float) -> CheckFinding:
    records = view.of_job.instance.fetch_materializations(view.asset, limit=_TREND_OVER + 1).records
    # The asset's own numbers are those of another operator where this one is hidden.
    delta = "flink/delta_bytes" if view.uid in view.of_job.assets.specs else f"{view.uid}/delta_bytes"
    said, facts, passed = [], dict[str, Any](), True
    for fact, name, unit in (("duration_ms", "flink/duration_ms", "ms"), ("delta_bytes", delta, "bytes")):
        events = (record.asset_materialization for record in records)
        found = (event.metadata.get(name) for event in events if event)
        values = [entry.value for entry in found if isinstance(entry, IntMetadataValue) and entry.value is not None]
        if len(values) <= _TREND_NEEDS:
            continue
        usual = median(values[1:])
        facts |= {fact: values[0], f"median_{fact}": float(usual)}
        said.append(f"{fact} {values[0]:,} {unit}, median of {len(values) - 1} before {usual:,.0f}")
        passed &= values[0] <= max(usual, 1) * factor
    if not said:
        return CheckFinding(True, f"Fewer than {_TREND_NEEDS + 1} checkpoints to compare.", facts, WARN)
    return CheckFinding(passed, "; ".join(said) + ".", facts, WARN)


def _span(duration: timedelta) -> str:
    return str(timedelta(seconds=round(duration.total_seconds())))


def _evolution(view: _View) -> CheckFinding:
    found = view.of_job.forecast(view.latest)
    said = [*map(str, found.evolution.changes), *found.evolution.remarks, *found.parallelism, *found.of_recomputation]
    facts: dict[str, Any] = {"changes": MetadataValue.md("\n".join(f"- {line}" for line in said) or "none")}
    if found.problem is not None:
        return CheckFinding(False, f"The next run will be refused: {found.problem}", facts)
    if found.unknown:
        return CheckFinding(False, f"It is unknown whether all state fits: {'; '.join(found.unknown)}", facts, WARN)
    own = next((each for each in found.evolution.operators if each.uid == view.uid), None)
    if own is not None and own.change is Change.CHANGED and own.state is StateOutcome.KEPT:
        what = f"The next run continues from state of another version: {own}. Check that it still means the same."
        return CheckFinding(False, what, facts, WARN)
    since = found.evolution.since
    if own is not None and own.change is Change.UNKNOWN:
        return CheckFinding(True, f"{since[:1].upper()}{since[1:]} does not say what the operator did.", facts)
    return CheckFinding(True, f"Nothing that affects the operator's state has changed since {since}.", facts)


_FINDERS: dict[str, Callable[..., CheckFinding]] = {
    "snapshot_integrity": _integrity,
    "restore_drill": _drill,
    "lag": _lag,
    "source_lag": _source_lag,
    "event_time": _event_time,
    "late_records": _late_records,
    "lingering_transactions": _lingering,
    "checkpoint_trend": _trend,
    "state_evolution": _evolution,
}
