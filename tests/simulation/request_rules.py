"""What must hold for requests: each is carried out at most once, and a job has done what it says that it has done.

Nor has it done what it says that it has not: an answer is true, or says that the outcome is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.checkpoint.requests import Answer, AnswerState, Order, Request, RequestKind, id_of
from dagster_flinkpy.errors import RequestOutcomeUnknownError
from tests.simulation.bucket import Bucket
from tests.simulation.program import JOB

if TYPE_CHECKING:
    from tests.simulation.invariants import Completed

__all__ = ["RequestRules"]

_SAVEPOINT = re.compile(rf"(?:.+/)?savepoint-{JOB}-([0-9a-f]{{12}})(?:-native)?/{METADATA_NAME}")


class RequestRules:
    """The answers to requests, as they are written and as askers get them.

    Args:
        bucket: The bucket with the savepoints.
        completed: All completed checkpoints.
        fail: Reports a violation.
    """

    def __init__(self, bucket: Bucket, completed: Mapping[int, Completed], fail: Callable[[str], None]) -> None:
        self._bucket, self._completed, self._fail = bucket, completed, fail
        self._in_vain: set[str] = set()
        """The names of savepoints of requests that were not carried out, as their answers say."""
        self._bound: dict[str, int] = {}
        """The checkpoints that are to serve requests for one."""
        self._missed: set[int] = set()
        """Checkpoints of which somebody was told that they will not be complete."""
        self._drains: set[str] = set()
        """Requests to stop with draining."""
        self.draining: set[int] = set()
        """Fencing tokens of the attempts that have taken one."""

    def on_put(self, key: str, old: bytes | None, new: bytes) -> None:
        """Checks a write of an answer, or of a savepoint."""
        if (named := _SAVEPOINT.fullmatch(key)) and named[1] in self._in_vain:
            self._fail(f"{key} appears, though its request was said to have failed")
        found = id_of(key.removeprefix(f"{JOB}/"))
        if found is None:
            return
        if found[1]:
            if Request.from_bytes(new, found[0]).order.drain:
                self._drains.add(found[0])
            return
        after = Answer.from_bytes(new, found[0])
        self._check_failed(after)
        if found[0] in self._drains and after.state is AnswerState.ACCEPTED:
            self.draining.add(after.attempt)
        if old is None:
            return
        before = Answer.from_bytes(old, found[0])
        if before.final:
            self._fail(f"request {found[0]} was {before.state.value}, and is {after.state.value} now")
        elif after.state is AnswerState.DONE and before.attempt != after.attempt:
            self._fail(f"attempt {after.attempt} carried out request {found[0]}, which {before.attempt} had taken")

    def bind(self, request_id: str, checkpoint_id: int) -> None:
        """Records that a checkpoint is to serve a request for one."""
        self._bound[request_id] = checkpoint_id

    def on_complete(self, checkpoint_id: int) -> None:
        """Checks that nobody was told that a checkpoint has failed."""
        if checkpoint_id in self._missed:
            self._fail(f"checkpoint {checkpoint_id} is complete, though its request was said to have failed")

    def _check_failed(self, answer: Answer) -> None:
        if answer.error == RequestOutcomeUnknownError.__name__ or not answer.final or answer.state is AnswerState.DONE:
            return
        name = answer.request_id.rpartition("-")[2]
        self._in_vain.add(name)
        for key in self._bucket.objects:
            if (named := _SAVEPOINT.fullmatch(key)) and named[1] == name:
                self._fail(f"{key} is there, though its request was said to have failed")
        if (checkpoint_id := self._bound.get(answer.request_id)) is not None:
            self._missed.add(checkpoint_id)
            if checkpoint_id in self._completed:
                self._fail(f"checkpoint {checkpoint_id} is complete, though its request was said to have failed")

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
