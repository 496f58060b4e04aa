"""What restores, stops and another folder of checkpoints mean for the next partition."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, Definitions, ExecuteInProcessResult

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.offline import release_leadership, restore_savepoint, stop_with_savepoint
from dagster_flinkpy.checkpoint.recovery import recover_head
from dagster_flinkpy.checkpoint.savepoints.savepoint import load_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import CheckpointError, RestoreError
from dagster_flinkpy.orchestration import CheckpointStorageResource, build_flink_jobs
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage import StorageLocation
from tests.orchestration.runs.test_partitioned_run import KEYS, WORDS, Deployment, failure_of, letters, straight_run
from tests.runtime.harness import run_rows

NO_END = "is not the end state of a partition"


class Job(Deployment):
    """The letters with the jobs of their savepoints."""

    @property
    def location(self) -> StorageLocation:
        location: StorageLocation = self.resources["checkpoint_storage"].location()
        return location.child(self.name)

    def launch(self, verb: str, op: str, **config: Any) -> ExecuteInProcessResult:
        jobs = build_flink_jobs(letters(self.tmp_path / "table"), name="letters")
        definitions = Definitions(self.assets(), jobs=jobs, resources=self.resources)
        return definitions.resolve_job_def(f"letters_{verb}").execute_in_process(
            {"ops": {op: {"config": config}}}, instance=self.instance, raise_on_error=False
        )

    def savepoint(self, **config: Any) -> str:
        path = self.launch("savepoint", "take_savepoint_of_letters", **config)
        return str(path.output_for_node("take_savepoint_of_letters"))

    def restore(self, savepoint: str) -> ExecuteInProcessResult:
        return self.launch("restore", "restore_letters", savepoint_path=savepoint)

    def restore_offline(self, savepoint: str) -> int:
        now = current_millis()
        return restore_savepoint(
            self.location, StorageLocation(savepoint), owner="test", now_ms=now, allow_pickled_state=True
        )

    @property
    def ends(self) -> dict[str, int]:
        found = read_head(self.location.open())
        return {} if found is None else {end.partition: end.checkpoint_id for end in found[0].partitions}


@pytest.fixture
def job(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    return Job(tmp_path, instance, resources)


def test_a_restored_end_state_is_where_the_next_partition_starts(job: Job) -> None:
    job.run(KEYS[0], KEYS[1])
    savepoint = job.savepoint()
    job.run(KEYS[2])
    assert job.restore(savepoint).success
    assert job.restore(savepoint).success
    assert job.ends == {KEYS[0]: 1, KEYS[1]: 5, KEYS[2]: 3}
    assert job.restore_offline(savepoint) == 6
    assert job.restore_offline(savepoint) == 7
    assert job.ends == {KEYS[0]: 1, KEYS[1]: 7, KEYS[2]: 3}
    assert job.launch("rescale", "rescale_letters", parallelism=2).success
    assert job.ends[KEYS[1]] == 8
    assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])


@pytest.mark.system
@pytest.mark.short("run")
@pytest.mark.parametrize("verb", ["run", "rescale"])
def test_a_partition_starts_from_what_is_there_once_its_run_leads(
    job: Job, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Another instance, whose runs this one does not know, works on the job while the run waits for its lease."""
    job.run(KEYS[0], KEYS[1])
    with DagsterInstance.ephemeral() as instance:
        theirs, enter = Job(job.tmp_path, instance, job.resources), JobAttempt.__enter__

        def late(attempt: JobAttempt) -> JobAttempt:
            monkeypatch.setattr(JobAttempt, "__enter__", enter)
            if verb == "run":
                assert theirs.run(KEYS[1]).success
            else:
                assert theirs.launch("rescale", "rescale_letters", parallelism=2).success
            return attempt.__enter__()

        monkeypatch.setattr(JobAttempt, "__enter__", late)
        assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])
    checkpoints = CompletedCheckpointStore(job.location.open())
    latest = checkpoints.latest()
    assert latest is not None
    assert checkpoints.load(job.ends[KEYS[2]]).parent_id == job.ends[KEYS[1]] == 3
    assert {operator.parallelism for operator in latest.operators} == {2 if verb == "rescale" else 1}


@pytest.mark.system
def test_a_claimed_savepoint_is_there_until_all_partitions_of_a_run_are_complete(job: Job) -> None:
    job.run(KEYS[0], KEYS[1])
    savepoint = job.savepoint()
    config = {"restore_from": savepoint, "claim_mode": "CLAIM"}
    assert "b is poison" in failure_of(job.run(KEYS[2], KEYS[4], poison="b", **config))
    assert KEYS[3] in job.ends
    assert job.run(KEYS[2], KEYS[4], **config).success
    assert job.table() == straight_run(KEYS[:5])
    assert not list(Path(savepoint.removeprefix("file://")).rglob("_metadata"))


@pytest.mark.system
def test_state_from_which_no_partition_would_start_is_not_restored(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run(KEYS[0], KEYS[1])
    savepoint = job.savepoint()
    monkeypatch.setitem(WORDS, KEYS[1], "zzz")
    job.run(KEYS[1])
    assert NO_END in failure_of(job.restore(savepoint))
    with pytest.raises(RestoreError, match=NO_END):
        job.restore_offline(savepoint)
    assert job.ends == {KEYS[0]: 1, KEYS[1]: 3}
    assert job.run(KEYS[3], restore_from=savepoint).success, "as the error says"
    assert job.table()[KEYS[3]] == Counter({("a", n): 1 for n in range(4, 8)})


@pytest.mark.system
def test_partitions_of_a_stopped_job_wait_for_a_restore(job: Job) -> None:
    job.run(KEYS[0], KEYS[1])
    stopped = job.launch("stop", "stop_letters")
    refused = failure_of(job.run(KEYS[2], KEYS[3]))
    assert "was stopped with a savepoint, at checkpoint 3" in refused
    assert job.restore(stopped.output_for_node("stop_letters")).success
    assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])


