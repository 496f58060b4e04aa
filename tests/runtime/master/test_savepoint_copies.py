"""Savepoints that are written beside a running job: a store that hangs delays nobody, and each answer is true."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.requests import Answer, JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CorruptStateError,
    JobCancelledError,
    JobNotRunningError,
    RequestFailedError,
    RequestOutcomeUnknownError,
    SavepointOutcomeUnknownError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.runtime.master.requests import savepoints
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.master.test_job_master import LIMIT, Threaded, expected, program
from tests.runtime.master.test_requests import CHECKPOINT, SAVEPOINT, Asked, always, ids

__all__ = ["always"]

STOP = Order(RequestKind.STOP)


class Hanging:
    """A store in which writing a savepoint hangs: its first file, or its metadata."""

    def __init__(self) -> None:
        self.at = ""
        """The end of the key at which it hangs."""
        self.reached, self.released, self.over = threading.Event(), threading.Event(), threading.Event()

    def here(self, store: LocalObjectStore, key: str) -> None:
        if self.at and key.endswith(self.at) and "/savepoint-" in store.url:
            self.reached.set()
            assert self.released.wait(LIMIT)

    def wait_in_vain(self, done: Future[Any], seconds: float) -> None:
        """Waits for a step. If it is the one that hangs, the time is over."""
        finished = threading.Event()
        done.add_done_callback(lambda _: finished.set())
        while not finished.wait(0.001):
            if self.reached.is_set() and threading.current_thread().name.startswith("flinkpy-savepoint"):
                return


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging()
    put, write = LocalObjectStore.put, savepoints.write_savepoint

    def put_late(store: LocalObjectStore, key: str, data: bytes, **options: Any) -> str:
        hanging.here(store, key)
        return put(store, key, data, **options)

    def write_and_tell(*args: Any, **options: Any) -> str:
        try:
            return write(*args, **options)
        finally:
            hanging.over.set()

    monkeypatch.setattr(LocalObjectStore, "put", put_late)
    monkeypatch.setattr(savepoints, "write_savepoint", write_and_tell)
    yield hanging
    hanging.released.set()


class Beside(Threaded):
    """An attempt whose lanes are threads. Its second Spark job waits until the savepoint hangs, and then does more."""

    def __init__(self, folder: Path, hanging: Hanging, then: Callable[[], object] = lambda: None) -> None:
        graph, self.sink = program(folder)
        super().__init__(graph, folder)
        self.asker = JobRequests(
            StorageLocation(str(folder)).child("job"), "asker", sleep=lambda seconds: pytest.fail("no answer")
        )
        self._hanging, self._then = hanging, then
        self.request = ""

    def ask(self, order: Order = SAVEPOINT) -> None:
        self.request = self.asker.submit(order)
        self.before_commit[1] = self._taken
        self.before_job[3] = self._go_on

    def _taken(self) -> None:
        """The first checkpoint waits until the run has taken the request."""
        until = threading.Event()
        while self.asker.answer(self.request) is None:
            until.wait(0.001)

    def _go_on(self) -> None:
        assert self._hanging.reached.wait(LIMIT)
        self._then()

    def answer(self) -> Answer:
        return self.asker.wait(self.request)


def savepoint_there(folder: Path) -> bool:
    return bool(list(folder.glob("job/savepoint-*/_metadata")))


def test_a_savepoint_that_hangs_is_given_up_and_the_job_goes_on(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "_await", staticmethod(hanging.wait_in_vain))
    hanging.at = ".parquet"
    with Beside(tmp_path, hanging) as attempt:
        attempt.ask()
        assert ids(attempt) == [1, 2, 3, 4, 5]
        with pytest.raises(RequestFailedError, match=r"there is no savepoint: .* did not end within"):
            attempt.answer()
        hanging.released.set()
        assert hanging.over.wait(LIMIT)
    assert not savepoint_there(tmp_path)
    assert attempt.sink.rows() == expected(tmp_path)


def test_nobody_knows_what_becomes_of_a_savepoint_whose_metadata_hangs(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "_await", staticmethod(hanging.wait_in_vain))
    hanging.at = "_metadata"
    with Beside(tmp_path, hanging) as attempt:
        attempt.ask()
        assert ids(attempt) == [1, 2, 3, 4, 5]
        name = attempt.request.rpartition("-")[2]
        with pytest.raises(RequestOutcomeUnknownError, match=f"it is unknown whether there is a savepoint {name} in"):
            attempt.answer()
        hanging.released.set()
        assert hanging.over.wait(LIMIT)
    assert savepoint_there(tmp_path)


def cancelled(attempt: Beside) -> None:
    attempt.asker.submit(Order(RequestKind.CANCEL))


def terminated(attempt: Beside) -> None:
    attempt.terminate(JobCancelledError("terminated"))


@pytest.mark.parametrize("end", [cancelled, terminated])
def test_a_job_that_is_ended_does_not_wait_for_a_savepoint(
    tmp_path: Path, hanging: Hanging, end: Callable[[Beside], None]
) -> None:
    hanging.at = ".parquet"
    with pytest.raises(JobCancelledError), Beside(tmp_path, hanging, lambda: end(attempt)) as attempt:
        attempt.ask()
        list(attempt.run_epochs())
    assert not hanging.released.is_set()
    with pytest.raises(JobNotRunningError, match="has not carried out the request"):
        attempt.answer()
    hanging.released.set()
    assert hanging.over.wait(LIMIT)
    assert not savepoint_there(tmp_path)
    assert not list(tmp_path.glob("job/savepoint-*/**/*.parquet"))


def test_a_job_that_is_terminated_waits_for_a_savepoint_that_appears(tmp_path: Path, hanging: Hanging) -> None:
    hanging.at = "_metadata"

    def end() -> None:
        terminated(attempt)
        threading.Timer(0, hanging.released.set).start()

    with pytest.raises(JobCancelledError), Beside(tmp_path, hanging, end) as attempt:
        attempt.ask()
        list(attempt.run_epochs())
    assert savepoint_there(tmp_path)
    assert str(attempt.answer().savepoint).endswith(attempt.request.rpartition("-")[2])


def test_a_caller_that_is_interrupted_leaves_a_savepoint_that_may_appear(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Watchdog.interrupt

    def interrupt_soon(watchdog: Watchdog) -> None:
        """Gives only the savepoint no time. Another step of the attempt may be about to end."""
        interrupt(watchdog, LIMIT if watchdog is attempt._watchdog else 0)

    monkeypatch.setattr(Watchdog, "interrupt", interrupt_soon)
    hanging.at = "_metadata"
    with pytest.raises(KeyboardInterrupt), Beside(tmp_path, hanging) as attempt:
        attempt.ask()
        next(attempt.run_epochs())
        assert hanging.reached.wait(LIMIT)
        raise KeyboardInterrupt
    with pytest.raises(RequestOutcomeUnknownError, match="it is unknown whether there is a savepoint"):
        attempt.answer()
    hanging.released.set()
    assert hanging.over.wait(LIMIT)


def test_a_savepoint_of_a_caller_has_a_limit_too(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Asked(tmp_path) as attempt:
        attempt.run_epoch()
        monkeypatch.setattr(threading.current_thread(), "name", "flinkpy-savepoint")
        monkeypatch.setattr(Watchdog, "_await", staticmethod(hanging.wait_in_vain))
        hanging.at = ".parquet"
        with pytest.raises(CheckpointTimeoutError, match="there is no savepoint"):
            attempt.savepoint()
        hanging.released.set()
        assert hanging.over.wait(LIMIT)
        assert not savepoint_there(tmp_path)
        hanging.at = ""
        hanging.reached.clear()
        assert attempt.savepoint()
        hanging.released.clear()
        hanging.at = "_metadata"
        with pytest.raises(SavepointOutcomeUnknownError, match="it is unknown whether there is a savepoint"):
            attempt.savepoint()


def test_a_target_that_hangs_delays_neither_the_job_nor_other_requests_for_long(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, seen = LocalObjectStore.head, list[int]()

    def hang(store: LocalObjectStore, key: str) -> Any:
        if store.url.endswith("/slow"):
            hanging.reached.set()
            assert hanging.released.wait(LIMIT)
        return head(store, key)

    def wait_in_vain(done: Future[Any], seconds: float) -> None:
        if threading.current_thread().name == "flinkpy-requests" and seconds == 30:
            seen.append(1)
            assert hanging.reached.wait(LIMIT)  # and then the time is over
        else:
            done.exception(LIMIT)

    monkeypatch.setattr(LocalObjectStore, "head", hang)
    monkeypatch.setattr(Watchdog, "_await", staticmethod(wait_in_vain))
    graph, sink = program(tmp_path)
    with Threaded(graph, tmp_path) as attempt:
        asker = JobRequests(StorageLocation(str(tmp_path)).child("job"), "asker")
        slow = [asker.submit(Order(kind, target=str(tmp_path / "slow"))) for kind in (RequestKind.SAVEPOINT, STOP.kind)]
        other = asker.submit(CHECKPOINT)
        assert ids(attempt) == [1, 2, 3, 4, 5]
        for each in slow:
            with pytest.raises(RequestFailedError, match=r"looking at this folder took more than 0:00:30"):
                asker.wait(each)
        assert asker.wait(other).checkpoint_id
    assert len(seen) == 2 and sink.rows() == expected(tmp_path)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_stop_without_a_savepoint_says_that_the_job_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError, match="full"), Asked(tmp_path) as attempt:
        attempt.orders = {2: [STOP]}
        monkeypatch.setattr(savepoints, "write_savepoint", fail)
        list(attempt.run_epochs())
    latest = CompletedCheckpointStore(StorageLocation(str(tmp_path / "job")).open()).latest()
    assert latest is not None and latest.stopped
    told = attempt.asker.answer(attempt.requests[0])
    assert told is not None and told.checkpoint_id == latest.checkpoint_id and told.savepoint is None
    with pytest.raises(RequestFailedError, match=f"has stopped with checkpoint {latest.checkpoint_id}, but .* is full"):
        attempt.answer()


def test_a_checkpoint_that_head_names_is_not_said_to_have_failed(tmp_path: Path) -> None:
    """Its sinks refuse the commit, and the next run may commit it."""

    def fail() -> None:
        raise SinkCommitError("no")

    graph, _ = program(tmp_path)
    with pytest.raises(SinkCommitError), Threaded(graph, tmp_path) as attempt:
        asker = JobRequests(StorageLocation(str(tmp_path)).child("job"), "asker")
        request = asker.submit(CHECKPOINT)
        for number in range(1, 6):
            attempt.before_commit[number] = fail
        list(attempt.run_epochs())
    with pytest.raises(RequestOutcomeUnknownError, match="was being completed"):
        asker.wait(request)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_native_savepoint_of_a_subsumed_checkpoint_is_one_of_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    write, tried, moment = savepoints.write_savepoint, list[int](), threading.Event()

    def sometimes(metadata: Any, *args: Any, **options: Any) -> str:
        tried.append(metadata.checkpoint_id)
        if len(tried) > failures:
            return write(metadata, *args, **options)
        while (
            latest := attempt._desk.requests.latest
        ) is not None and metadata.checkpoint_id == latest.checkpoint_id < 5:
            moment.wait(0.001)  # until there is a newer one
        raise CorruptStateError("it no longer keeps the checkpoint")

    monkeypatch.setattr(savepoints, "write_savepoint", sometimes)
    graph, _ = program(tmp_path)
    with Threaded(graph, tmp_path) as attempt:
        asker = JobRequests(StorageLocation(str(tmp_path)).child("job"), "asker")
        request = asker.submit(Order(RequestKind.SAVEPOINT, format_type=SavepointFormatType.NATIVE))
        attempt.before_job[3] = lambda: [moment.wait(0.001) for _ in iter(lambda: bool(tried), True)]
        assert ids(attempt) == [1, 2, 3, 4, 5]
        if failures == 1:
            assert asker.wait(request).checkpoint_id == tried[-1] > tried[0]
        else:
            with pytest.raises(RequestFailedError, match=r"subsumed faster|no longer keeps"):
                asker.wait(request)
    assert len(tried) >= 2


def test_a_savepoint_that_cannot_be_deleted_is_not_said_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, delete = LocalObjectStore.put, LocalObjectStore.delete

    def lost(store: LocalObjectStore, key: str, data: bytes, **options: Any) -> str:
        etag = put(store, key, data, **options)
        if "/savepoint-" in store.url and key == "_metadata":
            monkeypatch.setattr(LocalObjectStore, "get", down)
            monkeypatch.setattr(LocalObjectStore, "delete", down)
            raise StorageError("the response was lost")
        return etag

    def down(store: LocalObjectStore, key: str) -> Any:
        if "/savepoint-" in store.url:
            raise StorageError("the store is down")
        return (get if key != "_" else delete)(store, key)

    get = LocalObjectStore.get
    with Asked(tmp_path) as attempt:
        attempt.run_epoch()
        monkeypatch.setattr(LocalObjectStore, "put", lost)
        with pytest.raises(SavepointOutcomeUnknownError, match=r"unknown .*/savepoint-job-.* could not be deleted"):
            attempt.savepoint()
    assert savepoint_there(tmp_path)
    assert issubclass(SavepointOutcomeUnknownError, CheckpointError)
