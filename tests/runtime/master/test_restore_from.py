"""The values of ``restore_from``, including the folder of a job, which means its latest checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import ConfigurationError, RestoreError
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_lost_objects import listing, program


def attempt(folder: Path, restore_from: str, job_id: str = "job") -> HarnessAttempt:
    claim = RecoveryClaimMode.CLAIM
    return HarnessAttempt(program(folder), folder / "state", job_id=job_id, restore_from=restore_from, claim_mode=claim)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with HarnessAttempt(program(tmp_path), tmp_path / "state") as run:
        run.run_epoch()
        run.run_epoch()
    return tmp_path


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_jobs_own_folder_is_its_latest_checkpoint(folder: Path, slash: str) -> None:
    with attempt(folder, f"{folder / 'state' / 'job'}{slash}") as run:
        assert run.restored is not None and run.restored.checkpoint_id == 2
        assert run.run_epoch().checkpoint_id == 3


def test_an_own_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with (
        pytest.raises(RestoreError, match="this job's own folder, and it has no completed checkpoint"),
        attempt(tmp_path, str(tmp_path / "state" / "job")),
    ):
        pass


def test_the_folder_of_another_job_needs_a_savepoint(folder: Path) -> None:
    before = listing(folder)
    with (
        pytest.raises(RestoreError, match=r"folder of another job, at checkpoint 2, .*'flinkpy savepoint trigger"),
        attempt(folder, str(folder / "state" / "job"), job_id="other"),
    ):
        pass
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("", RestoreError, "restore_from is empty"),
        (" ", RestoreError, "restore_from is empty"),
        ("s3://", ConfigurationError, "names no bucket"),
        ("sc://[bad", ConfigurationError, "must be s3://bucket/prefix"),
        ("file://[bad/x", ConfigurationError, "is not a URL"),
    ],
)
def test_what_is_no_place(folder: Path, path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message), attempt(folder, path):
        pass
