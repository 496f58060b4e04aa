"""The master of a job: epochs run while checkpoints complete, and no checkpoint is lost when a later one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.stimuli import PeriodicTick
from dagster_flinkpy.checkpoint.counter import read_counter
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import StorageError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import CheckpointSteps
from dagster_flinkpy.runtime.master.mailbox import Done, InlineMailbox, Lane, Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events
from tests.waiting import LIMIT, until

RECORDS = [(f"k{i % 3}", i, i) for i in range(20)]


def program(folder: Path) -> tuple[JobGraph, FolderSink]:
    """Five epochs of four records."""
    env, sink = environment(2), FolderSink(folder / "sink")
    counted = events(env, RECORDS, per_epoch=4).key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    counted.sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def expected(folder: Path) -> list[Any]:
    graph, sink = program(folder / "straight")
    with HarnessAttempt(graph, folder / "straight") as attempt:
        list(attempt.run_epochs())
    return sink.rows()


class Gate:
    """A place where a thread waits until it is let through."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(LIMIT)

    def open(self) -> None:
        self._open.set()


class Threaded(HarnessAttempt):
    """An attempt whose lanes are threads. ``jobs`` has what its Spark jobs were; commits and Spark jobs can be held."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.jobs: list[int] = []
        self.commits: list[int] = []
        self.began: dict[int, threading.Event] = {}
        self.before_job: dict[int, Callable[[], object]] = {}
        self.before_commit: dict[int, Callable[[], object]] = {}

    def _create_mailbox(self) -> Mailbox:
        return ThreadMailbox()

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        self.jobs.append(job.checkpoint_id)
        self.before_job.get(job.checkpoint_id, lambda: None)()
        return super()._on_spark(job)

    def _commit(self, metadata: Any) -> int:
        self.before_commit.get(metadata.checkpoint_id, lambda: None)()
        self.commits.append(metadata.checkpoint_id)
        return super()._commit(metadata)


@pytest.fixture
def held() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def config(**checkpointing: Any) -> dict[str, Any]:
    return {"checkpointing": CoordinatorConfig(**checkpointing)}


def test_the_next_epoch_runs_while_a_checkpoint_is_committed(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    second = Gate()
    second.open()
    with Threaded(graph, tmp_path) as attempt:
        attempt.before_job[2] = second.pass_through
        attempt.before_commit[1] = lambda: second.reached.wait(LIMIT) or pytest.fail("epoch 2 waits for commit 1")
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 2, 3, 4, 5]
    assert attempt.finished
    assert attempt.commits == [1, 2, 3, 4, 5]
    assert sink.rows() == expected(tmp_path)


@pytest.mark.parametrize("limit", [None, 3])
def test_the_id_of_the_next_checkpoint_is_taken_while_an_epoch_runs(tmp_path: Path, limit: int | None) -> None:
    graph, _ = program(tmp_path)
    taken: list[int] = []
    with Threaded(graph, tmp_path) as attempt:

        def reserved() -> int:
            found = read_counter(attempt._store.store)
            return found[0].last if found else 0

        def await_id(number: int) -> None:
            until(lambda: reserved() >= number, f"id {number} is not taken")
            taken.append(reserved())

        last = limit or 5
        for number in range(1, last + 1):
            attempt.before_job[number] = partial(await_id, min(number + 1, last))
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs(limit)] == [*range(1, last + 1)]
    assert taken == [*range(2, last + 1), last]
    with HarnessAttempt(graph, tmp_path) as after:  # no id was taken for an epoch that has not begun
        assert after.run_epoch().checkpoint_id == last + 1


@pytest.mark.parametrize(("max_concurrent", "ahead"), [(1, 2), (2, 3)])
def test_the_region_runs_ahead_by_as_many_checkpoints_as_may_be_pending(
    tmp_path: Path, held: Gate, max_concurrent: int, ahead: int
) -> None:
    graph, _ = program(tmp_path)
    acknowledged = threading.Semaphore(0)

    class Counting(Threaded):
        def _create_metadata(self, write: Any) -> Any:
            return super()._create_metadata(write)

        def _on_results(self, results: Any, job: EpochJob) -> None:
            super()._on_results(results, job)
            acknowledged.release()

    with Counting(graph, tmp_path, config=config(max_concurrent=max_concurrent)) as attempt:
        attempt.before_commit[1] = held.pass_through
        epochs = attempt.run_epochs()
        consumer = threading.Thread(target=lambda: list(epochs))
        consumer.start()
        assert held.reached.wait(LIMIT)
        for _ in range(ahead):
            assert acknowledged.acquire(timeout=LIMIT)
        # The master has nothing to do until the commit ends, so it cannot have started another epoch.
        assert attempt.jobs == list(range(1, ahead + 1))
        assert attempt.commits == []
        held.open()
        consumer.join(LIMIT)
    assert attempt.commits == [1, 2, 3, 4, 5]


def test_a_checkpoint_completes_although_the_next_epoch_fails(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise UserFunctionError("broken")

    completed: list[int] = []
    with pytest.raises(UserFunctionError, match="broken"), Threaded(graph, tmp_path) as attempt:
        attempt.before_job[2] = fail
        attempt.before_commit[1] = lambda: failed.wait(LIMIT)
        completed.extend(epoch.checkpoint_id for epoch in attempt.run_epochs())
    assert completed == [1]
    assert (attempt.commits, sink.staged()) == ([1], [])
    with HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert sink.rows() == expected(tmp_path)


def test_nothing_is_aborted_while_nobody_knows_whether_a_checkpoint_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path)
    running = threading.Event()
    complete = CompletedCheckpointStore.complete

    def response_lost(*args: Any, **options: Any) -> None:
        assert running.wait(LIMIT)
        complete(*args, **options)
        raise StorageError("connection reset")

    monkeypatch.setattr(CompletedCheckpointStore, "complete", response_lost)
    with pytest.raises(StorageError, match="connection reset"), Threaded(graph, tmp_path) as attempt:
        attempt.before_job[2] = running.set
        list(attempt.run_epochs())
    assert attempt.commits == []
    monkeypatch.undo()
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.restored is not None and attempt.restored.checkpoint_id == 1
        list(attempt.run_epochs())
    assert sink.rows() == expected(tmp_path)
    assert sink.staged() == []


def test_a_checkpoint_does_not_complete_after_one_before_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the state of both, but only the rows of its own."""
    graph, sink = program(tmp_path)
    write = CompletedCheckpointStore.write_metadata

    def fails_once(store: Any, attempt: Any, metadata: Any) -> None:
        if metadata.checkpoint_id == 1:
            raise StorageError("503")
        write(store, attempt, metadata)

    monkeypatch.setattr(CompletedCheckpointStore, "write_metadata", fails_once)
    with pytest.raises(StorageError, match="503"), HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert attempt.latest is None
    monkeypatch.undo()
    with HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert sink.rows() == expected(tmp_path)


