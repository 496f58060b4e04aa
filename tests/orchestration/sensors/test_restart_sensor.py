from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    Definitions,
    RunRecord,
    build_sensor_context,
    materialize,
    validate_run_config,
)
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.events import AssetMaterializationPlannedData
from dagster._core.execution.plan.objects import StepFailureData, StepSuccessData
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.common.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from dagster_flinkpy.errors import ConfigurationError, StorageError
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    SparkResource,
    build_restart_sensor,
    flink_assets,
)
from dagster_flinkpy.orchestration.failure import retry_is_pointless
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.run_tries import FIRST_TRY_TAG, first_try
from dagster_flinkpy.orchestration.runs.runs_of_job import RESTART_TAG, recent_runs
from dagster_flinkpy.orchestration.sensors import restart_sensor
from dagster_flinkpy.orchestration.sensors.restart_sensor import Restart, next_restart
from dagster_flinkpy.orchestration.sensors.targets import FlinkTarget
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import parts, word_count
from tests.runtime.harness import run_rows, spark_order

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
    """Returns a run that ended this many seconds ago. A sensor started it, unless other tags are given."""
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
    return next_restart(WORDS, newest_first, strategy, NOW, hopeless=hopeless, planned=lambda run: False)


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


@pytest.mark.parametrize("strategy", [FixedDelayRestart(3), FailureRateRestart(3), ExponentialDelayRestart()])
def test_a_failure_by_a_clock_that_was_hours_ahead_is_not_waited_for(strategy: RestartStrategy) -> None:
    """The job was restarted when the clock of the sensor was as late, after hours."""
    ahead = ran(-5 * 3600, FAILED)
    assert isinstance(answer(strategy, ahead), Restart)
    assert isinstance(answer(strategy, ran(30, FAILED), ahead), Restart)
    assert isinstance(answer(NoRestart(), ahead), str)


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
        tags=BY_SENSOR | {"team": "b", "dagster/run_key": "words-1-1", "dagster/priority": "7"},
        run_config=config,
    )
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert request.run_key == f"words-restart-of-{failed.run_id}"
    assert request.job_name == "words_restart"
    assert request.run_config == config
    assert request.tags["dagster/priority"] == "7", "the queue minds it again"
    tags = {name: value for name, value in request.tags.items() if not name.startswith("dagster/")}
    assert tags == {JOB_TAG: "words", RESTART_TAG: failed.run_id, FIRST_TRY_TAG: failed.run_id, "team": "b"}
    assert first_try(instance, failed.with_tags(request.tags)) == failed.run_id


