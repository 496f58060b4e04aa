"""A native savepoint is written while a run deletes what it no longer needs, or while a sweep runs.

Whatever the interleaving, all files of a savepoint exist once it is reported as complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.claims import named_by_others
from dagster_flinkpy.checkpoint.offline import trigger_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from dagster_flinkpy.storage.object_store import ObjectInfo, ObjectStore
from tests.checkpoint.test_sweep import Job

STEPS = range(16)
"""More than the number of requests of any of them. A step that is not reached happens at the end."""


class Interleaved(LocalObjectStore):
    """Runs a step before one of its requests."""

    def __init__(self, root: Path, at: int, other: Callable[[], None]) -> None:
        super().__init__(str(root))
        self.steps = 0

        def step() -> None:
            self.steps += 1
            if self.steps == at + 1:
                other()

        self._step, self._at = step, at

    def child(self, prefix: str) -> Interleaved:
        below = Interleaved(self._path(prefix), 0, lambda: None)
        below._step = self._step
        return below

    def end(self) -> None:
        """Runs the step now if it was not reached."""
        while self.steps <= self._at:
            self._step()

    def get(self, key: str) -> tuple[bytes, str]:
        self._step()
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._step()
        return super().get_range(key, start, length)

    def put(self, key: str, data: bytes, *, if_none_match: bool = False, if_match: str | None = None) -> str:
        self._step()
        return super().put(key, data, if_none_match=if_none_match, if_match=if_match)

    def delete_many(self, keys: Iterable[str]) -> None:
        self._step()
        super().delete_many(keys)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._step()
        return super().list(prefix)

    def list_folders(self, prefix: str = "") -> Iterator[str]:
        self._step()
        return super().list_folders(prefix)


class Location(StorageLocation):
    """The job's prefix, accessed through the test's store."""

    def open(self) -> ObjectStore:
        return STORES[self.url]

    def child(self, prefix: str) -> StorageLocation:
        return StorageLocation(self.url).child(prefix)


STORES: dict[str, ObjectStore] = {}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path / "flights")
    job.epoch("a", "b")
    job.epoch("c")
    return job


def native(job: Job) -> str:
    return trigger_savepoint(StorageLocation(str(job.root)), format_type=SavepointFormatType.NATIVE)


def check_savepoints(job: Job, *expected: str) -> None:
    store = CompletedCheckpointStore(LocalObjectStore(str(job.root)))
    folders = [path.rpartition("/")[0] for path in named_by_others(store.store)]
    assert sorted(folders) == sorted(url.rpartition("/")[2] for url in expected)
    for folder in folders:
        assert store.load(f"{folder}/_metadata").files() <= job.names()
    assert job.needed() <= job.names()


@pytest.mark.parametrize("at", STEPS)
def test_the_run_goes_on_while_a_savepoint_is_written(job: Job, at: int) -> None:
    """At each request of the savepoint, two checkpoints complete, and files that only older ones name are deleted."""

    def two_epochs() -> None:
        job.epoch("d", drop=1)
        job.epoch("e", drop=3)

    store = Interleaved(job.root, at, two_epochs)
    location = Location(str(job.root))
    STORES[location.url] = store
    written = trigger_savepoint(location, format_type=SavepointFormatType.NATIVE)
    store.end()
    check_savepoints(job, written)


@pytest.mark.parametrize("at", STEPS)
def test_a_savepoint_is_written_while_the_run_completes_a_checkpoint(job: Job, at: int) -> None:
    """At each request of the run, from taking the id to its deletions."""
    written: list[str] = []
    objects = Interleaved(job.root, at, lambda: written.append(native(job)))
    job.objects = objects
    job.store = CompletedCheckpointStore(objects)
    job.epoch("d", drop=3)
    objects.end()
    job.epoch("e", drop=1)
    check_savepoints(job, *written)


@pytest.mark.parametrize("at", STEPS)
def test_a_savepoint_is_written_while_a_sweep_is_at_work(job: Job, at: int) -> None:
    """All files are old, so only named ones are safe. After the savepoint the run continues and deletes files, too."""
    written: list[str] = []

    def savepoint_and_epoch() -> None:
        written.append(native(job))
        job.epoch("d", drop=3)

    job.age()
    objects = Interleaved(job.root, at, savepoint_and_epoch)
    sweep(objects, timedelta(minutes=1))
    objects.end()
    check_savepoints(job, *written)


@pytest.mark.parametrize("at", STEPS)
def test_a_sweep_is_at_work_while_a_savepoint_is_written(job: Job, at: int) -> None:
    def epoch_and_sweep() -> None:
        job.epoch("d", drop=3)
        job.age()
        sweep(LocalObjectStore(str(job.root)), timedelta(minutes=1))

    store = Interleaved(job.root, at, epoch_and_sweep)
    location = Location(str(job.root))
    STORES[location.url] = store
    written = trigger_savepoint(location, format_type=SavepointFormatType.NATIVE)
    store.end()
    check_savepoints(job, written)


def test_a_savepoint_of_an_old_run_is_found_by_a_new_one(job: Job) -> None:
    written = native(job)
    job.begin()
    job.epoch("d", drop=3)
    check_savepoints(job, written)


def test_a_late_acknowledgement_deletes_nothing_that_a_savepoint_names(job: Job) -> None:
    """Its checkpoint is subsumed, so its files are discarded like those of an aborted checkpoint."""
    late = job.names("shared/")
    written = native(job)
    job.epoch("d", drop=3)
    job.store.discard(job.attempt, late)
    check_savepoints(job, written)


def test_nothing_is_deleted_beside_a_savepoint_that_cannot_be_read(job: Job) -> None:
    path = f"{native(job).rpartition('/')[2]}/_metadata"
    job.objects.put(path, b"damaged")
    before = job.names("shared/")
    with pytest.raises(CorruptMetadataError, match=f"{path}.*until it can be read or its folder is deleted"):
        job.epoch("d", drop=3)
    with pytest.raises(CorruptMetadataError, match="It is a native savepoint"):
        sweep(job.objects, timedelta(0))
    assert before < job.names("shared/")
    job.objects.delete(path)
    job.begin()  # a new attempt begins
    job.epoch("e", drop=1)
    sweep(job.objects, timedelta(0))
    assert job.names("shared/") == {path for path in job.needed() if path.startswith("shared/")}


def test_no_savepoint_is_left_of_checkpoints_that_are_all_deleted_meanwhile(job: Job) -> None:
    """A run that keeps no checkpoints does this at its end. Here it happens before the last read of HEAD."""
    location = Location(str(job.root))
    STORES[location.url] = alone = Interleaved(job.root, 99, lambda: None)
    trigger_savepoint(location, format_type=SavepointFormatType.NATIVE)
    before = job.names("savepoint-")
    store = Interleaved(job.root, alone.steps - 1, lambda: job.store.delete_checkpoints(job.attempt))
    STORES[location.url] = store
    with pytest.raises(CheckpointError, match="has no completed checkpoint"):
        trigger_savepoint(location, format_type=SavepointFormatType.NATIVE)
    assert job.names("savepoint-") == before
