"""What a subtask and the coordinator of its operator say to each other, on the side of the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagster_flinkpy.datastream.connectors.source import JsonSerializer
from dagster_flinkpy.datastream.functions import function_of
from dagster_flinkpy.datastream.operator_coordinator import CoordinatedFunction
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.operators.stream_operator import StreamOperator

__all__ = ["OperatorEventGateway"]


class OperatorEventGateway:
    """Sends events of an operator, and gives it those of its coordinator (Flink: ``OperatorEventGateway``)."""

    def __init__(self, operator: StreamOperator, send: Callable[[dict[str, Any]], object]) -> None:
        context = operator.context
        self._operator, self._send = operator, send
        self._function: CoordinatedFunction | None = function_of(context.vertex.spec, CoordinatedFunction)
        self._taken = 0
        if self._function is not None:
            context.send_event = self._send_event

    def _send_event(self, event: Any) -> None:
        JsonSerializer().serialize(event)
        self._say(event=event)

    def _say(self, **message: Any) -> None:
        context = self._operator.context
        self._send({"uid": context.vertex.uid, "subtask": context.subtask, **message})

    def take(self, event: Any) -> None:
        """Takes an event of the coordinator."""
        if self._function is None:
            raise ConfigurationError(f"operator {self._operator.context.vertex.uid!r} has no coordinator")
        self._taken += 1
        self._operator.call("handle_operator_event()", self._function.handle_operator_event, event)

    def snapshot(self, checkpoint_id: int) -> None:
        """Sends the coordinator a barrier, with how many events were taken before it."""
        if self._function is not None:
            self._say(barrier=checkpoint_id, taken=self._taken)
