"""Warnings of the library reach the log of the run that they belong to."""

from __future__ import annotations

import importlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_flinkpy.common import Configuration
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream.functions import KeyedProcessFunction
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import build_restart_sensor, flink_assets
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.master.mailbox import Lane, ThreadMailbox
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, line: str) -> None:
        self.lines.append(line)


def warn(text: str) -> None:
    logging.getLogger("dagster_flinkpy.some.module").warning("%s", text)


def test_two_runs_of_a_process_get_their_own_warnings() -> None:
    logs, both = [Log(), Log()], threading.Barrier(2)

    def run(number: int) -> None:
        log: Any = logs[number]
        mailbox = ThreadMailbox()
        with flink_failures(log), flink_failures(log):
            both.wait()
            warn(f"of the thread {number}")
            mailbox.submit(Lane.STORE, lambda: warn(f"of the lane {number}"))
            mailbox.take()
            both.wait()
        mailbox.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2)))
    assert [log.lines for log in logs] == [[f"of the thread {n}", f"of the lane {n}"] for n in range(2)]
    warn("after them")
    assert not any("after them" in log.lines for log in logs)


def test_a_thread_that_knows_no_run_warns_all() -> None:
    log: Any = Log()
    with flink_failures(log), ThreadPoolExecutor(1) as threads:
        threads.submit(warn, "of metrics").result()
    assert log.lines == ["of metrics"]


def test_errors_are_step_failures() -> None:
    with pytest.raises(dg.Failure, match="a wrong option") as raised, flink_failures():
        raise ConfigurationError("a wrong option")
    assert not raised.value.allow_retries


class Raises(KeyedProcessFunction):
    def __init__(self, once: Path | None) -> None:
        self._once = once

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self._once is None:
            importlib.import_module("no_such_module")
        elif not self._once.exists():
            self._once.touch()
            raise ConnectionError("the service is away")
        return [(value, 1)]


class Quotes(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        raise ValueError("no color \ud83d")


def run(
    folder: Path, function: KeyedProcessFunction, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> tuple[list[dg.AssetsDefinition], dg.ExecuteInProcessResult]:
    env, options = word_count(folder / "table", ["a"], function=function), Configuration()
    options.set_string("restart-strategy.type", "fixed-delay")
    options.set_string("restart-strategy.fixed-delay.attempts", "5")
    options.set_string("restart-strategy.fixed-delay.delay", "0 s")
    env.configure(options)
    assets: list[Any] = flink_assets(env, name="words")
    tags = {JOB_TAG: "words"}
    return assets, dg.materialize(assets, instance=instance, resources=resources, raise_on_error=False, tags=tags)


@pytest.fixture
def in_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda attempt, epoch: run_rows(epoch))


@pytest.mark.usefixtures("in_harness")
def test_restarts_are_warnings_in_the_log_of_the_run(
    tmp_path: Path, instance: dg.DagsterInstance, resources: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    _, result = run(tmp_path, Raises(tmp_path / "raised"), instance, resources)
    assert result.success
    logged = [e.event_log_entry for e in instance.get_records_for_run(result.run_id).records]
    restarts = [e for e in logged if "runs the epoch again: restart 1 of 5 after 0 ms" in e.user_message]
    assert [e.level for e in restarts] == [logging.WARNING]
    assert "raised ConnectionError: the service is away" in restarts[0].user_message


@pytest.mark.usefixtures("in_harness")
def test_nobody_tries_a_function_again_whose_module_is_missing(
    tmp_path: Path, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    assets, result = run(tmp_path, Raises(None), instance, resources)
    (failure,) = result.get_step_failure_events()
    assert failure.step_failure_data.user_failure_data is not None
    metadata = failure.step_failure_data.user_failure_data.metadata
    assert (metadata["error"].value, metadata["operator"].value) == ("UserFunctionError", "count")
    assert metadata["permanent"].value is True and metadata["restarts"].value == 0
    sensor = build_restart_sensor(assets, strategy=FixedDelayRestart(9))
    repository = dg.Definitions(assets=assets, sensors=[sensor], resources=resources).get_repository_def()
    tick = sensor.evaluate_tick(dg.build_sensor_context(instance, repository_def=repository))
    assert "which a retry cannot fix" in str(tick.skip_message)


@pytest.mark.usefixtures("in_harness")
def test_what_is_printed_of_a_failed_step_ends_with_what_happened_and_the_file_of_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: dict[str, Any]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        _, result = run(tmp_path, Raises(None), instance, resources)
    (failure,) = result.get_step_failure_events()
    assert failure.step_failure_data.error is not None
    *_, last = failure.step_failure_data.error.to_string().rstrip().splitlines()
    file = tmp_path / "storage" / result.run_id / "words.traceback.txt"
    assert "process_element() of operator 'count'" in last
    assert last.endswith(f"No module named 'no_such_module' (value: 'a') (traceback: {file})")
    assert "in run_epochs" in file.read_text()


@pytest.mark.usefixtures("in_harness")
def test_an_error_of_user_code_that_quotes_half_an_emoji_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: dict[str, Any]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        _, result = run(tmp_path, Quotes(), instance, resources)
    (failure,) = result.get_step_failure_events()
    assert failure.step_failure_data.user_failure_data is not None
    assert failure.step_failure_data.user_failure_data.metadata["operator"].value == "count"
    assert "no color \\ud83d" in (tmp_path / "storage" / result.run_id / "words.traceback.txt").read_text()
