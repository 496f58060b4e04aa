from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
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
    DagsterRunStatus,
    Definitions,
    SensorDefinition,
    build_sensor_context,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.test_utils import create_run_for_test
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.requests import RequestKind
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.errors import ConfigurationError, CorruptMetadataError
from dagster_flinkpy.orchestration import CheckpointStorageResource, build_checkpoint_sensor, flink_assets
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs import exclusive_run
from dagster_flinkpy.orchestration.runs.runs_of_job import CHECKPOINT_TAG
from dagster_flinkpy.orchestration.sensors import checkpoint_sensor
from dagster_flinkpy.orchestration.sensors.checkpoint_sensor import (
    CheckpointPolicy,
    JobAtTick,
    reason_to_wait,
)
from tests.orchestration.programs import parts, word_count
from tests.orchestration.running_job import RunningJob

NOW = 1_700_000_000_000
MINUTE = timedelta(minutes=1)


ENDED = (
    "Job words is finished: checkpoint 4 holds the end of its input. "
    + "If more input has arrived since, a run that you start by hand reports it."
)


def test_a_job_that_was_stopped_waits_for_a_restore() -> None:
    status = JobAtTick("words", 4, False, NOW - 90_000, NOW - 80_000, stopped=True)
    assert reason_to_wait(status, CheckpointPolicy(MINUTE), NOW) == (
        "Job words was stopped with a savepoint. Restore a savepoint to continue it."
    )


IDLE = JobAtTick("words", 4, False, NOW - 90_000, NOW - 80_000)
HOUR_AGO = timedelta(hours=1)


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "policy", "reason"),
    [
        (IDLE, CheckpointPolicy(MINUTE), None),
        (JobAtTick("words", None, False, None, None), CheckpointPolicy(MINUTE), None),
        (
            replace(IDLE, end_of_input=True),
            CheckpointPolicy(MINUTE),
            ENDED,
        ),
        (
            replace(IDLE, last_trigger_ms=NOW - 48_000),
            CheckpointPolicy(MINUTE),
            "Job words: the next checkpoint is due in 12 s.",
        ),
        (replace(IDLE, last_trigger_ms=NOW - 60_000), CheckpointPolicy(MINUTE), None),
        (replace(IDLE, active=("abc",)), CheckpointPolicy(MINUTE), "Job words: run abc is still working on it."),
        (
            IDLE,
            CheckpointPolicy(MINUTE, min_pause=timedelta(seconds=90)),
            "Job words: the last checkpoint completed 80000 ms ago, and min_pause is 90000 ms.",
        ),
    ],
)
def test_reason_to_wait(status: JobAtTick, policy: CheckpointPolicy, reason: str | None) -> None:
    assert reason_to_wait(status, policy, NOW) == reason


@given(st.integers(0, 200_000), st.integers(0, 200_000), st.booleans(), st.integers(0, 150))
def test_no_checkpoint_too_early_or_beside_a_run(since_trigger: int, since_end: int, active: bool, pause: int) -> None:
    status = JobAtTick("words", 4, False, NOW - since_trigger, NOW - since_end, ("abc",) if active else ())
    policy = CheckpointPolicy(MINUTE, timedelta(seconds=pause))
    free = not active and since_trigger >= 60_000 and since_end >= pause * 1000
    assert (reason_to_wait(status, policy, NOW) is None) == free


@pytest.mark.parametrize(("interval", "pause"), [(timedelta(milliseconds=9), timedelta(0)), (MINUTE, -MINUTE)])
def test_policy_has_flinks_limits(interval: timedelta, pause: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="must"):
        CheckpointPolicy(interval, pause)


# --- the sensor -------------------------------------------------------------------------------------------------------


@pytest.fixture
def assets(tmp_path: Path) -> list[AssetsDefinition]:
    return flink_assets(word_count(tmp_path / "table", ["a"]), name="words")


@pytest.fixture
def tick(tmp_path: Path, instance: DagsterInstance) -> Callable[[SensorDefinition], SensorExecutionData]:
    storage = CheckpointStorageResource(url=str(tmp_path / "checkpoints"))

    def evaluate(sensor: SensorDefinition) -> SensorExecutionData:
        return sensor.evaluate_tick(build_sensor_context(instance, resources={"checkpoint_storage": storage}))

    return evaluate


def complete(
    tmp_path: Path, checkpoint_id: int, *, job: str = "words", ago: timedelta = HOUR_AGO, end: bool = False
) -> None:
    """Completes a checkpoint with this id."""
    storage = CheckpointStorageResource(url=str(tmp_path / "checkpoints")).location()
    store = CompletedCheckpointStore(storage.child(job).open())
    now = time.time_ns() // 1_000_000
    attempt = store.begin_attempt("test", now)
    at = now - ago // timedelta(milliseconds=1)
    metadata = CheckpointMetadata(
        job, checkpoint_id, CheckpointKind.CHECKPOINT, None, at, None, attempt.token, "f", end, (), {}
    )
    store.write_metadata(attempt, metadata)
    store.complete(attempt, metadata)


