"""The ``HEAD`` object: which checkpoint of a job is the latest. Replacing it completes a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.errors import CorruptMetadataError, ObjectNotFoundError, PathEscapesPrefixError
from dagster_flinkpy.storage import json_fields
from dagster_flinkpy.storage.object_store import ObjectStore, check_relative

__all__ = ["HEAD_KEY", "Head", "read_head"]

HEAD_KEY = "HEAD"


@dataclass(frozen=True)
class Head:
    """The content of ``HEAD``."""

    fencing_token: int
    """The token of the attempt that last replaced it. Attempts with a smaller token can no longer replace it."""
    checkpoint_id: int | None = None
    """The latest completed checkpoint, or None before the first one."""
    path: str | None = None
    """The path of its ``_metadata``, relative to the job's prefix."""
    metadata_sha256: str | None = None
    """The SHA-256 of that file."""
    retained: tuple[int, ...] = ()
    """Completed checkpoints that are kept, the latest last."""
    partitions: tuple[PartitionEnd, ...] = ()
    """End states of time partitions, in order of time; their checkpoints are among those retained."""
    unclaimed: tuple[int, ...] = ()
    """Completed checkpoints that the job was restored from but does not own; they are kept for their owner."""
    lost: bool = False
    """Whether the previous ``HEAD`` was lost, an attempt was told to start anyway, and it has not completed a
    checkpoint yet. Until then, no other attempt starts from nothing unless it is told to."""
    new: bool = False
    """Whether there was nothing of the job when this ``HEAD`` was made, and no checkpoint was completed since. If a
    sink knows the job nevertheless, its folder was taken away."""

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

    def to_bytes(self) -> bytes:
        """Encodes the object."""
        return json.dumps({**asdict(self), "partitions": [end.to_json() for end in self.partitions]}).encode()

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Head:
        """Decodes what :meth:`to_bytes` returned.

        Raises:
            CorruptMetadataError: The object is damaged; the message names it.
        """
        try:
            raw = json_fields.load_object(data)
            head = Head(
                fencing_token=json_fields.integer(raw, "fencing_token"),
                checkpoint_id=json_fields.optional_integer(raw, "checkpoint_id", 1),
                path=None if raw["path"] is None else check_relative(json_fields.text(raw, "path")),
                metadata_sha256=None if raw["metadata_sha256"] is None else json_fields.text(raw, "metadata_sha256"),
                retained=_ids(raw, "retained"),
                partitions=tuple(PartitionEnd.from_json(end) for end in json_fields.items(raw, "partitions")),
                unclaimed=_ids(raw, "unclaimed"),
                lost=raw.get("lost") is True,
                new=raw.get("new") is True,
            )
            if head.checkpoint_id is not None and (head.path is None or head.metadata_sha256 is None):
                raise ValueError(f"it names checkpoint {head.checkpoint_id} without its path or checksum")
        except (KeyError, ValueError, PathEscapesPrefixError) as error:
            detail = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise CorruptMetadataError(
                f"{name} does not say which checkpoint is the latest: {detail}. 'flinkpy checkpoints recover "
                f"{name.removesuffix(f'/{HEAD_KEY}')}' rebuilds it from the newest intact checkpoint."
            ) from error
        return head


def _ids(raw: dict[str, Any], name: str) -> tuple[int, ...]:
    return tuple(json_fields.integer({name: each}, name, 1) for each in json_fields.items(raw, name))


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
