"""Reads a staged file while what was read before is used."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import Future, ThreadPoolExecutor

from dagster_flinkpy.connectors.commit.staged_files import PART_BYTES
from dagster_flinkpy.storage import ObjectStore

__all__ = ["StagedContent"]


class StagedContent(io.RawIOBase):
    """Reads a staged file from its beginning to its end, one part ahead. As a context it is closed at the end."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key = store, key
        self._offsets = iter(range(0, size, PART_BYTES))
        self._part, self._digest = memoryview(b""), hashlib.sha256()
        self._reader = ThreadPoolExecutor(1, "staged")
        self._next = self._begin()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._part and self._next is not None:
            self._part = memoryview(self._next.result())
            self._next = self._begin()
        end = len(self._part) if size < 0 else size
        taken, self._part = self._part[:end], self._part[end:]
        return bytes(taken)

    def _begin(self) -> Future[bytes] | None:
        offset = next(self._offsets, None)
        return None if offset is None else self._reader.submit(self._fetch, offset)

    def _fetch(self, offset: int) -> bytes:
        data = self._store.get_range(self._key, offset, PART_BYTES)
        self._digest.update(data)
        return data

    def sha256(self) -> str:
        """Returns the SHA-256 of what was read, in hex."""
        return self._digest.hexdigest()

    def close(self) -> None:
        self._reader.shutdown()
        super().close()
