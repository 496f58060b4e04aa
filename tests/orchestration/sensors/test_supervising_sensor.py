from __future__ import annotations

import logging
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    RunRequest,
    build_sensor_context,
)
from dagster._core.execution.plan.objects import StepSuccessData
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FixedDelayRestart,
    FlinkRunConfig,
    NoRestart,
    SparkResource,
    build_restart_sensor,
    build_supervising_sensor,
    flink_assets,
)
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs import exclusive_run
from dagster_flinkpy.orchestration.runs.runs_of_job import RESTART_TAG
from tests.orchestration.programs import word_count
from tests.orchestration.sensors.test_restart_sensor import plan

WORDS = {JOB_TAG: "words", "dagster/sensor_name": "words_supervising_sensor"}
MAX_RUNTIME = "dagster/max_runtime"
FAILED, SUCCESS, CANCELED = DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED


class Supervised:
    """The word count and its sensor."""

    def __init__(self, path: Path, instance: DagsterInstance) -> None:
        self.instance = instance
        self.assets = flink_assets(word_count(path / "table", ["a"]), name="words")
        self.storage = CheckpointStorageResource(url=str(path / "checkpoints"))

    def tick(self, **options: Any) -> RunRequest | str:
        """Evaluates the sensor; returns the run that it starts, or why it starts none."""
        sensor = build_supervising_sensor(self.assets, **options)
        resources = {"spark": SparkResource(), "checkpoint_storage": self.storage}
        repository = Definitions(assets=self.assets, sensors=[sensor], resources=resources).get_repository_def()
        context = build_sensor_context(self.instance, repository_def=repository, resources=resources)
        result = sensor.evaluate_tick(context)
        return result.run_requests[0] if result.run_requests else str(result.skip_message)

    def ran(self, status: DagsterRunStatus, **kwargs: Any) -> str:
        kwargs = {"tags": WORDS, "job_name": "words_restart", **kwargs}
        return create_run_for_test(self.instance, status=status, **kwargs).run_id

    def complete(self, *, led_by: str = "", lease: timedelta = timedelta(0), **flags: Any) -> None:
        """Completes a checkpoint."""
        store = CompletedCheckpointStore(self.storage.location().child("words").open())
        attempt = store.begin_attempt("a script", current_millis(), lease, led_by=led_by)
        number = store.assign_checkpoint_id(attempt)
        metadata = CheckpointMetadata(
            "words",
            number,
            CheckpointKind.CHECKPOINT,
            None,
            0,
            None,
            attempt.token,
            "f",
            flags.get("end", False),
            (),
            properties={"stopped": True} if flags.get("stopped") else {},
        )
        store.write_metadata(attempt, metadata)
        store.complete(attempt, metadata)


@pytest.fixture
def words(tmp_path: Path, instance: DagsterInstance) -> Supervised:
    return Supervised(tmp_path, instance)


def test_a_job_that_has_never_run_is_started(words: Supervised) -> None:
    request = words.tick(tags={MAX_RUNTIME: "3600"})
    assert isinstance(request, RunRequest)
    assert (request.run_key, request.job_name) == ("words-start-after-none", "words_restart")
    assert request.tags[JOB_TAG] == "words" and request.tags[MAX_RUNTIME] == "3600"
    assert request.run_config["ops"]["words"]["config"]["epochs"] == 0


def test_a_job_whose_run_has_ended_is_started_again(words: Supervised) -> None:
    words.complete()
    ended = words.ran(SUCCESS)
    request = words.tick(config=FlinkRunConfig(epochs=0, materialize_interval=5))
    assert isinstance(request, RunRequest)
    assert request.run_key == f"words-start-after-{ended}"
    assert request.run_config["ops"]["words"]["config"]["materialize_interval"] == 5


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
def test_a_run_at_work_is_left_alone(words: Supervised, status: DagsterRunStatus) -> None:
    run = words.ran(status, asset_selection=frozenset({AssetKey(["words", "count"])}), tags={})
    assert words.tick() == f"Job words: run {run} works on it."


