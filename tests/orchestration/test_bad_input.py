"""Mistakes that users can make in Dagster. The error must name the fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    DagsterInstance,
    DagsterInvalidConfigError,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    ExecuteInProcessResult,
    Failure,
)
from dagster._core.errors import DagsterUnknownPartitionError
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from dagster_flinkpy.common import Configuration, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import FlinkRunConfig, build_flink_jobs, flink_assets
from dagster_flinkpy.orchestration.failure import retry_is_pointless
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs import job_run
from dagster_flinkpy.orchestration.runs.runs_of_job import refuse_other_location
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import Count, word_count
from tests.orchestration.runs.test_partitioned_run import letters
from tests.runtime.harness import run_rows, spark_order

COUNTED = Types.TUPLE([Types.STRING(), Types.LONG()])


class Deployment:
    """Jobs with one store. They really run, but not on Spark."""

    def __init__(self, folder: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.folder, self.instance, self.resources = folder, instance, resources

    def run(self, env: StreamExecutionEnvironment, name: str, job: str | None = None, **config: Any) -> Any:
        definitions = Definitions(
            flink_assets(env, name=name), jobs=build_flink_jobs(env, name=name), resources=self.resources
        )
        if job is None:
            chosen, op = definitions.resolve_implicit_global_asset_job_def(), name
        else:
            chosen = definitions.resolve_job_def(f"{name}_{job}")
            (op,) = (node.name for node in chosen.nodes)
        return chosen.execute_in_process({"ops": {op: {"config": config}}}, self.instance, raise_on_error=False)


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path, instance, resources)


def said(result: ExecuteInProcessResult) -> tuple[str, str]:
    """Returns the description of the failure and the type of its error."""
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    data = failure.step_failure_data.user_failure_data
    assert data is not None
    return str(data.description), str(data.metadata["error"].value)


def other_words(table: Path) -> StreamExecutionEnvironment:
    """Builds a program like the word count, with other uids."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    source = CollectionSource(["a"], Types.STRING())
    texts = env.from_source(source, WatermarkStrategy.no_watermarks(), "texts").uid("texts")
    counted = texts.key_by(lambda text: text, Types.STRING()).process(Count(), COUNTED).uid("texts_count")
    counted.sink_to(ParquetSink(str(table))).uid("texts_table")
    return env


# --- what a failed run shows ------------------------------------------------------------------------------------------


def test_a_failed_run_shows_how_it_was_executed(deployment: Deployment) -> None:
    def fails(text: str) -> str:
        if text == "b":
            raise ValueError("boom")
        return text

    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    options = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1"}
    env.configure(Configuration.from_dict({**options, "restart-strategy.fixed-delay.delay": "0 ms"}))
    source = CollectionSource(["a", "b"], Types.STRING(), records_per_epoch=1)
    texts = env.from_source(source, WatermarkStrategy.no_watermarks(), "texts").uid("texts")
    texts.map(fails, Types.STRING()).uid("map").print().uid("print")
    result = deployment.run(env, "words", epochs=2)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    metadata = failure.step_failure_data.user_failure_data.metadata
    facts = {name: metadata[name].value for name in ("error", "status", "restarts", "last_checkpoint")}
    assert facts == {"error": "UserFunctionError", "status": "FAILED", "restarts": 1, "last_checkpoint": 1}
    operators = {record.data["operator"]: record.data for record in metadata["operators"].records}
    assert (operators["map"]["attempt"], operators["map"]["subtasks by state"]) == (1, "1 CANCELED, 1 FAILED")
    failures = [record.data for record in metadata["failures"].records]
    assert [(each["operator"], each["attempt"], each["error"]) for each in failures] == [
        ("map", 1, "UserFunctionError"),
        ("map", 0, "UserFunctionError"),
    ]


# --- an unknown uid, and a savepoint of another job -------------------------------------------------------------------


def test_state_of_a_uid_that_the_program_no_longer_has(deployment: Deployment, tmp_path: Path) -> None:
    assert deployment.run(word_count(tmp_path / "table", ["a", "b"], per_epoch=1), "words").success
    description, error = said(deployment.run(other_words(tmp_path / "table"), "words"))
    assert error == "RestoreError"
    assert "has state for operator" in description
    assert "the job has no operator with this uid (it has 'texts', 'texts_count', 'texts_table')" in description
    assert "Give it its old uid back, or set allow_non_restored_state" in description


@pytest.mark.parametrize("job", [None, "restore"], ids=["run config", "restore job"])
def test_a_savepoint_of_another_job(deployment: Deployment, tmp_path: Path, job: str | None) -> None:
    words = word_count(tmp_path / "table", ["a", "b"], per_epoch=1)
    assert deployment.run(words, "words").success
    taken = deployment.run(words, "words", "savepoint")
    savepoint = taken.output_for_node("take_savepoint_of_words")
    field = "restore_from" if job is None else "savepoint_path"
    description, error = said(deployment.run(other_words(tmp_path / "texts"), "texts", job, **{field: savepoint}))
    assert error == "RestoreError"
    assert "savepoint 1 of job 'words' has state for operator" in description
    assert "set allow_non_restored_state" in description
    assert not list((tmp_path / "texts").glob("*.parquet"))


