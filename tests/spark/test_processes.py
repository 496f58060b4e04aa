from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.spark.processes import (
    OWNER_PID_VARIABLE,
    PYTHON_DAEMON,
    ProcessId,
    childless_daemons,
    find_owner,
    is_dagster_command,
)
from dagster_flinkpy.spark.server import _Daemons
from dagster_flinkpy.spark.sessions import SparkSettings


@pytest.fixture
def child() -> subprocess.Popen[bytes]:
    with subprocess.Popen([sys.executable, "-c", "input()", PYTHON_DAEMON], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_is_alive_until_it_ends(child: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(child.pid)
    assert process is not None and process.is_alive()
    child.kill()
    assert process.await_end(300)
    assert ProcessId.of(child.pid) is None  # although it has not been reaped yet


def test_a_later_process_with_the_same_pid_is_another() -> None:
    here = ProcessId.current()
    assert not replace(here, started=here.started - 60).is_alive()


def test_a_stopped_process_is_described_as_such(child: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(child.pid)
    assert process is not None and f"process {child.pid} ({sys.executable} -c input()" in process.describe()
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert process.describe().endswith(", stopped)")
    child.kill()
    child.wait()
    assert process.describe() == f"process {child.pid}"


def test_await_end_gives_up(child: subprocess.Popen[bytes]) -> None:
    process = ProcessId.of(child.pid)
    assert process is not None and not process.await_end(0)


@pytest.mark.parametrize(
    ("command", "is_dagster"),
    [
        ("/venv/bin/python /venv/bin/dagster dev -p 3000", True),
        ("dagster-daemon run", True),
        ("python -m dagster api grpc --lazy-load-user-code", True),
        ("python -m dagster._daemon run", True),
        ("python -m dagster_webserver", True),
        ("/home/me/dagster/.venv/bin/python job.py", False),
        ("python -m dagster_flinkpy.cli", False),
        ("vim dagster.yaml dagster", False),
        ("bash /src/dagster-flinkpy/.ci/run", False),
    ],
)
def test_which_commands_are_dagsters(command: str, is_dagster: bool) -> None:
    assert is_dagster_command(command.split()) == is_dagster


def test_without_dagster_a_process_owns_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OWNER_PID_VARIABLE, raising=False)
    assert find_owner() == ProcessId.current()


def test_below_dagster_the_outermost_dagster_process_is_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OWNER_PID_VARIABLE, raising=False)
    ask = "from dagster_flinkpy.spark.processes import find_owner; print(find_owner().pid)"
    run = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}])"
    spawn = f"import os, subprocess, sys; print(os.getpid()); subprocess.run([sys.executable, '-uc', {run!r}])"
    # `-m dagster` after `-c PROGRAM` are arguments of the program, so it looks like Dagster but is not.
    printed = subprocess.run([sys.executable, "-uc", spawn, "-m", "dagster"], capture_output=True, text=True).stdout
    dagster, owner = printed.split()
    assert owner == dagster


def test_the_variable_names_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNER_PID_VARIABLE, str(os.getppid()))
    assert find_owner() == ProcessId.of(os.getppid())


@pytest.mark.parametrize("named", ["none", "999999999"])
def test_the_variable_must_name_a_running_process(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv(OWNER_PID_VARIABLE, named)
    with pytest.raises(ConfigurationError, match=f"{OWNER_PID_VARIABLE}={named}"):
        find_owner()


def test_childless_daemons_are_those_of_the_server(child: subprocess.Popen[bytes]) -> None:
    assert childless_daemons(os.getpid()) == [child.pid]
    assert not childless_daemons(child.pid)


def test_of_daemons_without_workers_the_latest_stays(child: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", PYTHON_DAEMON], stdin=subprocess.PIPE) as later:
        daemons = _Daemons(os.getpid())
        daemons.kill_idle()
        assert childless_daemons(os.getpid()) == [child.pid, later.pid]  # they may just have been started
        daemons.kill_idle()
        assert child.wait(300) == -signal.SIGKILL
        daemons.kill_idle()
        assert childless_daemons(os.getpid()) == [later.pid]
        later.kill()


@pytest.mark.parametrize("url", ["sc://", "sc://[bad", "sc://host:port", "sc://:15002", "http://host:15002"])
def test_what_is_no_spark_connect_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Spark Connect URL"):
        SparkSettings("remote", remote=url)
