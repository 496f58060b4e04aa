"""Live tasks that cannot upload a snapshot decline its checkpoint, and go on. Slots are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import CheckpointedFunction, MapFunction
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.runtime.master import job_state
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.state import backend
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files import operator_state
from dagster_flinkpy.state.files.runs import RunFiles
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.pairs import pairs
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_open_epochs import Run, World, counts
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events
from tests.runtime.slot.test_live_failures import assert_exact, restarts
from tests.waiting import until

RECORDS = [(f"k{i % 3}", i, i) for i in range(20)]
Fails = Callable[[str, int], bool]
"""Whether an upload fails: its file, and how often that was tried before."""


@pytest.fixture(autouse=True)
def all_state_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ColumnarKeyedStateBackend.__init__.__kwdefaults__, "inline_below", 0)  # the other one asks it
    monkeypatch.setattr(operator_state, "INLINE_BELOW", 0)
    monkeypatch.setattr(job_state, "_RETRY_AFTER_MS", 0)


def uploads_fail(monkeypatch: pytest.MonkeyPatch, fails: Fails) -> list[str]:
    """Makes uploads of state files fail. Returns those that have failed, as they do."""
    real, tries, failed, lock = LocalObjectStore.put, dict[str, int](), list[str](), threading.Lock()

    def put(store: Any, key: str, *args: Any, **options: Any) -> str:
        if key.startswith("shared/"):
            with lock:
                number = tries[key] = tries.get(key, -1) + 1
            if fails(key, number):
                failed.append(key)
                raise StorageError("503 Slow Down")
        return real(store, key, *args, **options)

    monkeypatch.setattr(LocalObjectStore, "put", put)
    return failed


def written_for(*checkpoints: int) -> Fails:
    """The first upload of each file fails that was written for some checkpoints."""
    return lambda key, tries: tries == 0 and int(key.split("-")[1]) in checkpoints


class Remembers(MapFunction, CheckpointedFunction):
    """Has operator state that changes with one record only."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self._seen = store.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        if value.time == 5:
            self._seen.add(value.time)
        return value


def program(folder: Path, *, regions: bool = False, function: MapFunction | None = None) -> tuple[JobGraph, FolderSink]:
    """Five epochs of four records, with keyed state, operator state and a sink."""
    env, sink = environment(2), FolderSink(folder / "sink")
    stream = events(env, RECORDS, per_epoch=4).map(function or Remembers(), EVENT).uid("map")
    if regions:
        stream = stream.blocking()
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def live(graph: JobGraph, folder: Path, *, tolerable: int = 2, **options: Any) -> HarnessAttempt:
    checkpointing = CoordinatorConfig(tolerable_failed=tolerable, **options.pop("checkpointing", {}))
    return HarnessAttempt(graph, folder, live=True, config={"checkpointing": checkpointing, **options})


def done(attempt: JobAttempt, *args: Any, **options: Any) -> list[int]:
    """Runs all epochs. Returns their checkpoints, after checking that each one's files are all there."""
    numbers = []
    for epoch in attempt.run_epochs(*args, **options):
        store = attempt.config.storage.child("job").open()
        missing = [path for path in epoch.metadata.files() if store.head(path) is None]
        assert not missing, f"checkpoint {epoch.checkpoint_id} names what is not there"
        numbers.append(epoch.checkpoint_id)
    return numbers


@pytest.mark.parametrize(
    ("bad", "regions", "backend"), pairs([[1], [2, 3], [5], [4, 5]], [False, True], list(StateBackendType)), ids=str
)
def test_the_next_checkpoint_has_what_the_declined_one_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: list[int], regions: bool, backend: StateBackendType
) -> None:
    graph, sink = program(tmp_path, regions=regions)
    failed = uploads_fail(monkeypatch, written_for(*bad))
    with live(graph, tmp_path, checkpointing={"state_backend": backend}) as attempt:
        numbers = done(attempt)
        assert failed
        assert numbers == [n for n in range(1, 7 if 5 in bad else 6) if n not in bad]
        assert (attempt.token, attempt._deployed.failover.graph.restarts) == (1, 0)
        history = attempt._deployed.master.state.coordinator.statistics.history
        reasons = {each.checkpoint_id: each.reason for each in history if each.reason is not None}
        assert reasons == dict.fromkeys(bad, CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION)
    assert_exact(sink)


def test_the_state_can_be_restored_without_local_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    uploads_fail(monkeypatch, written_for(2, 4))
    with live(graph, tmp_path) as attempt:
        assert done(attempt, 4) == [1, 3, 5]
    with live(graph, tmp_path, cache_dir=str(tmp_path / "other")) as attempt:
        done(attempt)
    assert_exact(sink)


class RaisesOnce(Remembers):
    """Raises in its first execution, at the record of a time."""

    def open(self, runtime_context: Any) -> None:
        self._first = runtime_context.get_attempt_number() == 0

    def map(self, value: Any) -> Any:
        if value.time == 13 and self._first:
            raise ValueError("boom")
        return super().map(value)