@pytest.mark.parametrize("job", [None, "restore", "dispose"], ids=["run config", "restore job", "dispose job"])
def test_a_savepoint_that_is_not_there(deployment: Deployment, tmp_path: Path, job: str | None) -> None:
    field, path = "restore_from" if job is None else "savepoint_path", str(tmp_path / "savepoint-words-1")
    words = word_count(tmp_path / "table", ["a"])
    description, error = said(deployment.run(words, "words", job, **{field: path}))
    assert error == "RestoreError"
    assert path in description


def test_a_reset_to_a_checkpoint_that_is_not_kept(deployment: Deployment, tmp_path: Path) -> None:
    words = word_count(tmp_path / "table", ["a", "b"], per_epoch=1)
    assert deployment.run(words, "words").success
    description, error = said(deployment.run(words, "words", "reset", checkpoint_id=41))
    assert error == "RestoreError"
    assert "chk-41" in description


# --- a partition outside the definition -------------------------------------------------------------------------------


def test_a_partition_outside_of_the_definition(deployment: Deployment, tmp_path: Path) -> None:
    days = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08")
    assets = flink_assets(letters(tmp_path / "table"), name="letters", partitions_def=days)
    job = Definitions(assets, resources=deployment.resources).resolve_implicit_global_asset_job_def()
    with pytest.raises(DagsterUnknownPartitionError, match="2024-04-01"):
        job.execute_in_process(instance=deployment.instance, partition_key="2024-04-01")


# --- run config of the wrong type -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"epochs": "many"}, "epochs"),
        ({"parallelism": 1.5}, "parallelism"),
        ({"claim_mode": "MINE"}, "claim_mode"),
        ({"epoch": 1}, "epoch"),
    ],
)
def test_run_config_of_the_wrong_type(
    deployment: Deployment, tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(DagsterInvalidConfigError, match=f"root:ops:words:config.*{says}"):
        deployment.run(word_count(tmp_path / "table", ["a"]), "words", **config)


def test_run_config_of_an_earlier_version_is_refused_by_name(deployment: Deployment, tmp_path: Path) -> None:
    with pytest.raises(DagsterInvalidConfigError, match='unexpected config entry "barriers" at path root:ops:words'):
        deployment.run(word_count(tmp_path / "table", ["a"]), "words", barriers=2)
    with pytest.raises(Failure, match="there is no field 'barriers': leave it out"):
        FlinkRunConfig(barriers=2)  # as a schedule would


@pytest.mark.parametrize("config", [{"epochs": -1}, {"parallelism": 0}])
def test_run_config_out_of_range(deployment: Deployment, tmp_path: Path, config: dict[str, Any]) -> None:
    result = deployment.run(word_count(tmp_path / "table", ["a"]), "words", **config)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    (field,) = config
    said = failure.step_failure_data.user_failure_data
    assert f"{field} is {config[field]}: Input should be greater than or equal to" in said.description
    assert retry_is_pointless(said.metadata["error"].value)


# --- two code locations with one job id -------------------------------------------------------------------------------


def run_of(instance: DagsterInstance, location: str | None, status: DagsterRunStatus) -> DagsterRun:
    origin = None
    if location is not None:
        target = LoadableTargetOrigin(executable_path=sys.executable, module_name="anything")
        origin = RemoteJobOrigin(
            RemoteRepositoryOrigin(InProcessCodeLocationOrigin(target, location_name=location), "__repository__"),
            "words",
        )
    run = create_run_for_test(instance, "words", status=status, tags={JOB_TAG: "words"}, remote_job_origin=origin)
    assert isinstance(run, DagsterRun)
    return run


STARTED, DONE = DagsterRunStatus.STARTED, DagsterRunStatus.SUCCESS


def test_two_code_locations_with_one_job_id(instance: DagsterInstance) -> None:
    mine = run_of(instance, "new", STARTED)
    other = run_of(instance, "old", STARTED)
    with pytest.raises(ConfigurationError, match="in two code locations") as refused:
        refuse_other_location(instance, mine, "words", [])
    assert f"run {other.run_id} of 'old' is working on it, and this run is of 'new'" in str(refused.value)
    assert "flink_assets(name=...), or another checkpoint storage" in str(refused.value)


@pytest.mark.parametrize(
    ("location", "status"), [("old", DONE), ("new", STARTED), (None, STARTED)], ids=["moved", "its own", "a script"]
)
def test_one_code_location(instance: DagsterInstance, location: str | None, status: DagsterRunStatus) -> None:
    mine = run_of(instance, "new", STARTED)
    run_of(instance, location, status)
    refuse_other_location(instance, mine, "words", [])
    refuse_other_location(instance, run_of(instance, None, STARTED), "words", [])


def test_a_run_beside_one_of_another_code_location_touches_nothing(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(instance: DagsterInstance, run: DagsterRun, job_id: str, keys: object) -> None:
        raise ConfigurationError(f"job {job_id!r} is in two code locations")

    monkeypatch.setattr(job_run, "refuse_other_location", refused)
    description, error = said(deployment.run(word_count(tmp_path / "table", ["a"]), "words"))
    assert (description, error) == ("job 'words' is in two code locations", "ConfigurationError")
    assert not (tmp_path / "checkpoints").exists()
