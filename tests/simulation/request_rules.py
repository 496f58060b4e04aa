"""What must hold for requests: each is carried out at most once, and a job has done what it says that it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.requests import Answer, AnswerState, Order, Request, RequestKind, id_of
from tests.simulation.program import JOB

if TYPE_CHECKING:
    from tests.simulation.invariants import Completed

__all__ = ["RequestRules"]


class RequestRules:
    """The answers to requests, as they are written and as askers get them.

    Args:
        completed: All completed checkpoints.
        fail: Reports a violation.
    """

    def __init__(self, completed: Mapping[int, Completed], fail: Callable[[str], None]) -> None:
        self._completed, self._fail = completed, fail
        self._drains: set[str] = set()
        """Requests to stop with draining."""
        self.draining: set[int] = set()
        """Fencing tokens of the attempts that have taken one."""

    def on_put(self, key: str, old: bytes | None, new: bytes) -> None:
        """Checks a write of an answer."""
        found = id_of(key.removeprefix(f"{JOB}/"))
        if found is None:
            return
        if found[1]:
            if Request.from_bytes(new, found[0]).order.drain:
                self._drains.add(found[0])
            return
        after = Answer.from_bytes(new, found[0])
        if found[0] in self._drains and after.state is AnswerState.ACCEPTED:
            self.draining.add(after.attempt)
        if old is None:
            return
        before = Answer.from_bytes(old, found[0])
        if before.final:
            self._fail(f"request {found[0]} was {before.state.value}, and is {after.state.value} now")
        elif after.state is AnswerState.DONE and before.attempt != after.attempt:
            self._fail(f"attempt {after.attempt} carried out request {found[0]}, which {before.attempt} had taken")

    def answered(self, order: Order, answer: Answer) -> None:
        """Checks what an asker was told to be done."""
        if answer.checkpoint_id is None:
            if order.kind not in (RequestKind.CANCEL, RequestKind.RESCALE):
                self._fail(f"request {answer.request_id} is done, but without a checkpoint")
            return
        done = self._completed.get(answer.checkpoint_id)
        if done is None:
            self._fail(f"request {answer.request_id} names checkpoint {answer.checkpoint_id}, which is not complete")
        elif order.kind is RequestKind.STOP and not (done.metadata.stopped or done.metadata.end_of_input):
            self._fail(f"checkpoint {answer.checkpoint_id} was to stop the job, but does not say so")
