"""The coordinators of the functions of a region, as the driver has them (Flink: ``OperatorCoordinatorHolder``).

A coordinator is called on the lane of its region only, while tasks read an epoch. Subtasks send it their barriers among
their events, and it aligns them: its checkpoint is taken when all barriers are there, and what a subtask has sent
behind its own waits until then. An event that a subtask has not taken before its barrier is stored with the state.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.datastream.connectors.source import JsonSerializer
from dagster_flinkpy.datastream.functions import function_of
from dagster_flinkpy.datastream.operator_coordinator import (
    CoordinatedFunction,
    OperatorCoordinatorContext,
    SubtaskGateway,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import FlinkPyError, UserFunctionError
from dagster_flinkpy.runtime.failure import raised_on_driver

__all__ = ["OperatorCoordinators"]

SendEvent = Callable[[str, int, Json], object]
"""Sends an event to a subtask, by uid and number."""

_NO_CHECKPOINT = -1
"""Flink: ``OperatorCoordinator.NO_CHECKPOINT``."""


class _Subtask(SubtaskGateway):
    """What is between a coordinator and an execution of a subtask."""

    def __init__(self, holder: _Holder, subtask: int) -> None:
        self._holder, self._number, self._attempt = holder, subtask, -1
        self.sent = 0
        """How many events it was sent."""
        self.in_flight: deque[Json] = deque()
        """The last ones of them: those that no checkpoint has found taken."""

    def ready(self, attempt: int, send: SendEvent) -> None:
        """The execution runs."""
        self._attempt, self._send = attempt, send

    @property
    def subtask(self) -> int:
        return self._number

    @property
    def attempt(self) -> int:
        return self._attempt

    def send_event(self, event: Any) -> None:
        self._holder.send(self, event, self._send)


class _Holder(OperatorCoordinatorContext):
    """One coordinator."""

    def __init__(
        self,
        uid: str,
        function: CoordinatedFunction,
        parallelism: int,
        restored: Json | None,
        restored_id: int | None,
        wake: Callable[[], object],
    ) -> None:
        self._uid, self._function, self._parallelism, self._wake = uid, function, parallelism, wake
        self._restored_id = _NO_CHECKPOINT if restored_id is None else restored_id
        self.states: dict[int, Json | None] = {0: restored}
        """What epochs have left, from which others start; 0 for the start of the attempt."""
        self._coordinator: Any = None
        self._attempt = -1
        self._passed: dict[int, int] = {}
        """The subtasks whose barriers are there, each with how many events it has taken before."""
        self._held: list[tuple[int, Json]] = []
        """What they have sent behind their barriers."""
        self._subtasks: list[_Subtask] = []
        self._undelivered: list[tuple[int, Json]] = []
        self._lock = threading.Lock()
        self.failure: BaseException | None = None

    @property
    def operator_uid(self) -> str:
        return self._uid

    def current_parallelism(self) -> int:
        return self._parallelism

    def fail_job(self, cause: BaseException) -> None:
        self.failure = cause
        self._wake()

    def reset(self, start: int, reason: FlinkPyError | None) -> None:
        """Goes back to the state from which new executions start."""
        stored, checkpoint_id = self.states[start], start or self._restored_id
        if begins := self._coordinator is None:
            self._coordinator = self._function.create_coordinator()
        for i in range(0 if begins else self._parallelism):
            self._coordinator.execution_attempt_failed(i, self._attempt, reason)
        with self._lock:
            self.failure, self._passed, self._held = None, {}, []
            self._subtasks = [_Subtask(self, i) for i in range(self._parallelism)]
            self._undelivered = [] if stored is None else [(i, event) for i, event in stored["events"]]
        if not begins or stored is not None:
            self._coordinator.reset_to_checkpoint(checkpoint_id, None if stored is None else stored["state"])
        if begins:
            self._coordinator.start(self)
        for i in range(0 if begins else self._parallelism):
            self._coordinator.subtask_reset(i, checkpoint_id)

    def ready(self, attempt: int, send: SendEvent) -> None:
        """New executions run: what was in flight to their subtasks at the checkpoint is sent again."""
        self._attempt, undelivered, self._undelivered = attempt, self._undelivered, []
        for subtask in self._subtasks:
            subtask.ready(attempt, send)
        for i, event in undelivered:
            if i < self._parallelism:
                self._subtasks[i].send_event(event)
            else:
                self._coordinator.handle_undelivered_event(i, event)
        for i, subtask in enumerate(self._subtasks):
            self._coordinator.execution_attempt_ready(i, attempt, subtask)

    def send(self, subtask: _Subtask, event: Json, send: SendEvent) -> None:
        """Sends an event, unless the execution is gone. Any thread may call it."""
        JsonSerializer().serialize(event)
        with self._lock:
            if subtask in self._subtasks:
                subtask.sent += 1
                subtask.in_flight.append(event)
                send(self._uid, subtask.subtask, event)

    def receive(self, subtask: int, message: Json) -> None:
        """Takes an event or a barrier of a subtask."""
        if subtask in self._passed:
            self._held.append((subtask, message))
        elif "event" in message:
            self._coordinator.handle_event_from_operator(subtask, self._attempt, message["event"])
        else:
            self._passed[subtask] = message["taken"]
            if len(self._passed) == self._parallelism:
                self._checkpoint(message["barrier"])

    def _checkpoint(self, checkpoint_id: int) -> None:
        state = self._coordinator.checkpoint_coordinator(checkpoint_id)
        JsonSerializer().serialize(state)
        with self._lock:
            for i, subtask in enumerate(self._subtasks):
                while len(subtask.in_flight) > subtask.sent - self._passed[i]:
                    subtask.in_flight.popleft()
            events = [[i, event] for i, subtask in enumerate(self._subtasks) for event in subtask.in_flight]
            self.states[checkpoint_id] = {"state": state, "events": events}
        held, self._held, self._passed = self._held, [], {}
        for each in held:
            self.receive(*each)

    def repeat(self, checkpoint_id: int, start: int) -> None:
        """Keeps a state for a later checkpoint, too: nothing was read since."""
        with self._lock:
            self.states[checkpoint_id] = self.states[start]

    def forget_before(self, checkpoint_id: int) -> None:
        """Forgets the states before a checkpoint."""
        with self._lock:
            self.states = {number: state for number, state in self.states.items() if number >= checkpoint_id}

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Tells the coordinator how a checkpoint has ended."""
        if (tell := getattr(self._coordinator, news, None)) is not None:  # it does not hear of subsumed ones
            tell(checkpoint_id)

    def close(self) -> None:
        """Closes the coordinator, if it was started."""
        if self._coordinator is not None:
            self._coordinator.close()


