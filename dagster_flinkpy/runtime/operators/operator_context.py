"""What an operator knows about where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dagster_flinkpy.datastream.job_graph import JobVertex
from dagster_flinkpy.metrics import MetricGroup
from dagster_flinkpy.runtime.epoch import EpochJob, SubtaskInput
from dagster_flinkpy.runtime.operators.operator_state_handler import OperatorStateHandler
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch

__all__ = ["OperatorContext"]

Emit = Callable[[str | None, StreamBatch], None]


@dataclass
class OperatorContext:
    """Where an operator runs."""

    vertex: JobVertex
    subtask: int
    job: EpochJob
    execution: str
    """Unique for this try of the task."""
    emit: Emit
    """Sends a batch to the main output (None) or a side output (its tag)."""
    collect: Callable[..., None]
    """Sends a column with a name to the driver."""
    watermark: int
    """Event time of the operator; the task advances it."""
    checkpoint_id: int
    """The checkpoint of the next barrier; the task advances it."""
    state: OperatorStateHandler
    """The state without keys."""

    event_times: Callable[[], Mapping[str, tuple[int, bool]]] = dict
    """By source, or operator that assigns timestamps: its event time here, and whether it is idle."""
    metrics: MetricGroup = field(default_factory=MetricGroup)
    """Metrics of the user's functions."""

    @property
    def input(self) -> SubtaskInput:
        """What the subtask starts from."""
        return self.job.input(self.vertex.uid, self.subtask)
