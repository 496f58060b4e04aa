"""``env.execute_async()``: the client of a job that runs on a thread of this process."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.checkpoint import requests
from dagster_flinkpy.checkpoint.requests import JobRequests
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common import Configuration, Duration, JobClient, JobStatus, WatermarkStrategy
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.errors import (
    ConfigurationError,
    JobCancelledError,
    JobNotRunningError,
    RequestFailedError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import FolderSink, environment
from tests.waiting import until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=50))
    monkeypatch.setattr(requests, "_LOOK_SECONDS", 0.02)


def local() -> StreamExecutionEnvironment:
    env, configuration = environment(), Configuration()
    configuration.set_string("execution.local", "true")
    env.configure(configuration)
    return env


def endless(folder: Path, checkpoints: Path | None) -> JobClient:
    """Starts a job that copies the lines of files, and waits for more."""
    (folder / "in").mkdir(exist_ok=True)
    env = local()
    if checkpoints is not None:
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(checkpoints))
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder / "in"))
    source.monitor_continuously(Duration.of_millis(20))
    lines = env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    lines.map(lambda line: (line,)).uid("rows").sink_to(FolderSink(folder / "out")).uid("sink")
    return env.execute_async("copy")


def test_a_job_runs_beside_the_program_until_it_is_stopped(tmp_path: Path) -> None:
    client = endless(tmp_path, tmp_path / "checkpoints")
    assert client.get_job_id() == "copy"
    (tmp_path / "in" / "a").write_text("1\n2\n")
    bad = [client.trigger_savepoint(str(tmp_path / "checkpoints" / "copy" / "shared"))]
    bad += [client.stop_with_savepoint(False, str(tmp_path / "in" / "x"))]
    first = client.trigger_savepoint(str(tmp_path / "kept")).result()
    for each in bad:
        with pytest.raises(RequestFailedError, match="no savepoint can be written to"):
            each.result()
    with pytest.raises(ConfigurationError, match="control character"):
        client.trigger_savepoint("\0").result()
    assert first.startswith((tmp_path / "kept").as_uri())
    assert client.get_job_status().result() is JobStatus.RUNNING
    last = client.stop_with_savepoint(False).result()
    assert open_checkpoint(StorageLocation(last)).metadata.stopped
    result = client.get_job_execution_result().result()
    assert result.get_job_id() == "copy" and result.last_checkpoint_id is not None
    assert client.get_job_status().result() is JobStatus.FINISHED
    with pytest.raises(JobNotRunningError, match="it is FINISHED"):
        client.trigger_savepoint().result()


def test_a_job_is_cancelled(tmp_path: Path) -> None:
    client = endless(tmp_path, None)
    client.cancel().result()
    assert client.get_job_status().result() is JobStatus.CANCELED
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result()


def test_an_answer_is_there_until_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = JobRequests.wait

    def wait_late(self: JobRequests, request_id: str, timeout: timedelta) -> requests.Answer:
        while self.running() is not None:
            time.sleep(0.01)
        return wait(self, request_id, timeout)

    monkeypatch.setattr(JobRequests, "wait", wait_late)
    client = endless(tmp_path, None)
    client.cancel().result()
    assert client.get_job_status().result() is JobStatus.CANCELED


def test_a_savepoint_is_not_written_where_it_would_be_deleted(tmp_path: Path) -> None:
    client = endless(tmp_path, None)
    with pytest.raises(ConfigurationError, match="the savepoint needs a folder"):
        client.trigger_savepoint().result()
    url = client.stop_with_savepoint(True, str(tmp_path / "kept")).result()
    assert open_checkpoint(StorageLocation(url)).metadata.end_of_input


def test_a_job_that_waits_for_its_restart_says_so() -> None:
    env, configuration = local(), Configuration()
    configuration.set_string("restart-strategy.type", "fixed-delay")
    configuration.set_string("restart-strategy.fixed-delay.delay", "1 h")
    env.configure(configuration)
    env.from_collection([1]).map(lambda value: 1 // (value - 1)).print()
    client, seen = env.execute_async(), set[JobStatus]()

    def restarts() -> bool:
        seen.add(client.get_job_status().result())
        return JobStatus.RESTARTING in seen

    until(restarts, "the job does not wait for a restart")
    assert seen <= {JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING}
    client.cancel().result()
    assert client.get_job_status().result() is JobStatus.CANCELED


def test_the_error_of_a_job_is_that_of_its_result() -> None:
    env = local()
    env.from_collection([1]).map(lambda value: 1 // (value - 1)).print()
    client = env.execute_async()
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        client.get_job_execution_result().result()
    assert client.get_job_status().result() is JobStatus.FAILED
    with pytest.raises(JobNotRunningError, match="it is FAILED"):
        client.cancel().result()


def test_a_failure_is_logged_even_if_nobody_asks_for_the_result(caplog: pytest.LogCaptureFixture) -> None:
    def fails(value: int) -> int:
        raise ValueError("boom")

    env = local()
    env.from_collection([1]).map(fails).print()
    client = env.execute_async("fails")
    assert isinstance(client.get_job_execution_result().exception(), UserFunctionError)
    (said,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert said.getMessage().startswith("the job has failed: UserFunctionError: map() of operator")
