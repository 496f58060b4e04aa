from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    JobDefinition,
    RunRequest,
    build_sensor_context,
)
from dagster._core.definitions.sensor_definition import SensorDefinition, SensorExecutionData
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import (
    SavepointConfig,
    SweepConfig,
    build_flink_jobs,
    build_retention_sensor,
    build_savepoint_sensor,
    flink_assets,
)
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.sensors import upkeep_sensors
from dagster_flinkpy.orchestration.sensors.targets import FlinkTarget
from tests.checkpoint.samples import metadata
from tests.orchestration.programs import word_count

HOUR = timedelta(hours=1)
START_MS = 1_700_000_000_000


class Location:
    """A code location with a ticking sensor, whose clock the test sets."""

    def __init__(self, tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        env = word_count(tmp_path / "table", ["a"])
        self.assets: list[AssetsDefinition] = flink_assets(env, name="words")
        self.jobs: list[JobDefinition] = build_flink_jobs(env, name="words")
        self.instance, self.resources = instance, resources
        self.store = CompletedCheckpointStore(resources["checkpoint_storage"].location().child("words").open())
        self.now_ms = START_MS
        self.cursor: str | None = None

    def tick(self, sensor: SensorDefinition) -> SensorExecutionData:
        wanted = {name: self.resources[name] for name in sensor.required_resource_keys}
        context = build_sensor_context(self.instance, cursor=self.cursor, resources=wanted)
        result = sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result

    def complete_checkpoint(self) -> None:
        attempt = self.store.begin_attempt("run", 0)
        done = metadata(self.store.assign_checkpoint_id(attempt), token=attempt.token)
        self.store.write_metadata(attempt, done)
        self.store.complete(attempt, done)
        self.store.end_attempt(attempt)


@pytest.fixture
def location(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Location:
    location = Location(tmp_path, instance, resources)
    monkeypatch.setattr(upkeep_sensors, "current_millis", lambda: location.now_ms)
    return location


def keys(result: SensorExecutionData) -> list[str | None]:
    return [request.run_key for request in result.run_requests or []]


def test_a_savepoint_each_hour(location: Location) -> None:
    config = SavepointConfig(target="s3://bucket/kept", format_type=SavepointFormatType.NATIVE)
    sensor = build_savepoint_sensor(location.assets, location.jobs, interval=HOUR, config=config)
    assert location.tick(sensor).skip_message == "Job words has no completed checkpoint yet."
    location.complete_checkpoint()
    first = location.tick(sensor)
    assert keys(first) == ["words-savepoint-of-1-1"]
    (request,) = first.run_requests or []
    assert request.job_name == "words_savepoint"
    wanted = {"target": "s3://bucket/kept", "format_type": "NATIVE"}
    assert request.run_config == {"ops": {"take_savepoint_of_words": {"config": wanted}}}
    assert json.loads(json.dumps(request.run_config)) == request.run_config
    assert type(request.run_config["ops"]["take_savepoint_of_words"]["config"]["format_type"]) is str
    assert "a savepoint of checkpoint 1, the last one, has already been requested" in str(
        location.tick(sensor).skip_message
    )
    location.complete_checkpoint()
    location.now_ms += 59 * 60_000
    assert location.tick(sensor).skip_message == "Job words: the next savepoint is due in 0:01:00."
    location.now_ms += 60_000
    assert keys(location.tick(sensor)) == ["words-savepoint-of-2-1"]


@pytest.mark.parametrize("build", [build_savepoint_sensor, build_retention_sensor])
def test_what_could_not_be_requested_is_requested_at_the_next_tick(
    tmp_path: Path, location: Location, monkeypatch: pytest.MonkeyPatch, build: Any
) -> None:
    env = word_count(tmp_path / "others", ["a"])
    others: list[AssetsDefinition] = flink_assets(env, name="others")
    sensor = build([*location.assets, *others], [*location.jobs, *build_flink_jobs(env, name="others")], interval=HOUR)
    location.complete_checkpoint()
    request = upkeep_sensors._request

    def fails(target: FlinkTarget, *args: Any) -> RunRequest:
        if target.job_id == "words":
            raise ValueError("no config")
        return request(target, *args)

    monkeypatch.setattr(upkeep_sensors, "_request", fails)
    if build is build_retention_sensor:
        assert len(keys(location.tick(sensor))) == 1
    else:
        with pytest.raises(ValueError, match="no config"):
            location.tick(sensor)
    monkeypatch.undo()
    monkeypatch.setattr(upkeep_sensors, "current_millis", lambda: location.now_ms)
    (key,) = keys(location.tick(sensor))
    assert str(key).startswith("words-")


def test_a_savepoint_on_a_condition(location: Location) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, condition=lambda done: done.checkpoint_id % 2 == 0)
    location.complete_checkpoint()
    assert "the condition does not hold for checkpoint 1" in str(location.tick(sensor).skip_message)
    location.complete_checkpoint()
    assert keys(location.tick(sensor)) == ["words-savepoint-of-2-1"]


def test_no_savepoint_beside_a_run(location: Location) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, interval=HOUR)
    location.complete_checkpoint()
    run = create_run_for_test(location.instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.STARTED)
    assert run.run_id in str(location.tick(sensor).skip_message)
    location.instance.report_run_canceled(run)
    assert keys(location.tick(sensor)) == ["words-savepoint-of-1-1"]


