"""An object store in memory that counts requests and bytes as S3 bills them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone

from dagster_flinkpy.errors import ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.storage.object_store import ObjectInfo, ObjectStore, UploadedPart, UploadInfo

_PAGE = 1_000
"""How many keys S3 lists, or deletes, in a request."""
_LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)


class CountedStore(ObjectStore):
    """Objects in memory. State files are stored as their size only."""

    def __init__(self, prefix: str = "", shared: CountedStore | None = None) -> None:
        self.url = f"s3://counted/{prefix}".rstrip("/")
        self._prefix = prefix
        self.objects: dict[str, bytes] = {} if shared is None else shared.objects
        self.sizes: dict[str, int] = {} if shared is None else shared.sizes
        self.requests: Counter[str] = Counter() if shared is None else shared.requests
        """Requests by kind: ``put``, ``get``, ``list``, ``delete``."""
        self.sent: Counter[str] = Counter() if shared is None else shared.sent
        """Bytes by kind: ``put`` and ``get``."""

    def child(self, prefix: str) -> CountedStore:
        return CountedStore(_join(self._prefix, prefix.rstrip("/")), self)

    def beside(self, path: str) -> CountedStore:
        return CountedStore(_join(self._prefix.rpartition("/")[0], path), self)

    def add(self, key: str, size: int) -> None:
        """Has a task write a state file."""
        key = _join(self._prefix, key)
        if key not in self.sizes:
            self.sizes[key] = size

    def probe(self) -> None:
        """Does nothing: conditions hold here."""

    def get(self, key: str) -> tuple[bytes, str]:
        self.requests["get"] += 1
        try:
            data = self.objects[_join(self._prefix, key)]
        except KeyError:
            raise ObjectNotFoundError(f"no object {key}") from None
        self.sent["get"] += len(data)
        return data, _etag(data)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[0][start : start + length]

    def head(self, key: str) -> ObjectInfo | None:
        self.requests["get"] += 1
        path = _join(self._prefix, key)
        data = self.objects.get(path)
        return None if data is None else ObjectInfo(key, len(data), _etag(data), _LONG_AGO)

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        self.requests["put"] += 1
        path = _join(self._prefix, key)
        there = self.objects.get(path)
        if (if_none_match and there is not None) or (if_match is not None and (not there or _etag(there) != if_match)):
            raise PreconditionFailedError(f"the condition on {key} does not hold")
        self.objects[path], self.sizes[path] = data, len(data)
        self.sent["put"] += len(data)
        return _etag(data)

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        gone = [_join(self._prefix, key) for key in keys]
        self.requests["delete"] += -(-len(gone) // _PAGE)
        for path in gone:
            self.objects.pop(path, None)
            self.sizes.pop(path, None)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        below = f"{self._prefix}/" if self._prefix else ""
        found = sorted(path for path in self.sizes if path.startswith(below + prefix))
        self.requests["list"] += max(1, -(-len(found) // _PAGE))
        for path in found:
            yield ObjectInfo(path.removeprefix(below), self.sizes[path], "", _LONG_AGO)

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        self.requests["list"] += 1
        below = f"{self._prefix}/" if self._prefix else ""
        paths = (path.removeprefix(below) for path in self.sizes if path.startswith(below + prefix))
        yield from sorted({prefix + rest.partition("/")[0] + "/" for p in paths if "/" in (rest := p[len(prefix) :])})

    def create_upload(self, key: str) -> str:
        raise NotImplementedError

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytes | bytearray, *, sha256_of_all: str | None = None
    ) -> UploadedPart:
        raise NotImplementedError

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> None:
        raise NotImplementedError

    def abort_upload(self, key: str, upload_id: str) -> None:
        raise NotImplementedError

    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        return iter(())


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _join(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path
