"""Requests to a running attempt: checkpoints, savepoints, stops, cancels and rescales."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.checkpoint_contents import CheckpointContents
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.errors import (
    CheckpointError,
    FencedError,
    JobCancelledError,
    JobNotRunningError,
    RequestFailedError,
    StorageError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import CheckpointSteps
from dagster_flinkpy.runtime.master.job_messages import LookForRequests
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox
from dagster_flinkpy.runtime.master.regions.job_regions import JobRegions
from dagster_flinkpy.runtime.master.requests import savepoints, taken_requests
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_job_master import Threaded, expected, program
from tests.waiting import LIMIT

CHECKPOINT = Order(RequestKind.CHECKPOINT)
SAVEPOINT = Order(RequestKind.SAVEPOINT)
CANCEL = Order(RequestKind.CANCEL)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts look for requests whenever they have nothing else to decide."""
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(0))
    # Otherwise the lane that looks for requests would have all turns.
    monkeypatch.setattr(HarnessAttempt, "_create_mailbox", lambda attempt: InlineMailbox(random.Random(1).choice))


class Asked(HarnessAttempt):
    """An attempt that is asked for something while one of its Spark jobs runs."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.graph_, self.sink = program(folder)
        super().__init__(self.graph_, folder, **options)
        self.asker = JobRequests(
            StorageLocation(str(folder)).child("job"), "asker", sleep=lambda seconds: pytest.fail("no answer")
        )
        self.orders: dict[int, list[Order]] = {}
        self.then: dict[int, Callable[[], object]] = {}
        self.requests: list[str] = []

    def _on_spark(self, job: EpochJob) -> list[WireRow]:
        self.requests += [self.asker.submit(order) for order in self.orders.get(job.checkpoint_id, ())]
        self.then.get(job.checkpoint_id, lambda: None)()
        return super()._on_spark(job)

    def answer(self, number: int = 0) -> Any:
        return self.asker.wait(self.requests[number])


def ids(attempt: HarnessAttempt, **options: Any) -> list[int]:
    return [epoch.checkpoint_id for epoch in attempt.run_epochs(**options)]


def finish(folder: Path, **options: Any) -> list[Any]:
    graph, sink = program(folder)
    with HarnessAttempt(graph, folder, **options) as attempt:
        list(attempt.run_epochs())
    return sink.rows()


# --- checkpoints and savepoints ---------------------------------------------------------------------------------------


def test_a_checkpoint_answers_all_who_have_asked_for_it(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [CHECKPOINT, CHECKPOINT]}
        assert ids(attempt) == [1, 2, 3, 4, 5]
        answers = [attempt.answer(number) for number in range(2)]
    assert answers[0].checkpoint_id == answers[1].checkpoint_id
    assert answers[0].checkpoint_id in (2, 3)
    assert attempt.sink.rows() == expected(tmp_path)


def test_a_periodic_job_does_not_let_the_asker_wait_for_the_interval(tmp_path: Path) -> None:
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(days=1))}
    with Asked(tmp_path, config=config) as attempt:
        attempt.requests.append(attempt.asker.submit(CHECKPOINT))
        assert ids(attempt, limit=1, periodic=True) == [1]
        assert attempt.answer().checkpoint_id == 1


@pytest.mark.parametrize("format_type", SavepointFormatType)
def test_a_savepoint_of_a_running_job_is_restored_elsewhere(tmp_path: Path, format_type: SavepointFormatType) -> None:
    with Asked(tmp_path / "job") as attempt:
        attempt.orders = {2: [Order(RequestKind.SAVEPOINT, format_type=format_type)]}
        assert ids(attempt) == [1, 2, 3, 4, 5]
        answer = attempt.answer()
    stored = open_checkpoint(StorageLocation(answer.savepoint)).metadata
    assert stored.checkpoint_id == answer.checkpoint_id
    assert not any(subtask.committables for operator in stored.operators for subtask in operator.subtasks)
    whole = expected(tmp_path)
    assert attempt.sink.rows() == whole
    if format_type is SavepointFormatType.CANONICAL:
        rest = finish(tmp_path / "copy", restore_from=answer.savepoint)
        assert len(rest) == len(whole) - 4 * answer.checkpoint_id
        assert set(rest) <= set(whole)


def test_a_savepoint_goes_where_the_asker_wants_it(tmp_path: Path) -> None:
    with Asked(tmp_path / "job") as attempt:
        attempt.orders = {1: [Order(RequestKind.SAVEPOINT, target=str(tmp_path / "elsewhere"))]}
        list(attempt.run_epochs())
        assert attempt.answer().savepoint.startswith((tmp_path / "elsewhere").as_uri())


def test_a_savepoint_that_cannot_be_written_does_not_hurt_the_job(tmp_path: Path) -> None:
    native = Order(RequestKind.SAVEPOINT, str(tmp_path / "elsewhere"), SavepointFormatType.NATIVE)
    (tmp_path / "file").write_text("in the way")
    with Asked(tmp_path) as attempt:
        attempt.orders = {1: [native, Order(RequestKind.SAVEPOINT, str(tmp_path / "file" / "folder"))]}
        assert ids(attempt) == [1, 2, 3, 4, 5]
        with pytest.raises(RequestFailedError, match="a native savepoint names files below"):
            attempt.answer(0)
        with pytest.raises(RequestFailedError, match="file"):
            attempt.answer(1)
    assert attempt.sink.rows() == expected(tmp_path)


def test_the_next_epochs_run_while_a_savepoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the files of its checkpoint stay, although the job keeps only one checkpoint."""
    graph, _ = program(tmp_path)
    third = threading.Event()
    write = savepoints.write_savepoint

    def slowly(*args: Any, **options: Any) -> str:
        assert third.wait(LIMIT)
        return write(*args, **options)

    monkeypatch.setattr(savepoints, "write_savepoint", slowly)
    config = {"checkpointing": CoordinatorConfig(num_retained=1)}
    with Threaded(graph, tmp_path, config=config) as attempt:
        asker = JobRequests(
            StorageLocation(str(tmp_path)).child("job"), "asker", sleep=lambda seconds: pytest.fail("no answer")
        )
        request_id = asker.submit(SAVEPOINT)
        attempt.before_commit[5] = third.set
        assert ids(attempt) == [1, 2, 3, 4, 5]
        answer = asker.wait(request_id)
    assert answer.checkpoint_id is not None and answer.checkpoint_id < 4
    assert open_checkpoint(StorageLocation(str(answer.savepoint))).metadata.checkpoint_id == answer.checkpoint_id
    assert [f"chk-{n}" for n in range(1, 6) if (tmp_path / "job" / f"chk-{n}" / "_metadata").exists()] == ["chk-5"]


