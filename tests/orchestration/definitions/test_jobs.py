from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterInstance,
    DagsterInvalidConfigError,
    DagsterRunStatus,
    ExecuteInProcessResult,
    JobDefinition,
    MetadataValue,
)
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream import RecoveryClaimMode, SavepointFormatType
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.orchestration import build_flink_jobs
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.runtime.master import job as runtime_job
from dagster_flinkpy.state_processor import read_savepoint
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.checkpoint.samples import metadata, operator
from tests.flink_savepoint.corpus import SAVEPOINTS, program
from tests.orchestration.programs import FakeAttempt, parts, word_count

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


def test_fork(run: Any, tmp_path: Path) -> None:
    store = CompletedCheckpointStore(LocalObjectStore(tmp_path / "checkpoints" / "words"))
    attempt = store.begin_attempt("test", 0)
    store.write_metadata(attempt, metadata(1, operator(), token=attempt.token))
    store.complete(attempt, metadata(1, operator(), token=attempt.token))
    store.end_attempt(attempt)
    assert run("words_fork", "fork_words", {"name": "copy"}).success
    forked = CompletedCheckpointStore(LocalObjectStore(tmp_path / "checkpoints" / "copy")).latest()
    assert forked is not None and forked.operators == (operator(),)
    assert "there is a job 'copy' already" in failure(run("words_fork", "fork_words", {"name": "copy"})).description


def test_names(jobs: dict[str, JobDefinition], tmp_path: Path) -> None:
    verbs = [
        "checkpoint",
        "savepoint",
        "restore",
        "rescale",
        "reset",
        "stop",
        "switch",
        "rollback",
        "import",
        "dispose",
        "fork",
        "upgrade",
        "sweep",
        "inspect",
    ]
    assert list(jobs) == [f"words_{verb}" for verb in verbs]
    names = [job.name for job in build_flink_jobs(parts(tmp_path, "a", "b"), name="both")]
    assert names == [f"both_{verb}" for verb in verbs]
    assert jobs["words_restore"].tags[JOB_TAG] == "words"


def test_savepoint(run: Any) -> None:
    result = run("words_savepoint", "take_savepoint_of_words", {"target": "s3://bucket/elsewhere"})
    path = "s3://bucket/elsewhere/savepoint-words-1"
    assert result.output_for_node("take_savepoint_of_words") == path
    [attempt] = FakeAttempt.made
    assert (attempt.savepoint_target, attempt.format_type) == ("s3://bucket/elsewhere", SavepointFormatType.CANONICAL)
    assert attempt.exited
    observed = observations(result)
    assert set(observed) == {AssetKey(["words", uid]) for uid in ("words", "count", "table")}
    assert observed[AssetKey(["words", "count"])]["flink/savepoint"] == MetadataValue.url(path)
    assert observed[AssetKey(["words", "count"])]["flink/checkpoint_id"] == MetadataValue.int(41)


@pytest.mark.parametrize(("job", "op"), [("words_savepoint", "take_savepoint_of_words"), ("words_stop", "stop_words")])
def test_native(run: Any, job: str, op: str) -> None:
    assert run(job, op, {"format_type": "NATIVE"}).success
    assert FakeAttempt.made[0].format_type is SavepointFormatType.NATIVE


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


def test_rescale(run: Any) -> None:
    result = run("words_rescale", "rescale_words", {"parallelism": 3})
    assert result.output_for_node("rescale_words") == 50
    options = FakeAttempt.made[0].options
    assert options["parallelism"] == 3
    assert "restore_from" not in options
    assert set(observations(result)) == {AssetKey(["words", uid]) for uid in ("words", "count", "table")}


