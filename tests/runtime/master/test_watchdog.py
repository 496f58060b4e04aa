"""Hanging steps: the run ends with an error that names them, and the next run continues from what it finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.datastream import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Json,
    SplitEnumerator,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention as Retention
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointTimeoutError
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, event_time

RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(16)]


class Hang:
    """What a step calls to hang. For the watchdog its time has then passed."""

    def __init__(self) -> None:
        self.armed = ""
        """The step that hangs."""
        self._hangs, self._released = threading.Event(), threading.Event()

    def here(self, step: str) -> None:
        if step == self.armed:
            self.armed = ""
            self._hangs.set()
            self._released.wait()

    def release(self) -> None:
        self._released.set()

    def await_step(self, done: Future[Any], seconds: float) -> None:
        over = threading.Event()
        done.add_done_callback(lambda _: over.set())
        while not over.wait(0.001):
            if self._hangs.is_set():
                self._hangs.clear()
                return


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    hang = Hang()
    monkeypatch.setattr(Watchdog, "_await", staticmethod(hang.await_step))
    yield hang
    hang.release()


# --- one step ---------------------------------------------------------------------------------------------------------


def test_a_step_after_the_end_runs_nevertheless() -> None:
    watchdog = Watchdog(timedelta(minutes=10))
    assert watchdog.run("a step", lambda: 1) == 1
    watchdog.close()
    assert watchdog.run("another step", lambda: 2) == 2
    watchdog.close()


def test_steps_run_on_one_thread_and_give_what_they_return() -> None:
    watchdog = Watchdog(timedelta(minutes=1))
    threads = {watchdog.run("a step", threading.get_ident) for _ in range(3)}
    assert len(threads) == 1 and threads != {threading.get_ident()}
    assert watchdog.run("a step", divmod, 7, 2) == (3, 1)
    watchdog.close()


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_step_raises_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    watchdog = Watchdog(timedelta(minutes=1))
    with pytest.raises(type(error)) as raised:
        watchdog.run("a step", fail)
    assert raised.value is error
    assert watchdog.run("the next step", lambda: 1) == 1
    watchdog.close()


def test_a_step_that_hangs_is_named_and_no_other_is_begun() -> None:
    release, ran = threading.Event(), []
    watchdog = Watchdog(timedelta(milliseconds=20))
    with pytest.raises(CheckpointTimeoutError, match=r"^the step did not end within the checkpoint timeout of 0:00:00"):
        watchdog.run("the step", release.wait)
    with pytest.raises(CheckpointTimeoutError, match=r"^the step did not end"):
        watchdog.run("another step", ran.append, 1)
    release.set()
    assert ran == []


def test_the_error_shows_where_a_step_hangs(hang: Hang) -> None:
    def wait_for_ever() -> None:
        hang.here("now")

    hang.armed = "now"
    with pytest.raises(CheckpointTimeoutError, match=r"(?s)^the step did not .* in wait_for_ever\n.* in here\n"):
        Watchdog(timedelta(minutes=10)).run("the step", wait_for_ever)


def test_an_interrupted_run_waits_for_the_step_that_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, ended = [], []
    await_step = Watchdog._await

    def interrupted(done: Future[Any], seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            raise KeyboardInterrupt
        await_step(done, 60)

    monkeypatch.setattr(Watchdog, "_await", staticmethod(interrupted))
    watchdog = Watchdog(timedelta(minutes=1))
    with pytest.raises(KeyboardInterrupt):
        watchdog.run("a step", ended.append, 1)
    assert ended == [1]
    assert watchdog.run("the next step", lambda: 2) == 2
    watchdog.close()


# --- jobs -------------------------------------------------------------------------------------------------------------


class HangingHook(MasterTriggerRestoreHook):
    def __init__(self, hang: Hang) -> None:
        self._hang = hang

    def get_identifier(self) -> str:
        return "ledger"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        self._hang.here(f"trigger {checkpoint_id}")
        return checkpoint_id

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        self._hang.here("restore")

    def close(self) -> None:
        self._hang.here("close")


class HangingCommitter(Committer):
    def __init__(self, committer: Committer, hang: Hang) -> None:
        self._committer, self._hang = committer, hang

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        self._hang.here(f"commit {requests[0].checkpoint_id}")
        self._committer.commit(requests)

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        self._hang.here("abort")
        return self._committer.abort_lingering(keep)

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._committer.lingering(keep)


class HangingSink(FolderSink):
    def __init__(self, folder: Path, hang: Hang) -> None:
        super().__init__(folder)
        self._hang = hang

    def __reduce__(self) -> Any:  # tasks only write
        return FolderSink, (self._staged.parent,)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return HangingCommitter(super().create_committer(context), self._hang)


@pytest.fixture
def hanging_store(hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes writes of the job's store hang before or after they take effect."""

    class HangingStore(LocalObjectStore):
        def put(self, key: str, data: bytes, **conditions: Any) -> str:
            hang.here(f"before {key}")
            etag = super().put(key, data, **conditions)
            hang.here(f"after {key}")
            return etag

    def open_store(location: StorageLocation) -> LocalObjectStore:
        return HangingStore(location.url.removeprefix("file://"))

    monkeypatch.setattr(StorageLocation, "open", open_store)


