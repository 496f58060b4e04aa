"""A local directory as an object store: the embedded default.

The folder ``.flinkpy`` in each directory holds what must stay invisible: a lock file, new objects until they are
complete and on disk, and staged uploads. Its place depends only on the object's own directory, so stores rooted at
different levels of one tree agree on it. It is removed when its directory holds nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from dagster_flinkpy.common.clock import current_millis, datetime_of_millis
from dagster_flinkpy.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.file_lock import LockTimeoutError, file_lock
from dagster_flinkpy.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    UploadedPart,
    UploadInfo,
    check_prefix,
    check_relative,
)

__all__ = ["LocalObjectStore"]

_HIDDEN = ".flinkpy"
_STALE_SECONDS = 24 * 3600
"""A temporary file of this age was left by a killed process."""
_LOCK_TIMEOUT_SECONDS = 60.0
"""No process needs the lock for long; this is far below the default checkpoint timeout."""
_TRIES = 100


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

    def get(self, key: str) -> tuple[bytes, str]:
        """See ``ObjectStore``."""
        with self._reading(key) as file:
            data = file.read()
        return data, hashlib.sha256(data).hexdigest()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ``ObjectStore``."""
        if start < 0 or length < 0:
            raise ConfigurationError(f"range of {key!r}: start {start} and length {length} must not be negative")
        with self._reading(key) as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo | None:
        """See ``ObjectStore``."""
        try:
            with self._reading(key) as file:
                status = os.fstat(file.fileno())
                return ObjectInfo(key, status.st_size, _digest(file), _time(status.st_mtime))
        except ObjectNotFoundError:
            return None

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        """See ``ObjectStore``."""
        path = self._path(key)
        with _translated(f"write {path}"), _temporary(path.parent) as (temporary, file):
            file.write(data)
            self._publish(key, temporary, file, if_none_match=if_none_match, if_match=if_match)
        return hashlib.sha256(data).hexdigest()

    def delete(self, key: str) -> None:
        """See ``ObjectStore``."""
        path = self._path(key)
        with _translated(f"delete {path}"):
            if path.is_file():
                with _locked(path.parent):
                    path.unlink(missing_ok=True)
                self._prune(path.parent)

    def delete_many(self, keys: Iterable[str]) -> None:
        """See ``ObjectStore``."""
        for key in keys:
            self.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """See ``ObjectStore``."""
        folder, start = _split(prefix)
        for key, entry in _walk(self._root / folder, folder, start):
            with suppress(FileNotFoundError):
                status = entry.stat()
                yield ObjectInfo(key, status.st_size, "", _time(status.st_mtime))

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """See ``ObjectStore``."""
        folder, start = _split(prefix)
        for name, entry in _scan(self._root / folder):
            if name.endswith("/") and name.startswith(start) and any(True for _ in _walk(Path(entry.path), "", "")):
                yield folder + name

    def root_exists(self) -> bool:
        """See ``ObjectStore``."""
        return self._root.is_dir()

    def create_upload(self, key: str) -> str:
        """See ``ObjectStore``."""
        path = self._path(key)
        upload_id = f"{current_millis():013d}-{uuid.uuid4().hex}"
        with _translated(f"stage {path}"), _locked(path.parent):
            _make_directory(self._upload(key, upload_id))
        return upload_id

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> UploadedPart:
        """See ``ObjectStore``."""
        if not 1 <= number <= 10_000:
            raise ConfigurationError(f"part number {number} of {key!r} is not in 1 to 10000")
        path, folder = self._path(key), self._upload(key, upload_id)
        with _translated(f"stage {path}"), _temporary(path.parent) as (temporary, file):
            file.write(data)
            _to_disk(file)
            try:
                os.replace(temporary, folder / str(number))
            except FileNotFoundError as error:
                raise self._no_upload(key, upload_id) from error
            _directory_to_disk(folder)
        return UploadedPart(number, f"{hashlib.sha256(data).hexdigest()}-{len(data)}")

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> str:
        """See ``ObjectStore``."""
        if not parts:
            raise ConfigurationError(f"upload {upload_id!r} of {key!r} has no parts to complete")
        parts = sorted(parts, key=lambda part: part.number)
        try:
            etag = self._assemble(key, upload_id, parts, if_none_match)
        except (PreconditionFailedError, UploadNotFoundError):
            same = self._etag_if_made_of(key, parts)
            if same is None:
                raise
            etag = same
        self.abort_upload(key, upload_id)
        return etag

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See ``ObjectStore``."""
        folder = self._upload(key, upload_id)
        with _translated(f"remove {folder}"):
            if folder.is_dir():
                directory = self._path(key).parent
                with _locked(directory):
                    shutil.rmtree(folder)
                    with suppress(OSError):  # not empty: other uploads
                        folder.parent.rmdir()
                        folder.parent.parent.rmdir()
                self._prune(directory)

    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        """See ``ObjectStore``."""
        folder, _ = _split(prefix)
        found = []
        for directory, folders, _ in os.walk(self._root / folder):
            if _HIDDEN in folders:
                folders.remove(_HIDDEN)
                for name, uploads in _scan(Path(directory, _HIDDEN, "uploads")):
                    key = Path(directory, name).relative_to(self._root).as_posix()
                    if key.startswith(prefix):
                        found += [
                            UploadInfo(key, upload.name, datetime_of_millis(int(upload.name.partition("-")[0])))
                            for _, upload in _scan(Path(uploads.path))
                        ]
        return iter(sorted(found, key=lambda upload: (upload.key, upload.upload_id)))

    def child(self, prefix: str) -> LocalObjectStore:
        """See ``ObjectStore``."""
        return LocalObjectStore(self._path(prefix.rstrip("/")))

    def _path(self, key: str) -> Path:
        _refuse_hidden(check_relative(key))
        return self._root / key

    def _upload(self, key: str, upload_id: str) -> Path:
        path = self._path(key)
        if "/" in check_relative(upload_id):
            raise PathEscapesPrefixError(f"{upload_id!r} is not the id of an upload")
        return path.parent / _HIDDEN / "uploads" / path.name / upload_id

    def _no_upload(self, key: str, upload_id: str) -> UploadNotFoundError:
        return UploadNotFoundError(f"no upload {upload_id!r} of {self.url}/{key}: it was completed or aborted")

    @contextmanager
    def _reading(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        with _translated(f"read {path}"):
            try:
                file = path.open("rb")
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise ObjectNotFoundError(f"no object {self.url}/{key}") from error
            with file:
                yield file

    def _publish(
        self, key: str, temporary: Path, file: BinaryIO, *, if_none_match: bool, if_match: str | None = None
    ) -> None:
        """Gives a temporary file its name, if the condition holds."""
        _to_disk(file)
        path = self._path(key)
        with _locked(path.parent):
            if if_match is not None:
                now = self.head(key)
                if now is None or now.etag != if_match:
                    raise PreconditionFailedError(f"{self.url}/{key} was {'changed' if now else 'deleted'} meanwhile")
            if if_none_match:
                try:
                    os.link(temporary, path)
                except FileExistsError as error:
                    if path.is_dir():
                        raise StorageError(f"cannot write {path}: it is a directory") from error
                    raise PreconditionFailedError(f"{self.url}/{key} exists already") from error
            else:
                os.replace(temporary, path)
        _directory_to_disk(path.parent)

    def _assemble(self, key: str, upload_id: str, parts: Sequence[UploadedPart], if_none_match: bool) -> str:
        path, folder = self._path(key), self._upload(key, upload_id)
        if not folder.is_dir():
            raise self._no_upload(key, upload_id)
        digest = hashlib.sha256()
        with _translated(f"write {path}"), _temporary(path.parent) as (temporary, file):
            for part in parts:
                try:
                    data = (folder / str(part.number)).read_bytes()
                except FileNotFoundError:
                    data = b""
                if part.etag != f"{hashlib.sha256(data).hexdigest()}-{len(data)}":
                    raise UploadNotFoundError(
                        f"part {part.number} of upload {upload_id!r} of {self.url}/{key} is missing"
                    )
                digest.update(data)
                file.write(data)
            self._publish(key, temporary, file, if_none_match=if_none_match)
        return digest.hexdigest()

    def _etag_if_made_of(self, key: str, parts: Sequence[UploadedPart]) -> str | None:
        """Returns the object's ETag if its content is these parts joined, or None."""
        try:
            with self._reading(key) as file:
                for part in parts:
                    digest, _, size = part.etag.partition("-")
                    if hashlib.sha256(file.read(int(size))).hexdigest() != digest:
                        return None
                if file.read(1):
                    return None
                file.seek(0)
                return _digest(file)
        except ObjectNotFoundError:
            return None

    def _prune(self, directory: Path) -> None:
        """Removes directories without objects and uploads, from here up to the root, unless a process writes there."""
        while self._root in directory.parents:
            hidden = directory / _HIDDEN
            try:
                if hidden.exists():
                    with _locked(directory):
                        for file in hidden.glob("tmp-*"):
                            if file.stat().st_mtime < time.time() - _STALE_SECONDS:
                                file.unlink()
                        if os.listdir(directory) != [_HIDDEN] or os.listdir(hidden) != ["lock"]:
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
    if _HIDDEN in key.split("/"):
        raise StorageError(f"{key!r}: the name {_HIDDEN!r} is reserved in a local store")


