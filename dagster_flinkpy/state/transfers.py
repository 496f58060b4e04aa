"""Transfers of state files in the background, with a limited number of concurrent requests."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

from dagster_flinkpy.storage import ObjectStore

__all__ = ["Uploads", "fetch", "write_aside"]

PART_BYTES = 8 << 20
"""The size of one request in bytes. A larger range is read by several concurrent requests."""
_REQUESTS = 8
"""The maximum number of concurrent requests of a process, in each direction."""


@cache
def _threads(purpose: str, process: int) -> ThreadPoolExecutor:
    # One per process: a Python worker of Spark is forked, and threads are not.
    return ThreadPoolExecutor(_REQUESTS, thread_name_prefix=f"flinkpy-{purpose}-{process}")


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


def write_aside(write: Callable[[], None]) -> Future[None]:
    """Runs a write to the local disk in a thread, and returns a future to wait for."""
    return _threads("write", os.getpid()).submit(write)


class Uploads:
    """The background uploads of one subtask. One thread uses it."""

    def __init__(self) -> None:
        self._pending: deque[Future[None]] = deque()

    def submit(self, upload: Callable[[], None]) -> None:
        """Begins an upload; waits if too many are in progress.

        Raises:
            StorageError: An earlier upload has failed.
        """
        while self._pending and (len(self._pending) >= _REQUESTS or self._pending[0].done()):
            self._pending.popleft().result()
        self._pending.append(_threads("upload", os.getpid()).submit(upload))

    @property
    def pending(self) -> tuple[Future[None], ...]:
        """The uploads that have not ended, as far as is known. They raise a StorageError if they fail."""
        return tuple(self._pending)
