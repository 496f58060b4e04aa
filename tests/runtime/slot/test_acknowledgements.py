"""When a live task acknowledges a snapshot whose files are uploaded beside it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from dagster_flinkpy.runtime.task.acknowledgement import Acknowledgement

NOBODY: Any = None


class Task(PipelinedTask):
    """A task with nothing but acknowledgements."""

    def __init__(self) -> None:
        self.calls, self.sent = list[Callable[[], None]](), 0
        self._later = self.calls.append

    def _acknowledge(self, ack: Acknowledgement) -> None:
        self.sent += 1

    def run_calls(self) -> None:
        while self.calls:
            self.calls.pop()()


def test_an_acknowledgement_is_sent_once_when_all_is_uploaded_and_then_let_go() -> None:
    """It has the state's rows. In a cycle with its uploads it stayed until Python's collector came."""
    task, uploads = Task(), [Future[None]() for _ in range(3)]
    ack = Acknowledgement("uid", NOBODY, None, uploads, {})
    held = weakref.ref(uploads[1])
    task.acknowledge(ack)
    for number in (2, 0, 1):
        assert task.sent == 0
        uploads[number].set_result(None)
        task.run_calls()
    assert task.sent == 1
    del ack, uploads
    assert held() is None
