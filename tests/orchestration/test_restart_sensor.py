from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RunRecord,
    build_sensor_context,
    materialize,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    SparkResource,
    build_restart_sensor,
    flink_assets,
)
from dagster_flinkpy.orchestration.failure import retry_is_pointless
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.restart_sensor import RESTART_TAG, Restart, next_restart
from dagster_flinkpy.orchestration.targets import FlinkTarget
from dagster_flinkpy.runtime.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from tests.orchestration.programs import word_count

WORDS = FlinkTarget("words", (AssetKey(["words", "counts"]),), None)
NOW = 1_700_000_000_000
OK, FAILED, RUNNING, CANCELED = (
    DagsterRunStatus.SUCCESS,
    DagsterRunStatus.FAILURE,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELED,
)
BY_SENSOR = {JOB_TAG: "words", "dagster/sensor_name": "words_checkpoint_sensor"}


def ran(ago_s: float, status: DagsterRunStatus, tags: dict[str, str] | None = None) -> RunRecord:
    """A run that ended so many seconds before now; by a sensor, unless other tags are given."""
    ended = NOW / 1000 - ago_s
    return RunRecord(
        storage_id=1,
        dagster_run=DagsterRun("words", run_id=f"{int(ago_s):08d}-run", status=status, tags=BY_SENSOR | (tags or {})),
        create_timestamp=datetime.fromtimestamp(ended - 1, timezone.utc),
        update_timestamp=datetime.fromtimestamp(ended, timezone.utc),
        start_time=ended - 1,
        end_time=ended,
    )


def by_hand(ago_s: float, status: DagsterRunStatus) -> RunRecord:
    return ran(ago_s, status, {"dagster/sensor_name": ""})._replace(
        dagster_run=DagsterRun("words", run_id=f"{int(ago_s):08d}-run", status=status, tags={})
    )


def answer(strategy: RestartStrategy, *newest_first: RunRecord, hopeless: str | None = None) -> Restart | str:
    return next_restart(WORDS, newest_first, strategy, NOW, hopeless=hopeless)


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([], "has not run yet"),
        ([ran(5, OK), ran(9, FAILED)], "is success"),
        ([ran(5, RUNNING), ran(9, FAILED)], "is started"),
        ([ran(5, CANCELED), ran(9, FAILED)], "is canceled"),
        ([ran(5, FAILED, {"dagster/will_retry": "true"})], "by itself"),
        ([ran(0.2, FAILED)], "restart 1 after 1 s, in 1 s"),
    ],
)
def test_a_job_that_is_not_to_be_restarted(runs: list[RunRecord], says: str) -> None:
    reason = answer(FixedDelayRestart(1) if len(runs) == 1 else ExponentialDelayRestart(), *runs)
    assert isinstance(reason, str)
    assert says.replace("restart 1 after", "restart 1 of 1 after") in reason


def test_a_job_that_failed_is_restarted_after_the_delay() -> None:
    restart = answer(FixedDelayRestart(1, timedelta(seconds=3)), ran(3, FAILED), ran(60, OK))
    assert isinstance(restart, Restart)
    assert restart.of.run_id == "00000003-run"


def test_a_success_ends_the_series_of_fixed_delay() -> None:
    strategy = FixedDelayRestart(1)
    assert "failed for good" in str(answer(strategy, ran(5, FAILED), ran(9, FAILED)))
    assert isinstance(answer(strategy, ran(5, FAILED), ran(7, OK), ran(9, FAILED)), Restart)


def test_a_success_does_not_end_the_series_of_failure_rate() -> None:
    strategy = FailureRateRestart(1, timedelta(minutes=1))
    assert "failed for good" in str(answer(strategy, ran(5, FAILED), ran(7, OK), ran(9, FAILED)))
    assert isinstance(answer(strategy, ran(5, FAILED), ran(7, OK), ran(90, FAILED)), Restart)


def test_a_start_by_hand_begins_anew() -> None:
    strategy = FixedDelayRestart(1)
    assert isinstance(answer(strategy, by_hand(5, FAILED), ran(9, FAILED), ran(10, FAILED)), Restart)
    assert "failed for good" in str(answer(strategy, ran(5, FAILED), by_hand(9, FAILED)))


