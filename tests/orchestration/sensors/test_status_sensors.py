from __future__ import annotations

from collections.abc import Iterator
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
    DefaultSensorStatus,
    build_run_status_sensor_context,
)
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from dagster_flinkpy.orchestration import build_checkpoint_sensor, build_job_status_sensors, flink_assets
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from tests.orchestration.programs import word_count
from tests.orchestration.sensors.test_restart_sensor import BROKE, DONE, end_step, plan

STARTED, FAILURE, CANCELED = DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED
REPOSITORY = RemoteRepositoryOrigin(
    InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="assets.definitions"), location_name="here"), "defs"
)


@pytest.fixture
def assets(tmp_path: Path) -> list[AssetsDefinition]:
    return flink_assets(word_count(tmp_path / "table", ["a"]).enable_checkpointing(60_000), name="words")


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.local_temp() as instance:  # the ephemeral one has no storage for sensors
        yield instance


class Location:
    """A code location with a checkpoint sensor and the sensors that follow the job's status."""

    def __init__(
        self,
        instance: DagsterInstance,
        assets: list[AssetsDefinition],
        default: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    ) -> None:
        self.instance = instance
        self.sensor = build_checkpoint_sensor(assets, default_status=default)
        followers = build_job_status_sensors(assets, self.sensor)
        self.followers = dict(zip((STARTED, FAILURE, CANCELED), followers, strict=True))

    def happens(self, status: DagsterRunStatus, run: DagsterRun | None = None) -> str:
        """Changes the status of a run, and returns what the sensor says."""
        run = run or self.ran(status)
        event = DagsterEvent(DagsterEventType.RUN_START.value, run.job_name)
        follower = self.followers[status]
        context = build_run_status_sensor_context(follower.name, event, self.instance, run)
        reason = follower(context)
        return reason.skip_message or ""

    def ran(self, status: DagsterRunStatus, job_name: str = "words_checkpoint", **kwargs: Any) -> DagsterRun:
        """Creates a run."""
        kwargs = {"tags": {JOB_TAG: "words", "dagster/sensor_name": self.sensor.name}, **kwargs}
        origin = RemoteJobOrigin(REPOSITORY, job_name)
        return create_run_for_test(self.instance, job_name, status=status, remote_job_origin=origin, **kwargs)

    @property
    def is_on(self) -> bool | None:
        """Returns whether the daemon sees the sensor as on; None means the default."""
        origin = REPOSITORY.get_instigator_origin(self.sensor.name)
        states = [s for s in self.instance.all_instigator_state() if s.origin == origin]
        return states[0].is_running if states else None


def test_the_trigger_is_on_while_the_job_runs(instance: DagsterInstance, assets: list[AssetsDefinition]) -> None:
    location = Location(instance, assets)
    assert location.is_on is None
    assert "switched on" in location.happens(STARTED)
    assert location.is_on
    assert "is on already" in location.happens(STARTED)
    assert "switched off" in location.happens(FAILURE)
    assert location.is_on is False
    assert "switched on" in location.happens(STARTED)
    assert "switched off" in location.happens(CANCELED)
    assert location.is_on is False


def test_a_sensor_that_is_on_by_default_is_switched_off(
    instance: DagsterInstance, assets: list[AssetsDefinition]
) -> None:
    location = Location(instance, assets, DefaultSensorStatus.RUNNING)
    assert "is on already" in location.happens(STARTED)
    assert location.is_on is None
    assert "switched off" in location.happens(FAILURE)
    assert location.is_on is False


def test_switching_on_keeps_the_cursor(instance: DagsterInstance, assets: list[AssetsDefinition]) -> None:
    location = Location(instance, assets)
    location.happens(STARTED)
    (state,) = instance.all_instigator_state()
    instance.update_instigator_state(state.with_data(state.instigator_data._replace(cursor="here")))
    location.happens(FAILURE)
    location.happens(STARTED)
    (state,) = instance.all_instigator_state()
    assert state.instigator_data.cursor == "here"