def test_the_last_checkpoint_of_a_run_serves_who_asks_too_late_for_another_one(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {1: [CHECKPOINT, SAVEPOINT]}
        assert attempt.run_epoch().checkpoint_id == 1
        assert [attempt.answer(number).checkpoint_id for number in range(2)] == [1, 1]


# --- stop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_is_stopped_with_a_savepoint(tmp_path: Path, drain: bool) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [Order(RequestKind.STOP, drain=drain), SAVEPOINT]}
        completed = ids(attempt)
        assert attempt.finished
        answer, savepoint = attempt.answer(0), attempt.answer(1)
    assert answer.savepoint == attempt.stopped_with
    assert answer.checkpoint_id == completed[-1] < 5
    assert savepoint.checkpoint_id in completed
    with HarnessAttempt(attempt.graph_, tmp_path) as later:
        assert later.stopped and later.finished
    whole = expected(tmp_path)
    assert len(attempt.sink.rows()) == 4 * (len(completed) - 1) < len(whole)
    if not drain:
        finish(tmp_path, restore_from=answer.savepoint)
        assert attempt.sink.rows() == whole


def test_a_job_that_waits_is_stopped_before_its_first_checkpoint(tmp_path: Path) -> None:
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(days=1))}
    with Asked(tmp_path, config=config) as attempt:
        attempt.requests.append(attempt.asker.submit(Order(RequestKind.STOP)))
        assert ids(attempt, periodic=True) == [1]
        assert attempt.finished and attempt.answer().savepoint


def test_only_one_of_two_stops_is_carried_out(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [Order(RequestKind.STOP), Order(RequestKind.RESCALE, parallelism=3)]}
        list(attempt.run_epochs())
        assert attempt.answer(0).savepoint
        with pytest.raises(RequestFailedError, match="the job is about to stop, as 'asker' has asked"):
            attempt.answer(1)