def test_the_new_run_has_no_config_of_other_assets(
    assets: list[AssetsDefinition], instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    config = {"ops": {"words": {"config": {"epochs": 3}}, "report": {"config": {"year": 2024}}}, "execution": {}}
    plan(instance, assets[0], FAILED, job_name="__ASSET_JOB", run_config=config)
    sensor = build_restart_sensor(assets, strategy=FixedDelayRestart(1, timedelta(0)))
    definitions = Definitions(assets=assets, sensors=[sensor], resources=resources)
    context = build_sensor_context(instance, repository_def=definitions.get_repository_def())
    (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.run_config == {"ops": {"words": {"config": {"epochs": 3}}}, "execution": {}}
    validate_run_config(definitions.resolve_job_def("words_restart"), request.run_config)


def plan(
    instance: DagsterInstance,
    assets: AssetsDefinition,
    status: DagsterRunStatus,
    run: DagsterRun | None = None,
    **options: Any,
) -> DagsterRun:
    """Plans a run without tags that materializes assets, as a person starts it in the UI."""
    run = run or create_run_for_test(instance, status=status, **options)
    assert run is not None
    for key in assets.keys:
        data = AssetMaterializationPlannedData(key)
        event = DagsterEvent.build_asset_materialization_planned_event(run.job_name, str(assets.op.name), data)
        instance.report_dagster_event(event, run.run_id)
    return run


def test_a_run_from_the_ui_is_found_by_its_assets(assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    plan(instance, assets[0], FAILED)
    assert tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests


def test_a_range_of_partitions_is_run_again_as_a_range(
    assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    days = {"dagster/asset_partition_range_start": "2024-03-01", "dagster/asset_partition_range_end": "2024-03-07"}
    create_run_for_test(instance, status=FAILED, tags=BY_SENSOR | days)
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert days.items() <= request.tags.items()


@pytest.mark.parametrize("verb", ["savepoint", "restore", "rescale", "reset", "stop", "switch", "rollback"])
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
    assert "which a retry cannot fix" in skipped


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


def test_runs_of_other_jobs_do_not_hide_the_newest(assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    failed = plan(instance, assets[0], FAILED)
    for _ in range(300):
        create_run_for_test(instance, status=OK, tags={JOB_TAG: "others"})
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert request.run_key == f"words-restart-of-{failed.run_id}"


def test_a_tick_looks_at_a_bounded_number_of_runs(
    assets: list[AssetsDefinition], instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        create_run_for_test(instance, status=FAILED, tags=BY_SENSOR)
    assert [r.storage_id for r in recent_runs(instance, "words", list(assets[0].keys), most=3)] == [5, 4, 3]


def test_what_a_restart_replaces_is_in_the_history_however_many_partitions_it_has(
    assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    """A person started a year of partitions, which failed. So did its restart, which planned as many."""
    by_hand = plan(instance, assets[0], FAILED)
    again = plan(instance, assets[0], FAILED, tags=BY_SENSOR | {RESTART_TAG: by_hand.run_id})
    for _ in range(100):
        data = AssetMaterializationPlannedData(next(iter(assets[0].keys)))
        event = DagsterEvent.build_asset_materialization_planned_event("words", "words", data)
        instance.report_dagster_event(event, again.run_id)
    found = [record.dagster_run.run_id for record in recent_runs(instance, "words", list(assets[0].keys))]
    assert found == [again.run_id, by_hand.run_id]


def test_clocks_of_machines_that_differ_do_not_hide_what_a_sensor_has_started(
    assets: list[AssetsDefinition], instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ended on a machine whose clock is fast. The run that was asked for again would be no news."""
    first = create_run_for_test(instance, status=FAILED)
    tags = BY_SENSOR | {RESTART_TAG: first.run_id}
    again = create_run_for_test(instance, job_name="words_restart", status=FAILED, tags=tags)
    ended = {first.run_id: NOW / 1000 + 300, again.run_id: NOW / 1000}

    def skewed(*args: Any) -> list[RunRecord]:
        return [record._replace(end_time=ended[record.dagster_run.run_id]) for record in recent_runs(*args)]

    monkeypatch.setattr(restart_sensor, "recent_runs", skewed)
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(2, timedelta(0))).run_requests or []
    assert request.tags[RESTART_TAG] == again.run_id
    assert "failed for good" in str(tick(assets, instance, strategy=FixedDelayRestart(1)).skip_message)


def test_a_run_that_never_ends_does_not_hide_what_fails_after_a_later_run_of_a_sensor(
    assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    """Dagster calls a run started for ever whose machine was lost. The checkpoint sensor goes on without it."""
    lost = plan(instance, assets[0], RUNNING)
    assert f"its last run {lost.run_id[:8]} is started" in str(tick(assets, instance).skip_message)
    create_run_for_test(instance, job_name="words_checkpoint", status=OK, tags=BY_SENSOR)
    failed = plan(instance, assets[0], FAILED)
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert request.tags[RESTART_TAG] == failed.run_id


def test_a_run_by_hand_that_has_waited_for_another_one_does_not_hide_the_failure_of_that(
    assets: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    goes_on = plan(instance, assets[0], RUNNING)
    waited = create_run_for_test(instance, job_name="words_checkpoint", status=RUNNING, tags={JOB_TAG: "words"})
    instance.report_run_canceled(waited)
    instance.report_run_failed(goes_on)
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert request.tags[RESTART_TAG] == goes_on.run_id


def test_a_savepoint_that_succeeds_ends_no_failure(assets: list[AssetsDefinition], instance: DagsterInstance) -> None:
    failed = create_run_for_test(instance, job_name="words_checkpoint", status=FAILED, tags=BY_SENSOR)
    create_run_for_test(instance, job_name="words_savepoint", status=OK, tags={JOB_TAG: "words"})
    (request,) = tick(assets, instance, strategy=FixedDelayRestart(1, timedelta(0))).run_requests or []
    assert request.run_key == f"words-restart-of-{failed.run_id}"
    create_run_for_test(instance, job_name="words_stop", status=OK, tags={JOB_TAG: "words"})
    assert "is success" in str(tick(assets, instance).skip_message), "it was stopped on purpose"
    create_run_for_test(instance, job_name="words_savepoint", status=RUNNING, tags={JOB_TAG: "words"})
    assert "is started" in str(tick(assets, instance).skip_message), "an attempt would fence it"


# --- one run of several jobs ------------------------------------------------------------------------------------------


def end_step(instance: DagsterInstance, run: DagsterRun, step: str, end: Any) -> None:
    """Begins a step of a run, and ends it unless ``end`` is None."""
    event = DagsterEvent(DagsterEventType.STEP_START.value, run.job_name, step_key=step)
    instance.report_dagster_event(event, run.run_id)
    if end is not None:
        kind = DagsterEventType.STEP_FAILURE if isinstance(end, StepFailureData) else DagsterEventType.STEP_SUCCESS
        event = DagsterEvent(kind.value, run.job_name, step_key=step, event_specific_data=end)
        instance.report_dagster_event(event, run.run_id)


def run_of_both(both: list[AssetsDefinition], instance: DagsterInstance, **steps: Any) -> DagsterRun:
    """Creates a failed run with a step for each job. The arguments say how the steps ended."""
    run = plan(instance, both[0], FAILED, job_name="__ASSET_JOB")
    plan(instance, both[1], FAILED, run=run)
    for step, end in steps.items():
        end_step(instance, run, step, end)
    return run


untyped: Any = (StepFailureData, StepSuccessData)
BROKE, DONE = untyped[0](error=None, user_failure_data=None), untyped[1](duration_ms=1.0)


@pytest.fixture
def both(tmp_path: Path) -> list[AssetsDefinition]:
    return [each for name in "ab" for each in flink_assets(parts(tmp_path / "tables", name), name=f"both.{name}")]


AT_ONCE = FixedDelayRestart(9, timedelta(0))


@pytest.mark.parametrize(
    ("steps", "restarted"),
    [
        ({"both_a": DONE, "both_b": BROKE}, ["both_b_restart"]),
        ({"both_a": BROKE}, ["both_a_restart"]),
        ({"both_a": None}, ["both_a_restart", "both_b_restart"]),
        ({}, ["both_a_restart", "both_b_restart"]),
    ],
    ids=["the one that failed", "the one that failed first", "the process died", "it was never started"],
)
def test_only_jobs_whose_part_failed_are_started_again(
    both: list[AssetsDefinition],
    instance: DagsterInstance,
    steps: dict[str, Any],
    restarted: list[str],
) -> None:
    run = run_of_both(both, instance, **steps)
    requests = tick(both, instance, strategy=AT_ONCE).run_requests or []
    assert [request.job_name for request in requests] == restarted
    assert {request.tags[RESTART_TAG] for request in requests} == {run.run_id}


def test_a_job_that_a_run_did_not_come_to_waits_for_the_one_that_failed(
    both: list[AssetsDefinition], instance: DagsterInstance
) -> None:
    run = run_of_both(both, instance, both_a=BROKE)
    (of_a,) = tick(both, instance, strategy=AT_ONCE).run_requests or []
    assert of_a.job_name == "both_a_restart"
    never = tick(both, instance, strategy=NoRestart()).skip_message or ""
    assert "Job both.a has failed for good" in never
    assert (
        f"Job both.b: run {run.run_id[:8]} failed in job both.a before it reached this one, and that job has to"
        in never
    )
    create_run_for_test(instance, job_name=of_a.job_name, status=OK, tags=dict(of_a.tags))
    (of_b,) = tick(both, instance, strategy=AT_ONCE).run_requests or []
    assert (of_b.job_name, of_b.tags[RESTART_TAG]) == ("both_b_restart", run.run_id)


def test_a_real_run_of_both(
    both: list[AssetsDefinition], instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_spark(attempt: JobAttempt, epoch: Any) -> Any:
        if attempt.config.job_id == "both.a":
            raise StorageError("the store is away")
        return run_rows(epoch, spark_order)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_spark)
    failed = materialize(both, instance=instance, resources=resources, raise_on_error=False)
    assert not failed.success
    (request,) = tick(both, instance, strategy=AT_ONCE).run_requests or []
    assert (request.job_name, request.tags[RESTART_TAG]) == ("both_a_restart", failed.run_id)
