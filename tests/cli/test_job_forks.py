from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_flinkpy.cli import main
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from tests.cli.test_leader_and_savepoint import REST, counted, counts, error_of, printed
from tests.runtime.harness import HarnessAttempt


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Creates a job with one checkpoint, on which no run is active."""
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
    return tmp_path / "job"


def test_a_fork_is_created_listed_and_disposed_of(job: Path, tmp_path: Path) -> None:
    said = printed("job", "fork", job, "--as", "copy", "--at", "chk-1")
    assert said == f"{(tmp_path / 'copy').as_uri()} continues from checkpoint 2\n"
    assert counts(tmp_path, job_id="copy") == REST
    [fork] = json.loads(printed("job", "forks", job, "--json"))
    assert (fork["job_id"], fork["finished"], fork["files"]) == ("copy", True, 0)
    assert "copy" in printed("job", "forks", job)
    assert "there is a job 'copy' already" in error_of("job", "fork", job, "--as", "copy")
    asked = CliRunner().invoke(main, ["job", "dispose", str(tmp_path / "copy")], input="n\n")
    assert asked.exit_code == 1 and "for ever, with leader (token 2" in asked.stderr
    assert printed("job", "dispose", tmp_path / "copy", "--yes") == f"{tmp_path / 'copy'} is deleted\n"
    assert json.loads(printed("job", "forks", job, "--json")) == []
    assert counts(tmp_path) == REST
    assert "there is no job in" in error_of("job", "forks", tmp_path / "misspelt")


def test_a_user_without_a_name_may_fork(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with any uid."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    printed("job", "fork", job, "--as", "copy")
    leader = (job.parent / "copy" / "leader").read_text()
    assert f"flinkpy job fork by uid {2**31 - 7} on" in leader


def test_it_is_said_which_forks_need_files_of_a_job_that_is_disposed_of(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ColumnarKeyedStateBackend.__init__.__kwdefaults__, "inline_below", 0)
    counts(tmp_path)
    printed("job", "fork", job, "--as", "copy")
    assert printed("job", "dispose", job, "--yes") == f"{job} is deleted, but for files that its forks need: copy\n"