def test_a_stop_drains_though_somebody_has_asked_for_one_that_does_not(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [Order(RequestKind.STOP)]}
        epochs = attempt.run_epochs()
        assert [next(epochs).checkpoint_id, next(epochs).checkpoint_id] == [1, 2]
        epochs.close()
        assert attempt._deployed.master.state.requests.ending is not None
        url = attempt.stop_with_savepoint(drain=True)
    assert open_checkpoint(StorageLocation(url)).metadata.end_of_input


# --- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retention", ExternalizedCheckpointRetention)
def test_a_job_is_cancelled_and_its_checkpoints_are_treated_so(
    tmp_path: Path, retention: ExternalizedCheckpointRetention
) -> None:
    config = {"checkpointing": CoordinatorConfig(retention=retention)}
    with pytest.raises(JobCancelledError, match="on request of 'asker'"), Asked(tmp_path, config=config) as attempt:
        attempt.orders = {2: [CHECKPOINT, CANCEL]}
        list(attempt.run_epochs())
    attempt.answer(1)
    with pytest.raises(JobNotRunningError, match="JobCancelledError"):
        attempt.answer(0)
    kept = retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    assert bool(list((tmp_path / "job").glob("chk-*/_metadata"))) is kept
    assert attempt.sink.staged() == []
    if kept:
        assert finish(tmp_path) == expected(tmp_path)


def test_a_cancel_interrupts_the_spark_job(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    interrupted = threading.Event()
    with pytest.raises(JobCancelledError), Threaded(graph, tmp_path) as attempt:
        asker = JobRequests(StorageLocation(str(tmp_path)).child("job"), "asker")
        (session,) = attempt._deployed.regions.sessions
        interrupt = session.interrupt
        session.interrupt = lambda: (interrupted.set(), interrupt())[1]  # type: ignore[method-assign]
        attempt.before_job[2] = lambda: (asker.submit(CANCEL), interrupted.wait(LIMIT) or pytest.fail("not cancelled"))
        list(attempt.run_epochs())
    assert attempt.commits == [1]
    assert sink.staged() == []


def test_who_did_not_see_that_the_job_is_cancelled_learns_it_with_the_next_call(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {1: [CANCEL]}
        epochs = attempt.run_epochs()
        next(epochs)
        epochs.close()  # type: ignore[attr-defined]
        with pytest.raises(JobCancelledError, match="on request of 'asker'"):
            attempt.run_epoch()
        with pytest.raises(CheckpointError, match="this attempt has failed"):
            attempt.run_epoch()


# --- rescale ----------------------------------------------------------------------------------------------------------


def test_a_job_is_rescaled_in_flight(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [Order(RequestKind.RESCALE, parallelism=3), CHECKPOINT]}
        completed = ids(attempt)
        widths = Counter(v.parallelism for v in attempt.graph.vertices if not v.parallelism_set)
        assert widths == {3: 3}
        answer = attempt.answer()
        token = attempt.token
    assert answer.checkpoint_id in completed and answer.attempt == token == 1
    assert attempt.finished
    assert attempt.sink.rows() == expected(tmp_path)
    with HarnessAttempt(attempt.graph_, tmp_path) as later:  # the parallelism stays
        assert {v.parallelism for v in later.graph.vertices if not v.parallelism_set} == {3}


def test_a_job_is_rescaled_before_its_first_checkpoint(tmp_path: Path) -> None:
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(milliseconds=50))}
    with Asked(tmp_path, config=config) as attempt:
        attempt.requests.append(attempt.asker.submit(Order(RequestKind.RESCALE, parallelism=3)))
        list(attempt.run_epochs(periodic=True))
        assert attempt.answer().checkpoint_id in (None, 1, 2)
    assert attempt.sink.rows() == expected(tmp_path)


def test_a_rescale_continues_from_the_restored_savepoint(tmp_path: Path) -> None:
    """And not from the latest checkpoint of the job, which the attempt has left behind."""
    with Asked(tmp_path) as first:
        first.run_epoch()
        savepoint = first.savepoint()
        list(first.run_epochs(2))
    with Asked(tmp_path, restore_from=savepoint) as attempt:
        attempt.requests.append(attempt.asker.submit(Order(RequestKind.RESCALE, parallelism=3)))
        attempt._deployed.master._perform(LookForRequests())
        attempt._deployed.master.settle()
        (epoch, *_) = attempt.run_epochs(1)
        assert epoch.metadata.operator("counts").parallelism == 3  # type: ignore[union-attr]
        assert attempt.answer().checkpoint_id == epoch.checkpoint_id


