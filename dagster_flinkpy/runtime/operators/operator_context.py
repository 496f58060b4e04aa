"""What an operator knows about its job and task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.metrics import MetricGroup
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.operators.operator_state_handler import OperatorStateHandler
from dagster_flinkpy.runtime.shuffle.batch import Pace, StreamBatch

__all__ = ["OperatorContext"]

Emit = Callable[[str | None, StreamBatch], None]


@dataclass
class OperatorContext:
    """The context in which an operator runs."""

    vertex: JobVertex
    subtask: int
    job: EpochJob
    execution: str
    """Identifies this try of the task; unique."""
    emit: Emit
    """Sends a batch to the main output (None) or a side output (its tag)."""
    collect: Callable[..., None]
    """Sends a column with a name to the driver."""
    watermark: int
    """The event time of the operator; the task advances it."""
    epoch: EpochInput
    """The input up to the next barrier; the task advances it."""
    state: OperatorStateHandler
    """Operator state and raw state."""
    send_status: Callable[[bool], None]
    """Reports downstream whether the operator is idle, if it generates watermarks."""

    event_times: Callable[[], Mapping[str, tuple[int, bool]]] = dict
    """Returns the event time of each origin of watermarks at this operator, and whether it is idle. An origin is a
    source, or an operator that assigns timestamps."""
    pace: Pace = field(default_factory=lambda: Pace(cuts=False))
    """Cuts the batches that come from a source or another task."""
    metrics: MetricGroup = field(default_factory=MetricGroup)
    """Metrics of the user functions."""
    send_event: Callable[[Any], object] | None = None
    """Sends an event to the coordinator of the operator, if it has one."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint of the next barrier."""
        return self.epoch.checkpoint_id

    @property
    def input(self) -> SubtaskState:
        """The state and splits that the subtask starts from."""
        return self.job.input(self.vertex.uid, self.subtask)
