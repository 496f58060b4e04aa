"""The object store of a simulated world. Requests fail, are delayed, are sent twice, and overtake each other."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeVar

from dagster_flinkpy.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage.object_store import ObjectInfo, ObjectStore, UploadedPart, UploadInfo, check_relative

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["URL", "Bucket", "SimulatedStore"]

T = TypeVar("T")

URL = "s3://simulated"


@dataclass(frozen=True)
class _Object:
    data: bytes
    etag: str
    modified_ms: int


class _Upload:
    def __init__(self, key: str, initiated_ms: int) -> None:
        self.key = key
        self.initiated_ms = initiated_ms
        self.parts: dict[int, bytes] = {}


class Bucket:
    """All objects and uploads, and the listeners of their changes."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, _Upload] = {}
        self.created: list[tuple[int, str]] = []
        self.uploads_made = 0
        self.lost: dict[tuple[int, int, str], int] = {}
        """How often a region had restarted when its master knew of a lost segment, by token, region and segment."""
        self.hidden: set[str] = set()
        """Segments that tasks no longer find."""
        self.put_back: set[str] = set()
        """Those that were hidden, and that somebody has put back."""
        self.found_lost: Counter[tuple[str, str]] = Counter()
        """How often a run has failed because of a lost segment, by run and segment."""
        self.acknowledged: set[str] = set()
        """Segments that the tasks of a region have acknowledged."""
        self.looked_at = 0
        """Uploads that existed when the job that ended last began to look for open uploads."""
        self.on_put: Callable[[str, bytes | None, bytes], None] = lambda key, old, new: None
        self.on_delete: Callable[[str], None] = lambda key: None
        self.on_abort: Callable[[str, str], None] = lambda key, upload_id: None

    def get(self, key: str) -> bytes | None:
        found = self.objects.get(key)
        return None if found is None else found.data


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()  # by content, as on S3


