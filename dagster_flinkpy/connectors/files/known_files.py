"""The files that a source has assigned to readers, and the runs of Dagster partitions that they are of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from dagster_flinkpy.connectors.commit.staged_files import partition_of, written_by
from dagster_flinkpy.datastream.connectors.base import Json, position_field
from dagster_flinkpy.errors import InputChangedError
from dagster_flinkpy.storage import ObjectInfo, ObjectStore

__all__ = ["KnownFiles", "PartitionRuns", "check_unchanged", "hashed", "packed", "some_of", "unpacked", "version_of"]

_HASH_BYTES = 8
_MOST_GONE = 10_000
"""How many files that are gone are remembered."""


class KnownFiles:
    """The files that have been assigned to readers, each with its version. Part of a source's position.

    A file is identified by its name, and has changed if its size or version differs. Both are kept as 64-bit hashes, so
    a stored position takes 21 bytes per file. It shrinks when files are deleted, except for the last 10,000 of them: if
    they come back as they were, because a folder was not mounted or a backup is restored, they are no new files. As
    long as nothing at all is in the folder, none is forgotten.
    """

    def __init__(self) -> None:
        self._versions: dict[bytes, bytes] = {}
        self._gone: dict[bytes, bytes] = {}
        """Files that were deleted, the last one at the end."""

    def __len__(self) -> int:
        return len(self._versions)

    def __contains__(self, name: str) -> bool:
        return hashed(name) in self._versions

    def add(self, name: str, info: ObjectInfo) -> None:
        self._gone.pop(hashed(name), None)
        self._versions[hashed(name)] = _state(info)

    def has_changed(self, name: str, info: ObjectInfo) -> bool:
        """Returns whether a known file differs from the recorded version."""
        return self._versions[hashed(name)] != _state(info)

    def has_read(self, name: str, info: ObjectInfo) -> bool:
        """Returns whether a file has been recorded as it is, also if it was gone meanwhile."""
        return _state(info) in (self._versions.get(hashed(name)), self._gone.get(hashed(name)))

    def compare(self, files: Mapping[str, ObjectInfo]) -> None:
        """Takes note of the files that exist: others are gone, and those that are back as they were are known again."""
        there = {hashed(name): _state(info) for name, info in files.items()}
        for name in [name for name in self._versions if name not in there]:
            self._gone[name] = self._versions.pop(name)
        for name, state in there.items():
            if name not in self._versions and self._gone.get(name) == state:
                self._versions[name] = self._gone.pop(name)
        while there and len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def to_json(self) -> dict[str, str]:
        """Returns the files as parts of a position in checkpoint metadata. Equal files give equal strings."""
        position = {"files": packed(self._versions, sorted(self._versions))}
        return {**position, "gone": packed(self._gone, self._gone)} if self._gone else position

    @staticmethod
    def from_json(position: Json) -> KnownFiles:
        """Takes the files from a position."""
        known = KnownFiles()
        known._versions, known._gone = unpacked(position, "files"), unpacked(position, "gone")
        return known


def packed(versions: Mapping[bytes, bytes], names: Iterable[bytes]) -> str:
    """Returns hashes of some names, each with a hash, as a part of a position."""
    return base64.b64encode(b"".join(name + versions[name] for name in names)).decode()


def unpacked(position: Json, part: str) -> dict[bytes, bytes]:
    """Reads a part of a position that :func:`packed` has made; empty if there is none.

    Raises:
        ValueError: It is damaged.
    """
    found = base64.b64decode(position_field({part: "", **position}, part, str), validate=True)
    if len(found) % (2 * _HASH_BYTES):
        raise ValueError(f"the {len(found)} bytes of {part!r} are not pairs of hashes")
    at = range(0, len(found), 2 * _HASH_BYTES)
    return {found[i : i + _HASH_BYTES]: found[i + _HASH_BYTES : i + 2 * _HASH_BYTES] for i in at}


def version_of(info: ObjectInfo) -> str:
    """Returns what changes whenever the file does: the ETag, or in a local store the time of the last change."""
    return info.etag or info.last_modified.isoformat()


def check_unchanged(store: ObjectStore, key: str, size: int, version: str | None) -> None:
    """Checks that a file is as it was planned with a size and, if that was kept, a version.

    A file is read in parts, perhaps over several epochs. Checked after each of them, none is of another file that has
    taken its place.
    """
    now = store.find(key)
    if now is None:
        raise InputChangedError("it was deleted after it was planned")
    if now.size != size or version not in (None, version_of(now)):
        raise InputChangedError(
            f"it was changed after it was planned, from {size} bytes (version {version}) to {now.size} bytes (version "
            f"{version_of(now)}); put it back, and write new data to a new file"
        )


def some_of(names: Sequence[str]) -> str:
    """Describes files in a message: their number and up to three names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} file(s) ({', '.join(map(repr, names[:3]))}{more})"


def _state(info: ObjectInfo) -> bytes:
    return hashed(f"{info.size}:{version_of(info)}")


def hashed(text: str) -> bytes:
    """Returns 8 bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()


_MOST = 10_000


class PartitionRuns:
    """The runs of Dagster partitions whose files a source has read: of each sink, one in each folder of a partition.

    A run replaces the files of the one before. The last 10,000 are remembered, each in 21 bytes of a position.
    """

    def __init__(self) -> None:
        self._runs: dict[bytes, bytes] = {}

    def copy(self) -> PartitionRuns:
        """Returns them in an object of their own."""
        found = PartitionRuns()
        found._runs = dict(self._runs)
        return found

    def note(self, name: str) -> None:
        """Takes note of a file that was read, by its URL."""
        if (run := _run_of(name)) is not None:
            self._runs.setdefault(*run[:2])

    def add(self, name: str) -> None:
        """Takes note of a file before it is read.

        Raises:
            InputChangedError: It is of another run than files that were read, or that are to be read with it.
        """
        if (run := _run_of(name)) is None:
            return
        partition, checkpoint, job_id, folder = run
        if self._runs.setdefault(partition, checkpoint) != checkpoint:
            raise InputChangedError(
                f"job {job_id!r} has run {folder} again, as {name!r} shows: its rows would be read in addition to "
                "those that they replace. If none of them was read yet, run again when the replaced files are gone. Or "
                "else move the new files away to leave them out; or start from a checkpoint before it, or from empty "
                "state"
            )
        while len(self._runs) > _MOST:
            del self._runs[next(iter(self._runs))]

    def to_json(self) -> dict[str, str]:
        """Returns them as a part of a position."""
        return {"runs": packed(self._runs, self._runs)} if self._runs else {}

    @staticmethod
    def from_json(position: Json) -> PartitionRuns:
        """Takes them from a position, which may have none."""
        found = PartitionRuns()
        found._runs = unpacked(position, "runs")
        return found


def _run_of(name: str) -> tuple[bytes, bytes, str, str] | None:
    """Returns what stands for sink and partition of a file, for its run, and their job and folder, if it has any."""
    folder, written = partition_of(name), written_by(name)
    if folder is None or written is None:
        return None
    job_id, uid, checkpoint = written
    return hashed(f"{folder}\n{job_id}\n{uid}"), hashed(str(checkpoint)), job_id, folder
