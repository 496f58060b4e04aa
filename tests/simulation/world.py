"""One process in which many actors take turns: who goes on, when, and what fails is drawn from one seed.

Each actor is a greenlet that runs the library's own code. It may be switched, crash or be paused at every request to
the store; nothing else is a point of interleaving. What an actor does after it has crashed has no effect.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from dagster_flinkpy.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.storage.object_store import ObjectInfo, ObjectStore, UploadedPart, UploadInfo, resolve_key

__all__ = ["URL", "Actor", "Bucket", "Chaos", "Crashed", "SerialExecutor", "SimulatedStore", "Violation", "World"]

T = TypeVar("T")

_MAX_STEPS = 60_000
URL = "s3://simulated"


class Crashed(BaseException):
    """The process of an actor is gone."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Chaos:
    """How likely things are; per request to the store, where nothing else is said."""

    switch: float = 0.3
    """Another actor goes on."""
    crash: float = 0.0
    pause: float = 0.0
    """The actor stops for a while, as if its machine had: a zombie, if another attempt takes over meanwhile."""
    fail_before: float = 0.0
    """503, or 409, or a timeout on the way there."""
    fail_after: float = 0.0
    """It was done, but the response is lost."""
    outage: float = 0.0
    """Per request that fails: the next ones of the actor do, too."""
    retried: float = 0.0
    """It was done, the response was lost, and the client sends the request again."""
    late_list: float = 0.0
    """A listing does not show the last changes."""
    clock_jump: float = 0.0
    task_fails: float = 0.0
    """Per task of a Spark job."""
    task_hangs: float = 0.0
    speculation: float = 0.0
    """Per task of a Spark job: it runs twice, and the first to end is taken."""
    stray_messages: float = 0.0
    """Per checkpoint: duplicate, late and foreign messages arrive, too."""

    @staticmethod
    def draw(rng: random.Random) -> Chaos:
        """Few seeds have all of it: progress must be made, too."""

        def some(most: float) -> float:
            return rng.choice((0.0, 1.0)) * rng.uniform(0.0, most)

        return Chaos(
            switch=rng.choice((0.05, 0.3, 0.7)),
            crash=some(0.02),
            pause=some(0.03),
            fail_before=some(0.03),
            fail_after=some(0.03),
            outage=some(1.0),
            retried=some(0.05),
            late_list=some(0.3),
            clock_jump=some(0.01),
            task_fails=some(0.1),
            task_hangs=some(0.03),
            speculation=some(0.3),
            stray_messages=some(1.0),
        )


