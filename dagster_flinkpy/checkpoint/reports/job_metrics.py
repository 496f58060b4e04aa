"""The metrics of a job under Flink's names, from a completed checkpoint and the statistics of the job.

What an operator has counted covers the epoch of the checkpoint. ``docs/metrics.md`` defines each metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics, CheckpointStatus
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED, user_metrics

__all__ = [
    "TIMES",
    "JobMetrics",
    "OperatorMetrics",
    "job_metrics",
    "operator_metrics",
    "per_second",
    "stored_job_metrics",
]

Number = int | float

TIMES = ("busyTimeMsPerSecond", "idleTimeMsPerSecond", "backPressuredTimeMsPerSecond")
"""Where an operator's time went. The three of a subtask, and those of an operator, add up to 1000."""

_STORED_TIMES = ("busy_us", "idle_us", "back_pressured_us")
_NANOS_PER_MILLI = 1_000_000

_COUNTERS = {
    "records_in": "numRecordsIn",
    "records_out": "numRecordsOut",
    "bytes_in": "numBytesIn",
    "bytes_out": "numBytesOut",
    LATE_RECORDS_DROPPED: "numLateRecordsDropped",
    "cache_hits": "localStateHits",
    "cache_misses": "localStateMisses",
}
_RATES = {
    "records_in": "numRecordsInPerSecond",
    "records_out": "numRecordsOutPerSecond",
    "bytes_in": "numBytesInPerSecond",
    "bytes_out": "numBytesOutPerSecond",
}
"""Counters by the second in which the task was there."""
_LATENCIES = {
    "latency_ms_p50": "latency.p50",
    "latency_ms_p95": "latency.p95",
    "latency_ms_p99": "latency.p99",
    "latency_ms_max": "latency.max",
}
_LEAST = ("currentInputWatermark", "currentOutputWatermark")
"""An operator's event time is that of its slowest subtask. Of other metrics it has the greatest."""


@dataclass(frozen=True)
class OperatorMetrics:
    """The metrics of an operator by Flink's names. Those that it does not have are missing."""

    uid: str
    name: str
    total: Mapping[str, Number]
    """Those of all subtasks together."""
    subtasks: tuple[Mapping[str, Number], ...]
    """Those of each subtask, by index."""
    user: Mapping[str, Number]
    """The metrics of its functions, by the names that the user gave them."""


@dataclass(frozen=True)
class JobMetrics:
    """The metrics of a job."""

    job_id: str
    checkpoint_id: int
    job: Mapping[str, Number]
    """Those of the job as a whole, by Flink's names."""
    operators: tuple[OperatorMetrics, ...]


def job_metrics(metadata: CheckpointMetadata, statistics: CheckpointStatistics) -> JobMetrics:
    """Returns the metrics of a job.

    Args:
        metadata: The last completed checkpoint.
        statistics: The statistics of the job, as stored or of a running attempt.
    """
    return JobMetrics(
        metadata.job_id,
        metadata.checkpoint_id,
        _job(metadata, statistics),
        tuple(map(operator_metrics, metadata.operators)),
    )


def stored_job_metrics(store: CompletedCheckpointStore) -> JobMetrics | None:
    """Returns the metrics of a job as its last checkpoint and run have left them; None if there is no checkpoint.

    Raises:
        CorruptMetadataError: The checkpoint cannot be read.
    """
    latest = store.latest()
    return None if latest is None else job_metrics(latest, store.statistics())


def operator_metrics(operator: OperatorState) -> OperatorMetrics:
    """Returns the metrics of an operator in a checkpoint."""
    subtasks = tuple(map(_subtask, operator.subtasks))
    total = dict[str, Number]()
    for name in dict.fromkeys(name for subtask in subtasks for name in subtask):
        if name not in TIMES:
            values = [subtask[name] for subtask in subtasks if name in subtask]
            total[name] = _combine(name)(values)
    total |= _times(operator.subtasks)
    return OperatorMetrics(
        operator.uid, operator.name, total, subtasks, user_metrics(s.metrics for s in operator.subtasks)
    )


