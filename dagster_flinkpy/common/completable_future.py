"""A result that comes later (``pyflink.common.completable_future``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """The result of work on another thread of this process.

    Args:
        future: Gets the result.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    @staticmethod
    def of(name: str, work: Callable[..., T], *args: Any, **options: Any) -> CompletableFuture[T]:
        """Starts a thread for a piece of work, and returns its result to come.

        Args:
            name: The name of the thread.
            work: The work, with its arguments behind.
            *args: Positional arguments.
            **options: Keyword arguments.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **options)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name=name, daemon=True).start()
        return CompletableFuture(future)

    def result(self) -> T:
        """Waits for the result and returns it, or raises the error of the work."""
        return self._future.result()

    def exception(self) -> BaseException | None:
        """Waits for the end of the work, and returns its error, or None."""
        return self._future.exception()

    def done(self) -> bool:
        """Returns whether the work has ended."""
        return self._future.done()

    def cancel(self) -> bool:
        """Tries to keep the work from beginning. Returns whether it is cancelled. It does not cancel a job."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Returns whether the work was cancelled before it began."""
        return self._future.cancelled()