@pytest.mark.system
def test_partitions_are_not_drained(job: Job) -> None:
    """Rows that belong to no partition would never be replaced: windows that are open would have them once more."""
    job.run(KEYS[0], KEYS[1])
    assert "cannot be drained" in failure_of(job.launch("stop", "stop_letters", drain=True))
    assert job.ends == {KEYS[0]: 1, KEYS[1]: 2}
    assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])


@pytest.mark.system
def test_a_job_that_was_stopped_without_its_program_keeps_its_end_state(job: Job) -> None:
    job.run(KEYS[0], KEYS[1])
    savepoint = stop_with_savepoint(job.location, owner="test", now_ms=current_millis())
    assert job.ends == {KEYS[0]: 1, KEYS[1]: 3}
    assert "was stopped with a savepoint" in failure_of(job.run(KEYS[2], KEYS[3]))
    assert job.restore(savepoint).success
    assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])


@pytest.mark.short("False")
@pytest.mark.parametrize("rescaled", [False, True])
def test_a_fork_of_a_savepoint_starts_with_the_next_partition(job: Job, tmp_path: Path, rescaled: bool) -> None:
    job.run(KEYS[0], KEYS[1])
    if rescaled:
        assert job.launch("rescale", "rescale_letters", parallelism=2).success
    savepoint = job.savepoint()
    job.run(KEYS[2])
    fork_job(job.location, "fork", at=savepoint)
    fork = Job(tmp_path / "of fork", job.instance, job.resources, name="fork")
    refused = failure_of(fork.run(KEYS[1]))
    assert f"starts from the end state of {KEYS[0]}, which is not kept" in refused
    assert fork.run(KEYS[2], KEYS[3]).success
    assert fork.table() == {day: rows for day, rows in straight_run(KEYS[:4]).items() if day in KEYS[2:]}


def test_a_fork_begins_with_the_end_state_of_a_partition(job: Job) -> None:
    job.run(KEYS[0], KEYS[1])
    savepoint = StorageLocation(job.savepoint())
    other = load_savepoint(savepoint.open())
    savepoint.open().put("_metadata", replace(other, checkpoint_id=9, partition=None).to_bytes())
    with pytest.raises(CheckpointError, match="savepoint 9 is not the end state of a partition"):
        fork_job(job.location, "fork", at=savepoint.url)


@pytest.mark.system
@pytest.mark.short("False")
@pytest.mark.parametrize("offline", [False, True])
def test_a_job_with_partitions_moves_to_another_store(job: Job, tmp_path: Path, offline: bool) -> None:
    job.run(KEYS[0], KEYS[1])
    savepoint = job.savepoint(target=str(tmp_path / "savepoints"))
    job.resources["checkpoint_storage"] = CheckpointStorageResource(url=str(tmp_path / "elsewhere"))
    if offline:
        job.restore_offline(savepoint)
    else:
        moved = {"savepoint_path": savepoint, "allow_pickled_state": True}
        assert job.launch("restore", "restore_letters", **moved).success
    assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])


@pytest.mark.system
@pytest.mark.short("False")
@pytest.mark.parametrize("empty", [False, True])
def test_partitions_are_replaced_when_the_folder_of_checkpoints_is_new(job: Job, empty: bool) -> None:
    """Their ids would begin again, and no row of a checkpoint of a greater id is replaced."""
    job.run(KEYS[0], KEYS[1])
    savepoint = job.savepoint(target=str(job.tmp_path / "savepoints"))
    job.run(KEYS[2], KEYS[3])
    shutil.rmtree(job.tmp_path / "checkpoints")
    if empty:
        assert job.run(KEYS[0], KEYS[1], start_empty=True).success
        assert job.run(KEYS[2], KEYS[3]).success
    else:
        assert job.run(KEYS[2], KEYS[3], restore_from=savepoint, allow_pickled_state=True).success
    assert job.table() == straight_run(KEYS[:4])


@pytest.mark.system
def test_a_checkpoint_that_was_never_completed_is_no_recovered_end_state(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of a partition died after it had written its metadata, and before HEAD named it."""
    job.run(KEYS[0], KEYS[1])
    checkpoints, died = job.tmp_path / "checkpoints", job.tmp_path / "died"

    def die(*args: Any, **options: Any) -> None:
        shutil.copytree(checkpoints, died)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CompletedCheckpointStore, "complete", die)
        patched.setitem(WORDS, KEYS[1], "aaaaa")
        assert not job.run(KEYS[1]).success
    shutil.rmtree(checkpoints)
    died.rename(checkpoints)
    assert release_leadership(job.location, owner="test", now_ms=current_millis()) is not None
    assert job.run(KEYS[2], KEYS[3]).success
    assert (checkpoints / "letters/chk-3/_metadata").exists()
    (checkpoints / "letters/HEAD").unlink()
    recover_head(job.location, owner="test", now_ms=current_millis())
    assert job.ends == {KEYS[0]: 1, KEYS[1]: 2, KEYS[2]: 4, KEYS[3]: 5}
    assert job.run(KEYS[2], KEYS[3]).success
    assert job.table() == straight_run(KEYS[:4])
