"""The ``counter`` object: which checkpoint id was taken last (Flink: ``CheckpointIDCounter``)."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError
from dagster_flinkpy.json_records import Count, JsonRecord
from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["COUNTER_KEY", "CheckpointIdCounter", "read_counter"]

COUNTER_KEY = "counter"


@dataclass(frozen=True)
class CheckpointIdCounter(JsonRecord):
    """The content of ``counter``."""

    last: Count
    """The last id that was taken."""
    token: Count = 0
    """The fencing token of the attempt that took it."""
    nonce: str = ""
    """A random id of that attempt, which makes its write unique."""


def read_counter(store: ObjectStore) -> tuple[CheckpointIdCounter, str] | None:
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
        return CheckpointIdCounter.from_text(data), etag
    except ValueError as error:
        raise CorruptMetadataError(
            f"{store.url}/{COUNTER_KEY} does not say which checkpoint id was taken last: {error}. Make sure that no "
            "run of the job is active, then delete the object: the next id follows the ids that other objects name."
        ) from error