class Actor:
    """A process, or a task in one."""

    def __init__(self, world: World, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.skew_ms = 0
        self.wake_at = 0
        self.outage = 0
        """How many of its next requests fail."""
        self.crashed = False
        self._world = world
        self._body = body
        self.greenlet = greenlet(self._run, world.main)

    @property
    def over(self) -> bool:
        return bool(self.greenlet.dead)

    def _run(self) -> None:
        try:
            self._body()
        except Crashed:
            self.crashed = True
        except BaseException as error:  # reported by the world
            self._world.broken = self._world.broken or error


class World:
    """The clock, the scheduler and the store of one simulation.

    Args:
        seed: All that happens follows from it.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.chaos = Chaos.draw(self.rng)
        self.main = getcurrent()
        self.now_ms = 1_800_000_000_000
        self.bucket = Bucket()
        self.broken: BaseException | None = None
        self.steps = 0
        self.trace: list[str] = []
        self._digest = hashlib.sha256()
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._over = False

    # --- actors -------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Actor:
        assert self._current is not None
        return self._current

    def spawn(self, name: str, body: Callable[[], None]) -> Actor:
        """Adds an actor, which goes on when it is drawn."""
        actor = Actor(self, name, body)
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Lets actors take turns until all are over.

        Raises:
            Violation: An invariant does not hold.
        """
        try:
            while self._actors:
                ready = [actor for actor in self._actors if actor.wake_at <= self.now_ms]
                if not ready:
                    self.now_ms = min(actor.wake_at for actor in self._actors)
                    continue
                actor = self._current = self.rng.choice(ready) if len(ready) > 1 else ready[0]
                actor.greenlet.switch()
                if self.broken is not None:
                    raise self.broken
                if actor.over:
                    self._actors.remove(actor)
                    self.note("crashed" if actor.crashed else "over")
        finally:
            self._over = True
            for actor in self._actors:  # their cleanup code sees that they have crashed
                if actor.greenlet and not actor.over:
                    self._current = actor
                    actor.greenlet.throw(Crashed())

    def step(self, what: str = "") -> None:
        """A point at which the current actor may be switched, crash or be paused."""
        actor = self.current
        if self._over or actor.crashed:
            raise Crashed
        self.steps += 1
        if self.steps > _MAX_STEPS:
            self.report(f"no end after {_MAX_STEPS} steps")
            raise Crashed
        if what:
            self.note(what)
        rng, chaos = self.rng, self.chaos
        self.now_ms += rng.randrange(20)
        if chaos.clock_jump and rng.random() < chaos.clock_jump:
            actor.skew_ms = rng.randrange(-3_600_000, 3_600_000)
            self.note(f"clock {actor.skew_ms:+} ms")
        if chaos.crash and rng.random() < chaos.crash:
            actor.crashed = True
            raise Crashed
        if chaos.pause and rng.random() < chaos.pause:
            actor.wake_at = self.now_ms + rng.choice((500, 5_000, 60_000, 600_000))
            self.note("pauses")
            self._switch(actor)
        elif rng.random() < chaos.switch:
            self._switch(actor)

    def sleep(self, seconds: float) -> None:
        """The current actor waits."""
        actor = self.current
        if self._over or actor.crashed:
            raise Crashed
        actor.wake_at = self.now_ms + max(int(seconds * 1000), 1)
        self._switch(actor)

    def wait_for(self, condition: Callable[[], bool], until_ms: int | None = None) -> bool:
        """The current actor waits until something is so; False if that took too long."""
        while not condition():
            if until_ms is not None and self.now_ms >= until_ms:
                return False
            self.sleep(0.02)
        return True

    def _switch(self, actor: Actor) -> None:
        self.main.switch()
        if actor.crashed or self._over:
            raise Crashed

    @property
    def alone(self) -> bool:
        """Whether all other actors are over."""
        return self._actors == [self._current]

    def clock(self) -> int:
        """What the clock of the current actor says."""
        return self.now_ms + self.current.skew_ms

    # --- what happened ------------------------------------------------------------------------------------------------

    def note(self, what: str) -> None:
        line = f"{self.now_ms % 100_000_000:>9} {self._current.name if self._current else '-':<14} {what}"
        self.trace.append(line)
        self._digest.update(line.encode())

    @property
    def digest(self) -> str:
        """Of all that happened."""
        return self._digest.hexdigest()

    def report(self, message: str) -> None:
        """Says that an invariant does not hold; the simulation ends."""
        if self.broken is None:
            self.broken = Violation(message)
            self.note(f"VIOLATION {message}")


# --- the store --------------------------------------------------------------------------------------------------------


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
    """All objects and uploads, and who is told of changes."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, _Upload] = {}
        self.created: list[tuple[int, str]] = []
        self.uploads_made = 0
        self.on_put: Callable[[str, bytes | None, bytes], None] = lambda key, old, new: None
        self.on_delete: Callable[[str], None] = lambda key: None
        self.on_abort: Callable[[str, str], None] = lambda key, upload_id: None

    def get(self, key: str) -> bytes | None:
        found = self.objects.get(key)
        return None if found is None else found.data


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()  # by content, as on S3


class SimulatedStore(ObjectStore):
    """A view of the bucket, whose requests fail, are delayed and cross each other."""

    def __init__(self, world: World, prefix: str = "") -> None:
        self.url = f"{URL}/{prefix}".rstrip("/")
        self._world = world
        self._bucket = world.bucket
        self._prefix = prefix.rstrip("/")

    def _key(self, key: str) -> str:
        return resolve_key(self._prefix, key)

    def child(self, prefix: str) -> SimulatedStore:
        return SimulatedStore(self._world, self._key(prefix.rstrip("/")))

    def probe(self) -> None:
        """The simulated store is known to honour conditions."""

    def _request(self, what: str, apply: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """Carries a request out, or not, or twice.

        Args:
            what: For the trace.
            apply: What the server does.
            again: A write that the client repeats because the response was lost. None: for a read.
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
        if world.broken is not None:
            raise Crashed
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
                if world.broken is not None:
                    raise Crashed
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
                UploadInfo(upload.key[len(root) :], upload_id, _time(upload.initiated_ms))
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

    def upload_part(self, key: str, upload_id: str, number: int, data: bytes) -> UploadedPart:
        full = self._key(key)

        def apply() -> UploadedPart:
            self._upload(full, upload_id).parts[number] = data
            return UploadedPart(number, _etag(data))

        return self._request(f"UPLOAD-PART {full} {number}", apply, apply)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, if_none_match: bool = True
    ) -> str:
        full = self._key(key)
        etag = _etag("".join(part.etag for part in sorted(parts, key=lambda part: part.number)).encode())

        def apply() -> str:
            found = self._bucket.objects.get(full)
            if found is not None and found.etag == etag:
                return etag
            upload = self._upload(full, upload_id)
            if if_none_match and found is not None:
                raise PreconditionFailedError(f"412: {URL}/{full} exists")
            if any(_etag(upload.parts.get(part.number, b"")) != part.etag for part in parts):
                raise UploadNotFoundError(f"a part of {upload_id} of {full} is missing")
            data = b"".join(upload.parts[number] for number in sorted(part.number for part in parts))
            del self._bucket.uploads[upload_id]
            self._bucket.objects[full] = _Object(data, etag, self._world.now_ms)
            self._bucket.on_put(full, None, data)
            return etag

        return self._request(f"COMPLETE {full}", apply, apply)

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


class SerialExecutor:
    """Stands for a pool of threads: an actor is one thread, and order is not left to chance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> SerialExecutor:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, work: Callable[..., T], *items: Iterable[Any]) -> Iterator[T]:
        return iter([work(*each) for each in zip(*items, strict=False)])

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        pass
