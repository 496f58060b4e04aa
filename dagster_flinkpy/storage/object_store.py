"""The interface of object stores, with the probe for stores without conditional writes, and what is made of it."""

from __future__ import annotations

import io
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec

from dagster_flinkpy.errors import (
    ConditionalWritesUnsupportedError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    StorageError,
)
from dagster_flinkpy.json_records import ArrayRecord

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "RangedFile",
    "UploadInfo",
    "UploadedPart",
    "check_prefix",
    "check_relative",
    "put_if",
]

P = ParamSpec("P")
_BAD_KEY = re.compile(r"[\\\x00-\x1f\ud800-\udc7f\udd00-\udfff]|(?:^|/)\.{0,2}(?:/|\Z)")
"""A backslash, a control character, half of a character, or a segment that is empty, ``.`` or ``..``. The halves that
are left out stand for bytes in the name of a local file that is not in UTF-8."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object without its data."""

    key: str
    """The key, relative to the root of the queried store."""
    size: int
    """Size in bytes."""
    etag: str
    """The ETag that ``put`` returned. Empty in listings of a local store, which would have to read the object."""
    last_modified: datetime
    """Time of the last change, with time zone."""


@dataclass(frozen=True)
class UploadInfo:
    """One staged upload that was neither completed nor aborted."""

    key: str
    """The key, relative to the root of the queried store."""
    upload_id: str


class UploadedPart(ArrayRecord, frozen=True):
    """One part of a staged upload: what ``complete_upload`` needs to know about it."""

    number: int
    """From 1."""
    etag: str


