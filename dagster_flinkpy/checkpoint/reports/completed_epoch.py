"""Reports of completed epochs, for users and for Dagster."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.reports.job_metrics import JobMetrics, job_metrics
from dagster_flinkpy.errors import JobGraphError
from dagster_flinkpy.metrics import LATE_RECORDS_DROPPED, user_metrics

__all__ = ["CompletedEpoch", "OperatorReport", "SubtaskReport", "completed_epoch"]


@dataclass(frozen=True)
class SubtaskReport:
    """One subtask of an operator."""

    index: int
    key_groups: tuple[int, int] | None
    """First and last key group, or None if the operator has no keyed state."""
    keys: int
    """Number of rows of its largest state, which is about the number of keys."""
    state_bytes: int
    delta_bytes: int
    """Bytes of state that the epoch added."""
    records_in: int
    records_out: int
    late_records_dropped: int | None = None
    """Records that a window operator dropped because they came too late; None for other operators."""
    user_metrics: Mapping[str, int | float] = field(default_factory=dict)
    """Metrics of user functions, by the names that the user gave them."""


@dataclass(frozen=True)
class OperatorReport:
    """One operator."""

    uid: str
    records_in: int
    records_out: int
    state_bytes: int
    delta_bytes: int
    keys: int
    watermark: int | None
    """Event time in milliseconds since 1970; None if there is none yet."""
    rows_committed: int | None
    """Rows that a sink has published; None for other operators."""
    subtasks: tuple[SubtaskReport, ...]
    late_records_dropped: int | None = None
    """Records that a window operator dropped because they came too late; None for other operators."""
    user_metrics: Mapping[str, int | float] = field(default_factory=dict)
    """Metrics of user functions, by the names that the user gave them."""


@dataclass(frozen=True)
class CompletedEpoch:
    """One completed checkpoint."""

    checkpoint_id: int
    metadata: CheckpointMetadata
    metadata_path: str
    """URL of its ``_metadata``."""
    duration_ms: int
    """Time from the trigger to the end of the commit."""
    operators: tuple[OperatorReport, ...]
    statistics: CheckpointStatistics = field(default_factory=CheckpointStatistics)
    """Statistics of all checkpoints of the job."""

    @property
    def has_read(self) -> bool:
        """Whether the epoch had any input."""
        return any(subtask.splits for operator in self.metadata.operators for subtask in operator.subtasks)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its metadata."""
        return hashlib.sha256(self.metadata.to_bytes()).hexdigest()

    @cached_property
    def metrics(self) -> JobMetrics:
        """The metrics of the job and of its operators, by Flink's names."""
        return job_metrics(self.metadata, self.statistics)

    def operator(self, uid: str) -> OperatorReport:
        """Returns the report of an operator.

        Raises:
            JobGraphError: No operator has this uid.
        """
        for report in self.operators:
            if report.uid == uid:
                return report
        raise JobGraphError(f"no operator has uid {uid!r}; the uids are {[r.uid for r in self.operators]}")


def completed_epoch(
    metadata: CheckpointMetadata, job_url: str, duration_ms: int, sinks: set[str], statistics: CheckpointStatistics
) -> CompletedEpoch:
    """Returns the report of a completed checkpoint."""
    return CompletedEpoch(
        checkpoint_id=metadata.checkpoint_id,
        metadata=metadata,
        metadata_path=f"{job_url}/chk-{metadata.checkpoint_id}/{METADATA_NAME}",
        duration_ms=duration_ms,
        operators=tuple(_operator(o, o.uid in sinks) for o in metadata.operators),
        statistics=statistics,
    )


def _operator(state: OperatorState, sink: bool) -> OperatorReport:
    subtasks = tuple(_subtask(s) for s in state.subtasks)
    late = [s.late_records_dropped for s in subtasks if s.late_records_dropped is not None]
    committables = [c for s in state.subtasks for c in s.committables]
    return OperatorReport(
        uid=state.uid,
        records_in=sum(s.records_in for s in subtasks),
        records_out=sum(s.records_out for s in subtasks),
        state_bytes=sum(s.state_bytes for s in subtasks),
        delta_bytes=sum(s.delta_bytes for s in subtasks),
        keys=sum(s.keys for s in subtasks),
        watermark=min(state.watermarks, default=None),
        rows_committed=sum(int(c.get("rows", 0)) for c in committables) if sink else None,
        subtasks=subtasks,
        late_records_dropped=sum(late) if late else None,
        user_metrics=user_metrics(s.metrics for s in state.subtasks),
    )


def _subtask(state: SubtaskState) -> SubtaskReport:
    keyed, metrics = state.keyed, state.metrics
    return SubtaskReport(
        index=state.index,
        key_groups=None if keyed is None else (keyed.key_groups.start, keyed.key_groups.end),
        keys=max((t.rows for t in state.tables), default=0),
        state_bytes=state.state_bytes,
        delta_bytes=int(metrics.get("delta_bytes", 0)),
        records_in=int(metrics.get("records_in", 0)),
        records_out=int(metrics.get("records_out", 0)),
        late_records_dropped=int(metrics[LATE_RECORDS_DROPPED]) if LATE_RECORDS_DROPPED in metrics else None,
        user_metrics=user_metrics([metrics]),
    )
