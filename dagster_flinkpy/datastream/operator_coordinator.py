"""A coordinator of the subtasks of a function, on the driver (Flink: ``OperatorCoordinator``).

A function that is a `CoordinatedFunction` and its coordinator send events to each other, values of JSON. The enumerator
of a source is the coordinator of its readers; this is the same for functions of ``process()``, ``map()`` and the like.

The coordinator takes part in checkpoints as if it was one more operator behind and before the subtasks: its state has
had exactly the events that they have sent before their barriers. What it has sent and a subtask has not taken before
its barrier is stored with its state, and is sent again after a restore. So neither side sees an event twice or misses
one, whatever fails. (In Flink, events to the coordinator have no such guarantee.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dagster_flinkpy.datastream.functions import Function
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "CoordinatedFunction",
    "OperatorCoordinator",
    "OperatorCoordinatorContext",
    "SubtaskGateway",
]


class SubtaskGateway(ABC):
    """Speaks to one execution of a subtask (Flink: ``OperatorCoordinator.SubtaskGateway``)."""

    @property
    @abstractmethod
    def subtask(self) -> int:
        """The number of the subtask, from 0."""

    @property
    @abstractmethod
    def attempt(self) -> int:
        """The number of the execution, as `RuntimeContext.get_attempt_number` returns it."""

    @abstractmethod
    def send_event(self, event: Any) -> None:
        """Sends an event to `CoordinatedFunction.handle_operator_event`. Any thread may call it.

        An event to an execution that has ended goes nowhere: its coordinator is reset, and gets another gateway.

        Args:
            event: A value of JSON.

        Raises:
            ConfigurationError: It is no value of JSON.
        """


class OperatorCoordinatorContext(ABC):
    """What a coordinator knows of its job (Flink: ``OperatorCoordinator.Context``)."""

    @property
    @abstractmethod
    def operator_uid(self) -> str:
        """The uid of the operator."""

    @abstractmethod
    def current_parallelism(self) -> int:
        """Returns the number of subtasks."""

    @abstractmethod
    def fail_job(self, cause: BaseException) -> None:
        """Lets the tasks fail, as if a function had raised the error. Any thread may call it."""


class OperatorCoordinator(ABC):
    """Coordinates the subtasks of an operator. Its methods are called one after the other, and must not wait.

    When tasks fail, all subtasks of the region run again from an earlier checkpoint. The coordinator hears, in this
    order: `execution_attempt_failed` for each subtask, `reset_to_checkpoint`, `subtask_reset` for each, and
    `execution_attempt_ready` for each when the new ones run.
    """

    def start(self, context: OperatorCoordinatorContext) -> None:  # noqa: B027 - most of these need not be there
        """Is called once, after `reset_to_checkpoint` if the job continues from a checkpoint."""

    def close(self) -> None:  # noqa: B027
        """Is called once, at the end of the job or before a restart of all of it."""

    @abstractmethod
    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        """Takes an event of a subtask.

        Args:
            subtask: The number of the subtask.
            attempt: The number of its execution.
            event: A value of JSON.
        """

    def checkpoint_coordinator(self, checkpoint_id: int) -> Any:
        """Returns the state for a checkpoint, a value of JSON. Default: None, for no state."""
        return None

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:  # noqa: B027
        """Replaces the state.

        Args:
            checkpoint_id: The checkpoint; -1 if there is none, and the job begins anew.
            state: What `checkpoint_coordinator` has returned for it, or None.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:  # noqa: B027
        """Is called when a checkpoint is complete."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027
        """Is called when a checkpoint will never complete."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:  # noqa: B027
        """Is called when a subtask runs again from a checkpoint; -1 if from the beginning."""

    def execution_attempt_failed(  # noqa: B027
        self, subtask: int, attempt: int, reason: BaseException | None
    ) -> None:
        """Is called when an execution has failed or was cancelled.

        Args:
            subtask: The number of the subtask.
            attempt: The number of the execution.
            reason: Why, if it is known.
        """

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: SubtaskGateway) -> None:  # noqa: B027
        """Is called when an execution runs, and takes events.

        Args:
            subtask: The number of the subtask.
            attempt: The number of the execution.
            gateway: Speaks to it, until the next one is ready.
        """

    def handle_undelivered_event(self, subtask: int, event: Any) -> None:
        """Takes an event back that was in flight to a subtask which is not there any more, as the job was rescaled.

        Raises:
            ConfigurationError: By default, because it would be lost.
        """
        raise ConfigurationError(
            f"the checkpoint has an event for subtask {subtask}, which is not there at this parallelism: "
            f"{event!r:.100}. Let {type(self).__name__}.handle_undelivered_event() take it, or restore with the "
            "former parallelism"
        )


class CoordinatedFunction(Function, ABC):
    """A function with a coordinator (Flink: ``CoordinatedOperatorFactory``, ``OperatorEventHandler``).

    It extends this class besides its own, such as `ProcessFunction`. Its tasks must live (``execution.exchange``).
    """

    @abstractmethod
    def create_coordinator(self) -> OperatorCoordinator:
        """Returns the coordinator. Is called on the driver, once in each run and restart of the whole job."""

    def handle_operator_event(self, event: Any) -> None:
        """Takes an event of the coordinator, a value of JSON, on the thread of the task, between two records."""
