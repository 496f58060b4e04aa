"""The ``HEAD`` object: which checkpoint of a job is the latest. Replacing it completes a checkpoint.

And what it says about a checkpoint in a listing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError, PathEscapesPrefixError
from dagster_flinkpy.json_records import Count, Id, JsonRecord, load_object
from dagster_flinkpy.storage.object_store import ObjectStore, check_relative

__all__ = ["HEAD_KEY", "CheckpointEntry", "EntryStatus", "Head", "read_head"]

HEAD_KEY = "HEAD"


@dataclass(frozen=True)
class Head(JsonRecord):
    """The content of ``HEAD``."""

    fencing_token: Count
    """The token of the attempt that last replaced it. Attempts with a smaller token can no longer replace it."""
    checkpoint_id: Id | None = None
    """The latest completed checkpoint, or None before the first one."""
    path: str | None = None
    """The path of its ``_metadata``, relative to the job's prefix."""
    metadata_sha256: str | None = None
    """The SHA-256 of that file."""
    retained: tuple[Id, ...] = ()
    """Completed checkpoints that are kept, the latest last."""
    partitions: tuple[PartitionEnd, ...] = ()
    """End states of time partitions, in order of time; their checkpoints are among those retained."""
    unclaimed: tuple[Id, ...] = ()
    """Completed checkpoints that the job was restored from but does not own; they are kept for their owner."""
    lost: bool = False
    """Whether the previous ``HEAD`` was lost, and no checkpoint was completed since: an attempt was told to start
    anyway, or noticed at its end that the folder was taken away. No other one starts from nothing without being told
    to."""
    new: bool = False
    """Whether there was nothing of the job when this ``HEAD`` was made, and no checkpoint was completed since. If a
    sink knows the job nevertheless, its folder was taken away."""
    disposed: bool = False
    """Whether the job was disposed of. What is left are files that its forks name; no attempt begins any more."""

    @property
    def kept(self) -> tuple[int, ...]:
        """Returns all checkpoints whose files must be kept."""
        return (*self.unclaimed, *self.retained)

    def without_latest(self) -> Head:
        """Returns a ``HEAD`` without the latest checkpoint."""
        lost = self.checkpoint_id
        return replace(
            self,
            checkpoint_id=None,
            path=None,
            metadata_sha256=None,
            retained=tuple(i for i in self.retained if i != lost),
            partitions=tuple(end for end in self.partitions if end.checkpoint_id != lost),
        )

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Head:
        """Reads what :meth:`to_bytes` returned.

        Raises:
            CorruptMetadataError: The object is damaged; the message names it.
        """
        try:
            raw = load_object(data)
            if missing := [name for name in ("path", "metadata_sha256") if name not in raw]:
                raise ValueError(f"it has no {missing[0]}")
            head = Head.from_json(raw)
            if head.path is not None:
                check_relative(head.path)
            if head.checkpoint_id is not None and (head.path is None or head.metadata_sha256 is None):
                raise ValueError(f"it names checkpoint {head.checkpoint_id} without its path or checksum")
        except (ValueError, PathEscapesPrefixError) as error:
            raise CorruptMetadataError(
                f"{name} does not say which checkpoint is the latest: {error}. 'flinkpy checkpoints recover "
                f"{name.removesuffix(f'/{HEAD_KEY}')}' rebuilds it from the newest intact checkpoint."
            ) from error
        return head


def read_head(store: ObjectStore) -> tuple[Head, str] | None:
    """Reads the ``HEAD`` of a job.

    Args:
        store: The object store, rooted at the job's prefix.

    Returns:
        ``HEAD`` and its ETag, or None if the job has none.

    Raises:
        CorruptMetadataError: The object is not a HEAD.
    """
    try:
        data, etag = store.get(HEAD_KEY)
    except ObjectNotFoundError:
        return None
    return Head.from_bytes(data, f"{store.url}/{HEAD_KEY}"), etag


class EntryStatus(str, Enum):
    """What ``HEAD`` says about a checkpoint."""

    LATEST = "latest"
    RETAINED = "retained"
    ORPHAN = "orphan"
    """It was never completed, or is subsumed."""
    UNCLAIMED = "unclaimed"
    """The job was restored from it and does not own it; it is kept until someone disposes of it."""


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint as a listing shows it."""

    checkpoint_id: int
    path: str
    """The path of its ``_metadata``, relative to the job's prefix."""
    size: int
    """The size of its ``_metadata`` in bytes."""
    last_modified: datetime
    status: EntryStatus