class HangingSource(CollectionSource):
    def __init__(self, *arguments: Any, hang: Hang, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._arguments, self._options, self._hang = arguments, options, hang

    def __reduce__(self) -> Any:  # tasks only read
        return partial(CollectionSource, **self._options), self._arguments

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        enumerator = super().create_enumerator(restored)
        plan = enumerator.plan_epoch
        enumerator.plan_epoch = lambda parallelism: (self._hang.here("plan"), plan(parallelism))[1]  # type: ignore[method-assign]
        return enumerator


def program(folder: Path, hang: Hang) -> JobGraph:
    """Returns a program with two epochs of eight records each."""
    env = environment(2)
    source = HangingSource(RECORDS, EVENT, records_per_epoch=8, hang=hang)
    stream = env.from_source(source, event_time(), "events").uid("events")
    counts = stream.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    counts.sink_to(HangingSink(folder, hang)).uid("table")
    return env.get_job_graph()


def attempt_of(folder: Path, hang: Hang, retention: Retention = Retention.RETAIN_ON_CANCELLATION) -> HarnessAttempt:
    checkpointing = CoordinatorConfig(master_hooks=(HangingHook(hang),), retention=retention)
    return HarnessAttempt(program(folder / "out", hang), folder, config={"checkpointing": checkpointing})


def finish(folder: Path, hang: Hang) -> list[Any]:
    """Lets another run read the rest, and returns what is committed."""
    with attempt_of(folder, hang) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    return FolderSink(folder / "out").rows()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return finish(tmp_path_factory.mktemp("straight"), Hang())


@pytest.mark.usefixtures("hanging_store")
@pytest.mark.parametrize(
    ("step", "named", "completed", "staged"),
    [
        ("trigger 2", "master hook 'ledger' at checkpoint 2", 1, 0),
        ("plan", "planning what checkpoint 2 reads", 1, 0),
        ("before counter", "taking a checkpoint id", 1, 0),
        ("before chk-2/_metadata", "writing chk-2/_metadata", 1, 2),
        ("after chk-2/_metadata", "writing chk-2/_metadata", 1, 2),
        ("before HEAD", "writing HEAD for checkpoint 2", 1, 2),
        ("after HEAD", "writing HEAD for checkpoint 2", 2, 2),
        ("commit 2", "committing sink 'table'", 2, 2),
    ],
)
def test_a_step_that_hangs_ends_the_run_and_the_next_one_goes_on(
    tmp_path: Path, hang: Hang, expected: list[Any], step: str, named: str, completed: int, staged: int
) -> None:
    def hang_in_second_epoch() -> None:
        # If the outcome were certain, a failing run would delete all checkpoints.
        with attempt_of(tmp_path, hang, Retention.NO_EXTERNALIZED_CHECKPOINTS) as attempt:
            attempt.run_epoch()
            hang.armed = step
            attempt.run_epoch()

    with pytest.raises(CheckpointTimeoutError, match=f"^{named} did not end within the checkpoint timeout of 0:10:00"):
        hang_in_second_epoch()
    # Nothing with an unknown outcome is aborted or deleted.
    assert len(FolderSink(tmp_path / "out").staged()) == staged
    with attempt_of(tmp_path, other := Hang()) as attempt:
        assert attempt.restored is not None and attempt.restored.checkpoint_id == completed
        # The hanging step continues at last, and can do no harm.
        hang.release()
    assert finish(tmp_path, other) == expected
    assert FolderSink(tmp_path / "out").staged() == []


@pytest.mark.parametrize(
    ("step", "named"),
    [("restore", "restoring master hook 'ledger'"), ("abort", "aborting the open transactions of sink 'table'")],
)
def test_a_start_that_hangs_is_named(tmp_path: Path, hang: Hang, expected: list[Any], step: str, named: str) -> None:
    with attempt_of(tmp_path, hang) as attempt:
        attempt.run_epoch()
    hang.armed = step
    with pytest.raises(CheckpointTimeoutError, match=named):
        attempt_of(tmp_path, hang).__enter__()
    assert finish(tmp_path, Hang()) == expected


def test_a_hook_that_does_not_close_is_left_alone(tmp_path: Path, hang: Hang) -> None:
    with attempt_of(tmp_path, hang) as attempt:
        hang.armed = "close"
        assert attempt.run_epoch().checkpoint_id == 1
