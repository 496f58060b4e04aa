"""A job is forked while it runs, is swept, disposed of, or forked by another one, at each request of the fork.

Whatever happens, all files of a fork exist once it is reported, and a fork that is not reported leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.checkpoint.offline import trigger_savepoint
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.savepoints.savepoint import load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError, FencedError, HeadLostError, RestoreError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.interruptions import Died, at_request, dies
from tests.checkpoint.test_sweep import Job
from tests.examples import examples

STEPS = range(1, 40, max(1, 40 // examples(100)))
"""The requests of a fork, or every second one without ``SOAK``. A step that is not reached does not happen."""
LATER = datetime.now(timezone.utc) + timedelta(days=100)


class Original(Job):
    """A job of which a fork is made."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "job")
        self.location = StorageLocation(str(root / "job"))
        self.fork = StorageLocation(str(root / "fork"))
        self.epoch("a", "b")
        self.epoch("c")

    def go_on(self) -> None:
        """Completes checkpoints that name none of the files that were there, and sweeps the job."""
        for name in "de":
            self.epoch(name, drop=9)
        sweep(self.objects, now=LATER)

    def swept(self) -> None:
        """Long after the fork was begun, the job and the fork are swept."""
        for location in (self.location, self.fork):
            if location.open().head("HEAD") is not None:
                sweep(location.open(), now=LATER)

    def forked_again(self) -> None:
        fork_job(self.location, "fork", now_ms=1_000_000)

    def disposed(self) -> None:
        dispose_job(self.location, now_ms=1_000_000)

    def check(self, *, forked: bool) -> None:
        """Checks the files of the fork, disposes of it, and checks what is left."""
        latest = CompletedCheckpointStore(self.fork.open()).latest()
        if forked:
            assert latest is not None
        if latest is not None:
            assert latest.files()
            for path in latest.files():
                self.fork.open().get(path)
            dispose_job(self.fork, now_ms=1_000_000)
        if self.objects.head("HEAD") is not None:
            sweep(self.objects, now=LATER)
        left = [info.key for info in LocalObjectStore(self.root.parent).list() if not info.key.startswith("job/")]
        assert left == []
        assert self.names("claims/") == set()


@pytest.mark.short
@pytest.mark.parametrize("what", ["go_on", "swept", "forked_again", "disposed"])
@pytest.mark.parametrize("at", STEPS)
def test_a_fork_that_is_reported_has_its_files(tmp_path: Path, at: int, what: str) -> None:
    job = Original(tmp_path)
    other: Callable[[], None] = getattr(job, what)

    def happens() -> None:
        with suppress(CheckpointError, FencedError):
            other()

    forked = False
    with suppress(CheckpointError, FencedError, HeadLostError), at_request(at, happens):
        fork_job(job.location, "fork", now_ms=1_000_000)
        forked = True
    if what != "disposed" and job.objects.head("HEAD") is not None:
        job.go_on()
    job.check(forked=forked)


@pytest.mark.parametrize("at", STEPS)
def test_a_fork_that_dies_leaves_nothing_that_blocks_or_stays(tmp_path: Path, at: int) -> None:
    job = Original(tmp_path)
    with suppress(Died), at_request(at, dies):
        fork_job(job.location, "fork", now_ms=1_000_000)
    if CompletedCheckpointStore(job.fork.open()).latest() is None:
        fork_job(job.location, "fork", now_ms=1_000_000)
    job.go_on()
    job.check(forked=True)


@pytest.mark.parametrize("at", STEPS)
def test_what_a_dead_fork_has_left_is_swept(tmp_path: Path, at: int) -> None:
    job = Original(tmp_path)
    with suppress(Died), at_request(at, dies):
        fork_job(job.location, "fork", now_ms=1_000_000)
    job.go_on()
    job.check(forked=False)


def test_a_job_whose_metadata_is_gone_is_not_forked(tmp_path: Path) -> None:
    job = Original(tmp_path)
    job.objects.delete("chk-2/_metadata")
    with pytest.raises(CorruptMetadataError, match="checkpoints list"):
        fork_job(job.location, "fork", now_ms=1_000_000)
    assert CompletedCheckpointStore(job.fork.open()).latest() is None


def test_a_savepoint_keeps_what_a_fork_names_when_head_of_its_job_is_lost(tmp_path: Path) -> None:
    job = Original(tmp_path)
    savepoint = trigger_savepoint(job.location)
    fork_job(job.location, "fork", at=savepoint, now_ms=1_000_000)
    job.objects.delete("HEAD")
    dispose_savepoint(StorageLocation(savepoint), owner="test", now_ms=1_000_000)
    with pytest.raises(RestoreError):
        load_savepoint(StorageLocation(savepoint).open())
    latest = CompletedCheckpointStore(job.fork.open()).latest()
    assert latest is not None
    needed = {f"{savepoint.rpartition('/')[2]}/{path}" for path in latest.files()}
    assert needed
    assert needed <= job.names()
