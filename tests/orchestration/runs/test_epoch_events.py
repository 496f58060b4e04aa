"""Materializations of a run that takes several checkpoints, that fails or is told to end. Tasks run in the harness."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetRecordsFilter,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    DataVersion,
    Definitions,
    ExecuteInProcessResult,
    MaterializeResult,
    asset,
)
from dagster._core.definitions.data_version import DATA_VERSION_TAG, CachingStaleStatusResolver, StaleStatus
from dagster._core.events import EngineEventData
from dagster._core.execution.plan.state import KnownExecutionState
from dagster._core.loader import LoadingContextForTest
from sqlalchemy.exc import OperationalError

from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.orchestration import FlinkAssetChecks, flink_assets
from dagster_flinkpy.orchestration.runs import termination, unpartitioned_run
from dagster_flinkpy.orchestration.runs.epoch_events import EpochEvents
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.storage import lease
from dagster_flinkpy.storage.object_store import ObjectStore
from tests.orchestration.programs import Count, word_count
from tests.runtime.harness import run_rows
from tests.waiting import LIMIT

UIDS = ["words", "count", "table"]
FILES = AssetKey("files")


class Words:
    """A word count of one word per epoch, behind an asset of files."""

    def __init__(self, path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.path, self.instance, self.resources = path, instance, resources
        self.last = ""
        """The words of the last run."""
        self.during: Callable[[int], None] = lambda checkpoint_id: None
        """Called while the epoch of a checkpoint runs."""

    def definitions(self, words: str) -> Definitions:
        @asset
        def files() -> MaterializeResult[Any]:
            return MaterializeResult(data_version=DataVersion("0"))

        env = word_count(self.path / "table", list(words), function=Count(poison="!"), per_epoch=1)
        assets = flink_assets(env, name="words", checks=FlinkAssetChecks(), deps={"words": ["files"]})
        return Definitions([files, *assets], resources=self.resources)

    def run(self, words: str, *uids: str, **config: Any) -> ExecuteInProcessResult:
        self.last = words
        job = self.definitions(words).resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            {"ops": {"words": {"config": config}}},
            self.instance,
            asset_selection=[AssetKey(["words", uid]) for uid in uids or UIDS],
            raise_on_error=False,
        )

    def checkpoints(self, uid: str) -> list[int]:
        """Returns the checkpoints with which an asset was materialized, oldest first."""
        records = self.instance.fetch_materializations(AssetRecordsFilter(AssetKey(["words", uid])), limit=99).records
        made = [record.asset_materialization for record in records]
        return [one.metadata["flink/checkpoint_id"].value for one in reversed(made) if one]  # type: ignore[misc]

    def rows(self) -> list[Any]:
        table = AssetRecordsFilter(AssetKey(["words", "table"]))
        made = [one.asset_materialization for one in self.instance.fetch_materializations(table, limit=99).records]
        return [one.metadata["dagster/row_count"].value for one in reversed(made) if one]

    @property
    def store(self) -> ObjectStore:
        storage: ObjectStore = self.resources["checkpoint_storage"].location().child("words").open()
        return storage

    def stale(self) -> list[str]:
        graph = self.definitions(self.last).get_repository_def().asset_graph
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        return [uid for uid in UIDS if resolver.get_status(AssetKey(["words", uid])) != StaleStatus.FRESH]

    def write_files(self, version: str) -> None:
        """Materializes the asset before the job, as another run does."""
        event = AssetMaterialization(FILES, tags={DATA_VERSION_TAG: version})
        self.instance.report_runless_asset_event(event)
        written = current_millis()
        while current_millis() <= written + 1:
            pass  # the next checkpoint is triggered later


@pytest.fixture
def words(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Words:
    deployment = Words(tmp_path, instance, resources)

    def on_spark(attempt: JobAttempt, job: EpochJob) -> Any:
        deployment.during(job.checkpoint_id)
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_spark)
    deployment.write_files("0")
    return deployment


def test_each_checkpoint_is_materialized_once_without_an_interval(words: Words) -> None:
    result = words.run("abcde", epochs=3, materialize_interval=0)
    assert result.success
    assert [words.checkpoints(uid) for uid in UIDS] == [[1, 2, 3]] * 3
    assert words.rows()[-1] == 3
    assert words.stale() == []
    events = result.get_asset_materialization_events()
    assert len(events) == len(UIDS), "the others must not fill the memory of a run that goes on"
    [table] = [each for event in events if (each := event.materialization.metadata.get("flink/execution"))]
    executed = [record.data for record in table.records]
    assert [(each["operator"], each["state"], each["attempt"]) for each in executed] == [
        (uid, "CANCELED", 0)
        for uid in UIDS  # the input goes on
    ]
    checks = [each for each in result.get_asset_check_evaluations() if each.check_name != "same_rows"]  # of an upgrade
    assert {check.metadata["flink/checkpoint_id"].value for check in checks} == {3}


@pytest.mark.parametrize(("epochs", "expected"), [(1, [1]), (5, [3, 5]), (0, [3, 6, 7])])
def test_there_is_one_materialization_per_interval(
    words: Words, epochs: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0

    class Slow(EpochEvents):
        def completed(self, *args: Any, **kwargs: Any) -> None:
            nonlocal now
            now += 10
            super().completed(*args, **kwargs)

    monkeypatch.setattr(unpartitioned_run, "EpochEvents", partial(Slow, clock=lambda: now))
    assert words.run("abcdefg", epochs=epochs, materialize_interval=30).success
    assert words.checkpoints("count") == expected


def test_quick_epochs_are_materialized_once(words: Words) -> None:
    assert words.run("abcde", epochs=4).success
    assert words.checkpoints("count") == [4]


@pytest.mark.parametrize(("interval", "selected"), [(0, UIDS), (60, ["count"])])
def test_a_run_that_fails_has_its_last_checkpoint(words: Words, interval: int, selected: list[str]) -> None:
    failed = words.run("ab!", *selected, epochs=0, materialize_interval=interval)
    assert not failed.success
    expected = [2] if interval else [1, 2]
    assert [words.checkpoints(uid) for uid in UIDS] == [expected] * 3
    assert words.rows()[-1] == 2
    assert words.stale() == []
    logged = words.instance.all_logs(failed.run_id)
    types = {entry.dagster_event.event_type for entry in logged if entry.dagster_event}
    assert DagsterEventType.ASSET_FAILED_TO_MATERIALIZE not in types
    assert words.run("abc", *selected).success
    assert words.checkpoints("table") == [*expected, 4], "id 3 was that of the epoch that failed"
    assert words.rows()[-1] == 3


def test_a_job_goes_on_while_dagsters_database_is_away(
    words: Words, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    handle, away = words.instance.handle_new_event, False

    def store(*event: Any, **options: Any) -> None:
        if away:
            raise OperationalError("INSERT", {}, Exception("the server is down"))
        handle(*event, **options)

    def during(checkpoint_id: int) -> None:
        nonlocal away
        away = checkpoint_id in (2, 3)

    words.during = during
    monkeypatch.setattr(words.instance, "handle_new_event", store)
    assert words.run("abcdef", epochs=6, materialize_interval=0).success
    assert "the server is down" in capfd.readouterr().err
    recorded = words.checkpoints("table")
    assert 2 not in recorded and recorded[-1] == 6, "whoever waits for the rows hears of them"
    assert words.rows()[-1] == 6
    assert words.stale() == []


def test_a_run_that_fails_at_once_has_no_materialization(words: Words) -> None:
    assert not words.run("!").success
    assert words.checkpoints("count") == []


@pytest.mark.system
def test_input_counts_as_read_by_the_checkpoints_that_were_triggered_after_it(words: Words) -> None:
    def write(checkpoint_id: int) -> None:
        if checkpoint_id == 2:
            words.write_files("1")

    words.during = write
    words.run("abcde", epochs=2, materialize_interval=0)
    assert words.stale() == ["words"], "checkpoint 2 had begun before the files were there"
    words.run("abcde")
    assert words.stale() == []
    words.during = lambda checkpoint_id: words.write_files("2") if checkpoint_id == 4 else None
    words.run("abcde", epochs=3)  # number 5 may have been triggered while number 4 was taken
    assert words.stale() == [], "they came before checkpoint 6, though after the step began"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_terminated_keeps_its_checkpoints(words: Words, number: signal.Signals) -> None:
    ended = threading.Event()

    def terminate(checkpoint_id: int) -> None:
        if checkpoint_id == 3:
            (run,) = words.instance.get_runs()
            words.instance.report_run_canceling(run)
            os.kill(os.getpid(), number)  # as Dagster does in the process of the run
            assert ended.wait(LIMIT), "the run waits for Spark"

    words.during = terminate
    try:
        assert not words.run("abcdef", epochs=0).success
    finally:
        ended.set()
    (run,) = words.instance.get_runs()
    assert run.status == DagsterRunStatus.CANCELED
    assert words.checkpoints("table") == [2]
    assert words.rows() == [2]
    leader = lease.read(words.store)
    assert leader is not None and not leader.alive(current_millis())
    words.during = lambda checkpoint_id: None
    assert words.run("abcdef", epochs=0).success
    first, last = words.checkpoints("table")
    assert first == 2 and last in (7, 8), "number 3 was abandoned, and 4 may have been taken while its epoch ran"
    assert words.rows() == [2, 6]


@pytest.mark.system
def test_the_step_of_a_terminated_run_has_failed_so_that_dagster_executes_it_again(words: Words) -> None:
    ended = threading.Event()

    def terminate(checkpoint_id: int) -> None:
        if checkpoint_id == 3:
            (run,) = words.instance.get_runs()
            # As the multiprocess executor does, which itself ends the run as canceled.
            kind, what = DagsterEventType.STEP_WORKER_STARTED.value, EngineEventData()
            started = DagsterEvent(kind, run.job_name, step_key="words", event_specific_data=what)
            words.instance.report_dagster_event(started, run.run_id)
            words.instance.report_run_canceling(run)
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(LIMIT), "the run waits for Spark"

    words.during = terminate
    try:
        result = words.run("abcdef", epochs=0)
    finally:
        ended.set()
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert failure.step_failure_data.error is not None
    assert "The job has ended after its last checkpoint" in failure.step_failure_data.error.message
    assert words.checkpoints("table") == [2]
    assert words.rows() == [2]
    (run,) = words.instance.get_runs()
    again, _ = KnownExecutionState.build_resume_retry_reexecution(words.instance, run)
    assert again == ["words"]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_run_ends_that_dagster_calls_ended_or_has_deleted_without_reaching_its_process(
    words: Words, deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "_LOOK_SECONDS", 0.01)
    ended = threading.Event()

    def lose(checkpoint_id: int) -> None:
        if checkpoint_id == 3:
            (run,) = words.instance.get_runs()
            if deleted:
                words.instance.delete_run(run.run_id)
            else:
                words.instance.report_run_canceled(run)  # as a forced termination does
            assert ended.wait(LIMIT), "the run waits for Spark"

    words.during = lose
    try:
        result = words.run("abcdef", epochs=0)
    finally:
        ended.set()
    assert [event.step_key for event in result.all_events if event.is_step_failure] == ["words"]
    assert [run.status for run in words.instance.get_runs()] == ([] if deleted else [DagsterRunStatus.CANCELED])
    leader = lease.read(words.store)
    assert leader is not None and not leader.alive(current_millis()), "the next run need not wait for it"
    words.during = lambda checkpoint_id: None
    assert words.run("abcdef", epochs=0).success
    assert words.rows()[-1] == 6


LONG = "ab" * 200
"""More words than a run counts before it is told to end."""


@pytest.fixture
def asks(words: Words, monkeypatch: pytest.MonkeyPatch) -> Callable[[Order], None]:
    """Returns a function that makes a run ask itself for something while its second epoch runs."""
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(0))

    def ask(order: Order) -> None:
        def submit(checkpoint_id: int) -> None:
            if checkpoint_id == 2:
                JobRequests(words.resources["checkpoint_storage"].location().child("words"), "a test").submit(order)

        words.during = submit

    return ask


def test_a_run_that_is_asked_to_stop_succeeds(words: Words, asks: Callable[[Order], None]) -> None:
    asks(Order(RequestKind.STOP))
    result = words.run(LONG, epochs=0)
    assert result.success
    (last,) = words.checkpoints("table")
    assert words.rows() == [last - 1], "the last checkpoint has read nothing"
    (line,) = [e.user_message for e in words.instance.all_logs(result.run_id) if "on request" in (e.user_message or "")]
    assert "/savepoint-words-" in line
    words.during = lambda checkpoint_id: pytest.fail("it stays stopped")
    assert words.run(LONG).success
    assert words.checkpoints("table") == [last]


@pytest.mark.system
def test_a_run_that_is_asked_to_cancel_is_canceled(words: Words, asks: Callable[[Order], None]) -> None:
    asks(Order(RequestKind.CANCEL))
    result = words.run(LONG, epochs=0)
    (run,) = words.instance.get_runs()
    assert run.status == DagsterRunStatus.CANCELED
    (last,) = words.checkpoints("table")
    assert words.rows() == [last]
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    error = failed.step_failure_data.user_failure_data
    assert error is not None and error.metadata["error"].value == "JobCancelledError"


@pytest.mark.system
def test_a_run_that_is_rescaled_continues(words: Words, asks: Callable[[Order], None]) -> None:
    asks(Order(RequestKind.RESCALE, parallelism=3))
    assert words.run(LONG[:24], epochs=0, materialize_interval=0).success
    made = words.instance.fetch_materializations(AssetRecordsFilter(AssetKey(["words", "count"])), limit=99).records
    widths = [r.asset_materialization.metadata["flink/parallelism"].value for r in reversed(made)]  # type: ignore[union-attr]
    assert widths[0] == 2 and widths[-1] == 3 and widths == sorted(widths)
    assert words.rows()[-1] == 24
