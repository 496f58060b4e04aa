"""Transfers of state files in the background, with a limited number of concurrent requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from dagster_flinkpy.storage import ObjectStore

__all__ = ["Uploads", "fetch", "run_aside"]

T = TypeVar("T")

PART_BYTES = 8 << 20
"""The size of one request in bytes. A larger range is read by several concurrent requests."""
_REQUESTS = 8
"""The maximum number of concurrent requests of a process, in each direction."""
_WRITERS = 2
"""How many snapshots a process writes at once: few, because the thread of its tasks waits for each that runs Python."""


@cache
def _threads(purpose: str, process: int) -> ThreadPoolExecutor:
    # One per process: a Python worker of Spark is forked, and threads are not.
    return ThreadPoolExecutor(
        _WRITERS if purpose == "snapshot" else _REQUESTS, thread_name_prefix=f"flinkpy-{purpose}-{process}"
    )


def fetch(store: ObjectStore, path: str, start: int, length: int) -> bytes | bytearray:
    """Returns a range of an object. There are fewer bytes, or none, if the object ends before.

    Raises:
        ObjectNotFoundError: There is no such object.
    """
    if length <= PART_BYTES:
        return store.get_range(path, start, length)
    data = bytearray(length)
    offsets = range(0, length, PART_BYTES)

    def read(offset: int) -> int:
        part = store.get_range(path, start + offset, min(PART_BYTES, length - offset))
        data[offset : offset + len(part)] = part
        return len(part)

    size = sum(_threads("fetch", os.getpid()).map(read, offsets))
    return data if size == length else data[:size]


def run_aside(purpose: str, work: Callable[[], T]) -> Future[T]:
    """Runs some work in a thread, and returns a future to wait for.

    Args:
        purpose: Names the threads. Work may only wait for work with another purpose.
        work: What to do.
    """
    return _threads(purpose, os.getpid()).submit(work)


class _Upload:
    """An upload that can be tried again until it has succeeded."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write: Callable[[], None] | None = write
        self.of_earlier = False
        """Whether a snapshot has been taken since it was begun first."""
        self.begin()

    def begin(self) -> None:
        self.future = run_aside("upload", self._run)

    def _run(self) -> None:
        assert self._write is not None
        self._write()
        self._write = None  # and what it has written

    @property
    def has_failed(self) -> bool:
        return self.future.done() and self.future.exception() is not None


class Uploads:
    """The background uploads of one subtask. One thread uses it."""

    def __init__(self) -> None:
        self._pending: dict[str, _Upload] = {}

    def submit(self, path: str, write: Callable[[], None]) -> None:
        """Begins the upload of a file; waits if too many are in progress."""
        while len(running := [each for each in self._pending.values() if not each.future.done()]) >= _REQUESTS:
            running[0].future.exception()
        self._pending = {path: each for path, each in self._pending.items() if each in running or each.has_failed}
        self._pending[path] = _Upload(write)

    def retry(self, needed: Collection[str]) -> None:
        """Begins uploads again that have failed before this snapshot, and forgets those that it does not need.

        Args:
            needed: The files that the snapshot names.
        """
        for path, each in [*self._pending.items()]:
            if each.has_failed and path not in needed:
                del self._pending[path]
            elif each.has_failed and each.of_earlier:
                each.begin()
            each.of_earlier = True

    @property
    def pending(self) -> tuple[Future[None], ...]:
        """The uploads that have not succeeded, as far as is known. They raise a StorageError if they fail."""
        return tuple(each.future for each in self._pending.values())
