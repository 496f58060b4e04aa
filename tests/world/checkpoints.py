"""The folder of a job's checkpoints, to which others do things, too."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dagster_flinkpy.checkpoint.head import Head
from dagster_flinkpy.errors import (
    CorruptMetadataError,
    CorruptStateError,
    FencedError,
    HeadLostError,
    StorageError,
)
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from tests.world.buckets import Bucket, forbids, turns_versioning_on
from tests.world.stage import Act, System, Undo, nothing

__all__ = ["SYSTEMS"]


class Checkpoints(System):
    title = "Checkpoint directory"

    @property
    def job(self) -> Path:
        """The folder of the job."""
        return self.place.folder / "job" / "job"

    @property
    def store(self) -> ObjectStore:
        """The store of the job."""
        return self.checkpoints.child("job").open()

    @property
    def chk(self) -> list[str]:
        """The folders of complete checkpoints, the newest last."""
        found = [info.key for info in self.store.list("chk-") if info.key.endswith("/_metadata")]
        return sorted((key.removesuffix("_metadata") for key in found), key=lambda folder: int(folder[4:-1]))

    def keys(self, *prefixes: str) -> list[str]:
        """Returns the objects with these prefixes."""
        return [info.key for prefix in prefixes for info in self.store.list(prefix)]


class CheckpointsOnS3(Checkpoints, Bucket):
    title = "Checkpoint directory on S3"

    @property
    def checkpoints(self) -> StorageLocation:
        return self.location.child("jobs")


def _away(find: Callable[[Checkpoints], list[str]]) -> Callable[[Checkpoints], Undo | None]:
    """Takes objects away, and puts them back if the job has failed."""

    def act(system: Checkpoints) -> Undo | None:
        store = system.store
        there = set(system.keys(""))
        kept = {key: store.get(key)[0] for key in find(system) if key in there}
        if not kept:
            return None
        store.delete_many(kept)

        def undo(failed: bool) -> None:
            for key, content in kept.items() if failed else ():
                store.put(key, content)

        return undo

    return act


def _written(
    find: Callable[[Checkpoints], list[str]], change: Callable[[bytes], bytes]
) -> Callable[[Checkpoints], Undo | None]:
    """Overwrites objects, and puts them back if the job has failed."""

    def act(system: Checkpoints) -> Undo | None:
        store = system.store
        there = set(system.keys(""))
        kept = {key: store.get(key)[0] for key in find(system) if key in there}
        if not kept:
            return None
        for key, content in kept.items():
            store.put(key, change(content))

        def undo(failed: bool) -> None:
            for key, content in kept.items() if failed else ():
                store.put(key, content)

        return undo

    return act


def _head(system: Checkpoints) -> list[str]:
    return ["HEAD"]


def _metadata(system: Checkpoints) -> list[str]:
    return [f"{folder}_metadata" for folder in system.chk[-1:]]


def _shared(system: Checkpoints) -> list[str]:
    return system.keys("shared/")


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _rubbish(content: bytes) -> bytes:
    return b"?" * len(content)


def moves_folder(system: Checkpoints) -> Undo | None:
    kept = system.place.folder / "kept-job"
    system.job.rename(kept)

    def undo(failed: bool) -> None:
        if failed:
            shutil.rmtree(system.job, ignore_errors=True)
            kept.rename(system.job)

    return undo


def puts_older_head_back(system: Checkpoints) -> Undo | None:
    """As from a backup, or as an older version of the object."""
    if len(system.chk) < 2:
        return None
    now, key = system.store.get("HEAD")[0], f"{system.chk[-2]}_metadata"
    number, digest = int(system.chk[-2][4:-1]), hashlib.sha256(system.store.get(key)[0]).hexdigest()
    older = replace(Head.from_bytes(now, "HEAD"), checkpoint_id=number, path=key, metadata_sha256=digest)
    older = replace(older, retained=tuple(each for each in older.retained if each <= number))
    system.store.put("HEAD", older.to_bytes())
    return lambda failed: system.store.put("HEAD", now) if failed else None


_ERRORS = (HeadLostError, FencedError, StorageError)
_HEAD = (HeadLostError, CorruptMetadataError, FencedError)
_BOTH = (
    Act("moves HEAD away", _away(_head), _HEAD),
    Act("cuts HEAD", _written(_head, _half), _HEAD),
    Act("empties HEAD", _written(_head, lambda content: b""), _HEAD),
    Act(
        "puts an older HEAD back", puts_older_head_back, _HEAD, at=("before _metadata", "after commit", "between runs")
    ),
    Act("moves _metadata of the latest checkpoint away", _away(_metadata), (CorruptMetadataError,)),
    Act("overwrites _metadata of the latest checkpoint", _written(_metadata, _rubbish), (CorruptMetadataError,)),
    Act(
        "moves the latest checkpoint away", _away(lambda system: system.keys(*system.chk[-1:])), (CorruptMetadataError,)
    ),
    Act("moves older checkpoints away", _away(lambda system: system.keys(*system.chk[:-1]))),
    Act("moves shared away", _away(_shared), (CorruptStateError,)),
    Act("moves one file of shared away", _away(lambda system: _shared(system)[:1]), (CorruptStateError,)),
    Act("cuts files of shared", _written(_shared, _half), (CorruptStateError,)),
    Act("overwrites files of shared", _written(_shared, _rubbish), (CorruptStateError,)),
    Act("moves leader away", _away(lambda system: ["leader"]), (FencedError,)),
    Act("overwrites leader", _written(lambda system: ["leader"], _rubbish), (CorruptMetadataError,)),
    Act(
        "moves counter and statistics away",
        _away(lambda system: ["counter", "statistics"]),
        _ERRORS,
    ),
    Act("overwrites counter", _written(lambda system: ["counter"], _rubbish), (CorruptMetadataError,)),
    Act("overwrites statistics", _written(lambda system: ["statistics"], _rubbish)),
    Act(
        "moves everything away",
        _away(lambda system: system.keys("")),
        _ERRORS,
        at=("before _metadata", "before HEAD"),
    ),
    Act("adds foreign files", lambda system: adds(system)),
)
Checkpoints.acts = (
    *_BOTH,
    Act("moves the whole folder away", moves_folder, _ERRORS, at=("before _metadata", "before HEAD")),
    Act("replaces the folder by a symlink", lambda system: links(system)),
)
CheckpointsOnS3.acts = (
    *_BOTH,
    Act("turns versioning on", turns_versioning_on),
    Act("forbids the bucket for a while", forbids, (StorageError,)),
)


def links(system: Checkpoints) -> Undo | None:
    kept = system.place.folder / "linked-job"
    system.job.rename(kept)
    system.job.symlink_to(kept)
    return nothing


def adds(system: Checkpoints) -> Undo | None:
    for name in ("notes.txt", "chk-99", "savepoint-x/notes", "requests/rubbish", "shared/rubbish"):
        system.store.put(name, b"by somebody")
    return nothing


SYSTEMS = (Checkpoints, CheckpointsOnS3)
