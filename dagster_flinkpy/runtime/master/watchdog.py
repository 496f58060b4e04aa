"""Gives up on hooks, writes to the store and commits that take longer than the checkpoint timeout."""

from __future__ import annotations

import contextvars
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from dagster_flinkpy.errors import CheckpointTimeoutError

__all__ = ["Watchdog"]

T = TypeVar("T")
P = ParamSpec("P")

_GRACE_SECONDS = 5.0
"""How long an interrupted run waits for the current step, so that its outcome is known."""
_SHOWN_FRAMES = 5


class Watchdog:
    """Runs the steps of an execution attempt, one at a time, on a separate thread.

    A step that hangs cannot be stopped, so its outcome is unknown. From then on every step is refused with the same
    error: the attempt no longer calls the store, the sinks or the hooks, and neither aborts nor deletes anything.

    Args:
        timeout: The time limit of each step.
    """

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._hung: CheckpointTimeoutError | None = None
        self._steps: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, what: str, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a step and returns its result.

        Args:
            what: The step, for error messages, e.g. ``committing sink 'orders'``.
            step: The function to call.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Raises:
            CheckpointTimeoutError: This step or an earlier one did not end in time.
            BaseException: Whatever the step raises.
        """
        if self._hung is not None:
            raise self._hung
        done: Future[T] = Future()
        context = contextvars.copy_context()
        self._steps.put((done, lambda: context.run(step, *args, **kwargs)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(self._steps,), name="flinkpy-watched", daemon=True)
            self._thread.start()
        try:
            self._await(done, self._timeout.total_seconds())
        except BaseException:
            self._await(done, _GRACE_SECONDS)
            raise
        finally:
            if not done.done():
                self._hung = CheckpointTimeoutError(
                    f"{what} did not end within the checkpoint timeout of {self._timeout}, so its outcome is unknown: "
                    "nothing was aborted or deleted, and the next run continues from what it finds. See below where it "
                    "hangs, or raise set_checkpoint_timeout().\n" + self._place()
                )
        if self._hung is not None:
            raise self._hung
        return done.result()

    def close(self) -> None:
        """Ends the thread; if it hangs, it ends with the process. A later step starts another thread."""
        self._steps.put(None)
        self._steps, self._thread = queue.SimpleQueue(), None

    @staticmethod
    def _await(done: Future[Any], seconds: float) -> None:
        finished = threading.Event()
        done.add_done_callback(lambda _: finished.set())
        finished.wait(seconds)

    @staticmethod
    def _work(steps: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
        while (todo := steps.get()) is not None:
            done, step = todo
            try:
                result = step()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)
            del todo, done, step

    def _place(self) -> str:
        assert self._thread is not None and self._thread.ident is not None
        frame: FrameType | None = sys._current_frames().get(self._thread.ident)
        return "".join(traceback.format_stack(frame)[-_SHOWN_FRAMES:]).rstrip() if frame is not None else ""