class ObjectStore(ABC):
    """Objects under one prefix, with conditional writes and staged uploads.

    State files and segments that a forked job shares with others are read where they are; see
    :mod:`dagster_flinkpy.storage.origins`.

    Keys are relative to ``url``, use ``/``, and may contain any characters except backslashes and control characters.
    A write is atomic: readers see the old object or the new one. All methods are thread-safe.

    Errors are ``StorageError`` or one of its subclasses. After ``PreconditionFailedError`` a write certainly did not
    happen (or has since been replaced); after any other error its outcome is unknown.
    """

    url: str
    """The root: ``s3://bucket/prefix`` or ``file:///dir``, without a slash at the end."""

    @abstractmethod
    def get(self, key: str) -> tuple[bytes, str]:
        """Returns an object's data and its ETag.

        Raises:
            ObjectNotFoundError: No object has this key.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Returns ``length`` bytes from offset ``start``, or fewer if the object ends before.

        Raises:
            ObjectNotFoundError: No object has this key (not checked when ``length`` is 0).
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Returns the description of an object, or None if it does not exist."""

    @abstractmethod
    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        """Writes an object at once and returns its ETag.

        Args:
            key: The key of the object.
            data: The whole object.
            if_none_match: Write only if no object has this key.
            if_match: Write only if the object's ETag is this one.

        Raises:
            PreconditionFailedError: The condition did not hold; nothing was written. (If the client repeated its own
                write because the response was lost, the store recognises that and the call succeeds.)
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Deletes an object, if it exists."""

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Deletes the objects that exist, in as few requests as the store allows."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields all objects whose key starts with ``prefix`` (any string, not only a folder), sorted by key."""

    def find(self, key: str) -> ObjectInfo | None:
        """Returns the description of an object as `list` has it, or None if it does not exist. No content is read."""
        return next((info for info in self.list(key) if info.key == key), None)

    @abstractmethod
    def list_folders(self, prefix: str = "") -> Iterator[str]:
        """Yields the sub-prefixes up to the next slash after ``prefix``, sorted: ``chk-1/``, ``chk-2/``.

        They are relative to the root, as keys are: ``list_folders("a/")`` yields ``a/b/``.
        """

    def list_input(self, selects: Callable[[str], bool], prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields the objects that a source reads, as `list` does, but in a local folder also those behind links.

        Args:
            selects: Tells by its key whether an object is read, and by the key of a folder, with its slash, whether
                objects in it may be.
            prefix: What the keys start with.

        Raises:
            InputChangedError: Something there cannot be read as a file, or would be read twice. The message names it.
        """
        return (info for info in self.list(prefix) if selects(info.key))

    def root_exists(self) -> bool:
        """Returns whether ``url`` exists. A folder can be missing; a prefix of a bucket always exists, even if empty.

        If the bucket is missing, reading and listing are errors.
        """
        return True

    def check_way(self) -> None:
        """Checks quickly, once in a process, that a network leads from this machine to the store, if it needs one.

        Raises:
            StoreUnreachableError: No network does.
        """
        return None

    @abstractmethod
    def create_upload(self, key: str) -> str:
        """Begins a staged upload and returns its id. Nothing is visible under ``key`` before ``complete_upload``."""

    @abstractmethod
    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytes | bytearray, *, sha256_of_all: str | None = None
    ) -> UploadedPart:
        """Stages one part. A part with the same number is replaced.

        Args:
            key: The key given to ``create_upload``.
            upload_id: The id that it returned.
            number: From 1 to 10,000. Parts are joined in this order; gaps are allowed.
            data: At least 5 MiB, except in the last part. This is a rule of S3, which checks it on completion.
            sha256_of_all: SHA-256 of all parts up to this one, in hex, from who sends them in order and computes it
                anyway: for all parts, or for none. A store without ETags of its own then need not read ``data``.

        Raises:
            UploadNotFoundError: There is no such upload: it was completed or aborted.
        """

    @abstractmethod
    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> None:
        """Makes the staged parts one visible object, atomically.

        The call may be repeated. If the upload is gone or the key is taken, but the object consists of exactly these
        parts, it succeeds.

        Args:
            key: The key given to ``create_upload``.
            upload_id: The id that it returned.
            parts: At least one, in any order.
            if_none_match: Complete only if no object has this key.

        Raises:
            PreconditionFailedError: Another object has this key. The upload stays until it is aborted.
            UploadNotFoundError: The upload was aborted, or a part of it never arrived.
        """

    @abstractmethod
    def abort_upload(self, key: str, upload_id: str) -> None:
        """Deletes a staged upload and its parts, if it exists."""

    @abstractmethod
    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        """Yields the staged uploads whose key starts with ``prefix``, sorted by key."""

    @abstractmethod
    def child(self, prefix: str) -> ObjectStore:
        """Returns the store rooted at ``prefix`` below this one."""

    @abstractmethod
    def beside(self, path: str) -> ObjectStore:
        """Returns the store rooted at ``path`` below the parent of this one's root, which is no whole bucket."""

    def probe(self) -> None:
        """Checks with a few small writes under ``.probe/`` whether checkpoints are safe in this store.

        Raises:
            ConditionalWritesUnsupportedError: A conditional header is ignored or unknown; the message says which.
            StorageError: The store is not reachable, or forbids what each job does; the message says what to do.
        """
        key = f".probe/{uuid.uuid4().hex}"
        with _then(partial(self.delete, key)):
            etag = self._expect_success("PUT If-None-Match of a new key", self.put, key, b"1", if_none_match=True)
            self._expect_refusal("PUT If-None-Match of an existing key", self.put, key, b"2", if_none_match=True)
            self._expect_success("PUT If-Match with the current ETag", self.put, key, b"3", if_match=etag)
            self._expect_refusal("PUT If-Match with an old ETag", self.put, key, b"4", if_match=etag)
            upload_id = self.create_upload(key)
            with _then(partial(self.abort_upload, key, upload_id)):
                parts = [self.upload_part(key, upload_id, 1, b"5")]
                self._expect_refusal(
                    "CompleteMultipartUpload If-None-Match of an existing key",
                    self.complete_upload,
                    key,
                    upload_id,
                    parts,
                    if_none_match=True,
                )

    def _expect_success(self, what: str, write: Callable[P, str], *args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return write(*args, **kwargs)
        except PreconditionFailedError as error:
            raise self._unsupported(f"{what} was refused") from error

    def _expect_refusal(self, what: str, write: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        with suppress(PreconditionFailedError):
            write(*args, **kwargs)
            raise self._unsupported(f"{what} was not refused")

    def _unsupported(self, what: str) -> ConditionalWritesUnsupportedError:
        return ConditionalWritesUnsupportedError(
            f"{self.url} does not honour conditional writes ({what}), so two runs could both believe they own a job's "
            "state. Use a store that does: Amazon S3, Ceph RGW 20 or newer, or a local directory."
        )


@contextmanager
def _then(clean_up: Callable[[], None]) -> Iterator[None]:
    """Cleans up behind what is done; that its failure is an error, too, hides no error from before."""
    try:
        yield
    except StorageError:
        with suppress(StorageError):
            clean_up()
        raise
    clean_up()


def check_relative(key: str) -> str:
    """Returns ``key`` if it is a relative path that does not lead out of its prefix.

    Raises:
        PathEscapesPrefixError: It is empty or absolute, or has an empty, ``.`` or ``..`` segment, a backslash, a
            control character, or half of a character.
    """
    if _BAD_KEY.search(key):
        raise PathEscapesPrefixError(
            f"{key!r} is not a plain relative path: it must not be empty or absolute, nor hold '.', '..', empty "
            "segments, backslashes or control characters"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Returns ``prefix`` if keys can start with it: '', a folder with its slash, or the beginning of a name."""
    check_relative(prefix + "x")
    return prefix


def put_if(store: ObjectStore, key: str, data: bytes, if_match: str | None) -> str:
    """Writes an object if it has not changed. A write that happened is a success, whatever the store answered.

    "Precondition failed" does not mean that the write did not happen: a client that gets no response sends the request
    again, and may then meet its own first write. So ``data`` must be unique to this write. With equal data, two writers
    would both take the object for their own.

    Args:
        store: The object store.
        key: The key of the object.
        data: The whole object.
        if_match: The ETag of the object before the write, or None if it must not exist.

    Returns:
        The ETag of the object as written.

    Raises:
        PreconditionFailedError: The object has changed, and is not what this call writes.
        StorageError: Anything else; the outcome is unknown.
    """
    try:
        return store.put(key, data, if_none_match=if_match is None, if_match=if_match)
    except StorageError as error:
        try:
            there, etag = store.get(key)
        except StorageError:
            raise error from None
        if there == data:
            return etag
        raise


class RangedFile(io.RawIOBase):
    """An object as a file that fetches only the ranges that are read.

    Args:
        store: Store of the object.
        key: Key of the object.
        size: Size of the object in bytes.
        check: Is called when a range was fetched, before it is used, and if the object is gone.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, check: Callable[[], object] = lambda: None) -> None:
        self._store, self._key, self._size, self._check, self._position = store, key, size, check, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns what the store does, without the two copies that the base class makes of it."""
        left = max(self._size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        if not count and self._position:
            return b""
        try:
            data = self._store.get_range(self._key, self._position, count) if count else b""
        except ObjectNotFoundError:
            self._check()  # may say more
            raise
        self._check()
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
