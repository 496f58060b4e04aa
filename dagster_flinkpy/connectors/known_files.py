"""The files that a source has dealt out and that are still there."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.storage import ObjectInfo, ObjectStore

__all__ = ["KnownFiles", "check_unchanged", "some_of", "version_of"]

_HASH_BYTES = 8


class KnownFiles:
    """Which files have been dealt out, and in which version. Part of a source's position.

    A file is known by its name, and has changed when its size or version differs. Both are kept as hashes of 64 bits,
    so a stored position has 21 bytes per file, and shrinks when files are deleted.
    """

    def __init__(self) -> None:
        self._versions: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def __contains__(self, name: str) -> bool:
        return _hash(name) in self._versions

    def add(self, name: str, info: ObjectInfo) -> None:
        """Notes a file as it is now.

        Args:
            name: Unique among the files of the source.
            info: As it was listed.
        """
        self._versions[_hash(name)] = _hash(f"{info.size}:{version_of(info)}")

    def has_changed(self, name: str, info: ObjectInfo) -> bool:
        """Whether a known file is not the one that was noted."""
        return self._versions[_hash(name)] != _hash(f"{info.size}:{version_of(info)}")

    def retain(self, names: Iterable[str]) -> None:
        """Forgets all files but these: the others were deleted, so a file of their name is another one."""
        kept = {_hash(name) for name in names}
        self._versions = {name: version for name, version in self._versions.items() if name in kept}

    def to_json(self) -> str:
        """For a position in checkpoint metadata; equal for equal files."""
        return base64.b64encode(b"".join(name + self._versions[name] for name in sorted(self._versions))).decode()

    @staticmethod
    def from_json(data: str) -> KnownFiles:
        """What :meth:`to_json` gave.

        Raises:
            ValueError: It is something else.
        """
        packed = base64.b64decode(data, validate=True)
        if len(packed) % (2 * _HASH_BYTES):
            raise ValueError(f"{len(packed)} bytes are no list of known files")
        known = KnownFiles()
        for at in range(0, len(packed), 2 * _HASH_BYTES):
            middle = at + _HASH_BYTES
            known._versions[packed[at:middle]] = packed[middle : middle + _HASH_BYTES]
        return known


def version_of(info: ObjectInfo) -> str:
    """What changes when a file does. A local store's listing has no ETags."""
    return info.etag or info.last_modified.isoformat()


def check_unchanged(store: ObjectStore, key: str, size: int, version: str | None) -> None:
    """Checks that a file is still what was planned.

    Args:
        store: Where it is.
        key: Its key there.
        size: In bytes, as it was listed.
        version: Of :func:`version_of`; None: that was not kept.

    Raises:
        SourceReadError: It was deleted or changed.
        StorageError: The store did not answer.
    """
    now = next((info for info in store.list(key) if info.key == key), None)
    if now is None:
        raise SourceReadError("it was deleted after it was planned")
    if now.size != size or version not in (None, version_of(now)):
        raise SourceReadError(
            f"it was changed after it was planned, from {size} bytes (version {version}) to {now.size} bytes (version "
            f"{version_of(now)}); put it back, and write new data to a new file"
        )


def some_of(names: Sequence[str]) -> str:
    """How many files, and up to three names, and how many more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} file(s) ({', '.join(map(repr, names[:3]))}{more})"


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
