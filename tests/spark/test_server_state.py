from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.spark.processes import ProcessId
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE, ServerState, StateFile, runtime_directory

GONE = ProcessId(999999999, 1.0)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[ServerState]:
    here = ProcessId.current()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield ServerState(
            port=listening.getsockname()[1],
            token="secret",
            server=here,
            supervisor=here,
            owners=(here,),
            log=str(tmp_path / "spark-1.log"),
            scratch=str(tmp_path / "scratch"),
        )


def test_a_state_is_read_as_it_was_written(tmp_path: Path, state: ServerState) -> None:
    state_file = StateFile(tmp_path / "spark-1.json")
    with state_file.locked():
        state_file.write(state)
        assert state_file.read() == state
        assert stat.S_IMODE(state_file.path.stat().st_mode) == 0o600
        state_file.remove()
        assert state_file.read() is None


def test_a_server_that_starts_is_stale_when_its_supervisor_has_ended(tmp_path: Path) -> None:
    here, state_file = ProcessId.current(), StateFile(tmp_path / "spark-1.json")
    starting = ServerState("secret", here, (here,), "spark-1.log")
    state_file.write(starting)
    assert state_file.read() == starting and starting.staleness() is None
    assert "supervisor 999999999 has ended" in str(replace(starting, supervisor=GONE).staleness())
    replace(starting, supervisor=GONE).destroy()


HELD = """
import sys
from pathlib import Path
from dagster_flinkpy.spark.server_state import StateFile

with StateFile(Path(sys.argv[1])).locked():
    print("held", flush=True)
    input()
"""


def test_whoever_holds_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.spark.server_state._LOCK_TIMEOUT_SECONDS", 0.1)
    state_file = StateFile(tmp_path / "spark-1.json")
    command = [sys.executable, "-c", HELD, str(state_file.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(SparkUnavailableError, match=rf"(?s)held by process {holder.pid} \(.*, stopped\)"):
            state_file.locked().__enter__()
        holder.kill()
    with state_file.locked():
        pass


@pytest.mark.parametrize("content", ["", "[]", "{", '{"port": 1}', '{"port": "x", "token": "t"}'])
def test_an_unreadable_state_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "spark-1.json").write_text(content)
    assert StateFile(tmp_path / "spark-1.json").read() is None


def test_what_makes_a_server_stale(state: ServerState) -> None:
    assert state.staleness() is None
    assert "process 999999999 has ended" in str(replace(state, server=GONE).staleness())
    assert "supervisor 999999999 has ended" in str(replace(state, supervisor=GONE).staleness())
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed_port = other.getsockname()[1]
    assert f"port {closed_port} does not answer" in str(replace(state, port=closed_port).staleness())


def test_owners_are_told_apart_and_forgotten_when_they_end(state: ServerState) -> None:
    here = ProcessId.current()
    assert state.with_owner(here) == state
    assert state.with_owner(GONE).owners == (here, GONE)
    assert state.with_owner(GONE).without_ended_owners() == state


def test_the_runtime_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "a" / "b"))
    assert runtime_directory() == tmp_path / "a" / "b"
    assert stat.S_IMODE(runtime_directory().stat().st_mode) == 0o700


def test_a_link_is_not_taken_for_the_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    monkeypatch.setenv(RUNTIME_DIR_VARIABLE, str(tmp_path / "ours"))
    with pytest.raises(SparkUnavailableError, match="not a directory of this user"):
        runtime_directory()
