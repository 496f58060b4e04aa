"""The bytes of a state handle: in a file of the savepoint's folder, or in its metadata."""

from __future__ import annotations

from functools import cached_property

from dagster_flinkpy.errors import CorruptStateError, ObjectNotFoundError
from dagster_flinkpy.flink_savepoint.metadata import StreamHandle
from dagster_flinkpy.storage import ObjectStore

__all__ = ["StoredBytes"]


class StoredBytes:
    """The bytes of a handle, which are read in parts.

    Args:
        store: The savepoint's folder.
        handle: Where they are in it.
        what: Whose state it is, for messages.
    """

    def __init__(self, store: ObjectStore, handle: StreamHandle | None, what: str) -> None:
        self._store, self._handle = store, handle or StreamHandle(data=b"")
        self.what = f"{what}, file {handle.path}" if handle is not None and handle.path else what

    @cached_property
    def size(self) -> int:
        """How many there are.

        Raises:
            CorruptStateError: The file is missing, or has another size than the metadata says.
        """
        handle = self._handle
        if handle.data is not None:
            return len(handle.data)
        found = self._store.head(handle.path)
        if found is None:
            raise CorruptStateError(f"{self.what}: the file is missing")
        if found.size != handle.size:
            raise CorruptStateError(f"{self.what}: it has {found.size:,} bytes, and {handle.size:,} in the metadata")
        return handle.size

    def read(self, start: int, end: int) -> bytes:
        """Reads a part.

        Raises:
            CorruptStateError: The file is missing or too short.
        """
        if not 0 <= start <= end <= self.size:
            raise CorruptStateError(f"{self.what}: there are no bytes {start:,} to {end:,}")
        if self._handle.data is not None:
            return self._handle.data[start:end]
        try:
            data = self._store.get_range(self._handle.path, start, end - start)
        except ObjectNotFoundError:
            raise CorruptStateError(f"{self.what}: the file is missing") from None
        if len(data) != end - start:
            raise CorruptStateError(f"{self.what}: it ends after {start + len(data):,} bytes")
        return data