def per_second(durations: Sequence[int]) -> tuple[int, ...]:
    """Returns the milliseconds per second of durations that make up a whole. They add up to 1000.

    Without any duration there was nothing to do: the second one, idle, gets all.

    Example:
        >>> per_second([1, 1, 1])
        (334, 333, 333)
    """
    whole = sum(durations)
    if not whole:
        return tuple(1000 * (i == 1) for i in range(len(durations)))
    shares = [duration * 1000 // whole for duration in durations]
    # What rounding down has lost goes to those that have lost most.
    losers = sorted(range(len(durations)), key=lambda i: -(durations[i] * 1000 % whole))
    for i in losers[: 1000 - sum(shares)]:
        shares[i] += 1
    return tuple(shares)


def _combine(name: str) -> Callable[[Iterable[Number]], Number]:
    if name in _COUNTERS.values() or name in _RATES.values():
        return sum
    return min if name in _LEAST else max


def _subtask(subtask: SubtaskState) -> dict[str, Number]:
    stored = subtask.metrics
    found = {flink: stored[name] for name, flink in _COUNTERS.items() if name in stored}
    found |= _times([subtask])
    if micros := sum(int(stored.get(name, 0)) for name in _STORED_TIMES):
        found |= {flink: round(stored[n] * 1e6 / micros) for n, flink in _RATES.items() if n in stored}
    if "input_watermark" in stored:
        found["currentInputWatermark"] = stored["input_watermark"]
    if subtask.watermark is not None:
        found["currentOutputWatermark"] = subtask.watermark
    if "watermark_lag_ms" in stored:
        found["watermarkLag"] = stored["watermark_lag_ms"]
    if "busy_us" in stored:
        found["checkpointAlignmentTime"] = int(stored.get("alignment_ms", 0)) * _NANOS_PER_MILLI
    if "memory" in stored:
        found["managedMemoryUsed"] = stored["memory"]
    if "in_pool_usage" in stored:
        found["inPoolUsage"] = stored["in_pool_usage"]
    if "start_delay_ms" in stored:
        found["checkpointStartDelayNanos"] = int(stored["start_delay_ms"]) * _NANOS_PER_MILLI
    for name, flink in (("sync_us", "checkpointSyncDuration"), ("async_us", "checkpointAsyncDuration")):
        if name in stored:
            found[flink] = stored[name] / 1000
    return found | {flink: stored[name] for name, flink in _LATENCIES.items() if name in stored}


def _times(subtasks: Sequence[SubtaskState]) -> dict[str, Number]:
    measured = [s.metrics for s in subtasks if "busy_us" in s.metrics]
    if not measured:
        return {}  # a checkpoint of an older release
    durations = [sum(int(metrics.get(name, 0)) for metrics in measured) for name in _STORED_TIMES]
    return dict(zip(TIMES, per_second(durations), strict=True))


def _job(metadata: CheckpointMetadata, statistics: CheckpointStatistics) -> dict[str, Number]:
    counts, history = statistics.counts, statistics.history
    in_progress = sum(stats.status is CheckpointStatus.IN_PROGRESS for stats in history)
    found: dict[str, Number] = {
        "lastCompletedCheckpointId": metadata.checkpoint_id,
        "lastCheckpointSize": sum(int(s.metrics.get("delta_bytes", 0)) for o in metadata.operators for s in o.subtasks),
        "lastCheckpointFullSize": metadata.state_bytes,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "numberOfInProgressCheckpoints": in_progress,
        "totalNumberOfCheckpoints": counts.completed + counts.failed + in_progress,
        "numRestarts": counts.restarts,
        "fullRestarts": counts.full_restarts,
        **_locality(metadata),
    }
    last = next((stats for stats in reversed(history) if stats.checkpoint_id == metadata.checkpoint_id), None)
    if last is not None:
        found["lastCheckpointDuration"] = last.duration_ms
        if last.phases is not None:
            for name, milliseconds in last.phases.by_name().items():
                found[f"lastCheckpoint{name[0].upper()}{name[1:]}Duration"] = milliseconds
            if last.phases.latency_ms_p50 is not None and last.phases.latency_ms_p99 is not None:
                found["sourceToCommitLatency.p50"] = last.phases.latency_ms_p50
                found["sourceToCommitLatency.p99"] = last.phases.latency_ms_p99
    return found


def _locality(metadata: CheckpointMetadata) -> dict[str, Number]:
    """Returns how many tasks opened files of state, and how many of them found all files on their own machine.

    A task that Spark has sent back to where it ran before, its prior allocation in Flink's words, finds them.
    """
    opened = [s.metrics for o in metadata.operators for s in o.subtasks if _files_opened(s)]
    if not opened:
        return {}  # all state is new, or is part of the metadata
    return {"localStateTasks": len(opened), "localStateTaskHits": sum(not m.get("cache_misses", 0) for m in opened)}


def _files_opened(subtask: SubtaskState) -> bool:
    return bool(subtask.metrics.get("cache_hits", 0) or subtask.metrics.get("cache_misses", 0))