def test_first_checkpoint(tick: Any, assets: list[AssetsDefinition]) -> None:
    [request] = tick(build_checkpoint_sensor(assets, interval=MINUTE)).run_requests
    assert request.run_key == "words-1-1"
    assert request.job_name == "words_checkpoint"
    assert (request.tags[JOB_TAG], request.tags[CHECKPOINT_TAG]) == ("words", "1")


def test_goes_on_from_head(tmp_path: Path, tick: Any, assets: list[AssetsDefinition]) -> None:
    complete(tmp_path, 4)
    [request] = tick(build_checkpoint_sensor(assets, interval=MINUTE)).run_requests
    assert request.run_key == "words-5-1"


def test_a_checkpoint_of_a_clock_that_was_ahead_is_not_waited_for(
    tmp_path: Path, tick: Any, assets: list[AssetsDefinition]
) -> None:
    complete(tmp_path, 4, ago=-timedelta(days=365))
    [request] = tick(build_checkpoint_sensor(assets, interval=MINUTE)).run_requests
    assert request.run_key == "words-5-1"


def test_a_failed_run_is_tried_again_under_another_key(
    tmp_path: Path,
    tick: Any,
    assets: list[AssetsDefinition],
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sensor = build_checkpoint_sensor(assets, interval=MINUTE)
    complete(tmp_path, 4)
    [first] = tick(sensor).run_requests
    create_run_for_test(instance, tags=dict(first.tags), status=DagsterRunStatus.FAILURE)
    later = checkpoint_sensor.current_millis() + 60_000
    monkeypatch.setattr(checkpoint_sensor, "current_millis", lambda: later)
    [second] = tick(sensor).run_requests
    assert (first.run_key, second.run_key) == ("words-5-1", "words-5-2")


def test_a_try_has_no_key_of_one_before_if_somebody_has_deleted_another(
    tmp_path: Path,
    tick: Any,
    assets: list[AssetsDefinition],
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dagster starts no run for a key that a run has, and the tick does not fail."""
    sensor = build_checkpoint_sensor(assets, interval=MINUTE)
    complete(tmp_path, 4)
    later = checkpoint_sensor.current_millis() + 3_600_000
    monkeypatch.setattr(checkpoint_sensor, "current_millis", lambda: later)
    runs = []
    for number in (1, 2):
        [request] = tick(sensor).run_requests
        assert request.run_key == f"words-5-{number}"
        tags = {**request.tags, "dagster/run_key": str(request.run_key)}
        runs.append(create_run_for_test(instance, tags=tags, status=DagsterRunStatus.FAILURE).run_id)
    instance.delete_run(runs[0])
    [request] = tick(sensor).run_requests
    assert request.run_key == "words-5-3"


def test_a_failed_run_is_not_tried_again_before_the_interval(
    tmp_path: Path, tick: Any, assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    sensor = build_checkpoint_sensor(assets, interval=HOUR_AGO)
    complete(tmp_path, 4, ago=2 * HOUR_AGO)
    [request] = tick(sensor).run_requests
    create_run_for_test(instance, tags=dict(request.tags), status=DagsterRunStatus.FAILURE)
    result = tick(sensor)
    assert not result.run_requests
    assert "due in" in result.skip_message


@pytest.mark.parametrize("status", [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
@pytest.mark.parametrize("by_selection", [False, True])
def test_waits_for_an_active_run(
    tick: Any, assets: list[AssetsDefinition], instance: DagsterInstance, status: DagsterRunStatus, by_selection: bool
) -> None:
    if by_selection:  # somebody pressed "Materialize"
        run = create_run_for_test(instance, asset_selection=frozenset({AssetKey(["words", "count"])}), status=status)
    else:
        run = create_run_for_test(instance, tags={JOB_TAG: "words"}, status=status)
    result = tick(build_checkpoint_sensor(assets, interval=MINUTE))
    assert not result.run_requests
    assert result.skip_message == f"Job words: run {run.run_id} is still working on it."


def test_a_run_that_runs_on_is_asked_for_a_checkpoint(
    tmp_path: Path, assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    config = {"ops": {"words": {"config": {"epochs": 0}}}}
    run = create_run_for_test(instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.STARTED, run_config=config)
    sensor = build_checkpoint_sensor(assets, interval=MINUTE)
    storage = CheckpointStorageResource(url=str(tmp_path / "checkpoints"))
    cursor: str | None = None

    def said() -> str | None:
        nonlocal cursor
        context = build_sensor_context(instance, cursor=cursor, resources={"checkpoint_storage": storage})
        result = sensor.evaluate_tick(context)
        assert not result.run_requests
        cursor = result.cursor
        return result.skip_message

    assert said() == f"Job words: run {run.run_id} has not yet begun to work on it."
    job = RunningJob(tmp_path, run.run_id)  # its last checkpoint is years old
    asked = f"Job words: run {run.run_id} is asked for a checkpoint."
    assert said() == asked
    assert said() == f"Job words: run {run.run_id} was asked for a checkpoint 0 s ago.", "a tick later"
    job.error = ConfigurationError("no")
    job.answer()
    assert said() == f"{asked} It could not complete the one before: no"
    job.error = None
    job.answer()
    assert [order.kind for order in job.orders] == [RequestKind.CHECKPOINT] * 2
    complete(tmp_path, 9, ago=timedelta(0))
    assert "due in" in str(said())


def test_a_run_whose_machine_was_lost_is_no_reason_to_wait(
    tmp_path: Path,
    tick: Any,
    assets: list[AssetsDefinition],
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    complete(tmp_path, 4)
    lost = create_run_for_test(instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.STARTED)
    started = DagsterEvent(DagsterEventType.STEP_START.value, lost.job_name, step_key="words")
    instance.report_dagster_event(started, lost.run_id)
    sensor = build_checkpoint_sensor(assets, interval=MINUTE)
    assert tick(sensor).skip_message == f"Job words: run {lost.run_id} is still working on it."
    monkeypatch.setattr(exclusive_run, "SILENT_SECONDS", 0.0)
    assert tick(sensor).run_requests
    assert f"run {lost.run_id} is started, but has shown no sign of life since" in capsys.readouterr().err


def test_a_run_that_dagster_failed_to_launch_is_no_reason_to_wait(
    tmp_path: Path,
    tick: Any,
    assets: list[AssetsDefinition],
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    complete(tmp_path, 4)
    created = create_run_for_test(instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.NOT_STARTED)
    sensor = build_checkpoint_sensor(assets, interval=MINUTE)
    assert tick(sensor).skip_message == f"Job words: run {created.run_id} is still working on it.", "it may be just now"
    monkeypatch.setattr(exclusive_run, "SILENT_SECONDS", 0.0)
    assert tick(sensor).run_requests
    assert f"run {created.run_id} was created, but Dagster has not launched it since" in capsys.readouterr().err


def test_runs_of_other_jobs_do_not_matter(tick: Any, assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    create_run_for_test(instance, tags={JOB_TAG: "other"}, status=DagsterRunStatus.STARTED)
    create_run_for_test(instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.SUCCESS)
    assert tick(build_checkpoint_sensor(assets, interval=MINUTE)).run_requests


def test_end_of_input(tmp_path: Path, tick: Any, assets: list[AssetsDefinition]) -> None:
    complete(tmp_path, 4, end=True)
    result = tick(build_checkpoint_sensor(assets, interval=MINUTE))
    assert not result.run_requests
    assert result.skip_message == ENDED


def test_pause_counts_from_the_completion(tmp_path: Path, tick: Any, assets: list[AssetsDefinition]) -> None:
    complete(tmp_path, 4)
    result = tick(build_checkpoint_sensor(assets, interval=MINUTE, min_pause=timedelta(minutes=5)))
    assert not result.run_requests
    assert "min_pause is 300000 ms" in result.skip_message


def test_a_damaged_head_fails_the_tick(tmp_path: Path, tick: Any, assets: list[AssetsDefinition]) -> None:
    complete(tmp_path, 4)
    (tmp_path / "checkpoints/words/HEAD").write_text("{")
    with pytest.raises(CorruptMetadataError, match="words/HEAD"):
        tick(build_checkpoint_sensor(assets, interval=MINUTE))


def test_each_job_has_its_own_checkpoints(tmp_path: Path, tick: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assets = [a for name in "ab" for a in flink_assets(parts(tmp_path / "tables", name), name=f"both.{name}")]
    sensor = build_checkpoint_sensor(assets, name="trigger", interval=MINUTE)
    complete(tmp_path, 2, job="both.a", ago=timedelta(0))
    complete(tmp_path, 4, job="both.b")
    [request] = tick(sensor).run_requests
    assert (request.run_key, request.job_name) == ("both.b-5-1", "both_b_checkpoint")
    assert "Job both.a: the next checkpoint is due in" in capsys.readouterr().err  # a tick with a run has no reason
    complete(tmp_path, 5, job="both.b", end=True)
    assert "both.a: the next" in tick(sensor).skip_message
    assert "both.b is finished" in tick(sensor).skip_message


def test_a_job_whose_store_has_an_error_does_not_keep_others_from_their_runs(
    tmp_path: Path, tick: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assets = [a for name in "ab" for a in flink_assets(parts(tmp_path / "tables", name), name=f"both.{name}")]
    sensor = build_checkpoint_sensor(assets, name="trigger", interval=MINUTE)
    complete(tmp_path, 2, job="both.a")
    complete(tmp_path, 4, job="both.b")
    (tmp_path / "checkpoints/both.a/HEAD").write_text("{")
    [request] = tick(sensor).run_requests
    assert request.run_key == "both.b-5-1"
    assert "Job both.a: CorruptMetadataError: " in capsys.readouterr().err
    complete(tmp_path, 5, job="both.b", end=True)
    with pytest.raises(CorruptMetadataError, match=r"both\.a/HEAD") as raised:
        tick(sensor)
    assert "Job both.b is finished" in "".join(raised.value.__notes__)


def test_a_job_that_was_asked_for_a_checkpoint_beside_an_error_is_not_asked_again(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    assets = [a for name in "ab" for a in flink_assets(parts(tmp_path / "tables", name), name=f"both.{name}")]
    sensor = build_checkpoint_sensor(assets, name="trigger", interval=MINUTE)
    complete(tmp_path, 2, job="both.a")
    (tmp_path / "checkpoints/both.a/HEAD").write_text("{")
    runs_on = {"ops": {"both_b": {"config": {"epochs": 0}}}}
    run = create_run_for_test(instance, tags={JOB_TAG: "both.b"}, status=DagsterRunStatus.STARTED, run_config=runs_on)
    storage = {"checkpoint_storage": resources["checkpoint_storage"]}
    store = CompletedCheckpointStore(storage["checkpoint_storage"].location().child("both.b").open())
    store.begin_attempt("the run", time.time_ns() // 1_000_000, timedelta(hours=1), led_by=run.run_id)

    def evaluate(cursor: str | None) -> SensorExecutionData:
        return sensor.evaluate_tick(build_sensor_context(instance, cursor=cursor, resources=storage))

    first = evaluate(None)
    assert f"Job both.b: run {run.run_id} is asked for a checkpoint." in (first.skip_message or "")
    assert "Job both.a: CorruptMetadataError" in (first.skip_message or "")
    with pytest.raises(CorruptMetadataError) as raised:
        evaluate(first.cursor)
    assert "was asked for a checkpoint" in "".join(raised.value.__notes__)


def test_takes_the_interval_of_the_program(tmp_path: Path, tick: Any) -> None:
    env = word_count(tmp_path / "table", ["a"]).enable_checkpointing(5_000_000)
    sensor = build_checkpoint_sensor(flink_assets(env, name="words"))
    complete(tmp_path, 1)
    assert "due in 1400 s" in tick(sensor).skip_message or "due in 1399 s" in tick(sensor).skip_message


def test_takes_the_pause_of_the_program(tmp_path: Path, tick: Any) -> None:
    env = word_count(tmp_path / "table", ["a"]).enable_checkpointing(10)
    env.get_checkpoint_config().set_min_pause_between_checkpoints(3_600_000)
    assets = flink_assets(env, name="words")
    complete(tmp_path, 1)
    assert "min_pause is 3600000 ms" in tick(build_checkpoint_sensor(assets)).skip_message
    assert tick(build_checkpoint_sensor(assets, min_pause=timedelta(0))).run_requests


@pytest.mark.parametrize(
    ("interval", "given", "ticks"), [(timedelta(hours=1), None, 30), (timedelta(seconds=10), None, 10), (MINUTE, 7, 7)]
)
def test_it_says_how_much_later_a_checkpoint_may_be(
    interval: timedelta, given: int | None, ticks: int, assets: list[AssetsDefinition]
) -> None:
    sensor = build_checkpoint_sensor(assets, interval=interval, minimum_interval_seconds=given)
    assert sensor.minimum_interval_seconds == ticks
    seconds = int(interval.total_seconds())
    wanted = f"Takes a checkpoint of words every {seconds} s. It looks every {ticks} s, so one may be that much later."
    assert sensor.description == wanted


def test_needs_an_interval(assets: list[AssetsDefinition]) -> None:
    with pytest.raises(ConfigurationError, match="enable_checkpointing"):
        build_checkpoint_sensor(assets)


def test_needs_flink_assets() -> None:
    from dagster import asset

    @asset
    def other() -> None: ...

    for wrong in ([], [other]):
        with pytest.raises(ConfigurationError, match="flink_assets"):
            build_checkpoint_sensor(wrong, interval=MINUTE)


def test_its_job_materializes_the_region(assets: list[AssetsDefinition], resources: dict[str, Any]) -> None:
    defs = Definitions(assets, sensors=[build_checkpoint_sensor(assets, interval=MINUTE)], resources=resources)
    job = defs.resolve_job_def("words_checkpoint")
    assert job.asset_layer.selected_asset_keys == set(assets[0].keys)
    assert job.tags[JOB_TAG] == "words"