def test_other_runs_change_nothing(instance: DagsterInstance, assets: list[AssetsDefinition]) -> None:
    location = Location(instance, assets)
    other = DagsterRun("other", tags={JOB_TAG: "other"}, remote_job_origin=RemoteJobOrigin(REPOSITORY, "other"))
    assert "does not belong to a job" in location.happens(STARTED, other)
    in_process = DagsterRun("words", tags={JOB_TAG: "words"})
    assert "not launched from a code location" in location.happens(STARTED, in_process)
    assert location.is_on is None


def test_a_run_from_the_ui_counts(instance: DagsterInstance, assets: list[AssetsDefinition]) -> None:
    location = Location(instance, assets)
    run = DagsterRun(
        "__ASSET_JOB",
        asset_selection=frozenset(assets[0].keys),
        remote_job_origin=RemoteJobOrigin(REPOSITORY, "__ASSET_JOB"),
    )
    assert "switched on" in location.happens(STARTED, run)


def test_what_later_runs_have_overtaken_changes_nothing(
    instance: DagsterInstance, assets: list[AssetsDefinition]
) -> None:
    """Sensors tick independently, so they may see a run's end before its start."""
    location = Location(instance, assets)
    failed = location.ran(FAILURE)
    assert "failure by now" in location.happens(STARTED, failed)
    assert location.is_on is None
    restarted = location.ran(STARTED)
    assert "switched on" in location.happens(STARTED, restarted)
    assert f"job words is started in run {restarted.run_id}" in location.happens(FAILURE, failed)
    assert location.is_on


@pytest.mark.short
@pytest.mark.parametrize("verb", ["savepoint", "stop", "restore", "rescale", "reset", "switch", "rollback"])
@pytest.mark.parametrize("status", [FAILURE, CANCELED])
def test_what_else_fails_on_the_job_leaves_the_trigger_on(
    instance: DagsterInstance, assets: list[AssetsDefinition], verb: str, status: DagsterRunStatus
) -> None:
    location = Location(instance, assets)
    location.happens(STARTED)
    last = location.ran(DagsterRunStatus.SUCCESS)
    said = location.happens(status, location.ran(status, f"words_{verb}"))
    assert location.is_on, "or no run would start any more"
    assert f"but job words is success in run {last.run_id}" in said


@pytest.mark.system
@pytest.mark.parametrize("verb", ["savepoint", "stop"])
def test_a_savepoint_of_a_canceled_job_does_not_start_it(
    instance: DagsterInstance, assets: list[AssetsDefinition], verb: str
) -> None:
    location = Location(instance, assets, DefaultSensorStatus.RUNNING)
    location.happens(CANCELED)
    assert "starts no job" in location.happens(STARTED, location.ran(STARTED, f"words_{verb}"))
    assert location.is_on is False
    assert "switched on" in location.happens(STARTED, location.ran(STARTED, "words_restore"))


@pytest.mark.system
@pytest.mark.parametrize("end", [DONE, BROKE])
def test_a_run_in_which_another_asset_fails_leaves_the_trigger_on(
    instance: DagsterInstance, assets: list[AssetsDefinition], end: Any
) -> None:
    location = Location(instance, assets)
    keys = frozenset({*assets[0].keys, AssetKey("report")})
    run = location.ran(STARTED, "__ASSET_JOB", tags={}, asset_selection=keys)
    assert "switched on" in location.happens(STARTED, run)
    plan(instance, assets[0], DagsterRunStatus.STARTED, run)
    end_step(instance, run, "words", end)
    end_step(instance, run, "report", BROKE)
    instance.report_run_failed(run)
    failed = instance.get_run_by_id(run.run_id)
    assert failed is not None
    said = location.happens(FAILURE, failed)
    assert location.is_on is (end is DONE), said
