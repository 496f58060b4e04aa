"""Jobs are forked, run on, are swept and disposed of, and what does it dies, or meets another, at any request.

Whatever happens, all that a checkpoint or savepoint names can be read. When all jobs are disposed of, nothing is left.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.offline import trigger_savepoint
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.savepoints.savepoint import files_location, load_savepoint
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import list_savepoints
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.checkpoint.sweep import sweep
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.state.files.state_files import sha256_of
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.interruptions import Died, at_request, dies
from tests.checkpoint.test_sweep import Job
from tests.examples import examples

NAMES = ("orders", "one", "two", "three")
OTHERS = ("epoch", "dispose", "fork", "nothing")
"""What happens during a fork, before all jobs are swept."""
LATER = datetime.now(timezone.utc) + timedelta(days=100)


class Forks(RuleBasedStateMachine):
    """The jobs of one checkpoint directory."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.numbers = iter(range(1_000_000))
        self.runs = {"orders": Job(self.root / "orders", 2)}
        self.epoch("orders", 3, 0)

    def location(self, name: str) -> StorageLocation:
        return StorageLocation(str(self.root / name))

    def jobs(self) -> list[str]:
        """Returns the jobs that have a checkpoint."""
        found = {name: read_head(self.location(name).open()) for name in NAMES}
        return [name for name, head in found.items() if head is not None and head[0].checkpoint_id is not None]

    def epoch(self, name: str, files: int, drop: int) -> None:
        if name not in self.runs:
            self.runs[name] = Job(self.root / name, 2)
        self.runs[name].epoch(*(f"{next(self.numbers)}" for _ in range(files)), drop=drop)

    def fork(self, name: str, new: str, at: str | None) -> None:
        fork_job(self.location(name), new, at=at, owner="test", now_ms=1_000_000)
        self.runs.pop(new, None)

    def dispose(self, name: str) -> None:
        self.runs.pop(name, None)
        dispose_job(self.location(name), owner="test", now_ms=1_000_000)

    def kept(self, name: str, pick: int) -> str | None:
        """Returns a checkpoint or savepoint to fork; None for the latest checkpoint."""
        store = self.location(name).open()
        found = [None, *(f"chk-{i}" for i in CompletedCheckpointStore(store).retained())]
        found += [name for _, name in list_savepoints(store)]
        return found[pick % len(found)]

    @contextmanager
    def disturbed(self, at: int, what: Callable[[], None] | None) -> Iterator[None]:
        """Lets something happen amid a call, which may then fail."""

        def happens() -> None:
            assert what is not None
            with suppress(FlinkPyError):  # it was refused
                what()

        with suppress(FlinkPyError, Died), at_request(at, dies if what is None else happens):
            yield

    # --- what happens -------------------------------------------------------------------------------------------------

    name = st.sampled_from(NAMES)
    moment = st.integers(1, 45)
    pick = st.integers(0, 5)

    @rule(name=name, files=st.integers(0, 2), drop=st.integers(0, 3))
    def a_job_goes_on(self, name: str, files: int, drop: int) -> None:
        if name in self.jobs():
            self.epoch(name, files, drop)

    @rule(name=name, new=name, pick=pick)
    def a_job_is_forked(self, name: str, new: str, pick: int) -> None:
        if name in self.jobs() and name != new:
            try:
                self.fork(name, new, self.kept(name, pick))
            except FlinkPyError:
                assert new in self.jobs() or read_head(self.location(new).open())[0].disposed

    @rule(name=name, new=name, pick=pick, at=moment)
    def a_fork_dies(self, name: str, new: str, pick: int, at: int) -> None:
        if name in self.jobs() and name != new:
            chosen = self.kept(name, pick)
            with self.disturbed(at, None):
                self.fork(name, new, chosen)

    @rule(
        name=name,
        new=name,
        pick=pick,
        at=moment,
        other=name,
        what=st.sampled_from(["epoch", "dispose", "fork", "nothing"]),
    )
    def something_happens_during_a_fork(self, name: str, new: str, pick: int, at: int, other: str, what: str) -> None:
        if name not in self.jobs() or name == new:
            return

        def happens() -> None:
            if what == "epoch" and name in self.jobs():
                self.epoch(name, 1, 2)
                self.epoch(name, 1, 2)
                self.epoch(name, 1, 2)
            elif what == "dispose":
                self.dispose(name)
            elif what == "fork" and other in self.jobs() and other != new:
                self.fork(other, new, None)
            for each in NAMES:  # which takes the fork for dead
                self.swept(each)

        chosen = self.kept(name, pick)
        with self.disturbed(at, happens):
            self.fork(name, new, chosen)

    @rule(name=name, at=st.none() | moment)
    def a_job_is_disposed_of(self, name: str, at: int | None) -> None:
        if at is None:
            with suppress(FlinkPyError):
                self.dispose(name)
            return
        with self.disturbed(at, None):
            self.dispose(name)

    def swept(self, name: str) -> None:
        if read_head(self.location(name).open()) is not None:
            sweep(self.location(name).open(), now=LATER)

    @rule(name=name, at=st.none() | moment)
    def a_job_is_swept(self, name: str, at: int | None) -> None:
        if at is None:
            self.swept(name)
            return
        with self.disturbed(at, None):
            self.swept(name)

    @rule(name=name, format_type=st.sampled_from([SavepointFormatType.NATIVE, SavepointFormatType.CANONICAL]))
    def a_savepoint_is_taken(self, name: str, format_type: SavepointFormatType) -> None:
        if name in self.jobs():
            trigger_savepoint(self.location(name), format_type=format_type)

    @rule(name=name, at=st.none() | moment)
    def a_savepoint_is_disposed_of(self, name: str, at: int | None) -> None:
        for _, savepoint in list_savepoints(self.location(name).open())[:1]:
            location = self.location(f"{name}/{savepoint}")
            if at is None:
                dispose_savepoint(location, owner="test", now_ms=1_000_000)
                continue
            with self.disturbed(at, None):
                dispose_savepoint(location, owner="test", now_ms=1_000_000)

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def all_that_is_named_can_be_read(self) -> None:
        for name in self.jobs():
            location = self.location(name)
            checkpoints = CompletedCheckpointStore(location.open())
            for checkpoint_id in checkpoints.retained():
                self.check(location, checkpoints.load(checkpoint_id).files())
            for _, savepoint in list_savepoints(location.open()):
                folder = location.child(savepoint)
                if folder.open().head("disposal") is None:
                    metadata = load_savepoint(folder.open())
                    self.check(files_location(metadata, folder), metadata.files())

    def check(self, location: StorageLocation, files: set[str]) -> None:
        store = location.open()
        for path in files:
            assert hashlib.sha256(store.get(path)[0]).hexdigest() == sha256_of(path)

    def teardown(self) -> None:
        try:
            for name in NAMES:
                for _, savepoint in list_savepoints(self.location(name).open()):
                    dispose_savepoint(self.location(f"{name}/{savepoint}"), owner="test", now_ms=1_000_000)
            for _ in range(2):
                for name in NAMES:
                    self.swept(name)
            self.only_what_is_named_is_left()
            for name in NAMES:
                if read_head(self.location(name).open()) is not None:
                    dispose_job(self.location(name), owner="test", now_ms=1_000_000)
            for _ in range(2):
                for name in NAMES:
                    self.swept(name)
            assert [info.key for info in LocalObjectStore(self.root).list()] == []
        finally:
            shutil.rmtree(self.root)

    def only_what_is_named_is_left(self) -> None:
        """Each state file is one that a job with a checkpoint needs."""
        there = {info.key for info in LocalObjectStore(self.root).list() if info.key.endswith(".parquet")}
        named: set[str] = set()
        for name in self.jobs():
            checkpoints = CompletedCheckpointStore(self.location(name).open())
            for checkpoint_id in checkpoints.retained():
                named |= {path.rpartition("/")[2] for path in checkpoints.load(checkpoint_id).files()}
        assert {key.rpartition("/")[2] for key in there} == named


TestForks = Forks.TestCase
TestForks.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
