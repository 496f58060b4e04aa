"""Restarts inside a run: of a region, and of the whole job."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkAttributeError

from dagster_flinkpy.checkpoint.coordinator.stimuli import MetadataWriteFailed
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import JobStatus
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart, NoRestart, RestartStrategy
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import DataStream
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext, SplitEnumerator
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.functions import MapFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import (
    CheckpointError,
    FencedError,
    PythonWorkerLostError,
    RestoreError,
    SinkCommitError,
    SourceReadError,
    StorageError,
    UnsupportedEnvironmentError,
    UserFunctionError,
)
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import CheckpointSteps, Outcome
from dagster_flinkpy.runtime.master.epochs.split_planner import SplitPlanner
from dagster_flinkpy.runtime.master.failover import (
    FailoverConfig,
    FailoverStrategy,
    RestartAllStrategy,
    RestartPipelinedRegionStrategy,
)
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Mailbox
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 3}", i, i) for i in range(20)]


class FailsAt(MapFunction):
    """Raises at the record of a time, in the first executions of its task; notes attempt numbers in a folder."""

    def __init__(self, time: int, folder: Path, executions: int = 1, first: int = 0) -> None:
        self._time, self._folder, self._executions, self._first = time, folder, executions, first

    def open(self, runtime_context: Any) -> None:
        self._attempt = runtime_context.get_attempt_number()

    def map(self, value: Any) -> Any:
        if value.time == self._time:
            (self._folder / f"attempt-{self._attempt}").touch()
            if self._attempt < self._first + self._executions:
                raise ValueError(f"boom at {self._time}")
        return value


def program(folder: Path, function: MapFunction | None = None) -> tuple[JobGraph, FolderSink]:
    """Five epochs of four records, with keyed state and a sink."""
    env, sink = environment(2), FolderSink(folder / "sink")
    stream: DataStream = events(env, RECORDS, per_epoch=4)
    if function is not None:
        stream = stream.map(function, EVENT).uid("map")
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def expected(folder: Path) -> list[Any]:
    graph, sink = program(folder / "straight")
    with HarnessAttempt(graph, folder / "straight") as attempt:
        list(attempt.run_epochs())
    return sink.rows()


class Watched(HarnessAttempt):
    """Fails Spark jobs of some checkpoints with given errors, one after the other, and notes what it runs."""

    def __init__(self, *args: Any, fails: dict[int, list[Exception]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fails = fails or {}
        self.jobs: list[EpochJob] = []
        self.staged_before: list[int] = []
        self.sink: FolderSink | None = None

    def _on_spark(self, epoch: EpochJob) -> list[WireRow]:
        self.jobs.append(epoch)
        if self.sink is not None:
            self.staged_before.append(len(self.sink.staged()))
        rows = super()._on_spark(epoch)
        if errors := self.fails.get(epoch.checkpoint_id):
            raise errors.pop(0)
        return rows

    @property
    def ran(self) -> list[int]:
        return [each.checkpoint_id for each in self.jobs]


def restarting(restart: RestartStrategy | None = None, **config: Any) -> dict[str, Any]:
    strategy = restart or FixedDelayRestart(attempts=9, delay=timedelta(0))
    return {"config": {"failover": FailoverConfig(strategy, **config)}}


def splits(job: EpochJob) -> list[tuple[str, ...]]:
    return [tuple(s.split_id for s in given) for _, given in sorted(job.epoch.splits.items())]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_region_runs_the_epoch_again_whose_function_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph, sink = program(tmp_path, FailsAt(9, tmp_path, executions=2))
    with Watched(graph, tmp_path, **restarting()) as attempt:
        epochs = list(attempt.run_epochs())
        completed = [epoch.checkpoint_id for epoch in epochs]
        assert attempt.token == 1
    assert completed == [1, 2, 3, 4, 5]
    assert [epochs[-1].metrics.job[name] for name in ("numRestarts", "fullRestarts")] == [2, 0]
    assert attempt.ran == [1, 2, 3, 3, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.glob("attempt-*")) == ["attempt-0", "attempt-1", "attempt-2"]
    assert sink.rows() == expected(tmp_path)
    assert sink.staged() == []
    status = attempt._deployed.failover.graph
    assert (status.status, status.restarts, status.attempt(0)) == (JobStatus.FINISHED, 2, 2)
    assert [entry.error for entry in status.failures] == ["UserFunctionError"] * 2
    first, second = warnings(caplog)
    assert "UserFunctionError: map() of operator 'map'" in first and "raised ValueError: boom at 9" in first
    assert first.endswith("; the region runs the epoch again: restart 1 of 9 after 0 ms")
    assert second.endswith("restart 2 of 9 after 0 ms")


def test_the_epoch_runs_again_from_the_same_state_with_the_same_splits(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    fails = {3: [StorageError("a hiccup")]}
    with Watched(graph, tmp_path, fails=fails, **restarting()) as attempt:
        attempt.sink = sink
        list(attempt.run_epochs())
    failed, again = (each for each in attempt.jobs if each.checkpoint_id == 3)
    assert splits(failed) == splits(again)
    assert failed.inputs == again.inputs
    assert (failed.restarts, again.restarts) == (0, 1)
    assert attempt.staged_before[3] == 0, "what the failed execution had staged is aborted"
    assert sink.rows() == expected(tmp_path)


def test_a_drain_runs_again(tmp_path: Path) -> None:
    graph, _ = program(tmp_path)
    with Watched(graph, tmp_path, fails={3: [StorageError("a hiccup")]}, **restarting()) as attempt:
        list(attempt.run_epochs(2))
        attempt.stop_with_savepoint(drain=True)
    assert attempt.ran == [1, 2, 3, 3]
    assert attempt._deployed.failover.graph.status is JobStatus.FINISHED


@pytest.mark.parametrize("failover", [RestartPipelinedRegionStrategy(), RestartAllStrategy()])
def test_the_restart_waits_for_the_delay_of_the_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failover: FailoverStrategy
) -> None:
    now, waited = [1_000_000], []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        now[0] += round(seconds * 1000)

    class Slow(Watched):
        def _create_mailbox(self) -> Mailbox:
            return InlineMailbox(now=lambda: now[0], wait=wait)

    monkeypatch.setattr(job, "_now", lambda: now[0])
    graph, sink = program(tmp_path)
    fails: dict[int, list[Exception]] = {2: [StorageError("a hiccup")]}
    strategy = FixedDelayRestart(1, timedelta(seconds=40))
    with Slow(graph, tmp_path, fails=fails, **restarting(strategy, failover=failover)) as attempt:
        list(attempt.run_epochs())
    assert sum(waited) == 40
    assert sink.rows() == expected(tmp_path)


def test_when_the_strategy_gives_up_the_root_cause_is_reported(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, FailsAt(9, tmp_path, executions=99))
    with (
        pytest.raises(UserFunctionError, match="boom at 9") as raised,
        Watched(graph, tmp_path, **restarting(FixedDelayRestart(2, timedelta(0)))) as attempt,
    ):
        list(attempt.run_epochs())
    assert attempt.ran == [1, 2, 3, 3, 3]
    assert raised.value.suppressed_by == "all 2 restarts of the fixed-delay strategy are used up"
    assert attempt._deployed.failover.graph.status is JobStatus.FAILED
    assert sink.staged() == []


def test_epochs_whose_checkpoints_never_complete_do_not_end_a_series_of_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = program(tmp_path)
    written = CheckpointSteps.write_metadata
    refused = iter([StorageError("the quota is used up") for _ in range(9)])

    def write_metadata(steps: CheckpointSteps, metadata: CheckpointMetadata) -> Outcome:
        for error in refused:
            return Outcome(0, MetadataWriteFailed(0, metadata.checkpoint_id, unknown_outcome=False), error)
        return written(steps, metadata)

    monkeypatch.setattr(CheckpointSteps, "write_metadata", write_metadata)
    with (
        pytest.raises(StorageError, match="quota") as raised,
        Watched(graph, tmp_path, **restarting(FixedDelayRestart(2, timedelta(0)))) as attempt,
    ):
        list(attempt.run_epochs())
    assert attempt._deployed.failover.graph.restarts == 2
    assert raised.value.suppressed_by == "all 2 restarts of the fixed-delay strategy are used up"


def test_a_run_goes_on_from_a_checkpoint_of_which_it_did_not_hear_that_head_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not restore again what it was to start from."""
    graph, sink = program(tmp_path)
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
    put, complete, away = LocalObjectStore.put, CompletedCheckpointStore.complete, [True]

    def completed(*args: Any, **options: Any) -> None:
        with monkeypatch.context() as patch:
            if away:
                away.pop()
                patch.setattr(LocalObjectStore, "put", put_unheard)
                patch.setattr(LocalObjectStore, "get", get_nothing)
            complete(*args, **options)

    def put_unheard(store: LocalObjectStore, key: str, *args: Any, **options: Any) -> str:
        put(store, key, *args, **options)
        raise StorageError("the answer is lost")

    def get_nothing(store: LocalObjectStore, key: str) -> tuple[bytes, str]:
        raise StorageError("the store is away")

    monkeypatch.setattr(CompletedCheckpointStore, "complete", completed)
    options = restarting(FixedDelayRestart(2, timedelta(0)))
    with Watched(graph, tmp_path, restore_from="chk-1", **options) as attempt:
        list(attempt.run_epochs())
        assert attempt._deployed.failover.graph.restarts == 1
    straight, table = program(tmp_path / "straight")
    with HarnessAttempt(straight, tmp_path / "straight") as attempt:
        list(attempt.run_epochs())
    assert sink.rows() == table.rows()


