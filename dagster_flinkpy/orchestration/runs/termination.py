"""Ends a run that is terminated, on its page or by ``dagster/max_runtime``, without losing completed work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupts_passed_to"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_passed_to(terminate: Callable[[BaseException], object]) -> Iterator[None]:
    """Passes the first interrupt to a function, instead of raising it wherever this thread happens to be.

    Dagster terminates a run with a signal, and its handler raises ``DagsterExecutionInterruptedError`` in the main
    thread. That could be in the middle of a decision about a checkpoint. A second interrupt is raised at once. Outside
    the main thread, where there are no signals, this context does nothing.

    Args:
        terminate: Takes what the handler in force would raise. It is called in a signal handler, so it must not wait.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in _SIGNALS}
    raising = {number: handler for number, handler in found.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        try:
            raising[signal.Signals(number)](number, frame)
        except BaseException as error:
            terminate(error)

    def restore() -> None:
        for number, handler in raising.items():
            signal.signal(number, handler)

    for number in raising:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