def test_rescale_of_a_stopped_job_says_what_starts_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(**fake: Any) -> set[str]:
        result = run("words_rescale", "rescale_words", {"parallelism": 3}, **fake)
        observed = result.filter_events(lambda e: e.event_type is DagsterEventType.ASSET_OBSERVATION)
        return {event.asset_observation_data.asset_observation.description for event in observed}

    rescaled = "Job words is rescaled to parallelism 3, now its checkpoint 50"
    assert said() == {rescaled}
    monkeypatch.setattr(FakeAttempt, "stopped", True)
    assert said() == {
        f"{rescaled}. It stays stopped. To start it, run words_reset with checkpoint_id 50, or words_restore with a "
        "savepoint."
    }
    assert said(epochs=0) == {rescaled}  # a drained job has nothing left to start


def test_reset(run: Any) -> None:
    assert run("words_reset", "reset_words", {"checkpoint_id": 4}).output_for_node("reset_words") == 50
    assert FakeAttempt.made[0].options["restore_from"] == "chk-4"


def test_a_savepoint_of_flink_is_imported_by_a_run(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    name = "windows-hashmap-canonical"
    (tmp_path / "in").mkdir()
    jobs = {job.name: job for job in build_flink_jobs(program(name, tmp_path), name="windows")}
    config = {
        "flink_savepoint": str(SAVEPOINTS / name / "savepoint"),
        "target": str(tmp_path / "to"),
        "declared": "tests.flink_savepoint.test_import:FIRED",
        "allow_non_restored_state": ["lines"],
    }
    run_config = {"ops": {"import_for_windows": {"config": config}}}
    result = jobs["windows_import"].execute_in_process(run_config, instance, resources=resources)
    assert result.output_for_node("import_for_windows") == (tmp_path / "to").as_uri()
    (output,) = result.filter_events(lambda e: e.event_type is DagsterEventType.STEP_OUTPUT)
    found = output.step_output_data.metadata
    assert found["rows/session/window-contents"].value == 3
    assert [each["operator"] for each in found["left_behind"].value] == ["lines"]
    assert [row["value"] for row in read_savepoint(str(tmp_path / "to")).state("session", "fired").to_pylist()]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "set either flink_savepoint or spark_checkpoint"),
        ({"flink_savepoint": "a", "spark_checkpoint": "b"}, "set either flink_savepoint or spark_checkpoint"),
        ({"flink_savepoint": "a", "mapping": {"0": "b"}}, "mapping is for a spark_checkpoint"),
    ],
)
def test_an_import_is_of_one_savepoint_or_checkpoint(run: Any, config: dict[str, Any], problem: str) -> None:
    result = run("words_import", "import_for_words", {"target": "to", **config})
    assert problem in str(failure(result).description)


@pytest.mark.parametrize("dry_run", [False, True])
def test_sweep(run: Any, tmp_path: Path, dry_run: bool) -> None:
    store = LocalObjectStore(tmp_path / "checkpoints" / "words")
    checkpoints = CompletedCheckpointStore(store)
    attempt = checkpoints.begin_attempt("run", 0)
    done = metadata(checkpoints.assign_checkpoint_id(attempt), token=attempt.token)
    checkpoints.write_metadata(attempt, done)
    checkpoints.complete(attempt, done)
    store.put("shared/orphan.parquet", b"orphan")
    for number in (1, 2, 3):
        savepoint = metadata(number, kind=CheckpointKind.SAVEPOINT)
        store.put(f"savepoint-words-{number}/{METADATA_NAME}", savepoint.to_bytes())
    config = {"grace_hours": 0, "savepoint_days": 0, "keep_savepoints": 1, "dry_run": dry_run}
    assert run("words_sweep", "sweep_words", config).success
    left = {info.key for info in store.list("")}
    swept = {"shared/orphan.parquet"} | {f"savepoint-words-{n}/{METADATA_NAME}" for n in (1, 2)}
    assert swept <= left if dry_run else not swept & left
    assert {"HEAD", f"chk-1/{METADATA_NAME}", f"savepoint-words-3/{METADATA_NAME}"} <= left


