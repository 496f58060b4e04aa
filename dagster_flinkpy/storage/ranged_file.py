"""An object of a store as a readable file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from dagster_flinkpy.errors import ObjectNotFoundError
from dagster_flinkpy.storage import ObjectStore

__all__ = ["RangedFile"]


class RangedFile(io.RawIOBase):
    """An object as a file that fetches only the ranges that are read.

    Args:
        store: Store of the object.
        key: Key of the object.
        size: Size of the object in bytes.
        check: Is called when a range was fetched, before it is used, and if the object is gone.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, check: Callable[[], object] = lambda: None) -> None:
        self._store, self._key, self._size, self._check, self._position = store, key, size, check, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns what the store does, without the two copies that the base class makes of it."""
        left = max(self._size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        if not count and self._position:
            return b""
        try:
            data = self._store.get_range(self._key, self._position, count) if count else b""
        except ObjectNotFoundError:
            self._check()  # may say more
            raise
        self._check()
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
