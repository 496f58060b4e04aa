"""The ``HEAD`` object: which checkpoint of a job is the latest. Replacing it completes a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError, PathEscapesPrefixError
from dagster_flinkpy.storage.object_store import ObjectStore, check_relative

__all__ = ["HEAD_KEY", "Head", "read_head"]

HEAD_KEY = "HEAD"


@dataclass(frozen=True)
class Head:
    """What ``HEAD`` says."""

    fencing_token: int
    """Of the attempt that replaced it last; an attempt with a smaller one cannot replace it any more."""
    checkpoint_id: int | None = None
    """The latest completed checkpoint; None before the first."""
    path: str | None = None
    """Of its ``_metadata``, relative to the job's prefix."""
    metadata_sha256: str | None = None
    """Of that file."""
    retained: tuple[int, ...] = ()
    """Completed checkpoints that are kept, the latest last."""
    partitions: tuple[PartitionEnd, ...] = ()
    """End states of time partitions, in order of time; their checkpoints are among those retained."""
    unclaimed: tuple[int, ...] = ()
    """Completed checkpoints that the job does not own: it was restored from them, and their owner keeps them."""

    @property
    def kept(self) -> tuple[int, ...]:
        """All checkpoints whose files must stay."""
        return (*self.unclaimed, *self.retained)

    def to_bytes(self) -> bytes:
        """The object."""
        return json.dumps({**asdict(self), "partitions": [end.to_json() for end in self.partitions]}).encode()

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Head:
        """What :meth:`to_bytes` wrote.

        Raises:
            CorruptMetadataError: it is not that; names the object.
        """
        try:
            raw = json.loads(data)
            head = Head(
                fencing_token=int(raw["fencing_token"]),
                checkpoint_id=None if raw["checkpoint_id"] is None else int(raw["checkpoint_id"]),
                path=None if raw["path"] is None else check_relative(raw["path"]),
                metadata_sha256=raw["metadata_sha256"],
                retained=tuple(int(checkpoint_id) for checkpoint_id in raw["retained"]),
                partitions=tuple(PartitionEnd.from_json(end) for end in raw.get("partitions", ())),
                unclaimed=tuple(int(checkpoint_id) for checkpoint_id in raw.get("unclaimed", ())),
            )
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, PathEscapesPrefixError) as error:
            raise CorruptMetadataError(f"{name} does not say which checkpoint is the latest ({error!r})") from error
        if head.checkpoint_id is not None and (head.path is None or head.metadata_sha256 is None):
            raise CorruptMetadataError(f"{name} names checkpoint {head.checkpoint_id} without its path or checksum")
        return head


def read_head(store: ObjectStore) -> tuple[Head, str] | None:
    """Return ``HEAD`` of the job whose prefix ``store`` is rooted at, and its ETag; None if there is none yet.

    Raises:
        CorruptMetadataError: the object is not a HEAD.
    """
    try:
        data, etag = store.get(HEAD_KEY)
    except ObjectNotFoundError:
        return None
    return Head.from_bytes(data, f"{store.url}/{HEAD_KEY}"), etag
