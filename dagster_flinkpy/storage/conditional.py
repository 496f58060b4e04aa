"""Conditional writes whose outcome is known: what a timeout or a lost response leaves open is read back."""

from __future__ import annotations

from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["put_if"]


def put_if(store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    """Write on condition that an object is as it was; a write that did happen is a success, whatever the store said.

    That the store says "precondition failed" does not mean that the write did not happen: a client that got no response
    sends the request again, and then meets its own first one. So ``data`` must be of this write alone: two writers with
    equal data would both take the object for theirs.

    Args:
        store: where.
        key: of the object.
        data: all of it.
        if_match: ETag of the object as it was; None: there was none.

    Returns:
        The ETag of the object as written.

    Raises:
        PreconditionFailedError: it was not as expected, and is not what was to be written.
        StorageError: anything else; the outcome is unknown.
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
