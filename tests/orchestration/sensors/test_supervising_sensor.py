from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DagsterInvalidDefinitionError,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    RunRequest,
    build_sensor_context,
)
from dagster._core.test_utils import create_run_for_test

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
from dagster_flinkpy.orchestration.runs.runs_of_job import RESTART_TAG
from tests.orchestration.programs import word_count

WORDS = {JOB_TAG: "words", "dagster/sensor_name": "words_supervising_sensor"}
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
    request = words.tick(tags={"dagster/max_runtime": "3600"})
    assert isinstance(request, RunRequest)
    assert (request.run_key, request.job_name) == ("words-start-after-none", "words_restart")
    assert request.tags[JOB_TAG] == "words" and request.tags["dagster/max_runtime"] == "3600"
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


def test_a_failed_run_is_started_again_as_the_strategy_says(words: Supervised) -> None:
    config = {"ops": {"words": {"config": {"epochs": 0, "parallelism": 3}}}}
    failed = words.ran(FAILED, run_config=config, tags={**WORDS, "dagster/max_runtime": "60", "dagster/run_key": "x"})
    assert "in " in str(words.tick(strategy=FixedDelayRestart(3, timedelta(hours=1))))
    request = words.tick(strategy=FixedDelayRestart(1, timedelta(0)))
    assert isinstance(request, RunRequest)
    assert request.run_config == config
    assert request.tags[RESTART_TAG] == failed
    assert request.tags["dagster/max_runtime"] == "60", "or the next run would never end"
    assert "dagster/run_key" not in request.tags
    assert "failed for good" in str(words.tick(strategy=NoRestart()))


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