class OperatorCoordinators:
    """The coordinators of a region. Only its lane uses them, unless a method says otherwise."""

    def __init__(self, graph: JobGraph, restored: Mapping[str, Json | None], restored_id: int | None) -> None:
        vertices = [(v, function_of(v.spec, CoordinatedFunction)) for v in graph.vertices]
        self._holders = {
            v.uid: _Holder(v.uid, function, v.parallelism, restored.get(v.uid), restored_id, lambda: self.on_mail())
            for v, function in vertices
            if function is not None
        }
        self.guard: Callable[..., Any] = lambda what, step, *args: step(*args)
        """Ends a call that hangs; takes what it does, a function and its arguments."""
        self._mail: deque[tuple[str, Callable[[_Holder], object]]] = deque()
        self._overtaken: dict[int, dict[str, Json | None]] = {}
        """The states of checkpoints whose barriers have overtaken an epoch. It may have the same number, and has left
        another state."""
        self._passed: dict[int, int] = {}
        """The epoch whose state such a checkpoint has, until the checkpoint is gone."""
        self._complete = 0
        """The last snapshot of which it was told that it is in a complete checkpoint."""
        self._are_ready = False
        """Whether the coordinators know the executions. What these send earlier, of records in flight, waits."""
        self.on_mail: Callable[[], object] = lambda: None
        """Is called when there is something to do, by any thread."""

    @property
    def uids(self) -> tuple[str, ...]:
        """The operators."""
        return tuple(self._holders)

    @property
    def has_mail(self) -> bool:
        """Whether there is something to do. Any thread may ask."""
        failed = any(holder.failure is not None for holder in self._holders.values())
        return failed or (self._are_ready and bool(self._mail))

    # --- what has happened; any thread -------------------------------------------------------------------------------

    def on_message(self, message: Json) -> bool:
        """Takes what an operator has said. Returns False if it has no coordinator here."""
        if (uid := message.get("uid")) not in self._holders:
            return False
        self._mail.append((uid, lambda holder: holder.receive(message["subtask"], message)))
        return True

    def snapshot_in(self, checkpoint_id: int, news: str) -> int | None:
        """Returns the snapshot of which the end of a checkpoint tells, of tasks and coordinators; None for none.

        A checkpoint whose barrier has overtaken an epoch has an earlier snapshot. If it is aborted, or gone, another
        one may still have that.
        """
        if news == "notify_checkpoint_complete":
            before, number = self._complete, self._passed.get(checkpoint_id, checkpoint_id)
            self._complete = max(before, number)
            return number if number > before else None
        return checkpoint_id if self._passed.pop(checkpoint_id, None) is None else None

    def on_notified(self, news: str, checkpoint_id: int) -> None:
        """Takes how a checkpoint has ended."""
        for uid in self._holders:
            self._mail.append((uid, lambda holder: holder.notify(news, checkpoint_id)))
        if self._holders:
            self.on_mail()

    # --- the lane ----------------------------------------------------------------------------------------------------

    def reset(self, start: int, reason: FlinkPyError | None) -> None:
        """Goes back to the state from which new executions start."""
        self._are_ready = False
        self._mail.clear()
        self._each(lambda holder: holder.reset(start, reason))

    def ready(self, attempt: int, send: SendEvent) -> None:
        """The tasks run."""
        self._each(lambda holder: holder.ready(attempt, send))
        self._are_ready = True

    def work(self) -> None:
        """Calls the coordinators for what has happened.

        Raises:
            FlinkPyError: A coordinator has raised, or lets the job fail.
        """
        while self._are_ready and self._mail:
            uid, call = self._mail.popleft()
            self._call(uid, call)
        for uid, holder in self._holders.items():
            if (failure := holder.failure) is not None:
                holder.failure = None
                with raised_on_driver(f"the coordinator of operator {uid!r}", UserFunctionError):
                    raise failure

    def take_states(self, checkpoint_id: int) -> dict[str, Json | None]:
        """Returns the states for a checkpoint, by uid."""
        overtaken = self._overtaken.pop(checkpoint_id, None)
        return self._left_by(checkpoint_id) if overtaken is None else overtaken

    def repeat(self, checkpoint_id: int, start: int) -> None:
        """Keeps the states that an epoch has left as those of one that has read nothing."""
        for holder in self._holders.values():
            holder.repeat(checkpoint_id, start)

    def overtake(self, checkpoint_id: int, start: int) -> None:
        """Keeps the states that an epoch has left for a checkpoint, too, which waits for no other epoch."""
        self._overtaken[checkpoint_id], self._passed[checkpoint_id] = self._left_by(start), start

    def _left_by(self, epoch: int) -> dict[str, Json | None]:
        return {uid: holder.states[epoch] for uid, holder in self._holders.items()}

    def forget_before(self, checkpoint_id: int) -> None:
        """Forgets the states before a checkpoint that is complete. Any thread may call it."""
        self._overtaken = {number: states for number, states in self._overtaken.items() if number >= checkpoint_id}
        for holder in self._holders.values():
            holder.forget_before(checkpoint_id)

    def close(self) -> None:
        """Closes the coordinators."""
        self._each(_Holder.close)

    def _each(self, call: Callable[[_Holder], object]) -> None:
        for uid in self._holders:
            self._call(uid, call)

    def _call(self, uid: str, call: Callable[[_Holder], object]) -> None:
        what = f"the coordinator of operator {uid!r}"
        with raised_on_driver(what, UserFunctionError):
            self.guard(f"calling {what}", call, self._holders[uid])