@pytest.mark.parametrize(
    ("error", "config"),
    [
        (RestoreError("the state does not fit"), FailoverConfig(FixedDelayRestart(9))),
        (UnsupportedEnvironmentError("no module"), FailoverConfig(FixedDelayRestart(9))),
        (StorageError("a hiccup"), FailoverConfig(NoRestart())),
        (StorageError("a hiccup"), FailoverConfig(FixedDelayRestart(9), only_lost_workers=True)),
    ],
)
def test_what_does_not_restart(tmp_path: Path, error: Exception, config: FailoverConfig) -> None:
    graph, _ = program(tmp_path)
    attempt = Watched(graph, tmp_path, fails={2: [error]}, config={"failover": config})
    with pytest.raises(type(error)) as raised, attempt:
        list(attempt.run_epochs())
    assert not raised.value.suppressed_by, "no strategy of the program has given up"
    assert attempt.ran == [1, 2]


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'SparkSession' object has no attribute 'addTag'"),
        PySparkAttributeError("[ATTRIBUTE_NOT_SUPPORTED] Attribute `sparkContext` is not supported"),
        AnalysisException("[UNRESOLVED_COLUMN] a"),
        TypeError("mapInArrow() got an unexpected keyword argument 'profile'"),
        ModuleNotFoundError("No module named 'grpc'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_this_spark_cannot_do_ends_the_run_at_once(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    graph, sink = program(tmp_path)
    attempt = Watched(graph, tmp_path, fails={2: [error]}, **restarting())
    with pytest.raises(UnsupportedEnvironmentError, match="checkpoint 2 of job 'job' cannot run") as raised, attempt:
        list(attempt.run_epochs())
    assert raised.value.__cause__ is error and str(error) in str(raised.value) and "flinkpy doctor" in str(raised.value)
    assert attempt.ran == [1, 2] and warnings(caplog) == []
    assert (len(sink.rows()), sink.staged()) == (4, []), "only the first epoch is visible"


def test_a_function_whose_module_is_not_there_ends_the_run_at_once(tmp_path: Path) -> None:
    class Imports(MapFunction):
        def map(self, value: Any) -> Any:
            return importlib.import_module("no_such_module")

    graph, _ = program(tmp_path, Imports())
    attempt = Watched(graph, tmp_path, **restarting())
    with pytest.raises(UserFunctionError, match="raised ModuleNotFoundError: No module") as raised, attempt:
        list(attempt.run_epochs())
    assert (raised.value.operator, attempt.ran) == ("map", [1])
    assert not as_failure(raised.value).allow_retries


class Ends(SplitEnumerator):
    """Raises something when it plans its first epoch."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def plan_epoch(self, parallelism: int) -> Any:
        raise self._error

    def on_epoch_read(self, splits: Any) -> None:
        pass

    exhausted = False

    def snapshot_state(self) -> Any:
        return {}


class Input(CollectionSource):
    def __init__(self, error: BaseException) -> None:
        super().__init__([1], Types.LONG())
        self.error, self.attempts = error, 0

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        self.attempts += 1
        return Ends(self.error)


@pytest.mark.parametrize(
    ("error", "kind", "attempts"),
    [
        (ValueError("a hiccup"), SourceReadError, 3),
        (AttributeError("of the world"), SourceReadError, 3),
        (SystemExit(0), SourceReadError, 3),
        (GeneratorExit(), SourceReadError, 3),
        (NotImplementedError("plan_epoch"), UnsupportedEnvironmentError, 1),
        (ImportError("no client"), UnsupportedEnvironmentError, 1),
    ],
)
def test_an_enumerator_that_raises_is_named_and_tried_again_if_that_may_help(
    tmp_path: Path, error: BaseException, kind: type[Exception], attempts: int
) -> None:
    source = Input(error)
    env = environment(1)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers").print()
    attempt = HarnessAttempt(
        env.get_job_graph(), tmp_path, require_uids=False, **restarting(FixedDelayRestart(2, timedelta(0)))
    )
    with pytest.raises(kind, match=f"the split enumerator of source 'numbers' raised {type(error).__name__}"), attempt:
        list(attempt.run_epochs())
    assert source.attempts == attempts


@pytest.mark.parametrize("ending", [SystemExit(0), GeneratorExit(), KeyError("table")])
def test_a_committer_cannot_end_the_run_in_silence(tmp_path: Path, ending: BaseException) -> None:
    graph, sink = program(tmp_path)

    def commit(committer: Any, requests: Any) -> None:
        raise ending

    kind = type(sink.create_committer(CommitterInitContext("job", "sink", 1, None, None)))
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SinkCommitError, match="the committer of sink 'sink'"),
    ):
        patch.setattr(kind, "commit", commit)
        with HarnessAttempt(graph, tmp_path) as attempt:
            list(attempt.run_epochs())


def test_a_lost_worker_restarts_its_region_in_a_scheduled_run(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    config = FailoverConfig(FixedDelayRestart(3, timedelta(0)), only_lost_workers=True)
    fails: dict[int, list[Exception]] = {2: [PythonWorkerLostError("a worker died")]}
    with Watched(graph, tmp_path, fails=fails, config={"failover": config}) as attempt:
        list(attempt.run_epochs())
    assert attempt.ran == [1, 2, 2, 3, 4, 5]
    assert sink.rows() == expected(tmp_path)


def test_an_inconsistent_result_is_not_given_back_to_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is given to the enumerators once, when it is certain that the results are good."""
    graph, sink = program(tmp_path)
    given: Counter[int] = Counter()
    checks = iter([None, CheckpointError("two outputs differ")])
    consistent, was_read = EpochResults.check_consistent, SplitPlanner.was_read

    def check(results: EpochResults) -> None:
        if (error := next(checks, None)) is not None:
            raise error
        consistent(results)

    def read(planner: SplitPlanner, checkpoint_id: int, states: Any) -> None:
        given[checkpoint_id] += 1
        was_read(planner, checkpoint_id, states)

    monkeypatch.setattr(EpochResults, "check_consistent", check)
    monkeypatch.setattr(SplitPlanner, "was_read", read)
    with Watched(graph, tmp_path, **restarting()) as attempt:
        list(attempt.run_epochs())
    assert attempt.ran == [1, 2, 2, 3, 4, 5]
    assert given == dict.fromkeys(range(1, 6), 1)
    assert sink.rows() == expected(tmp_path)


# --- the whole job ----------------------------------------------------------------------------------------------------


def restart_all() -> dict[str, Any]:
    return restarting(failover=RestartAllStrategy())


def test_restart_all_goes_back_to_the_last_completed_checkpoint(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, FailsAt(9, tmp_path, executions=2))
    with Watched(graph, tmp_path, **restart_all()) as attempt:
        completed = [epoch.checkpoint_id for epoch in attempt.run_epochs()]
    assert completed == [1, 2, 7, 8, 9], "3 and 5 were aborted; 4 and 6 were reserved for the next checkpoints"
    assert attempt.token == 3
    assert [each.fencing_token for each in attempt.jobs] == [1, 1, 1, 2, 3, 3, 3]
    assert sorted(path.name for path in tmp_path.glob("attempt-*")) == ["attempt-0", "attempt-1", "attempt-2"]
    assert sink.rows() == expected(tmp_path)
    graph_of = attempt._deployed.failover.graph
    assert (graph_of.status, graph_of.restarts, graph_of.attempt(0)) == (JobStatus.FINISHED, 2, 2)
    counts = attempt._store.statistics().counts
    assert (counts.restarts, counts.full_restarts) == (2, 2)


def test_a_limit_counts_the_epochs_of_all_attempts(tmp_path: Path) -> None:
    graph, _ = program(tmp_path, FailsAt(9, tmp_path))
    with Watched(graph, tmp_path, **restart_all()) as attempt:
        assert len(list(attempt.run_epochs(4))) == 4
        assert not attempt.finished
    assert attempt._deployed.failover.graph.status is JobStatus.SUSPENDED


def test_an_enumerator_that_fails_restarts_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost splits, so it is created again from the last checkpoint (Flink: ``SourceCoordinator``)."""
    graph, sink = program(tmp_path)
    plan, calls = SplitPlanner.plan, count()

    def fails_after_planning(planner: SplitPlanner, *args: Any, **how: Any) -> Any:
        planned = plan(planner, *args, **how)
        if next(calls) == 2:
            raise SourceReadError("cannot list the input")
        return planned

    monkeypatch.setattr(SplitPlanner, "plan", fails_after_planning)
    with Watched(graph, tmp_path, **restarting()) as attempt:
        list(attempt.run_epochs())
    assert attempt.token == 2
    assert sink.rows() == expected(tmp_path)


def test_a_checkpoint_that_could_not_be_committed_is_committed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path)

    class Unlucky(Watched):
        failed = False

        def _commit(self, metadata: Any) -> int:
            if metadata.checkpoint_id == 3 and not self.failed:
                self.failed = True
                raise StorageError("a hiccup")
            return super()._commit(metadata)

    with Unlucky(graph, tmp_path, **restarting()) as attempt:
        completed = [epoch.checkpoint_id for epoch in attempt.run_epochs()]
    assert completed[:3] == [1, 2, 3]
    assert len(completed) == 5
    assert attempt.token == 2
    assert sink.rows() == expected(tmp_path)


def test_a_run_whose_restarts_fail_does_not_say_that_it_took_over_from_itself(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    lines: list[str] = []

    class Unlucky(Watched):
        failures = 3

        def _commit(self, metadata: Any) -> int:
            if self.failures:
                self.failures -= 1
                raise StorageError("a hiccup")
            return super()._commit(metadata)

    with Unlucky(graph, tmp_path, **restarting(), on_progress=lines.append) as attempt:
        list(attempt.run_epochs())
    assert attempt.token == 4, "the commit failed once, and twice when the job restarted"
    assert [line for line in lines if "took over" in line] == []
    assert sink.rows() == expected(tmp_path)


def test_an_epoch_is_not_read_twice_if_its_commit_fails(tmp_path: Path) -> None:
    graph, _ = program(tmp_path)

    class Unlucky(Watched):
        failed = False

        def _commit(self, metadata: Any) -> int:
            if not self.failed:
                self.failed = True
                raise StorageError("a hiccup")
            return super()._commit(metadata)

    with Unlucky(graph, tmp_path, **restarting()) as attempt:
        assert attempt.run_epoch().checkpoint_id == 1
        assert attempt.ran == [1]


def test_a_savepoint_is_restored_once(tmp_path: Path) -> None:
    graph, other = program(tmp_path)
    with HarnessAttempt(graph, tmp_path, job_id="other") as attempt:
        attempt.run_epoch()
        first_epoch = other.rows()
        savepoint = attempt.savepoint(str(tmp_path / "savepoints"))
    graph, sink = program(tmp_path / "restored", FailsAt(13, tmp_path))
    with Watched(graph, tmp_path / "restored", restore_from=savepoint, **restart_all()) as attempt:
        list(attempt.run_epochs())
    assert sorted([*first_epoch, *sink.rows()]) == expected(tmp_path / "again")


def test_an_attempt_that_was_fenced_while_it_waited_does_not_restart(tmp_path: Path) -> None:
    graph, _ = program(tmp_path, FailsAt(9, tmp_path))
    newer = HarnessAttempt(graph, tmp_path, owner="newer")

    class Overtaken(Watched):
        def _take_over(self, after: Any = None) -> Any:
            if after is not None:
                newer.__enter__()
            return super()._take_over(after)

    with pytest.raises(FencedError, match="newer"), Overtaken(graph, tmp_path, **restart_all()) as attempt:
        list(attempt.run_epochs())
    assert attempt._deployed.failover.graph.status is JobStatus.SUSPENDED
    assert newer.token == 2
    newer.__exit__(None, None, None)


def test_a_run_that_ends_suspends_the_job_and_a_finished_one_is_finished(tmp_path: Path) -> None:
    graph, _ = program(tmp_path)
    for epochs, status in ((3, JobStatus.SUSPENDED), (None, JobStatus.FINISHED), (None, JobStatus.FINISHED)):
        with HarnessAttempt(graph, tmp_path) as attempt:
            if not attempt.finished:
                list(attempt.run_epochs(epochs))
        assert attempt._deployed.failover.graph.status is status
