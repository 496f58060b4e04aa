from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint import sweep as sweep_module
from dagster_flinkpy.checkpoint.forks.job_disposal import mark_disposed
from dagster_flinkpy.checkpoint.head import HEAD_KEY
from dagster_flinkpy.checkpoint.metadata import CheckpointKind
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.savepoints.savepoint import write_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import SweepResult, sweep
from dagster_flinkpy.errors import ConfigurationError, CorruptMetadataError, HeadLostError
from dagster_flinkpy.state.files.state_files import sha256_of, state_file
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import content, keyed, metadata
from tests.examples import examples

HOUR = timedelta(hours=1)
CONTROL = {"HEAD", "counter", "leader"}
LONG_AGO = datetime.now(timezone.utc) - 100 * HOUR


def operator(*paths: str) -> OperatorState:
    """Returns an operator whose state names these files."""
    snapshot = keyed(*paths, parallelism=1)
    (table,) = snapshot.tables
    runs = tuple(replace(run, path=path, sha256=sha256_of(path)) for run, path in zip(table.runs, paths, strict=True))
    snapshot = KeyedSnapshot(snapshot.key_groups, (replace(table, runs=runs),))
    return OperatorState("count", "Count", 1, 8, subtasks=(SubtaskState(0, keyed=snapshot),))


def path_of(token: int, checkpoint_id: int, name: str) -> str:
    return state_file(hashlib.sha256(content(name)).hexdigest(), f"{token}-{checkpoint_id}")


class Job:
    """A job whose epochs the test runs by hand."""

    def __init__(self, root: Path, num_retained: int = 1) -> None:
        self.root = root
        self.objects = LocalObjectStore(str(root))
        self.store = CompletedCheckpointStore(self.objects, num_retained)
        self.begin()

    def begin(self) -> None:
        self.attempt = self.store.begin_attempt("run", 0)
        latest = self.attempt.latest
        self.named = [] if latest is None else sorted(latest.files())

    def write(self, name: str, checkpoint_id: int) -> str:
        path = path_of(self.attempt.token, checkpoint_id, name)
        self.objects.put(path, content(name))
        return path

    def epoch(self, *names: str, drop: int = 0, crash: str = "", subsume: bool = True) -> None:
        """Takes a checkpoint with new files and without the oldest ones. A crash leaves it unfinished."""
        checkpoint_id = self.store.assign_checkpoint_id(self.attempt)
        paths = [*self.named[drop:], *(self.write(name, checkpoint_id) for name in names)]
        done = metadata(checkpoint_id, operator(*paths), token=self.attempt.token)
        if crash == "before metadata":
            return
        self.store.write_metadata(self.attempt, done)
        if crash == "before HEAD":
            return
        self.store.complete(self.attempt, done)
        self.named = paths
        if subsume:
            self.store.subsume(self.attempt, [])

    def age(self) -> None:
        """Makes all existing files old."""
        for path in self.root.rglob("*"):
            if path.is_file():
                os.utime(path, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))

    def names(self, prefix: str = "") -> set[str]:
        return {info.key for info in self.objects.list(prefix)}

    def needed(self) -> set[str]:
        """Returns the files of the retained checkpoints."""
        retained = [self.store.load(i) for i in self.store.retained()]
        own = {f"chk-{done.checkpoint_id}/_metadata" for done in retained}
        return own.union(*(done.files() for done in retained))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "flights")


def test_orphans_are_left_until_they_are_old(job: Job) -> None:
    job.epoch("a")
    job.epoch("b", crash="before HEAD")
    job.begin()
    before = job.names()
    assert sweep(job.objects, HOUR) == SweepResult()
    assert job.names() == before
    job.age()
    planned = sweep(job.objects, HOUR, dry_run=True)
    assert job.names() == before
    assert sweep(job.objects, HOUR) == planned
    assert planned.files == 2
    assert planned.bytes > len(content("b"))
    assert job.names() == job.needed() | CONTROL
    assert sweep(job.objects, HOUR) == SweepResult()


def test_the_running_epoch_is_not_swept(job: Job) -> None:
    job.epoch("a")
    job.age()
    young = job.write("b", 2)  # by a task that has not acknowledged it
    sweep(job.objects, HOUR)
    assert young in job.names()
    job.epoch("b")
    sweep(job.objects, HOUR)
    assert job.needed() <= job.names()


def test_segments_of_blocking_edges_go_when_they_are_old(job: Job) -> None:
    job.epoch("a")
    old = "exchange/parsed.exchange/0000000001-0000000002/000000.e.0000.arrow"
    job.objects.put(old, b"written by an epoch that failed")
    job.age()
    young = "exchange/parsed.exchange/0000000001-0000000003/000000.e.0000.arrow"
    job.objects.put(young, b"of the running epoch")
    assert sweep(job.objects, HOUR).files == 1
    assert job.names("exchange/") == {young}
    assert job.needed() <= job.names()