def test_a_sweep_deletes_no_savepoints_of_a_job_whose_head_was_lost(run: Any, tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "checkpoints" / "words")
    CompletedCheckpointStore(store).begin_attempt("run", 0)
    for number in (1, 2):
        savepoint = metadata(number, kind=CheckpointKind.SAVEPOINT)
        store.put(f"savepoint-words-{number}/{METADATA_NAME}", savepoint.to_bytes())
    store.delete("HEAD")
    result = run("words_sweep", "sweep_words", {"grace_hours": 0, "savepoint_days": 0})
    assert "unknown which checkpoint is the latest" in str(failure(result).description)
    left = {info.key for info in store.list("savepoint-")}
    assert left == {f"savepoint-words-{n}/{METADATA_NAME}" for n in (1, 2)}


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
        ("words_rescale", "rescale_words", {"parallelism": 3}),
        ("words_reset", "reset_words", {"checkpoint_id": 4}),
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


def test_launchpads_open_on_valid_examples(
    jobs: dict[str, JobDefinition],
    monkeypatch: pytest.MonkeyPatch,
    instance: DagsterInstance,
    resources: dict[str, Any],
) -> None:
    monkeypatch.setattr(runtime_job, "JobAttempt", FakeAttempt.factory())
    assert jobs["words_rescale"].execute_in_process(instance=instance, resources=resources).success
    assert FakeAttempt.made[0].options["parallelism"] == 2, "the program's"
    assert jobs["words_inspect"].run_config == {"ops": {"inspect_words": {"config": {"uid": "count", "key": ""}}}}
    assert jobs["words_reset"].execute_in_process(instance=instance, resources=resources).success
    assert jobs["words_restore"].execute_in_process(instance=instance, resources=resources).success
    assert FakeAttempt.made[-1].options["restore_from"] == "savepoint-words-"


def test_a_savepoint_is_chosen_by_name_from_those_that_the_error_lists(run: Any, tmp_path: Path) -> None:
    store = LocalObjectStore(tmp_path / "checkpoints" / "words")
    for name in ("savepoint-words-1", "savepoint-words-2"):
        store.put(f"{name}/{METADATA_NAME}", metadata(5, operator(), kind=CheckpointKind.SAVEPOINT).to_bytes())
    op = "dispose_savepoint_of_words"
    said = failure(run("words_dispose", op, {"savepoint_path": "savepoint-words-"})).description
    assert "savepoint-words- is not a savepoint" in said
    assert said.index("savepoint-words-2 (") < said.index("savepoint-words-1 (")
    assert run("words_dispose", op, {"savepoint_path": "savepoint-words-1"}).success
    assert {info.key for info in store.list()} == {f"savepoint-words-2/{METADATA_NAME}"}
    assert run("words_dispose", op, {"savepoint_path": "savepoint-words-2"}).success
    assert "There is no savepoint in" in failure(run("words_dispose", op, {"savepoint_path": "x"})).description


def test_restore_config_is_checked(run: Any) -> None:
    with pytest.raises(DagsterInvalidConfigError, match="savepoint_path"):
        run("words_restore", "restore_words", {})


@pytest.mark.parametrize(
    ("job", "op", "config", "says"),
    [
        ("words_restore", "restore_words", {"savepoint_path": SAVEPOINT, "parallelism": 0}, "parallelism is 0"),
        ("words_rescale", "rescale_words", {"parallelism": 0}, "parallelism is 0"),
        ("words_reset", "reset_words", {"checkpoint_id": 0}, "checkpoint_id is 0"),
        ("words_sweep", "sweep_words", {"keep_savepoints": -1}, "keep_savepoints is -1"),
        ("words_sweep", "sweep_words", {"keep_runs": 199}, "keep_runs is 199"),
    ],
)
def test_a_number_out_of_range_is_named(run: Any, job: str, op: str, config: dict[str, Any], says: str) -> None:
    said = failure(run(job, op, config))
    assert said.description.startswith(f"{says}: Input should be greater than or equal to")
    assert said.metadata["error"] == MetadataValue.text("ConfigurationError")
    assert not FakeAttempt.made
