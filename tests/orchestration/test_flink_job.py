from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Configuration
from dagster_flinkpy.common.metric_options import PrometheusOptions
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.errors import MissingUidError
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource
from dagster_flinkpy.orchestration.flink_job import flink_job
from tests.orchestration.programs import word_count


def test_a_program_without_uids_is_an_error_and_no_warning_besides(tmp_path: Path) -> None:
    env = word_count(tmp_path / "words", ["a"])
    env.from_collection(["b"])
    with warnings.catch_warnings(), pytest.raises(MissingUidError, match="Collection Source"):
        warnings.simplefilter("error")
        flink_job(env, "words")


def test_a_run_takes_checkpoints_as_the_program_says(tmp_path: Path) -> None:
    env = word_count(tmp_path / "words", ["a"]).enable_checkpointing(60_000)
    env.get_checkpoint_config().set_checkpoint_timeout(30_000)
    env.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)
    env.get_config().set_latency_tracking_interval(500)
    job = flink_job(env, "words")
    storage = CheckpointStorageResource(url=str(tmp_path / "checkpoints"), num_retained=3)
    config = job.attempt(storage, SparkResource(), owner="test").config
    assert config.checkpointing == CoordinatorConfig(
        interval=timedelta(minutes=1),
        timeout=timedelta(seconds=30),
        mode=CheckpointingMode.AT_LEAST_ONCE,
        num_retained=3,
    )
    assert config.latency_tracking_interval == timedelta(milliseconds=500)


def test_metric_reporters_of_the_deployment_take_the_place_of_the_programs(tmp_path: Path) -> None:
    env = word_count(tmp_path / "words", ["a"])
    env.configure(Configuration().set_string("metrics.reporter.prom.port", "9300"))
    job, storage = flink_job(env, "words"), CheckpointStorageResource(url=str(tmp_path / "checkpoints"))
    of_deployment = SparkResource(metric_reporters={"metrics.reporter.prom.port": "9400"})
    for spark, port in ((SparkResource(), 9300), (of_deployment, 9400)):
        config = job.attempt(storage, spark, owner="test").config
        assert config.metric_reporters == (PrometheusOptions((port,)),)


def test_a_job_keeps_its_settings_when_the_program_changes_them_for_the_next(tmp_path: Path) -> None:
    env = word_count(tmp_path / "words", ["a"]).enable_checkpointing(60_000)
    first = flink_job(env, "first")
    env.enable_checkpointing(1_000).get_config().set_require_all_slots(True)
    second = flink_job(env, "second")
    assert [job.checkpointing.interval for job in (first, second)] == [timedelta(minutes=1), timedelta(seconds=1)]
    assert [job.config.is_require_all_slots() for job in (first, second)] == [False, True]