def _scan(directory: Path) -> Sequence[tuple[str, os.DirEntry[str]]]:
    """Returns the visible entries of a directory in key order, with a slash after the name of a folder."""
    with _translated(f"list {directory}"):
        try:
            with os.scandir(directory) as entries:
                found = [
                    (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry)
                    for entry in entries
                    if entry.name != _HIDDEN
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
            elif entry.is_file():
                yield folder + name, entry


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except LockTimeoutError as error:
        raise StorageError(f"cannot {what}: {error}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"cannot {what}: {reason}. Check the path, its permissions and the free space.") from error


@contextmanager
def _temporary(directory: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yields a new file on the file system of ``directory`` that no listing shows, and removes it at the end."""
    path = directory / _HIDDEN / f"tmp-{uuid.uuid4().hex}"
    with os.fdopen(_open_below(directory, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        try:
            yield path, file
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keeps all other threads and processes from changing the objects of one directory.

    Raises:
        LockTimeoutError: Another process does not release the lock.
    """
    with ExitStack() as held:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the folder was pruned in the meantime
                _make_directory(directory / _HIDDEN)
                held.enter_context(file_lock(directory / _HIDDEN / "lock", timeout=_LOCK_TIMEOUT_SECONDS))
                break
        else:
            raise _no_folder(directory)
        yield


def _open_below(directory: Path, path: Path, flags: int) -> int:
    """Opens a file in ``directory``'s hidden folder, which another process may prune before it is opened."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            _make_directory(directory / _HIDDEN)
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
    raise _no_folder(directory)


def _no_folder(directory: Path) -> StorageError:
    return StorageError(
        f"cannot write in {directory}: a folder that is created there disappears at once. Either this file system does "
        "not allow folders, or another process deletes them. Choose another path, or stop that process."
    )


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        _make_directory(directory.parent)
        try:
            directory.mkdir(exist_ok=True)
        except FileExistsError:
            raise StorageError(
                f"cannot write in {directory}: it is a file or a broken link, not a folder. Choose another path, or "
                "move it away."
            ) from None
        _directory_to_disk(directory.parent)


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _directory_to_disk(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
