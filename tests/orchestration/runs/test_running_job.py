"""Jobs that ask a run to do something. The run is played by the test, which answers while they wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterEventType,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRunStatus,
    ExecuteInProcessResult,
    JobDefinition,
    MetadataValue,
)
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.checkpoint.request_inbox import RequestInbox
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import build_flink_jobs
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs import running_job
from dagster_flinkpy.runtime.master import job as runtime_job
from tests.orchestration.programs import FakeAttempt, word_count
from tests.orchestration.running_job import RunningJob

COUNT = AssetKey(["words", "count"])


@pytest.fixture
def at_work(tmp_path: Path, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> RunningJob:
    other = create_run_for_test(instance, tags={JOB_TAG: "words"}, status=DagsterRunStatus.STARTED)
    running = RunningJob(tmp_path, other.run_id)
    monkeypatch.setattr(running_job, "JobRequests", partial(JobRequests, sleep=lambda seconds: running.answer()))
    return running


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance, resources: dict[str, Any]
) -> Callable[..., ExecuteInProcessResult]:
    jobs: dict[str, JobDefinition] = {
        job.name: job for job in build_flink_jobs(word_count(tmp_path, ["a"]), name="words")
    }
    monkeypatch.setattr(runtime_job, "JobAttempt", FakeAttempt.factory())

    def execute(verb: str, **config: Any) -> ExecuteInProcessResult:
        job = jobs[f"words_{verb}"]
        (op,) = job.nodes
        return job.execute_in_process(
            {"ops": {op.name: {"config": config}}}, instance, resources=resources, raise_on_error=False
        )

    return execute


def observed(result: ExecuteInProcessResult) -> dict[str, Any]:
    events = result.filter_events(lambda e: e.event_type is DagsterEventType.ASSET_OBSERVATION)
    found = [e.asset_observation_data.asset_observation for e in events]
    assert {each.asset_key.path[-1] for each in found} == {"words", "count", "table"}
    (count,) = (each for each in found if each.asset_key == COUNT)
    return {**count.metadata, "said": count.description}


def failure(result: ExecuteInProcessResult) -> str:
    [failed] = [e for e in result.all_events if e.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    return str(data.description) if data else str(failed.step_failure_data.error)


def test_a_running_job_takes_a_savepoint(run: Any, at_work: RunningJob, tmp_path: Path) -> None:
    result = run("savepoint", target=str(tmp_path / "kept"), format_type="CANONICAL")
    assert result.success and not FakeAttempt.made
    path = result.output_for_node("take_savepoint_of_words")
    assert path.startswith((tmp_path / "kept").as_uri())
    assert at_work.orders == [Order(RequestKind.SAVEPOINT, target=(tmp_path / "kept").as_uri())]
    facts = observed(result)
    assert facts["flink/checkpoint_id"] == MetadataValue.int(2)
    assert facts["flink/savepoint"] == MetadataValue.path(path.removeprefix("file://"))
    assert facts["said"] == "Savepoint of checkpoint 2"
    assert facts["flink/parallelism"] == MetadataValue.int(2)
    assert at_work.stored_requests() == []


def test_a_running_job_is_stopped(run: Any, at_work: RunningJob) -> None:
    result = run("stop", drain=True, format_type="NATIVE")
    assert result.success and not FakeAttempt.made
    assert at_work.orders == [Order(RequestKind.STOP, format_type=SavepointFormatType.NATIVE, drain=True)]
    assert observed(result)["said"] == "Stopped with checkpoint 2"


@pytest.mark.parametrize("verb", ["savepoint", "stop"])
def test_what_is_no_folder_is_refused(run: Any, at_work: RunningJob, verb: str) -> None:
    assert "has the control character" in failure(run(verb, target="kept\0"))
    assert not at_work.orders and at_work.stored_requests() == []


@pytest.mark.parametrize("later", [False, True])
def test_a_running_job_is_rescaled(run: Any, at_work: RunningJob, later: bool) -> None:
    if later:  # the checkpoint is subsumed before the asker reads it
        complete = at_work.take_checkpoint

        def twice() -> int:
            number = complete()
            complete()
            at_work.checkpoints.store.delete(f"chk-{number}/_metadata")
            return number

        at_work.take_checkpoint = twice  # type: ignore[method-assign]
    result = run("rescale", parallelism=3)
    assert result.success and not FakeAttempt.made
    assert at_work.orders == [Order(RequestKind.RESCALE, parallelism=3)]
    number = 3 if later else 2
    assert result.output_for_node("rescale_words") == number
    facts = observed(result)
    assert facts["said"] == f"Job words is rescaled to parallelism 3 while it runs, with its checkpoint {number}"
    assert facts["flink/checkpoint_id"] == MetadataValue.int(number)


def test_what_the_job_refuses_fails_with_its_reason(run: Any, at_work: RunningJob) -> None:
    at_work.error = ConfigurationError("parallelism 99 is above the maximum of 16")
    result = run("rescale", parallelism=99)
    assert failure(result) == "parallelism 99 is above the maximum of 16"
    assert not FakeAttempt.made


@pytest.mark.parametrize(("verb", "config"), [("restore", {"savepoint_path": "x"}), ("reset", {"checkpoint_id": 1})])
def test_what_changes_the_past_of_a_job_is_refused_while_it_runs(
    run: Any, at_work: RunningJob, verb: str, config: dict[str, Any]
) -> None:
    assert "is working on job words" in failure(run(verb, **config))
    assert not at_work.orders and not FakeAttempt.made


def test_a_run_that_was_killed_is_not_asked(run: Any, at_work: RunningJob, instance: DagsterInstance) -> None:
    (other,) = instance.get_runs()
    instance.report_run_failed(other)
    assert run("savepoint").success
    assert FakeAttempt.made and not at_work.orders


def test_an_attempt_outside_of_dagster_is_asked(
    run: Any, at_work: RunningJob, tmp_path: Path, instance: DagsterInstance
) -> None:
    instance.delete_run(instance.get_runs()[0].run_id)
    assert run("savepoint").success
    assert at_work.orders and not FakeAttempt.made


def test_a_run_that_ends_before_it_is_asked_is_replaced(
    run: Any, at_work: RunningJob, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> None:
        at_work.checkpoints.end_attempt(at_work.attempt)
        instance.report_run_failed(instance.get_runs(limit=10)[-1])
        at_work.when_asked = lambda: monkeypatch.setattr("dagster_flinkpy.checkpoint.requests._GRACE_MS", 0)
        monkeypatch.setattr(at_work, "answer", at_work.when_asked)

    at_work.when_asked = end
    monkeypatch.setattr(RequestInbox, "poll", lambda self: [])
    assert run("savepoint").success
    assert FakeAttempt.made and at_work.stored_requests() == []


def test_a_run_that_is_terminated_withdraws_its_request(run: Any, at_work: RunningJob) -> None:
    def interrupt() -> None:
        assert at_work.stored_requests()
        raise DagsterExecutionInterruptedError

    at_work.when_asked = interrupt
    assert not run("stop").success
    at_work.when_asked = lambda: None
    at_work.answer()
    assert not at_work.orders
