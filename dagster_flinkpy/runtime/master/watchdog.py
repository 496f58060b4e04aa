"""Gives up on hooks, writes to the store and commits that take longer than the checkpoint timeout."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from dagster_flinkpy.common.daemon_threads import DaemonThread
from dagster_flinkpy.errors import CheckpointTimeoutError

__all__ = ["Watchdog"]

T = TypeVar("T")
P = ParamSpec("P")

_GRACE_SECONDS = 5.0
"""How long an interrupted run waits for the current step, so that its outcome is known."""
_SHOWN_FRAMES = 5
_SO = "its outcome is unknown: nothing was aborted or deleted, and the next run continues from what it finds"


class _GivenUp(Exception):
    """An interrupted run no longer waits for the step."""


class _Worker(DaemonThread):
    """A thread that runs steps one after the other."""

    step: Future[Any] | None = None
    """The last step."""

    def begin(self, step: Callable[[], Any]) -> Future[Any]:
        """Gives the thread a step to run."""
        self.step = done = Future[Any]()
        self.do(partial(_run, step, done))
        return done

    def place(self) -> str:
        """Returns the innermost calls of the thread, as in a traceback."""
        frame: FrameType | None = sys._current_frames().get(self.ident)
        return "".join(traceback.format_stack(frame)[-_SHOWN_FRAMES:]).rstrip() if frame is not None else ""


def _run(step: Callable[[], Any], done: Future[Any]) -> None:
    with suppress(InvalidStateError):  # it was given up
        try:
            done.set_result(step())
        except BaseException as error:
            done.set_exception(error)


class Watchdog:
    """Runs the steps of an execution attempt. For each calling thread there is another thread, which runs its steps.

    A step that hangs cannot be stopped, so its outcome is unknown. From then on every step is refused with the same
    error: the attempt no longer calls the store, the sinks or the hooks, and neither aborts nor deletes anything.
    """

    def __init__(self, timeout: timedelta, so: str = _SO) -> None:
        self.timeout = timeout
        """The time limit of each step."""
        self._so = so
        self._hung: CheckpointTimeoutError | None = None
        self._workers: dict[int, _Worker] = {}
        """The worker of each calling thread."""

    def run(self, what: str, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a step and returns its result.

        Raises:
            CheckpointTimeoutError: This step or an earlier one did not end in time.
            BaseException: Whatever the step raises.
        """
        if self._hung is not None:
            raise self._hung
        caller = threading.get_ident()
        if (worker := self._workers.get(caller)) is None:
            worker = self._workers[caller] = _Worker("flinkpy-watched")
        done: Future[T] = worker.begin(partial(step, *args, **kwargs))
        try:
            self._await(done, self.timeout.total_seconds())
        except BaseException:
            self._await(done, _GRACE_SECONDS)
            raise
        finally:
            if not done.done() or isinstance(done.exception(), _GivenUp):
                self._hung = CheckpointTimeoutError(
                    f"{what} did not end within the checkpoint timeout of {self.timeout}, so {self._so}. See below "
                    "where it hangs, or raise set_checkpoint_timeout().\n" + worker.place()
                )
        if self._hung is not None:
            raise self._hung
        return done.result()

    def interrupt(self, grace: float = _GRACE_SECONDS) -> None:
        """Gives the steps of other threads a moment to end, and then treats them as hanging.

        Args:
            grace: How long to wait for each, in seconds. Default: 5.
        """
        for worker in tuple(self._workers.values()):
            if self._hung is None and worker.step is not None and not worker.step.done():
                if grace:
                    self._await(worker.step, grace)
                with suppress(InvalidStateError):
                    worker.step.set_exception(_GivenUp())

    def close(self) -> None:
        """Ends the threads. One that hangs ends with the process. A later step starts another thread."""
        for worker in tuple(self._workers.values()):
            worker.end()
        self._workers.clear()

    @staticmethod
    def _await(done: Future[Any], seconds: float) -> None:
        wait([done], seconds)
