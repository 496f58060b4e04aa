from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.runtime.processes import ProcessId
from dagster_flinkpy.runtime.server_state import RUNTIME_DIR_VARIABLE, ServerState, StateFile, runtime_directory

GONE = ProcessId(999999999, "1")


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
