"""The folder of a job's checkpoints, to which others do things, too."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dagster_flinkpy.errors import (
    CorruptMetadataError,
    CorruptStateError,
    FencedError,
    HeadLostError,
    StorageError,
)
from tests.world.stage import Act, System, Undo, nothing

__all__ = ["SYSTEMS"]


class Checkpoints(System):
    title = "Checkpoint directory"

    @property
    def job(self) -> Path:
        """The folder of the job."""
        return self.place.folder / "job" / "job"

    @property
    def chk(self) -> list[Path]:
        """The folders of complete checkpoints, the newest last."""
        return sorted((path.parent for path in self.job.glob("chk-*/_metadata")), key=lambda path: int(path.name[4:]))


def _away(find: Callable[[Checkpoints], list[Path]]) -> Callable[[Checkpoints], Undo | None]:
    """Moves files away, and back later."""

    def act(system: Checkpoints) -> Undo | None:
        paths = [path for path in find(system) if path.exists()]
        if not paths:
            return None
        kept = Path(tempfile.mkdtemp(dir=system.place.folder))
        for number, path in enumerate(paths):
            path.rename(kept / str(number))

        def undo(failed: bool) -> None:
            for number, path in enumerate(paths):
                if failed:
                    if path.is_dir():
                        shutil.rmtree(path)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    (kept / str(number)).replace(path)
            shutil.rmtree(kept)

        return undo

    return act


def _written(
    find: Callable[[Checkpoints], list[Path]], change: Callable[[bytes], bytes]
) -> Callable[[Checkpoints], Undo | None]:
    """Overwrites files, and puts them back if the job has failed."""

    def act(system: Checkpoints) -> Undo | None:
        kept = {path: path.read_bytes() for path in find(system) if path.is_file()}
        if not kept:
            return None
        for path, content in kept.items():
            path.write_bytes(change(content))

        def undo(failed: bool) -> None:
            for path, content in kept.items() if failed else ():
                path.write_bytes(content)

        return undo

    return act


def _head(system: Checkpoints) -> list[Path]:
    return [system.job / "HEAD"]


def _metadata(system: Checkpoints) -> list[Path]:
    return [path / "_metadata" for path in system.chk[-1:]]


def _shared(system: Checkpoints) -> list[Path]:
    return sorted((system.job / "shared").glob("*.parquet"))


def _half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _rubbish(content: bytes) -> bytes:
    return b"?" * len(content)


def restores_head(system: Checkpoints) -> Undo | None:
    """The whole job folder of the round before is put back."""
    kept, backup = system.place.folder / "kept-job", system.place.folder / "backup"
    if not backup.exists():
        return None
    system.job.rename(kept)
    shutil.copytree(backup, system.job)

    def undo(failed: bool) -> None:
        shutil.rmtree(system.job)
        kept.rename(system.job)

    return undo


_ERRORS = (HeadLostError, FencedError, StorageError)
_HEAD = (HeadLostError, CorruptMetadataError, FencedError)
Checkpoints.acts = (
    Act("moves HEAD away", _away(_head), _HEAD),
    Act("cuts HEAD", _written(_head, _half), _HEAD),
    Act("empties HEAD", _written(_head, lambda content: b""), _HEAD),
    Act("moves _metadata of the latest checkpoint away", _away(_metadata), (CorruptMetadataError,)),
    Act("overwrites _metadata of the latest checkpoint", _written(_metadata, _rubbish), (CorruptMetadataError,)),
    Act("moves the latest checkpoint away", _away(lambda system: system.chk[-1:]), (CorruptMetadataError,)),
    Act("moves older checkpoints away", _away(lambda system: system.chk[:-1])),
    Act("moves shared away", _away(lambda system: [system.job / "shared"]), (CorruptStateError,)),
    Act("moves one file of shared away", _away(lambda system: _shared(system)[:1]), (CorruptStateError,)),
    Act("cuts files of shared", _written(_shared, _half), (CorruptStateError,)),
    Act("overwrites files of shared", _written(_shared, _rubbish), (CorruptStateError,)),
    Act("moves leader away", _away(lambda system: [system.job / "leader"]), (FencedError,)),
    Act("overwrites leader", _written(lambda system: [system.job / "leader"], _rubbish), (CorruptMetadataError,)),
    Act(
        "moves counter and statistics away",
        _away(lambda system: [system.job / "counter", system.job / "statistics"]),
        _ERRORS,
    ),
    Act("overwrites counter", _written(lambda system: [system.job / "counter"], _rubbish), (CorruptMetadataError,)),
    Act("overwrites statistics", _written(lambda system: [system.job / "statistics"], _rubbish)),
    Act(
        "moves the whole folder away",
        _away(lambda system: [system.job]),
        _ERRORS,
        at=("before _metadata", "before HEAD"),
    ),
    Act("replaces the folder by a symlink", lambda system: links(system)),
    Act("adds foreign files", lambda system: adds(system)),
)


def links(system: Checkpoints) -> Undo | None:
    kept = system.place.folder / "linked-job"
    system.job.rename(kept)
    system.job.symlink_to(kept)
    return nothing


def adds(system: Checkpoints) -> Undo | None:
    for name in ("notes.txt", "chk-99", "savepoint-x/notes", "requests/rubbish", "shared/rubbish"):
        path = system.job / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("by somebody")
    return nothing


SYSTEMS = (Checkpoints,)
