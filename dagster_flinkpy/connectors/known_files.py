"""The files that a source has assigned to readers and that still exist."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.storage import ObjectInfo, ObjectStore

__all__ = ["KnownFiles", "check_unchanged", "some_of", "version_of"]

_HASH_BYTES = 8


class KnownFiles:
    """The files that have been assigned to readers, each with its version. Part of a source's position.

    A file is identified by its name, and has changed if its size or version differs. Both are kept as 64-bit hashes, so
    a stored position takes 21 bytes per file. It shrinks when files are deleted.
    """

    def __init__(self) -> None:
        self._versions: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def __contains__(self, name: str) -> bool:
        return _hash(name) in self._versions

    def add(self, name: str, info: ObjectInfo) -> None:
        """Records a file in its current version.

        Args:
            name: The name, unique among the files of the source.
            info: The file as it was listed.
        """
        self._versions[_hash(name)] = _hash(f"{info.size}:{version_of(info)}")

    def has_changed(self, name: str, info: ObjectInfo) -> bool:
        """Returns whether a known file differs from the recorded version."""
        return self._versions[_hash(name)] != _hash(f"{info.size}:{version_of(info)}")

    def retain(self, names: Iterable[str]) -> None:
        """Forgets all other files: they were deleted, so a later file with such a name is a new one."""
        kept = {_hash(name) for name in names}
        self._versions = {name: version for name, version in self._versions.items() if name in kept}

    def to_json(self) -> str:
        """Encodes the files for a position in checkpoint metadata. Equal files give equal strings."""
        return base64.b64encode(b"".join(name + self._versions[name] for name in sorted(self._versions))).decode()

    @staticmethod
    def from_json(data: str) -> KnownFiles:
        """Decodes what :meth:`to_json` returned.

        Raises:
            ValueError: The data is something else.
        """
        packed = base64.b64decode(data, validate=True)
        if len(packed) % (2 * _HASH_BYTES):
            raise ValueError(f"{len(packed)} bytes are not a list of known files")
        known = KnownFiles()
        for at in range(0, len(packed), 2 * _HASH_BYTES):
            middle = at + _HASH_BYTES
            known._versions[packed[at:middle]] = packed[middle : middle + _HASH_BYTES]
        return known


def version_of(info: ObjectInfo) -> str:
    """Returns what changes whenever the file does: the ETag, or in a local store the time of the last change."""
    return info.etag or info.last_modified.isoformat()


def check_unchanged(store: ObjectStore, key: str, size: int, version: str | None) -> None:
    """Checks that a file has not changed since it was planned.

    Args:
        store: The store of the file.
        key: Its key in the store.
        size: Its size in bytes when it was listed.
        version: What :func:`version_of` returned then, or None if that was not kept.

    Raises:
        SourceReadError: The file was deleted or changed.
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
    """Describes files in a message: their number and up to three names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} file(s) ({', '.join(map(repr, names[:3]))}{more})"


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