def run_of(location: Location, result: SensorExecutionData, status: DagsterRunStatus) -> DagsterRun:
    """Creates the run that a tick requested."""
    (request,) = result.run_requests or []
    return create_run_for_test(location.instance, tags=dict(request.tags), status=status)


def test_a_savepoint_that_failed_is_tried_again_so_many_times(location: Location) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, interval=HOUR)
    location.complete_checkpoint()
    asked = []
    for _ in range(3):
        result = location.tick(sensor)
        asked += keys(result)
        run = run_of(location, result, DagsterRunStatus.FAILURE)
        location.now_ms += 60_000
    assert asked == ["words-savepoint-of-1-1", "words-savepoint-of-1-2", "words-savepoint-of-1-3"]
    said = f"Job words: 3 savepoints in a row failed, see run {run.run_id}; the next is due in 0:59:00."
    assert location.tick(sensor).skip_message == said
    location.complete_checkpoint()
    assert location.tick(sensor).skip_message == said, "a new checkpoint is no reason for further tries"
    location.now_ms += 59 * 60_000
    result = location.tick(sensor)
    assert keys(result) == ["words-savepoint-of-2-1"]
    run_of(location, result, DagsterRunStatus.SUCCESS)
    assert "a savepoint of checkpoint 2, the last one, has already been requested" in str(
        location.tick(sensor).skip_message
    )


def test_a_savepoint_that_failed_is_tried_again_of_the_checkpoint_that_is_the_last_by_then(location: Location) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, interval=HOUR)
    location.complete_checkpoint()
    run_of(location, location.tick(sensor), DagsterRunStatus.FAILURE)
    location.complete_checkpoint()
    result = location.tick(sensor)
    assert keys(result) == ["words-savepoint-of-2-1"]
    run_of(location, result, DagsterRunStatus.FAILURE)
    assert keys(location.tick(sensor)) == ["words-savepoint-of-2-2"]


def test_without_an_interval_failures_end_with_the_next_checkpoint(location: Location) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, condition=lambda done: True)
    location.complete_checkpoint()
    for _ in range(3):
        run_of(location, location.tick(sensor), DagsterRunStatus.FAILURE)
    assert "the next is due after the next checkpoint" in str(location.tick(sensor).skip_message)
    location.complete_checkpoint()
    assert keys(location.tick(sensor)) == ["words-savepoint-of-2-1"]


@pytest.mark.parametrize("tags", [{"dagster/will_retry": "true"}, {}])
def test_a_savepoint_that_was_canceled_or_that_dagster_tries_again_is_left_alone(
    location: Location, tags: dict[str, str]
) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, interval=HOUR)
    location.complete_checkpoint()
    (request,) = location.tick(sensor).run_requests or []
    status = DagsterRunStatus.FAILURE if tags else DagsterRunStatus.CANCELED
    create_run_for_test(location.instance, tags={**request.tags, **tags}, status=status)
    assert "a savepoint of checkpoint 1, the last one, has already been requested" in str(
        location.tick(sensor).skip_message
    )


def test_without_a_cursor_runs_tell_what_was_asked_for(location: Location) -> None:
    sensor = build_savepoint_sensor(location.assets, location.jobs, interval=HOUR)
    location.complete_checkpoint()
    run = run_of(location, location.tick(sensor), DagsterRunStatus.SUCCESS)
    location.cursor = None
    assert "a savepoint of checkpoint 1, the last one, has already been requested" in str(
        location.tick(sensor).skip_message
    )
    location.instance.delete_run(run.run_id)
    assert keys(location.tick(sensor)) == ["words-savepoint-of-1-1"]


def test_a_sweep_each_day(location: Location) -> None:
    sensor = build_retention_sensor(location.assets, location.jobs, config=SweepConfig(savepoint_days=30))
    first = location.tick(sensor)
    assert keys(first) == [f"words-sweep-at-{START_MS}"]
    (request,) = first.run_requests or []
    assert request.run_config["ops"]["sweep_words"]["config"]["savepoint_days"] == 30
    location.now_ms += 3_600_000
    assert location.tick(sensor).skip_message == "Job words: the next sweep is due in 23:00:00."
    location.now_ms += 23 * 3_600_000
    assert len(keys(location.tick(sensor))) == 1


@pytest.mark.parametrize("cursor", ["", "7", "[]", "{}", '{"version": 9, "jobs": 3}', '{"version": 1}'])
def test_a_cursor_of_something_else_is_forgotten(location: Location, cursor: str) -> None:
    location.cursor = cursor
    location.tick(build_retention_sensor(location.assets, location.jobs))
    assert json.loads(location.cursor or "") == {"version": 1, "jobs": {"words": {"at_ms": START_MS}}}


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda assets, jobs: build_savepoint_sensor(assets, jobs), "interval="),
        (lambda assets, jobs: build_savepoint_sensor(assets, jobs[2:], interval=HOUR), "no job words_savepoint"),
        (lambda assets, jobs: build_retention_sensor(assets, []), "no job words_sweep"),
        (lambda assets, jobs: build_retention_sensor(assets, jobs, interval=-HOUR), "positive"),
    ],
)
def test_bad_arguments_are_said(location: Location, build: Callable[[Any, Any], Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        build(location.assets, location.jobs)