def test_what_cannot_be_mended_is_not_tried_again() -> None:
    assert "StateSchemaError" in str(answer(FixedDelayRestart(), ran(5, FAILED), hopeless="StateSchemaError"))
    assert "failed for good" in str(answer(NoRestart(), ran(5, FAILED)))


# --- the sensor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def assets(tmp_path: Path) -> list[AssetsDefinition]:
    return flink_assets(word_count(tmp_path / "table", ["a"]), name="words")


def tick(assets: list[AssetsDefinition], instance: DagsterInstance, **options: Any) -> SensorExecutionData:
    sensor = build_restart_sensor(assets, **options)
    resources = {"spark": SparkResource(), "checkpoint_storage": CheckpointStorageResource(url="/nowhere")}
    repository = Definitions(assets=assets, sensors=[sensor], resources=resources).get_repository_def()
    return sensor.evaluate_tick(build_sensor_context(instance, repository_def=repository))


def test_the_new_run_has_what_the_failed_one_had(assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    config = {"ops": {"words": {"config": {"epochs": 3}}}}
    failed = create_run_for_test(
        instance,
        job_name="words_checkpoint",
        status=FAILED,
        tags=BY_SENSOR | {"team": "b", "dagster/run_key": "words-1-1"},
        run_config=config,
    )
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert request.run_key == f"words-restart-of-{failed.run_id}"
    assert request.job_name == "words_restart"
    assert request.run_config == config
    tags = {name: value for name, value in request.tags.items() if not name.startswith("dagster/")}
    assert tags == {JOB_TAG: "words", RESTART_TAG: failed.run_id, "team": "b"}


def test_a_run_from_the_ui_is_found_by_its_assets(assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    create_run_for_test(instance, status=FAILED, asset_selection=frozenset(assets[0].keys))
    assert tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests


def test_a_range_of_partitions_is_run_again_as_a_range(
    assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    days = {"dagster/asset_partition_range_start": "2024-03-01", "dagster/asset_partition_range_end": "2024-03-07"}
    create_run_for_test(instance, status=FAILED, tags=BY_SENSOR | days)
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert days.items() <= request.tags.items()


@pytest.mark.parametrize("verb", ["savepoint", "restore", "rescale", "reset", "stop"])
def test_what_else_fails_on_the_job_is_no_failure_of_it(
    assets: list[AssetsDefinition], instance: DagsterInstance, verb: str
) -> None:
    create_run_for_test(instance, job_name=f"words_{verb}", status=FAILED, tags={JOB_TAG: "words"})
    assert tick(assets, instance).skip_message == "Job words has not run yet."


def test_runs_of_other_jobs_do_not_count(assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    create_run_for_test(instance, status=FAILED, tags={JOB_TAG: "others"})
    assert tick(assets, instance).skip_message == "Job words has not run yet."


def test_a_bad_configuration_is_not_tried_again(
    assets: list[AssetsDefinition], instance: DagsterInstance, resources: dict[str, Any], tmp_path: Path
) -> None:
    config = {"ops": {"words": {"config": {"restore_from": str(tmp_path / "nowhere")}}}}
    result = materialize(
        assets, instance=instance, resources=resources, run_config=config, raise_on_error=False, tags={JOB_TAG: "words"}
    )
    assert not result.success
    skipped = tick(assets, instance, strategy=FixedDelayRestart(9, timedelta(0))).skip_message or ""
    assert "which trying again does not mend" in skipped


@pytest.mark.parametrize(
    ("error", "pointless"),
    [
        ("FencedError", True),
        ("ParallelismError", True),
        ("StorageError", False),
        ("ValueError", False),
        ("errors", False),
    ],
)
def test_what_is_pointless_to_retry(error: str, pointless: bool) -> None:
    assert retry_is_pointless(error) == pointless


def test_only_assets_of_flink_assets(instance: DagsterInstance) -> None:
    with pytest.raises(ConfigurationError, match="build_restart_sensor"):
        build_restart_sensor([])


def test_a_tick_looks_at_a_bounded_number_of_runs(
    assets: list[AssetsDefinition], instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = instance.get_run_records

    def get_run_records(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs.get("limit"))
        return real(*args, **kwargs)

    monkeypatch.setattr(instance, "get_run_records", get_run_records)
    tick(assets, instance)
    assert asked == [200]
