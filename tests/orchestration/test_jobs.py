from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    ExecuteInProcessResult,
    JobDefinition,
    MetadataValue,
)
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind
from dagster_flinkpy.datastream import RecoveryClaimMode
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration import build_flink_jobs
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.runtime import job as runtime_job
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import metadata, operator
from tests.orchestration.programs import FakeAttempt, two_regions, word_count

SAVEPOINT = "s3://bucket/flights/savepoint-words-1"


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, JobDefinition]:
    return {job.name: job for job in build_flink_jobs(word_count(tmp_path, ["a"]), name="words")}


@pytest.fixture
def run(
    jobs: dict[str, JobDefinition],
    monkeypatch: pytest.MonkeyPatch,
    instance: DagsterInstance,
    resources: dict[str, Any],
) -> Any:
    def execute(job: str, op: str, config: dict[str, Any], **fake: Any) -> ExecuteInProcessResult:
        monkeypatch.setattr(runtime_job, "JobAttempt", FakeAttempt.factory(**fake))
        return jobs[job].execute_in_process(
            {"ops": {op: {"config": config}}}, instance, resources=resources, raise_on_error=False
        )

    return execute


def observations(result: ExecuteInProcessResult) -> dict[AssetKey, dict[str, Any]]:
    events = result.filter_events(lambda e: e.event_type is DagsterEventType.ASSET_OBSERVATION)
    found = [e.asset_observation_data.asset_observation for e in events]
    return {o.asset_key: dict(o.metadata) for o in found}


def failure(result: ExecuteInProcessResult) -> Any:
    [failed] = [e for e in result.all_events if e.is_step_failure]
    return failed.step_failure_data.user_failure_data


def test_names(jobs: dict[str, JobDefinition], tmp_path: Path) -> None:
    assert sorted(jobs) == ["words_dispose", "words_restore", "words_savepoint", "words_stop"]
    names = [job.name for job in build_flink_jobs(two_regions(tmp_path), name="both")]
    assert names == [f"both_{region}_{what}" for region in "ab" for what in ("savepoint", "restore", "stop", "dispose")]
    assert jobs["words_restore"].tags[JOB_TAG] == "words"


def test_savepoint(run: Any) -> None:
    result = run("words_savepoint", "take_savepoint_of_words", {"target": "s3://bucket/elsewhere"})
    path = "s3://bucket/elsewhere/savepoint-words-1"
    assert result.output_for_node("take_savepoint_of_words") == path
    [attempt] = FakeAttempt.made
    assert attempt.savepoint_target == "s3://bucket/elsewhere"
    assert attempt.exited
    observed = observations(result)
    assert set(observed) == {AssetKey(["words", uid]) for uid in ("words", "count", "table")}
    assert observed[AssetKey(["words", "count"])]["flink/savepoint"] == MetadataValue.url(path)
    assert observed[AssetKey(["words", "count"])]["flink/checkpoint_id"] == MetadataValue.int(41)


@pytest.mark.parametrize("drain", [False, True])
def test_stop(run: Any, drain: bool) -> None:
    result = run("words_stop", "stop_words", {"target": "s3://bucket/elsewhere", "drain": drain})
    path = "s3://bucket/elsewhere/savepoint-words-1"
    assert result.output_for_node("stop_words") == path
    [attempt] = FakeAttempt.made
    assert (attempt.savepoint_target, attempt.drained, attempt.exited) == ("s3://bucket/elsewhere", drain, True)
    observed = observations(result)
    assert observed[AssetKey(["words", "count"])]["flink/savepoint"] == MetadataValue.url(path)
    assert observed[AssetKey(["words", "count"])]["flink/checkpoint_id"] == MetadataValue.int(42)


def test_dispose(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "savepoint-words-1"
    store = LocalObjectStore(folder)
    savepoint = metadata(5, operator(), kind=CheckpointKind.SAVEPOINT)
    store.put(METADATA_NAME, savepoint.to_bytes())
    config = {"savepoint_path": f"{folder}/"}
    assert run("words_dispose", "dispose_savepoint_of_words", config).success
    assert not list(store.list())
    assert "is not a savepoint" in failure(run("words_dispose", "dispose_savepoint_of_words", config)).description


def test_restore(run: Any) -> None:
    config = {
        "savepoint_path": SAVEPOINT,
        "parallelism": 3,
        "allow_non_restored_state": True,
        "claim_mode": "CLAIM",
    }
    result = run("words_restore", "restore_words", config)
    assert result.output_for_node("restore_words") == 50
    options = FakeAttempt.made[0].options
    assert (options["restore_from"], options["parallelism"], options["allow_non_restored_state"]) == (
        SAVEPOINT,
        3,
        True,
    )
    assert options["claim_mode"] is RecoveryClaimMode.CLAIM
    observed = observations(result)[AssetKey(["words", "count"])]
    assert observed["flink/savepoint"] == MetadataValue.url(SAVEPOINT)
    assert observed["flink/checkpoint_id"] == MetadataValue.int(50)
    assert observed["flink/state_bytes"] == MetadataValue.int(300)


def test_restore_that_fails_observes_nothing(run: Any) -> None:
    result = run("words_restore", "restore_words", {"savepoint_path": SAVEPOINT}, error=RestoreError("no savepoint"))
    assert failure(result).description == "no savepoint"
    assert not observations(result)


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        ("words_savepoint", "take_savepoint_of_words", {}),
        ("words_restore", "restore_words", {"savepoint_path": SAVEPOINT}),
        ("words_stop", "stop_words", {}),
    ],
)
def test_refuses_beside_an_active_run(
    run: Any, instance: DagsterInstance, job: str, op: str, config: dict[str, Any]
) -> None:
    other = create_run_for_test(instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.STARTED)
    result = run(job, op, config)
    assert not result.success
    assert other.run_id in failure(result).description
    assert not FakeAttempt.made


def test_restore_config_is_checked(run: Any) -> None:
    from dagster import DagsterInvalidConfigError
    from pydantic import ValidationError

    with pytest.raises(DagsterInvalidConfigError, match="savepoint_path"):
        run("words_restore", "restore_words", {})
    result = run("words_restore", "restore_words", {"savepoint_path": SAVEPOINT, "parallelism": 0})
    [failed] = [e for e in result.all_events if e.is_step_failure]
    assert ValidationError.__name__ in str(failed.step_failure_data.error)
    assert not FakeAttempt.made
