"""The store of a task whose worker has no way to it: what it reads was sent along, and the driver writes for it.

The driver carries out what the task has asked for before it looks at the acknowledgement. Ids of uploads and ETags of
parts are only known then. So the task gets names for them, which the driver replaces in what the task sends.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn, Protocol

from dagster_flinkpy.errors import ObjectNotFoundError, PreconditionFailedError, UnsupportedEnvironmentError
from dagster_flinkpy.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    UploadedPart,
    UploadInfo,
    check_prefix,
    check_relative,
)

__all__ = ["DriverObjectStore", "Names", "StoreRequest", "TaskFiles", "files_of_task", "task_files"]

_NAME = re.compile(rb"of-driver-[0-9a-f]{32}")


class _Location(Protocol):
    """A `StorageLocation`, whose module imports this one."""

    @property
    def url(self) -> str: ...

    @property
    def parent(self) -> _Location: ...

    def child(self, prefix: str) -> _Location: ...


@dataclass(frozen=True)
class StoreRequest:
    """A write that a task leaves to the driver."""

    fields: Mapping[str, Any]
    """``store``: the fields of its location; ``method``, ``key``, and other arguments."""
    data: bytes

    def to_bytes(self) -> bytes:
        """Encodes it."""
        return json.dumps(self.fields).encode() + b"\n" + self.data

    @staticmethod
    def from_bytes(encoded: bytes) -> StoreRequest:
        """Decodes what :meth:`to_bytes` returned."""
        fields, _, data = encoded.partition(b"\n")
        return StoreRequest(json.loads(fields), data)


class TaskFiles:
    """The files that a task may read, and the writes that it leaves to the driver. Thread-safe.

    Args:
        sent: The files that the driver has sent, by URL; None for one that does not exist.
    """

    def __init__(self, sent: Mapping[str, bytes | None]) -> None:
        self._files = dict(sent)
        self._requests: list[StoreRequest] = []
        self._lock = threading.Lock()

    def get(self, url: str) -> bytes | None:
        """Returns a file that was sent, or that the task has written; None if nobody knows it.

        Raises:
            ObjectNotFoundError: It does not exist.
        """
        if self._files.get(url, b"") is None:
            raise ObjectNotFoundError(f"no object {url}")
        return self._files.get(url)

    def add(self, request: StoreRequest, url: str | None = None) -> None:
        """Takes a write; its data can be read at once under ``url``, if there is one."""
        with self._lock:
            self._requests.append(request)
            if url is not None:
                self._files[url] = request.data

    def forget_upload(self, upload_id: str) -> None:
        """Takes back the writes of an upload that is aborted."""
        with self._lock:
            self._requests = [each for each in self._requests if each.fields.get("upload_id") != upload_id]

    def requests(self) -> Iterator[StoreRequest]:
        """Yields the writes in their order, and forgets them."""
        with self._lock:
            requests, self._requests = self._requests, []
        yield from requests


_current: TaskFiles | None = None


def files_of_task() -> TaskFiles | None:
    """Returns the files of the task of this process; None if it reaches the store."""
    return _current


@contextmanager
def task_files(sent: Mapping[str, bytes | None]) -> Iterator[TaskFiles]:
    """Lets all stores that this process opens inside read what was sent, and leave writes to the driver."""
    global _current
    _current = TaskFiles(sent)
    try:
        yield _current
    finally:
        _current = None


class DriverObjectStore(ObjectStore):
    """A store that reads what the driver has sent to the task, and leaves writes to the driver.

    What it cannot do is an UnsupportedEnvironmentError: it could not in the next try of the task, either.

    Args:
        location: The store.
        files: The files of the task.
    """

    def __init__(self, location: _Location, files: TaskFiles) -> None:
        self._location, self._files = location, files
        self.url = location.url

    def get(self, key: str) -> tuple[bytes, str]:
        data = self._read(key)
        return data, hashlib.sha256(data).hexdigest()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read(key)[start : start + length]

    def head(self, key: str) -> ObjectInfo | None:
        try:
            data, etag = self.get(key)
        except ObjectNotFoundError:
            return None
        return ObjectInfo(key, len(data), etag, datetime.now(timezone.utc))

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        """If the condition does not hold, the epoch fails when the driver finds out."""
        if if_match is not None:
            self._refuse(f"replace {key!r}")
        self._ask("put", key, data, url=self._url(key), if_none_match=if_none_match)
        return hashlib.sha256(data).hexdigest()

    def delete(self, key: str) -> None:
        self._ask("delete", key)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._refuse(f"list {check_prefix(prefix)!r}")

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        self._refuse(f"list {check_prefix(prefix)!r}")

    def create_upload(self, key: str) -> str:
        """The id is a name; see :class:`Names`."""
        self._ask("create_upload", key, upload_id=(name := _new_name()))
        return name

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytes | bytearray, *, sha256_of_all: str | None = None
    ) -> UploadedPart:
        """The ETag is a name; see :class:`Names`."""
        name, digest = _new_name(), sha256_of_all
        self._ask("upload_part", key, bytes(data), upload_id=upload_id, number=number, etag=name, sha256_of_all=digest)
        return UploadedPart(number, name)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> None:
        etags = [[part.number, part.etag] for part in parts]
        self._ask("complete_upload", key, upload_id=upload_id, parts=etags, if_none_match=if_none_match)

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._files.forget_upload(upload_id)

    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        self._refuse(f"list the uploads of {check_prefix(prefix)!r}")

    def child(self, prefix: str) -> ObjectStore:
        return DriverObjectStore(self._location.child(prefix), self._files)

    def beside(self, path: str) -> ObjectStore:
        return DriverObjectStore(self._location.parent.child(path), self._files)

    def _url(self, key: str) -> str:
        return f"{self.url}/{check_relative(key)}"

    def _read(self, key: str) -> bytes:
        data = self._files.get(self._url(key))
        return self._refuse(f"read {key!r}") if data is None else data

    def _ask(self, method: str, key: str, data: bytes = b"", *, url: str | None = None, **arguments: Any) -> None:
        store = {name: value for name, value in vars(self._location).items() if value is not None}
        fields = {"store": store, "method": method, "key": check_relative(key), **arguments}
        self._files.add(StoreRequest(fields, data), url)

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedEnvironmentError(
            f"a worker without a way to {self.url} cannot {what} there: the driver sends it state and segments, and "
            "stores what it writes, but no other files. Read them with from_spark(), or give workers the directory or "
            "a network to the store"
        )


class Names:
    """What the names stand for that tasks have given to uploads and parts. Each task may have a thread."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def carry_out(self, request: StoreRequest, store: ObjectStore) -> None:
        """Does what a task has asked for.

        Args:
            request: The request; those of the task before it are done.
            store: The store of its location.

        Raises:
            StorageError: The store failed, or has another object under the key.
        """
        fields, key = request.fields, request.fields["key"]
        upload_id = self._real(fields.get("upload_id", ""))
        match fields["method"]:
            case "put":
                _put(store, key, request.data, if_none_match=fields["if_none_match"])
            case "delete":
                store.delete(key)
            case "create_upload":
                self._known[fields["upload_id"]] = store.create_upload(key)
            case "upload_part":
                number, digest = fields["number"], fields["sha256_of_all"]
                part = store.upload_part(key, upload_id, number, request.data, sha256_of_all=digest)
                self._known[fields["etag"]] = part.etag
            case "complete_upload":
                parts = [UploadedPart(number, self._real(etag)) for number, etag in fields["parts"]]
                store.complete_upload(key, upload_id, parts, if_none_match=fields["if_none_match"])

    def replaced(self, message: bytes) -> bytes:
        """Returns a message in JSON with what the names in its texts stand for."""
        return _NAME.sub(lambda found: self._text(found[0].decode()), message)

    def _text(self, name: str) -> bytes:
        return json.dumps(self._real(name))[1:-1].encode()

    def _real(self, name: str) -> str:
        return self._known.get(name, name)  # what tasks of an earlier epoch have begun has its own name


def _put(store: ObjectStore, key: str, data: bytes, *, if_none_match: bool) -> None:
    try:
        store.put(key, data, if_none_match=if_none_match)
    except PreconditionFailedError:
        if store.get(key)[0] != data:  # else an earlier try of the epoch has written it
            raise


def _new_name() -> str:
    return f"of-driver-{uuid.uuid4().hex}"