class SimulatedStore(ObjectStore):
    """A view of the bucket. Its requests fail, are delayed and overtake each other."""

    def __init__(self, world: World, prefix: str = "") -> None:
        self.url = f"{URL}/{prefix}".rstrip("/")
        self._world = world
        self._bucket = world.bucket
        self._prefix = prefix.rstrip("/")

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{check_relative(key)}" if self._prefix else check_relative(key)

    def child(self, prefix: str) -> SimulatedStore:
        return SimulatedStore(self._world, self._key(prefix.rstrip("/")))

    def beside(self, path: str) -> SimulatedStore:
        return SimulatedStore(self._world, f"{self._prefix.rpartition('/')[0]}/{check_relative(path)}".lstrip("/"))

    def probe(self) -> None:
        """Does nothing: the simulated store honours conditions."""

    def _request(self, what: str, apply: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """Carries out a request once, twice or not at all.

        Args:
            what: Description for the trace.
            apply: The action of the server.
            again: The write that the client repeats because the response was lost, or None for a read.
        """
        world, rng, chaos = self._world, self._world.rng, self._world.chaos
        world.step(what)
        actor = world.current
        if actor.outage and rng.random() < 0.9:
            actor.outage -= 1
            world.note("  503 SlowDown, still")
            raise StorageError(f"503 SlowDown: {what}")
        if chaos.fail_before and rng.random() < chaos.fail_before:
            self._begin_outage()
            kind = rng.choice(("503 SlowDown", "409 ConditionalRequestConflict", "connect timeout"))
            world.note(f"  {kind}")
            raise StorageError(f"{kind}: {what}")
        result = apply()
        world.stop_if_broken()
        if again is not None:
            if chaos.fail_after and rng.random() < chaos.fail_after:
                world.note("  response lost")
                self._begin_outage()
                world.step()
                raise StorageError(f"connection reset: {what}")
            if chaos.retried and rng.random() < chaos.retried:
                world.note("  response lost, sent again")
                world.step()
                result = again()
                world.stop_if_broken()
        world.step()
        return result

    def _begin_outage(self) -> None:
        world = self._world
        if world.rng.random() < world.chaos.outage:
            world.current.outage = world.rng.choice((1, 1, 2, 3, 8))

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> tuple[bytes, str]:
        full = self._key(key)

        def apply() -> tuple[bytes, str]:
            found = self._bucket.objects.get(full)
            if found is None:
                raise ObjectNotFoundError(f"{URL}/{full} does not exist")
            return found.data, found.etag

        return self._request(f"GET {full}", apply)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[0][start : start + length]

    def head(self, key: str) -> ObjectInfo | None:
        full = self._key(key)

        def apply() -> ObjectInfo | None:
            found = self._bucket.objects.get(full)
            return None if found is None else _info(key, found)

        return self._request(f"HEAD {full}", apply)

    def _listed(self, what: str, prefix: str, names: Callable[[int | None], list[T]]) -> Iterator[T]:
        world = self._world

        def apply() -> list[T]:
            late = world.chaos.late_list and world.rng.random() < world.chaos.late_list
            return names(world.now_ms - world.rng.randrange(5_000) if late else None)

        return iter(self._request(f"{what} {self._prefix}/{prefix}", apply))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        root = f"{self._prefix}/" if self._prefix else ""

        def names(before_ms: int | None) -> list[ObjectInfo]:
            return [
                _info(key[len(root) :], found)
                for key, found in sorted(self._bucket.objects.items())
                if key.startswith(root + prefix) and (before_ms is None or found.modified_ms < before_ms)
            ]

        return self._listed("LIST", prefix, names)

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        root = f"{self._prefix}/" if self._prefix else ""

        def names(before_ms: int | None) -> list[str]:
            folders = set()
            for key, found in self._bucket.objects.items():
                if key.startswith(root + prefix) and (before_ms is None or found.modified_ms < before_ms):
                    rest, slash, _ = key[len(root) + len(prefix) :].partition("/")
                    if slash:
                        folders.add(f"{prefix}{rest}/")
            return sorted(folders)

        return self._listed("LIST-FOLDERS", prefix, names)

    def list_uploads(self, prefix: str = "") -> Iterator[UploadInfo]:
        root = f"{self._prefix}/" if self._prefix else ""

        def names(before_ms: int | None) -> list[UploadInfo]:
            found = [
                UploadInfo(upload.key[len(root) :], upload_id)
                for upload_id, upload in self._bucket.uploads.items()
                if upload.key.startswith(root + prefix) and (before_ms is None or upload.initiated_ms < before_ms)
            ]
            return sorted(found, key=lambda info: (info.key, info.upload_id))

        return self._listed("LIST-UPLOADS", prefix, names)

    # --- writing ------------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        full = self._key(key)

        def apply() -> str:
            found = self._bucket.objects.get(full)
            if if_none_match and found is not None:
                raise PreconditionFailedError(f"412: {URL}/{full} exists")
            if if_match is not None and (found is None or found.etag != if_match):
                raise PreconditionFailedError(f"412: {URL}/{full} has changed")
            self._store(full, data)
            return _etag(data)

        def again() -> str:
            try:
                return apply()
            except PreconditionFailedError:
                if self._bucket.get(full) == data:
                    return _etag(data)
                raise  # it happened, but has been replaced since

        condition = " if-none-match" if if_none_match else " if-match" if if_match is not None else ""
        return self._request(f"PUT {full}{condition}", apply, again)

    def _store(self, full: str, data: bytes) -> None:
        old = self._bucket.get(full)
        self._bucket.objects[full] = _Object(data, _etag(data), self._world.now_ms)
        self._bucket.on_put(full, old, data)

    def delete(self, key: str) -> None:
        self.delete_many([key])

    def delete_many(self, keys: Iterable[str]) -> None:
        # One request per 3 keys, so that a crash leaves some.
        full = [self._key(key) for key in keys]
        for start in range(0, len(full), 3):
            some = full[start : start + 3]

            def apply(some: Sequence[str] = some) -> None:
                for key in some:
                    if self._bucket.objects.pop(key, None) is not None:
                        self._bucket.on_delete(key)

            self._request(f"DELETE {' '.join(some)}", apply, apply)

    # --- uploads ------------------------------------------------------------------------------------------------------

    def create_upload(self, key: str) -> str:
        full = self._key(key)

        def apply() -> str:
            self._bucket.uploads_made += 1
            upload_id = f"upload-{self._bucket.uploads_made}"
            self._bucket.uploads[upload_id] = _Upload(full, self._world.now_ms)
            return upload_id

        return self._request(f"CREATE-UPLOAD {full}", apply, apply)

    def _upload(self, full: str, upload_id: str) -> _Upload:
        upload = self._bucket.uploads.get(upload_id)
        if upload is None or upload.key != full:
            raise UploadNotFoundError(f"404: {upload_id} of {full}")
        return upload

    def upload_part(
        self, key: str, upload_id: str, number: int, data: bytes | bytearray, *, sha256_of_all: str | None = None
    ) -> UploadedPart:
        full = self._key(key)

        def apply() -> UploadedPart:
            self._upload(full, upload_id).parts[number] = bytes(data)
            return UploadedPart(number, _etag(bytes(data)))

        return self._request(f"UPLOAD-PART {full} {number}", apply, apply)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> None:
        full = self._key(key)
        etag = _etag("".join(part.etag for part in sorted(parts, key=lambda part: part.number)).encode())

        def apply() -> None:
            found = self._bucket.objects.get(full)
            if found is not None and found.etag == etag:
                return
            upload = self._upload(full, upload_id)
            if if_none_match and found is not None:
                raise PreconditionFailedError(f"412: {URL}/{full} exists")
            if any(_etag(upload.parts.get(part.number, b"")) != part.etag for part in parts):
                raise UploadNotFoundError(f"a part of {upload_id} of {full} is missing")
            data = b"".join(upload.parts[number] for number in sorted(part.number for part in parts))
            del self._bucket.uploads[upload_id]
            self._bucket.objects[full] = _Object(data, etag, self._world.now_ms)
            self._bucket.on_put(full, None, data)

        self._request(f"COMPLETE {full}", apply, apply)

    def abort_upload(self, key: str, upload_id: str) -> None:
        full = self._key(key)

        def apply() -> None:
            if self._bucket.uploads.pop(upload_id, None) is not None:
                self._bucket.on_abort(full, upload_id)

        self._request(f"ABORT {full} {upload_id}", apply, apply)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def _info(key: str, found: _Object) -> ObjectInfo:
    return ObjectInfo(key, len(found.data), found.etag, _time(found.modified_ms))
