"""The ``counter`` object: which checkpoint id was taken last (Flink: ``CheckpointIDCounter``)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError
from dagster_flinkpy.storage import json_fields
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["COUNTER_KEY", "Counter", "read_counter"]

COUNTER_KEY = "counter"


@dataclass(frozen=True)
class Counter:
    """The content of ``counter``."""

    last: int
    """The last id that was taken."""
    token: int = 0
    """The fencing token of the attempt that took it."""
    nonce: str = ""
    """A random id of that attempt, which makes its write unique."""

    def to_bytes(self) -> bytes:
        """Encodes the object."""
        return json.dumps(asdict(self)).encode()


def read_counter(store: ObjectStore) -> tuple[Counter, str] | None:
    """Reads the ``counter`` of a job.

    Args:
        store: The object store, rooted at the job's prefix.

    Returns:
        The counter and its ETag, or None if there is no counter.

    Raises:
        CorruptMetadataError: The object is not a counter.
    """
    try:
        data, etag = store.get(COUNTER_KEY)
    except ObjectNotFoundError:
        return None
    try:
        raw = json_fields.load_object(data)
        last = json_fields.integer(raw, "last")
        return Counter(last, json_fields.optional_integer(raw, "token") or 0), etag
    except ValueError as error:
        raise CorruptMetadataError(
            f"{store.url}/{COUNTER_KEY} does not say which checkpoint id was taken last: {error}. Make sure that no "
            "run of the job is active, then delete the object: the next id follows the ids that other objects name."
        ) from error