def test_tasks_that_fail_behind_a_declined_checkpoint_go_back_to_the_last_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has the state of checkpoint 3."""
    graph, sink = program(tmp_path, function=RaisesOnce())
    uploads_fail(monkeypatch, written_for(3))
    with live(graph, tmp_path, failover=restarts(1)) as attempt:
        assert done(attempt)[:2] == [1, 2]
        assert attempt.token == 2
    assert_exact(sink)


def test_tasks_that_fail_behind_a_complete_checkpoint_restart_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path, function=RaisesOnce())
    uploads_fail(monkeypatch, written_for(2))
    with live(graph, tmp_path, failover=restarts(1)) as attempt:
        assert done(attempt) == [1, 3, 4, 5]
        assert (attempt.token, attempt._deployed.failover.graph.restarts) == (1, 1)
    assert_exact(sink)


class RemembersAll(Remembers):
    """Has operator state that changes with each record."""

    def map(self, value: Any) -> Any:
        self._seen.add(value.time)
        return value


def test_a_region_before_another_one_does_not_run_only_to_upload_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the input nobody would read what its timers send. The job restarts."""
    graph, sink = program(tmp_path, regions=True, function=RemembersAll())
    uploads_fail(monkeypatch, written_for(5))
    with live(graph, tmp_path, failover=restarts(1)) as attempt:
        assert done(attempt)[:4] == [1, 2, 3, 4]
        assert attempt.token == 2
    assert_exact(sink)


def test_more_in_a_row_than_tolerated_restart_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    uploads_fail(monkeypatch, lambda key, tries: key.startswith(("shared/1-2-", "shared/1-3-")))
    with live(graph, tmp_path, tolerable=1, failover=restarts(1)) as attempt:
        numbers = done(attempt)
        assert attempt.token == 2
    assert numbers[0] == 1
    assert_exact(sink)


@pytest.mark.parametrize("tolerable", [0, 3])
def test_what_can_never_be_uploaded_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerable: int
) -> None:
    graph, sink = program(tmp_path)
    uploads_fail(monkeypatch, lambda key, tries: True)
    with pytest.raises(StorageError, match="503 Slow Down"), live(graph, tmp_path, tolerable=tolerable) as attempt:
        done(attempt)
    assert not sink.rows()
    assert sink.staged() == []


def test_without_tolerance_a_failed_upload_fails_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    seen = list[str]()  # the tasks may write other files when they run again
    uploads_fail(monkeypatch, lambda key, tries: key.startswith("shared/1-2-") and not (seen or seen.append(key)))
    with live(graph, tmp_path, tolerable=0, failover=restarts(1)) as attempt:
        assert done(attempt) == [1, 2, 3, 4, 5]
        assert (attempt.token, attempt._deployed.failover.graph.restarts) == (1, 1)
    assert_exact(sink)


def test_what_snapshots_could_not_write_again_and_again_is_in_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fail when uploads have begun, so the tasks write their state again under other names."""
    graph, sink = program(tmp_path)
    real, number = backend.write_snapshot, count()

    def write(*args: Any) -> Any:
        written = real(*args)
        if next(number) % 3 == 0:
            raise StorageError("the disk is full")
        return written

    monkeypatch.setattr(backend, "write_snapshot", write)
    with live(graph, tmp_path, tolerable=9) as attempt:
        numbers = done(attempt)
        assert numbers[-1] >= 5
        assert (attempt.token, attempt._deployed.failover.graph.restarts) == (1, 0)
    assert_exact(sink)


class RefusesOnce(RaisesOnce):
    """Raises in its first execution, at a checkpoint."""

    def snapshot_state(self, context: Any) -> None:
        if context.get_checkpoint_id() == 2 and self._first:
            raise ValueError("not now")


def test_a_snapshot_state_that_raises_fails_the_task_as_in_flink(tmp_path: Path) -> None:
    """The synchronous part of a snapshot is the task's own work."""
    graph, sink = program(tmp_path, function=RefusesOnce())
    with live(graph, tmp_path, failover=restarts(1)) as attempt:
        assert done(attempt) == [1, 2, 3, 4, 5]
        assert (attempt.token, attempt._deployed.failover.graph.restarts) == (1, 1)
    assert_exact(sink)


@pytest.mark.parametrize(("tolerable", "checkpoints"), [(0, [1, 2, 3, 4, 5]), (2, [1, 3, 4, 5])])
def test_state_that_cannot_be_written_beside_the_records_fails_the_checkpoint_or_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerable: int, checkpoints: list[int]
) -> None:
    graph, sink = program(tmp_path)
    real, failed = RunFiles.write, list[str]()

    def write(files: RunFiles, *args: Any) -> Any:
        if files.written_by == "1-2" and not failed:
            failed.append(files.written_by)
            raise StorageError("the disk is full")
        return real(files, *args)

    monkeypatch.setattr(RunFiles, "write", write)
    with live(graph, tmp_path, tolerable=tolerable, failover=restarts(1)) as attempt:
        assert done(attempt) == checkpoints
        graph_of_executions = attempt._deployed.failover.graph
        assert graph_of_executions.restarts == (0 if tolerable else 1)
        assert [each.operator for each in graph_of_executions.failures] == ([] if tolerable else ["counts"])
    assert failed
    assert_exact(sink)


def test_records_flow_on_behind_checkpoints_that_are_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources read on behind each barrier, in an epoch that is open."""
    world = World()
    uploads_fail(monkeypatch, lambda key, tries: tries == 0 and int(key.split("-")[1]) % 2 == 0)
    with Run(world, tmp_path, interval=timedelta(milliseconds=10), tolerable=1) as run:
        for number in range(12):
            before = len(run.checkpoints)
            world.records.append(number)
            world.wait_for(number)
            until(lambda: len(run.checkpoints) > before, "no checkpoint completes")  # noqa: B023
    assert run.error is None
    declined = {*range(1, run.checkpoints[-1])} - {*run.checkpoints}
    assert declined
    assert all(number % 2 == 0 for number in declined)
    assert (run.attempt.token, run.attempt._deployed.failover.graph.restarts) == (1, 0)
    assert run.rows == counts(range(12))