def test_a_rescale_that_is_impossible_changes_nothing(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {2: [Order(RequestKind.RESCALE, parallelism=100_000)]}
        assert ids(attempt) == [1, 2, 3, 4, 5]
        with pytest.raises(RequestFailedError, match="100000"):
            attempt.answer()
        assert {v.parallelism for v in attempt.graph.vertices if not v.parallelism_set} == {2}
    assert attempt.sink.rows() == expected(tmp_path)


@pytest.mark.parametrize("error", [StorageError("a hiccup"), RuntimeError("an error in the library")])
def test_a_rescale_that_fails_anywhere_replaces_nothing_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Other threads use the parts of the attempt meanwhile, so they see the old ones, and all of them."""
    with Asked(tmp_path) as attempt:
        attempt.run_epoch()
        before = {**vars(attempt)}
        for part in (JobSlots, JobRegions, CheckpointContents, CheckpointCoordinator, CheckpointSteps):
            seen: list[dict[str, Any]] = []

            def fails(*args: Any, seen: list[dict[str, Any]] = seen, **options: Any) -> None:
                seen.append({**vars(attempt)})
                raise error

            with monkeypatch.context() as patch, pytest.raises(type(error)):
                patch.setattr(part, "__init__", fails)
                attempt._rescale(3)
            assert seen == [before] and vars(attempt) == before, part
            assert attempt._restore.parallelism is None
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [2, 3, 4, 5]
    assert attempt.sink.rows() == expected(tmp_path)


def test_a_limit_counts_the_epochs_on_both_sides_of_a_rescale(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {1: [Order(RequestKind.RESCALE, parallelism=3)]}
        completed = ids(attempt, limit=3)
        assert attempt.answer().checkpoint_id in completed
    assert len(completed) == 4  # one of them reads nothing, and records the parallelism
    assert len(attempt.sink.rows()) == 12


# --- ends -------------------------------------------------------------------------------------------------------------


def test_who_waits_is_told_why_the_run_has_failed(tmp_path: Path) -> None:
    def fail() -> None:
        raise UserFunctionError("broken")

    with pytest.raises(UserFunctionError, match="broken"), Asked(tmp_path) as attempt:
        attempt.orders = {1: [CHECKPOINT], 2: [Order(RequestKind.STOP)]}
        attempt.then = {2: fail}
        list(attempt.run_epochs())
    with pytest.raises(JobNotRunningError, match="broken"):
        attempt.answer(1)


def test_an_attempt_that_was_fenced_ends_when_it_looks_for_requests(tmp_path: Path) -> None:
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(days=1))}
    graph, _ = program(tmp_path)
    with (
        pytest.raises(FencedError),
        Asked(tmp_path, config=config) as attempt,
        HarnessAttempt(graph, tmp_path) as newer,
    ):
        assert newer.token == 2
        attempt.asker.submit(CHECKPOINT)
        list(attempt.run_epochs(periodic=True))


def test_a_job_that_waits_keeps_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(days=1))}
    with Asked(tmp_path, config=config) as attempt:
        expires = attempt._attempt.leader.record.expires_at
        later = expires - 60_000
        monkeypatch.setattr(attempt._desk, "_wall", lambda: later)
        attempt._deployed.master._perform(LookForRequests())
        attempt._deployed.master.settle()
        leader = attempt.asker.running()
        assert leader is not None and leader.expires_at > expires


def test_a_store_that_fails_for_a_while_does_not_hurt_the_job(tmp_path: Path) -> None:
    with Asked(tmp_path) as attempt:
        attempt.orders = {1: [CHECKPOINT]}
        poll, failures = attempt._desk._inbox.poll, iter([True, True])

        def sometimes() -> Any:
            if next(failures, False):
                raise StorageError("503")
            return poll()

        attempt._desk._inbox.poll = sometimes  # type: ignore[method-assign]
        assert ids(attempt) == [1, 2, 3, 4, 5]
        assert attempt.answer().checkpoint_id in range(1, 6)