def test_savepoints_keep_their_files_and_unfinished_ones_go(job: Job) -> None:
    job.epoch("a", "b")
    latest = job.attempt.latest
    assert latest is not None
    folder = write_savepoint(latest, job.objects, job.objects)
    native = replace(latest, kind=CheckpointKind.SAVEPOINT)
    job.objects.put("savepoint-flights-0-native/_metadata", native.to_bytes())
    job.objects.put("savepoint-flights-1/shared/half", b"half")
    job.begin()  # finds the native savepoint
    job.epoch("c", drop=2)
    job.age()
    sweep(job.objects, HOUR)
    kept = {f"{folder}/_metadata", *(f"{folder}/{path}" for path in latest.files())}
    native_kept = {"savepoint-flights-0-native/_metadata", *latest.files()}
    assert job.names() == CONTROL | job.needed() | kept | native_kept
    job.objects.delete("savepoint-flights-0-native/_metadata")  # disposed of
    sweep(job.objects, HOUR)
    assert job.names() == CONTROL | job.needed() | kept


def test_a_checkpoint_that_is_subsumed_meanwhile_is_no_error(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.epoch("a")
    load, loaded = CompletedCheckpointStore.load, []

    def slow(self: CompletedCheckpointStore, which: int | str) -> object:
        if not loaded:
            loaded.append(which)
            job.epoch("b", drop=1)
            job.age()
        return load(self, which)

    monkeypatch.setattr(CompletedCheckpointStore, "load", slow)
    sweep(job.objects, HOUR)
    monkeypatch.undo()
    assert job.needed() <= job.names()


def test_a_disposal_that_was_cut_short_is_finished(job: Job) -> None:
    job.epoch("a")
    assert mark_disposed(job.objects, job.store.begin_attempt("dispose", 1, timedelta(0), take_over=True))
    before = job.names()
    sweep(job.objects, HOUR, dry_run=True)
    assert job.names() == before
    sweep(job.objects, HOUR)
    assert job.names() == set()


def test_nothing_is_swept_when_nobody_knows_what_is_needed(job: Job, tmp_path: Path) -> None:
    job.epoch("a")
    job.epoch("b", crash="before HEAD")
    job.age()
    before = job.names()
    good, _ = job.objects.get("chk-1/_metadata")
    job.objects.put("chk-1/_metadata", b"damaged")
    with pytest.raises(CorruptMetadataError, match="chk-1/_metadata"):
        sweep(job.objects, HOUR)
    job.objects.delete("chk-1/_metadata")
    with pytest.raises(CorruptMetadataError, match="HEAD retains this checkpoint"):
        sweep(job.objects, HOUR)
    job.objects.put("chk-1/_metadata", good)
    head, _ = job.objects.get(HEAD_KEY)
    job.objects.delete(HEAD_KEY)
    with pytest.raises(HeadLostError, match="HEAD is missing"):
        sweep(job.objects, HOUR)
    with pytest.raises(ConfigurationError, match="has no HEAD"):
        sweep(LocalObjectStore(tmp_path / "elsewhere"), HOUR)
    job.objects.put(HEAD_KEY, head)
    with pytest.raises(ConfigurationError, match="negative"):
        sweep(job.objects, -HOUR)
    assert job.names() == before


EPOCHS = st.tuples(
    st.integers(0, 3), st.integers(0, 4), st.sampled_from(["", "", "", "before metadata", "before HEAD"]), st.booleans()
)


@given(epochs=st.lists(EPOCHS, max_size=12), num_retained=st.integers(1, 3), old=st.integers(0, 12))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_file_is_named_by_a_retained_checkpoint_or_young(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: list[tuple[int, int, str, bool]],
    num_retained: int,
    old: int,
) -> None:
    job = Job(tmp_path_factory.mktemp("job") / "flights", num_retained)
    young: set[str] = set()
    for number, (files, drop, crash, subsume) in enumerate(epochs):
        job.epoch(*(f"{number}-{i}" for i in range(files)), drop=drop, crash=crash, subsume=subsume)
        if crash:
            job.begin()
        assert job.needed() <= job.names()  # no needed file is deleted, whatever else is running
        if number == old:
            job.age()
            young = set(job.names())
    before = job.names()
    result = sweep(job.objects, HOUR)
    after = job.names()
    assert job.needed() <= after
    fresh = before - young if young else before
    assert after <= job.needed() | fresh | CONTROL
    assert result.files == len(before - after)


def test_many_orphans_go_in_batches(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "_BATCH", 3)
    job.epoch("a")
    for number in range(10):
        job.write(f"orphan-{number}", 9)
    job.age()
    batches: list[int] = []
    delete_many = job.objects.delete_many
    monkeypatch.setattr(job.objects, "delete_many", lambda keys: (batches.append(len(keys)), delete_many(keys)))
    assert sweep(job.objects, HOUR).files == 10
    assert batches == [3, 3, 3, 1]