def test_a_checkpoint_completes_although_an_old_one_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path)

    def fails(*_: Any) -> None:
        raise StorageError("503")

    monkeypatch.setattr(CompletedCheckpointStore, "subsume", fails)
    with pytest.raises(StorageError, match="503"), Threaded(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert attempt.latest is not None and attempt.commits == list(range(1, attempt.latest.checkpoint_id + 1))
    monkeypatch.undo()
    with HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert sink.rows() == expected(tmp_path)


def test_an_iteration_that_ends_early_lets_its_epoch_complete(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    with Threaded(graph, tmp_path) as attempt:
        for epoch in attempt.run_epochs():
            if epoch.checkpoint_id == 2:
                break
        attempt.savepoint()  # of a job at rest
        jobs = list(attempt.jobs)
        assert attempt.latest is not None and attempt.latest.checkpoint_id == jobs[-1]
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.restored is not None and attempt.restored.checkpoint_id == jobs[-1]
        list(attempt.run_epochs())
    assert sink.rows() == expected(tmp_path)


def test_an_interrupted_run_waits_for_the_step_that_is_under_way(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    interrupted = threading.Event()
    with pytest.raises(KeyboardInterrupt), Threaded(graph, tmp_path) as attempt:
        attempt.before_commit[2] = lambda: interrupted.wait(LIMIT)
        for _ in attempt.run_epochs():
            interrupted.set()
            raise KeyboardInterrupt
    with HarnessAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert sink.rows() == expected(tmp_path)


def test_a_terminated_run_completes_what_is_acknowledged_and_nothing_else(tmp_path: Path, held: Gate) -> None:
    graph, sink = program(tmp_path)
    yielded, terminated = [], threading.Event()

    def terminate() -> None:
        attempt.terminate(KeyboardInterrupt())
        terminated.set()
        held.pass_through()  # Spark may take long to end its job

    with pytest.raises(KeyboardInterrupt), Threaded(graph, tmp_path) as attempt:
        attempt.before_job[2] = terminate
        attempt.before_commit[1] = lambda: terminated.wait(LIMIT)
        for epoch in attempt.run_epochs():
            yielded.append(epoch.checkpoint_id)
    assert yielded == attempt.commits == [1]
    with HarnessAttempt(graph, tmp_path) as successor:
        assert successor.restored is not None and successor.restored.checkpoint_id == 1
        assert successor.committed_on_recovery == 0
        list(successor.run_epochs())
    assert sink.rows() == expected(tmp_path)


@pytest.mark.parametrize("mailbox", [ThreadMailbox, InlineMailbox])
def test_a_run_that_waits_for_its_next_checkpoint_can_be_terminated(
    tmp_path: Path, mailbox: Callable[[], Mailbox]
) -> None:
    graph, _ = program(tmp_path)

    class Waiting(HarnessAttempt):
        def _create_mailbox(self) -> Mailbox:
            return mailbox()

    hourly = config(interval=timedelta(hours=1), min_pause=timedelta(hours=1))
    with pytest.raises(KeyboardInterrupt), Waiting(graph, tmp_path, config=hourly) as attempt:
        threading.Timer(0.1, attempt.terminate, [KeyboardInterrupt()]).start()
        list(attempt.run_epochs(periodic=True))


def test_an_epoch_that_fails_after_the_iteration_has_ended_is_not_forgotten(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)

    def fail() -> None:
        raise UserFunctionError("broken")

    with pytest.raises(UserFunctionError, match="broken"), Threaded(graph, tmp_path) as attempt:
        attempt.before_job[2] = fail
        for _ in attempt.run_epochs():
            break
    assert sink.staged() == []


@pytest.mark.parametrize("first", [Lane.region(0), Lane.STORE])
def test_the_rows_are_the_same_whichever_lane_is_quicker(tmp_path: Path, first: Lane) -> None:
    graph, sink = program(tmp_path)

    class Ordered(HarnessAttempt):
        def _create_mailbox(self) -> Mailbox:
            return InlineMailbox(lambda lanes: first if first in lanes else lanes[0])

    with Ordered(graph, tmp_path, config=config(max_concurrent=3)) as attempt:
        completed = [epoch.checkpoint_id for epoch in attempt.run_epochs()]
    assert completed == sorted(completed) and len(completed) == 5
    assert sink.rows() == expected(tmp_path)


# --- the mailbox ------------------------------------------------------------------------------------------------------


def result(done: Done | None) -> tuple[Lane, Any]:
    assert done is not None and done.error is None
    return done.lane, done.result


@pytest.mark.parametrize("mailbox", [ThreadMailbox, InlineMailbox])
def test_a_lane_does_one_thing_after_the_other(mailbox: Callable[[], Mailbox]) -> None:
    box, done = mailbox(), []
    for number in range(5):
        box.submit(Lane.STORE, lambda number=number: done.append(number) or number)
    assert [result(box.take()) for _ in range(5)] == [(Lane.STORE, number) for number in range(5)]
    assert done == [0, 1, 2, 3, 4]
    assert box.busy.total() == 0
    box.close()


@pytest.mark.parametrize("mailbox", [ThreadMailbox, InlineMailbox])
def test_what_work_raises_comes_back(mailbox: Callable[[], Mailbox]) -> None:
    box = mailbox()
    box.submit(Lane.region(0), lambda: 1 // 0)
    done = box.take()
    assert done is not None and isinstance(done.error, ZeroDivisionError)
    box.close()


@pytest.mark.parametrize("mailbox", [ThreadMailbox, InlineMailbox])
def test_the_time_may_be_over_first(mailbox: Callable[[], Mailbox]) -> None:
    box = mailbox()
    assert box.take(until_ms=0) is None
    box.close()


def test_lanes_do_not_wait_for_each_other(held: Gate) -> None:
    box = ThreadMailbox()
    box.submit(Lane.STORE, held.pass_through)
    box.submit(Lane.region(0), lambda: 7)
    assert result(box.take()) == (Lane.region(0), 7)
    held.open()
    assert result(box.take()) == (Lane.STORE, None)
    box.close()


def test_an_interval_may_be_shorter_than_the_completion_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path)
    ticked = threading.Semaphore(0)
    with Threaded(graph, tmp_path, config=config(interval=timedelta(milliseconds=10))) as attempt:
        handle = attempt._deployed.coordinator.handle

        def counting(stimulus: Any) -> Any:
            if isinstance(stimulus, PeriodicTick):
                ticked.release()
            return handle(stimulus)

        attempt._deployed.coordinator.handle = counting  # type: ignore[method-assign]
        write_metadata = CheckpointSteps.write_metadata

        def after_ticks(steps: CheckpointSteps, metadata: Any) -> Any:
            if metadata.checkpoint_id == 1:  # pending until then, so the next one waits for it, and ticks come
                assert all(ticked.acquire(timeout=LIMIT) for _ in range(3)), "no tick"
            return write_metadata(steps, metadata)

        monkeypatch.setattr(CheckpointSteps, "write_metadata", after_ticks)
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs(periodic=True)] == [1, 2, 3, 4, 5]
    assert sink.rows() == expected(tmp_path)