def test_a_run_whose_machine_was_lost_is_replaced_although_it_is_started(
    words: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = words.ran(DagsterRunStatus.STARTED)
    monkeypatch.setattr(exclusive_run, "SILENT_SECONDS", 0.0)
    assert words.tick() == f"Job words: run {lost} works on it.", "its step has not begun"
    started = DagsterEvent(DagsterEventType.STEP_START.value, "words_restart", step_key="words")
    words.instance.report_dagster_event(started, lost)
    words.complete(led_by=lost, lease=timedelta(hours=1))
    assert words.tick() == f"Job words: run {lost} works on it.", "it leads the job"
    words.complete(led_by=lost)
    request = words.tick()
    assert isinstance(request, RunRequest) and request.run_key == f"words-start-after-{lost}"
    after = words.ran(DagsterRunStatus.STARTED, tags=dict(request.tags))
    assert words.tick() == f"Job words: run {after} works on it."
    run = words.instance.get_run_by_id(after)
    assert run is not None
    words.instance.report_run_failed(run)
    again = words.tick(strategy=FixedDelayRestart(1, timedelta(0)))
    assert isinstance(again, RunRequest) and again.tags[RESTART_TAG] == after


@pytest.mark.parametrize("before", [SUCCESS, FAILED])
def test_a_run_that_dagster_failed_to_launch_is_asked_for_again(
    words: Supervised, monkeypatch: pytest.MonkeyPatch, before: DagsterRunStatus
) -> None:
    words.ran(before)
    strategy = FixedDelayRestart(1, timedelta(0))
    asked = words.tick(strategy=strategy)
    assert isinstance(asked, RunRequest)
    created = words.ran(DagsterRunStatus.NOT_STARTED, tags=dict(asked.tags))
    assert words.tick() == f"Job words: run {created} works on it."
    monkeypatch.setattr(exclusive_run, "SILENT_SECONDS", 0.0)
    again = words.tick(strategy=strategy)
    assert isinstance(again, RunRequest)
    assert again.run_key == asked.run_key, "for a run of this key, Dagster launches the one that it has created"


def test_a_run_whose_machine_was_lost_hides_no_later_one(words: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = words.ran(DagsterRunStatus.STARTED)
    started = DagsterEvent(DagsterEventType.STEP_START.value, "words_restart", step_key="words")
    words.instance.report_dagster_event(started, lost)
    monkeypatch.setattr(exclusive_run, "SILENT_SECONDS", 0.0)
    request = words.tick()
    assert isinstance(request, RunRequest) and request.run_key == f"words-start-after-{lost}"
    canceled = words.ran(CANCELED, tags=dict(request.tags))
    assert words.tick() == f"Job words: run {canceled} was canceled. Start it by hand."
    by_hand = words.ran(SUCCESS, job_name="__ASSET_JOB", tags={JOB_TAG: "words"})
    request = words.tick()
    assert isinstance(request, RunRequest) and request.run_key == f"words-start-after-{by_hand}"


def test_a_failed_run_is_started_again_as_the_strategy_says(words: Supervised) -> None:
    config = {"ops": {"words": {"config": {"epochs": 0, "parallelism": 3}}}}
    failed = words.ran(FAILED, run_config=config, tags={**WORDS, MAX_RUNTIME: "60", "dagster/run_key": "x"})
    assert "in " in str(words.tick(strategy=FixedDelayRestart(3, timedelta(hours=1))))
    request = words.tick(strategy=FixedDelayRestart(1, timedelta(0)))
    assert isinstance(request, RunRequest)
    assert request.run_config == config
    assert request.tags[RESTART_TAG] == failed
    assert request.tags[MAX_RUNTIME] == "60", "or the next run would never end"
    assert "dagster/run_key" not in request.tags
    assert "failed for good" in str(words.tick(strategy=NoRestart()))


def at_time_limit(words: Supervised, *, by_hand: bool = False, **kwargs: Any) -> str:
    """Lets Dagster itself end a run that has gone on for too long."""
    config = {"ops": {"words": {"config": {"epochs": kwargs.pop("epochs", 0)}}}}
    tags = {} if by_hand else WORDS
    options = {"asset_selection": frozenset(words.assets[0].keys)} if by_hand else {}
    run_id = words.ran(DagsterRunStatus.STARTED, run_config=config, tags={**tags, MAX_RUNTIME: "60"}, **options)
    if by_hand:
        plan(words.instance, words.assets[0], DagsterRunStatus.STARTED, words.instance.get_run_by_id(run_id))
    record = words.instance.get_run_record_by_id(run_id)
    assert record is not None
    check_run_timeout(words.instance, record._replace(start_time=time.time() - 61), logging.getLogger(), 0.0)
    run = words.instance.get_run_by_id(run_id)
    assert run is not None and run.status == FAILED
    return run_id


def test_the_end_of_a_run_at_its_time_limit_is_no_failure(words: Supervised) -> None:
    hour = FixedDelayRestart(1, timedelta(hours=1))
    for _ in range(4):
        ended = at_time_limit(words)
    for strategy in (hour, NoRestart()):
        request = words.tick(strategy=strategy)
        assert isinstance(request, RunRequest), "at once"
        assert (request.tags[RESTART_TAG], request.tags[MAX_RUNTIME]) == (ended, "60")
    words.ran(FAILED)
    assert "restart 1 of 1 after 3600 s, in " in str(words.tick(strategy=hour))
    words.ran(FAILED)
    assert "failed for good" in str(words.tick(strategy=hour))


def test_a_run_that_was_to_end_by_itself_has_failed_at_its_time_limit(words: Supervised) -> None:
    at_time_limit(words, epochs=3)
    assert "in " in str(words.tick(strategy=FixedDelayRestart(1, timedelta(hours=1))))


def test_a_run_from_the_ui_goes_on_after_its_time_limit_although_its_step_has_no_error(words: Supervised) -> None:
    ended = at_time_limit(words, by_hand=True)
    (run,) = words.instance.get_runs()
    untyped: Any = StepSuccessData
    for kind, data in ((DagsterEventType.STEP_START, None), (DagsterEventType.STEP_SUCCESS, untyped(duration_ms=1.0))):
        event = DagsterEvent(kind.value, run.job_name, step_key="words", event_specific_data=data)
        words.instance.report_dagster_event(event, ended)
    request = words.tick(strategy=NoRestart())
    assert isinstance(request, RunRequest) and request.tags[RESTART_TAG] == ended


def test_a_canceled_run_stays_canceled(words: Supervised) -> None:
    run = words.ran(CANCELED)
    assert words.tick() == f"Job words: run {run} was canceled. Start it by hand."
    words.ran(SUCCESS)
    assert isinstance(words.tick(), RunRequest), "somebody has started it since"


def test_a_canceled_run_stays_canceled_after_a_rescale_beside_it(words: Supervised) -> None:
    run = words.ran(DagsterRunStatus.STARTED)
    words.ran(SUCCESS, job_name="words_rescale")
    canceled = words.instance.get_run_by_id(run)
    assert canceled is not None
    words.instance.report_run_canceled(canceled)
    assert words.tick() == f"Job words: run {run} was canceled. Start it by hand."


@pytest.mark.parametrize(("flag", "says"), [("stopped", "was stopped with a savepoint"), ("end", "is finished")])
def test_a_job_that_is_stopped_or_finished_stays_so(words: Supervised, flag: str, says: str) -> None:
    words.complete(**{flag: True})
    words.ran(SUCCESS)
    assert says in str(words.tick())


def test_an_attempt_elsewhere_is_left_alone_but_not_a_run_that_was_killed(words: Supervised) -> None:
    words.complete(lease=timedelta(hours=1))
    assert "a script, which is not a run of this instance, leads it until" in str(words.tick())
    words.complete(led_by=words.ran(SUCCESS), lease=timedelta(hours=1))
    assert isinstance(words.tick(), RunRequest)


@pytest.mark.parametrize("config", [{"start_empty": True}, {"restore_from": "savepoint-words-1"}])
def test_a_config_that_would_go_back_at_each_start_is_refused(words: Supervised, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="for every start"):
        build_supervising_sensor(words.assets, config=FlinkRunConfig(**config))


def test_a_job_has_it_or_a_restart_sensor(words: Supervised) -> None:
    both = [build_supervising_sensor(words.assets), build_restart_sensor(words.assets)]
    resources = {"spark": SparkResource(), "checkpoint_storage": words.storage}
    with pytest.raises(DagsterInvalidDefinitionError, match="words_restart"):
        Definitions(assets=words.assets, sensors=both, resources=resources).get_repository_def()


def test_a_job_of_partitions_ends(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ParquetSource(
        str(tmp_path / "in"), row_type=Types.ROW_NAMED(["word"], [Types.STRING()]), partition_format="%Y-%m-%d"
    )
    words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
    words.sink_to(ParquetSink(str(tmp_path / "out"))).uid("table")
    assets: list[AssetsDefinition] = flink_assets(
        env, name="words", partitions_def=DailyPartitionsDefinition("2024-01-01")
    )
    with pytest.raises(ConfigurationError, match="has partitions"):
        build_supervising_sensor(assets)
