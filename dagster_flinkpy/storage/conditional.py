"""Conditional writes with a known outcome: after a timeout or a lost response the object is read back."""

from __future__ import annotations

from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["put_if"]


def put_if(store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    """Writes an object if it has not changed. A write that happened is a success, whatever the store answered.

    "Precondition failed" does not mean that the write did not happen: a client that gets no response sends the request
    again, and may then meet its own first write. So ``data`` must be unique to this write. With equal data, two writers
    would both take the object for their own.

    Args:
        store: The object store.
        key: The key of the object.
        data: The whole object.
        if_match: The ETag of the object before the write, or None if it must not exist.

    Returns:
        The ETag of the object as written.

    Raises:
        PreconditionFailedError: The object has changed, and is not what this call writes.
        StorageError: Anything else; the outcome is unknown.
    """
    try:
        return store.put(key, data, if_none_match=if_match is None, if_match=if_match)
    except StorageError as error:
        try:
            there, etag = store.get(key)
        except StorageError:
            raise error from None
        if there == data:
            return etag
        raise
