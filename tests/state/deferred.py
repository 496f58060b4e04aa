"""The asynchronous part of a snapshot, run when somebody waits for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dagster_flinkpy.errors import StorageError

__all__ = ["Deferred"]


class Deferred(Future[Any]):
    """Takes the place of ``run_aside``."""

    fails = ""
    """Whether the work fails that is given next: ``before`` it has done anything, or ``after``."""

    def __init__(self, purpose: str, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work, self._fails = work, Deferred.fails

    def _run(self) -> None:
        if not self.done():
            found = None if self._fails == "before" else self._work()
            if self._fails:
                self.set_exception(StorageError("the disk is full"))
            else:
                self.set_result(found)

    def result(self, timeout: float | None = None) -> Any:
        self._run()
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._run()
        return super().exception()
