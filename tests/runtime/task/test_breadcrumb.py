"""Python workers that die, or are forked, in a user function."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.errors import PythonWorkerLostError, UserFunctionError
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.failover import (
    FailoverConfig,
    FailoverStrategy,
    RestartIndividualStrategy,
    RestartPipelinedRegionStrategy,
)
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.task import breadcrumb
from dagster_flinkpy.runtime.task.breadcrumb import Breadcrumb, read_breadcrumb
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import EVENT, environment, events

RECORDS = [("a", 0, 1), ("b", 1, 2), ("c", 2, 3)]


@pytest.fixture
def worker_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns the file of this process, as Spark passes it to a worker."""
    monkeypatch.setenv("PYTHON_FAULTHANDLER_DIR", str(tmp_path))
    monkeypatch.setattr(breadcrumb.faulthandler, "enable", lambda file: None)
    breadcrumb._note_of.cache_clear()
    path = tmp_path / str(os.getpid())
    path.touch()
    yield path
    breadcrumb._note_of.cache_clear()


def test_the_operator_at_work_stands_in_the_file_of_the_worker(worker_file: Path) -> None:
    note = Breadcrumb(3)
    note.leave("a")
    note.leave("it's 1/2")
    assert read_breadcrumb(worker_file.read_text()) == ("it's 1/2", 3)
    note.leave("ü" * 1000)
    assert read_breadcrumb(worker_file.read_text()) == ("ü" * 100, 3)
    note.clear()
    assert read_breadcrumb(worker_file.read_text()) is None
    assert len(worker_file.read_bytes()) == 512


def test_what_faulthandler_writes_comes_behind_it(worker_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breadcrumb.faulthandler, "enable", lambda file: os.write(file, b"Fatal Python error"))
    note = Breadcrumb(0)
    note.leave("it")
    text = worker_file.read_text()
    assert read_breadcrumb(text) == ("it", 0) and text.endswith("Fatal Python error")


def test_without_the_file_there_is_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHON_FAULTHANDLER_DIR", raising=False)
    breadcrumb._note_of.cache_clear()
    note = Breadcrumb(0)
    note.leave("it")
    note.clear()


# --- forks ------------------------------------------------------------------------------------------------------------


def program(action: Callable[[], Any]) -> Any:
    def at_b(event: Any) -> Any:
        if event.key == "b":
            action()
        return event

    stream = events(environment(1), RECORDS, batch_size=10).map(lambda event: event, EVENT).uid("before")
    return collect_graph(stream.map(at_b, EVENT).uid("it").map(lambda event: event, EVENT).uid("behind"))


def fork_and_exit() -> None:
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    else:
        sys.exit(7)


def fork_and_fail() -> None:
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    else:
        raise ValueError("only here")


def fork() -> None:
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.parametrize("action", [fork, fork_and_exit, fork_and_fail])
def test_a_forked_child_does_not_go_on_as_a_second_task(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], action: Callable[[], None]
) -> None:
    with HarnessAttempt(program(action), tmp_path) as attempt:
        attempt.run_epoch()
        assert len(collected(attempt.graph, attempt.collected)) == 3
    said = "a function of operator 'it' forked its process" in capfd.readouterr().err
    assert said == (action is not fork_and_exit)


# --- on Spark ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(
    tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[[], Any]], int]:
    """Runs an epoch on the Spark of the tests, and returns the number of its records."""
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))

    def run_epoch(job: str, action: Callable[[], Any], failover: FailoverStrategy | None = None) -> int:
        strategies = FailoverConfig(failover=failover or RestartPipelinedRegionStrategy())
        config = JobConfig(job, StorageLocation(str(tmp_path)), failover=strategies)
        with JobAttempt(program(action), config, owner="test") as attempt:
            attempt.run_epoch()
            return len(collected(attempt.graph, attempt.collected))

    return run_epoch


def leave() -> None:
    os._exit(0)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    ctypes.string_at(0)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("action", "said"),
    [(leave, "called os._exit"), (kill, "ran out of memory"), (crash, "Fatal Python error: Segmentation fault")],
)
def test_a_worker_that_dies_is_reported_with_the_operator(
    run: Callable[..., int], action: Callable[[], None], said: str
) -> None:
    with pytest.raises(PythonWorkerLostError) as raised:
        run("dies", action)
    message, error = str(raised.value), raised.value
    assert (error.operator, error.subtask) == ("it", 0)
    assert message.startswith("a Python worker died while it ran subtask 0 of operator 'it' (checkpoint 1 of job")
    assert said in message and "org.apache.spark" not in message
    if action is crash:
        assert "in crash" in message
    assert run("after", lambda: None) == 3


@pytest.mark.spark
def test_a_task_whose_worker_was_killed_runs_again(run: Callable[..., int], tmp_path: Path) -> None:
    """Spark does it, so nobody else notices."""
    killed = tmp_path / "killed"

    def kill_once() -> None:
        if not killed.exists():
            killed.touch()
            kill()

    assert run("is killed", kill_once) == 3
    assert killed.exists()


@pytest.mark.spark
def test_with_restart_individual_spark_runs_a_task_again_whose_function_raised(
    run: Callable[..., int], tmp_path: Path
) -> None:
    tries = tmp_path / "tries"

    def raise_twice() -> None:
        number = len(tries.read_text()) if tries.exists() else 0
        tries.write_text("x" * (number + 1))
        if number < 2:
            raise ValueError("a hiccup")

    assert run("is tried again", raise_twice, RestartIndividualStrategy()) == 3
    tries.unlink()
    with pytest.raises(UserFunctionError, match="a hiccup") as raised:
        run("is not tried again", raise_twice)
    assert raised.value.operator == "it"


@pytest.mark.spark
def test_a_fork_in_a_user_function_spoils_neither_this_run_nor_the_next(run: Callable[..., int]) -> None:
    for action in (fork, fork_and_exit, fork_and_fail):
        assert run(action.__name__, action) == 3
    assert run("does not fork", lambda: None) == 3


@pytest.mark.spark
def test_a_function_that_exits_keeps_its_worker(run: Callable[..., int]) -> None:
    def leave_politely() -> None:
        raise SystemExit(3)

    with pytest.raises(UserFunctionError, match=r"map\(\) of operator 'it' .*raised SystemExit: 3 \(value: Row"):
        run("exits", leave_politely)
    assert run("after", lambda: None) == 3
