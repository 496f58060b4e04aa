"""A local directory as an object store: the embedded default.

The folder ``.flinkpy`` in each directory holds what must stay invisible: a lock file, new objects until they are
complete and on disk, and staged uploads. Its place depends only on the object's own directory, so stores rooted at
different levels of one tree agree on it. It is removed when its directory holds nothing else.

The content of a part is compared with its SHA-256 only where parts are joined, or to see whether an object consists of
them: a file that becomes the object as it is must have the right size.

Of a folder that a source reads, links are followed, and what cannot be read is not skipped.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import (
    ConfigurationError,
    InputChangedError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.file_lock import LockTimeoutError
from dagster_flinkpy.storage.local_files import (
    HIDDEN,
    LocalUpload,
    consists_of,
    directory_to_disk,
    locked,
    temporary,
    to_disk,
    translated,
)
from dagster_flinkpy.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    UploadedPart,
    UploadInfo,
    check_prefix,
    check_relative,
)
from dagster_flinkpy.storage.origins import reads_origins

__all__ = ["LocalObjectStore", "walk_input"]

_STALE_SECONDS = 24 * 3600
"""A temporary file of this age was left by a killed process."""
_ADVICE = "Remove it, or give it a name that begins with '_'"


class LocalObjectStore(ObjectStore):
    """Stores objects as files. The ETag is the SHA-256 of the content: ``head`` reads the file, ``list`` has no ETags.

    An object is created by ``os.link`` of a file that is complete and on disk, and replaced by ``os.replace``, both
    under a lock of the object's directory. A crash at any point leaves the old object or the new one. All processes
    must be on one machine, or on a file system whose locks work across machines. Unlike on S3, ``a`` and ``a/b`` cannot
    both be keys.

    Args:
        directory: The root. The first write creates it.
    """

    def __init__(self, directory: str | Path) -> None:
        self._root = Path(directory).absolute()
        self.url = self._root.as_uri()

    @reads_origins
    def get(self, key: str) -> tuple[bytes, str]:
        with self._reading(key) as file:
            data = file.read()
        return data, hashlib.sha256(data).hexdigest()

    @reads_origins
    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ConfigurationError(f"range of {key!r}: start {start} and length {length} must not be negative")
        with self._reading(key) as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._reading(key) as file:
                status = os.fstat(file.fileno())
                return ObjectInfo(key, status.st_size, _digest(file), _time(status.st_mtime))
        except ObjectNotFoundError:
            return None

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        path = self._path(key)
        with translated(f"write {path}"), temporary(path.parent) as (complete, file):
            file.write(data)
            to_disk(file)
            self._publish(key, complete, if_none_match=if_none_match, if_match=if_match)
        return hashlib.sha256(data).hexdigest()

    def delete(self, key: str) -> None:
        path = self._path(key)
        with translated(f"delete {path}"):
            if path.is_file():
                with locked(path.parent):
                    path.unlink(missing_ok=True)
                self._prune(path.parent)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder, start = _split(prefix)
        for key, entry in _walk(self._root / folder, folder, start):
            with suppress(FileNotFoundError):
                status = entry.stat()
                yield ObjectInfo(key, status.st_size, "", _time(status.st_mtime))

    def find(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with translated(f"look at {path}"), suppress(FileNotFoundError):
            if path.is_file():
                status = path.stat()
                return ObjectInfo(key, status.st_size, "", _time(status.st_mtime))
        return None

    def list_input(self, selects: Callable[[str], bool], prefix: str = "") -> Iterator[ObjectInfo]:
        folder, start = _split(prefix)
        return (
            ObjectInfo(key, status.st_size, "", _time(status.st_mtime))
            for key, status in walk_input(self._root / folder, folder, start, selects)
        )

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        folder, start = _split(prefix)
        for name, entry in _scan(self._root / folder):
            if name.endswith("/") and name.startswith(start) and any(True for _ in _walk(Path(entry.path), "", "")):
                yield folder + name

    def root_exists(self) -> bool:
        return self._root.is_dir()

    def create_upload(self, key: str) -> str:
        path = self._path(key)
        upload_id = f"{current_millis():013d}-{uuid.uuid4().hex}"
        with translated(f"stage {path}"), locked(path.parent):
            self._upload(key, upload_id).create()
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytes | bytearray, *, sha256_of_all: str | None = None
    ) -> UploadedPart:
        if not 1 <= number <= 10_000:
            raise ConfigurationError(f"part number {number} of {key!r} is not in 1 to 10000")
        upload = self._upload(key, upload_id)
        with translated(f"stage {self._path(key)}"):
            try:
                return upload.append(number, data, sha256_of_all)
            except FileNotFoundError as error:
                raise self._no_upload(key, upload_id) from error

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> None:
        if not parts:
            raise ConfigurationError(f"upload {upload_id!r} of {key!r} has no parts to complete")
        parts = sorted(parts, key=lambda part: part.number)
        try:
            self._complete(key, upload_id, parts, if_none_match)
        except (PreconditionFailedError, UploadNotFoundError):
            if not self._consists_of(key, parts):
                raise
        self.abort_upload(key, upload_id)

    def abort_upload(self, key: str, upload_id: str) -> None:
        upload, directory = self._upload(key, upload_id), self._path(key).parent
        with translated(f"remove the upload of {self._path(key)}"):
            if upload.exists():
                with locked(directory):
                    upload.remove()
                self._prune(directory)

    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        folder, _ = _split(prefix)
        found = []
        for directory, folders, _ in os.walk(self._root / folder):
            if HIDDEN in folders:
                folders.remove(HIDDEN)
                for name, uploads in _scan(Path(directory, HIDDEN, "uploads")):
                    key = Path(directory, name).relative_to(self._root).as_posix()
                    if key.startswith(prefix):
                        found += [UploadInfo(key, upload.name) for _, upload in _scan(Path(uploads.path))]
        return iter(sorted(found, key=lambda upload: (upload.key, upload.upload_id)))

    def child(self, prefix: str) -> LocalObjectStore:
        return LocalObjectStore(self._path(prefix.rstrip("/")))

    def beside(self, path: str) -> LocalObjectStore:
        return LocalObjectStore(self._root.parent).child(path)

    def _path(self, key: str) -> Path:
        _refuse_hidden(check_relative(key))
        return self._root / key

    def _upload(self, key: str, upload_id: str) -> LocalUpload:
        path = self._path(key)
        if "/" in check_relative(upload_id):
            raise PathEscapesPrefixError(f"{upload_id!r} is not the id of an upload")
        return LocalUpload(path.parent / HIDDEN / "uploads" / path.name / upload_id)

    def _no_upload(self, key: str, upload_id: str) -> UploadNotFoundError:
        return UploadNotFoundError(f"no upload {upload_id!r} of {self.url}/{key}: it was completed or aborted")

    @contextmanager
    def _reading(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        with translated(f"read {path}"):
            try:
                file = path.open("rb")
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise ObjectNotFoundError(f"no object {self.url}/{key}") from error
            with file:
                yield file

    def _publish(self, key: str, file: Path, *, if_none_match: bool, if_match: str | None = None) -> None:
        """Gives a file that is on disk its name, if the condition holds."""
        path = self._path(key)
        with locked(path.parent):
            if if_match is not None:
                now = self.head(key)
                if now is None or now.etag != if_match:
                    raise PreconditionFailedError(f"{self.url}/{key} was {'changed' if now else 'deleted'} meanwhile")
            if if_none_match:
                try:
                    os.link(file, path)
                except FileExistsError as error:
                    if path.is_dir():
                        raise StorageError(f"cannot write {path}: it is a directory") from error
                    raise PreconditionFailedError(f"{self.url}/{key} exists already") from error
            else:
                os.replace(file, path)
        directory_to_disk(path.parent)

    def _complete(self, key: str, upload_id: str, parts: Sequence[UploadedPart], if_none_match: bool) -> None:
        path, upload = self._path(key), self._upload(key, upload_id)
        if not upload.exists():
            raise self._no_upload(key, upload_id)
        with translated(f"write {path}"):
            with upload.whole(parts) as whole:
                if whole is not None:
                    self._publish(key, whole, if_none_match=if_none_match)
                    return
            with temporary(path.parent) as (joined, file):
                for part, data in zip(parts, upload.contents(parts), strict=True):
                    if data is None:
                        raise UploadNotFoundError(
                            f"part {part.number} of upload {upload_id!r} of {self.url}/{key} is missing"
                        )
                    file.write(data)
                to_disk(file)
                self._publish(key, joined, if_none_match=if_none_match)

    def _consists_of(self, key: str, parts: Sequence[UploadedPart]) -> bool:
        try:
            with self._reading(key) as file:
                return consists_of(file, parts)
        except ObjectNotFoundError:
            return False

    def _prune(self, directory: Path) -> None:
        """Removes directories without objects and uploads, from here up to the root, unless a process writes there."""
        while self._root in directory.parents:
            hidden = directory / HIDDEN
            try:
                if hidden.exists():
                    with locked(directory):
                        for file in hidden.glob("tmp-*"):
                            if file.stat().st_mtime < time.time() - _STALE_SECONDS:
                                file.unlink()
                        with os.scandir(directory) as entries:  # The first ones will do: there may be very many.
                            if any(entry.name != HIDDEN for entry in entries) or os.listdir(hidden) != ["lock"]:
                                return
                        (hidden / "lock").unlink()
                        hidden.rmdir()
                directory.rmdir()
            except (OSError, LockTimeoutError):  # another process writes there
                return
            directory = directory.parent


def _split(prefix: str) -> tuple[str, str]:
    """Splits ``a/b/na`` into ``a/b/`` and ``na``."""
    folder, slash, start = check_prefix(prefix).rpartition("/")
    _refuse_hidden(folder)
    return folder + slash, start


def _refuse_hidden(key: str) -> None:
    if HIDDEN in key.split("/"):
        raise StorageError(f"{key!r}: the name {HIDDEN!r} is reserved in a local store")


def _scan(directory: Path) -> Sequence[tuple[str, os.DirEntry[str]]]:
    """Returns the visible entries of a directory in key order, with a slash after the name of a folder."""
    with translated(f"list {directory}"):
        try:
            with os.scandir(directory) as entries:
                found = [
                    (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
                    for entry in entries
                    if entry.name != HIDDEN
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
    return sorted(found, key=lambda named: named[0])


def _walk(directory: Path, folder: str, start: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields all files whose name in ``directory`` begins with ``start``, with their keys.

    ``folder`` is the key of the directory.
    """
    for name, entry in _scan(directory):
        if name.startswith(start):
            if name.endswith("/"):
                yield from _walk(Path(entry.path), folder + name, "")
            elif _is_file(entry):
                yield folder + name, entry


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link that leads to itself
        return False


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def walk_input(
    directory: Path, folder: str, start: str, selects: Callable[[str], bool]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files below a directory that are selected, with their keys, in key order.

    Args:
        directory: The directory.
        folder: Its key, with a slash unless it is the root.
        start: What the names in the directory begin with.
        selects: Tells by a key whether a file is read, or, with a slash at the end, whether a folder is looked into.

    Raises:
        StorageError: A folder cannot be listed.
        InputChangedError: A link leads nowhere or back, a file is a pipe or something like it, or two names are the
            same file because of a link.
    """
    names: dict[tuple[int, int], tuple[str, bool]] = {}
    for key, status, linked in _inputs(directory, folder, start, selects, ()):
        identity = status.st_dev, status.st_ino
        other, other_linked = names.setdefault(identity, (key, linked))
        if other != key and (linked or other_linked):
            raise InputChangedError(
                f"{other!r} and {key!r} are the same file, because of a link: its records would be read twice. Remove "
                "one of them, or give the link a name that begins with '_'"
            )
        yield key, status


def _inputs(
    directory: Path, folder: str, start: str, selects: Callable[[str], bool], behind: tuple[str, ...]
) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yields keys and files, and whether a link led there.

    ``behind`` are the real paths of the folders whose links were followed.
    """
    for name, status, link in _entries(directory, folder, selects):
        if not name.startswith(start) or not selects(folder + name):
            continue
        path = directory / name
        if not name.endswith("/"):
            if not stat.S_ISREG(status.st_mode):
                raise InputChangedError(f"{path} is a pipe, a socket or a device, not a file. {_ADVICE}")
            yield folder + name, status, link or bool(behind)
        elif link:
            passed, target = (*behind, os.path.realpath(directory)), os.path.realpath(path)
            if any(each == target or each.startswith(target.rstrip("/") + "/") for each in passed):
                raise InputChangedError(f"{path} is a link that leads back to {target}, which it is in. {_ADVICE}")
            yield from _inputs(path, folder + name, "", selects, passed)
        else:
            yield from _inputs(path, folder + name, "", selects, behind)


def _entries(directory: Path, folder: str, selects: Callable[[str], bool]) -> list[tuple[str, os.stat_result, bool]]:
    """Returns what is in a directory, in key order: the name, with a slash for folders, and whether it is a link."""
    found = []
    with translated(f"list {directory}"):
        try:
            entries = list(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []
        for entry in entries:
            if entry.name == HIDDEN:
                continue
            link = entry.is_symlink()
            try:
                status = entry.stat()
            except OSError as error:
                if link and (selects(folder + entry.name) or selects(f"{folder}{entry.name}/")):
                    raise InputChangedError(f"{entry.path} is a link that leads nowhere. {_ADVICE}") from error
                continue  # deleted in the meantime, or not selected
            found.append((f"{entry.name}/" if stat.S_ISDIR(status.st_mode) else entry.name, status, link))
    return sorted(found, key=lambda each: each[0])
