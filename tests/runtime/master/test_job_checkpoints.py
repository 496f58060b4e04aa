"""What a job does at its checkpoints besides reading and writing: hooks, claims, retention, stopping, statistics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.head import EntryStatus
from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.datastream import CheckpointListener, MasterTriggerRestoreHook, RecoveryClaimMode
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import (
    CheckpointError,
    RestoreError,
    StorageError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(24)]
Retention = ExternalizedCheckpointRetention


def counted(fail_at: int | None = None) -> JobGraph:
    """Returns a program with three epochs of eight records each, counted per key."""

    def check(record: Any) -> Any:
        if record.time == fail_at:
            raise ValueError("poison")
        return record

    env = environment(2)
    source = events(env, RECORDS, per_epoch=8)
    return collect_graph(
        source.map(check, source.get_type()).uid("check").key_by("key").process(CountPerKey(), COUNTED).uid("count")
    )


def with_checkpointing(**settings: Any) -> dict[str, Any]:
    return {"checkpointing": CoordinatorConfig(**settings)}


def store(folder: Path) -> CompletedCheckpointStore:
    return CompletedCheckpointStore(LocalObjectStore(folder / "job"))


class Ledger(MasterTriggerRestoreHook, CheckpointListener):
    """A hook that records its calls."""

    def __init__(self, *, identifier: str = "ledger", fail_at: int | None = None) -> None:
        self.told: list[Any] = []
        self._identifier = identifier
        self._fail_at = fail_at

    def get_identifier(self) -> str:
        return self._identifier

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        if checkpoint_id == self._fail_at:
            raise OSError("the ledger is closed")
        assert timestamp > 1_600_000_000_000
        self.told.append(("trigger", checkpoint_id))
        return {"position": checkpoint_id * 10}

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        self.told.append(("restore", checkpoint_id, checkpoint_data))

    def reset(self) -> None:
        self.told.append("reset")

    def close(self) -> None:
        self.told.append("close")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.told.append(("aborted", checkpoint_id))

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        self.told.append(("subsumed", checkpoint_id))


# --- master hooks -----------------------------------------------------------------------------------------------------


def test_a_master_hook_is_called_at_checkpoints_and_restores(tmp_path: Path) -> None:
    first, second = Ledger(), Ledger()
    with HarnessAttempt(counted(), tmp_path, config=with_checkpointing(master_hooks=(first,))) as attempt:
        assert attempt.run_epoch().metadata.master_states == {"ledger": {"position": 10}}
        attempt.run_epoch()
    assert first.told == [
        "reset",
        ("trigger", 1),
        ("complete", 1),
        ("trigger", 2),
        ("complete", 2),
        ("subsumed", 1),
        "close",
    ]
    with HarnessAttempt(counted(), tmp_path, config=with_checkpointing(master_hooks=(second,))):
        assert second.told == [("restore", 2, {"position": 20})]


def test_a_master_hook_is_called_for_each_checkpoint(tmp_path: Path) -> None:
    hook = Ledger()
    with HarnessAttempt(counted(), tmp_path, config=with_checkpointing(master_hooks=(hook,))) as attempt:
        epochs = list(attempt.run_epochs(3))
    assert [told for told in hook.told if told[0] == "trigger"] == [("trigger", 1), ("trigger", 2), ("trigger", 3)]
    assert epochs[-1].metadata.master_states == {"ledger": {"position": 30}}


def test_a_master_hook_that_fails_aborts_the_checkpoint(tmp_path: Path) -> None:
    hook = Ledger(fail_at=2)
    with (
        HarnessAttempt(counted(), tmp_path, config=with_checkpointing(master_hooks=(hook,))) as attempt,
        pytest.raises(
            CheckpointError, match=r"master hook 'ledger' failed at checkpoint 2: OSError: the ledger is closed"
        ),
    ):
        list(attempt.run_epochs(2))
    assert ("aborted", 2) in hook.told
    assert hook.told[-1] == "close"
    latest = store(tmp_path).latest()
    assert latest is not None and latest.checkpoint_id == 1


def test_state_that_is_not_json_is_named_after_its_hook(tmp_path: Path) -> None:
    class Bytes(Ledger):
        def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
            return b"no"

    with (
        HarnessAttempt(counted(), tmp_path, config=with_checkpointing(master_hooks=(Bytes(),))) as attempt,
        pytest.raises(CheckpointError, match=r"master hook 'ledger'.*JSON serializable"),
    ):
        attempt.run_epoch()


def test_state_of_a_hook_that_is_gone_is_refused_or_left_behind(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path, config=with_checkpointing(master_hooks=(Ledger(),))) as attempt:
        attempt.run_epoch()
    other = Ledger(identifier="other")
    config = with_checkpointing(master_hooks=(other,))
    with pytest.raises(RestoreError, match="'ledger'"), HarnessAttempt(counted(), tmp_path, config=config):
        pass
    with HarnessAttempt(counted(), tmp_path, config=config, allow_non_restored_state=True) as attempt:
        assert other.told == ["close", ("restore", 1, None)]


# --- whose the restored checkpoint is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [RecoveryClaimMode.NO_CLAIM, RecoveryClaimMode.LEGACY, None])
def test_a_checkpoint_that_is_not_claimed_is_kept(tmp_path: Path, mode: RecoveryClaimMode | None) -> None:
    graph, config = counted(), with_checkpointing(num_retained=3)
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        for _ in range(3):
            attempt.run_epoch()
    for _ in range(2):
        with HarnessAttempt(graph, tmp_path, restore_from="chk-1", claim_mode=mode) as attempt:
            attempt.run_epoch()
            attempt.run_epoch()
    entries = {e.checkpoint_id: e.status for e in store(tmp_path).list_checkpoints()}
    assert entries == {1: EntryStatus.UNCLAIMED, 7: EntryStatus.LATEST}
    dispose_savepoint(StorageLocation(str(tmp_path / "job/chk-1")), owner="test", now_ms=0)
    assert [e.checkpoint_id for e in store(tmp_path).list_checkpoints()] == [7]
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        assert attempt.finished


def test_a_checkpoint_that_is_claimed_is_subsumed(tmp_path: Path) -> None:
    graph = counted()
    with HarnessAttempt(graph, tmp_path, config=with_checkpointing(num_retained=3)) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(graph, tmp_path, restore_from="chk-1") as attempt:
        attempt.run_epoch()
    assert {1, 2} == {e.checkpoint_id for e in store(tmp_path).list_checkpoints()}
    with HarnessAttempt(graph, tmp_path, restore_from="chk-1", claim_mode=RecoveryClaimMode.CLAIM) as attempt:
        attempt.run_epoch()
    assert [e.checkpoint_id for e in store(tmp_path).list_checkpoints()] == [3]


def test_a_savepoint_that_is_claimed_is_deleted_with_the_first_checkpoint(tmp_path: Path) -> None:
    graph, folder = counted(), tmp_path / "savepoints"
    with HarnessAttempt(graph, tmp_path / "one") as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(folder))
    for mode in RecoveryClaimMode.NO_CLAIM, RecoveryClaimMode.LEGACY, RecoveryClaimMode.CLAIM:
        with HarnessAttempt(graph, tmp_path / mode.value, restore_from=savepoint, claim_mode=mode) as attempt:
            assert list(folder.rglob("_metadata"))
            attempt.run_epoch()
        assert bool(list(folder.rglob("*.parquet")) + list(folder.rglob("_metadata"))) == (
            mode is not RecoveryClaimMode.CLAIM
        )
        # It needs none of the savepoint's files: the first checkpoint is full.
        with HarnessAttempt(graph, tmp_path / mode.value) as attempt:
            attempt.run_epoch()
            assert attempt.finished


def test_a_claimed_savepoint_that_cannot_be_deleted_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("access denied")

    with HarnessAttempt(counted(), tmp_path / "one") as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint()
    monkeypatch.setattr("dagster_flinkpy.checkpoint.starting_point.dispose_savepoint", fail)
    lines: list[str] = []
    options: dict[str, Any] = {"claim_mode": RecoveryClaimMode.CLAIM, "on_progress": lines.append}
    with HarnessAttempt(counted(), tmp_path / "two", restore_from=savepoint, **options) as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
        assert attempt.finished
    assert [line for line in lines if "could not delete it: access denied" in line]


# --- retention --------------------------------------------------------------------------------------------------------


def end(graph: JobGraph, folder: Path, retention: ExternalizedCheckpointRetention, error: BaseException | None) -> None:
    with HarnessAttempt(graph, folder, config=with_checkpointing(retention=retention)) as attempt:
        attempt.run_epoch()
        if error is not None:
            raise error
        while not attempt.finished:
            attempt.run_epoch()


@pytest.mark.parametrize(
    ("error", "deleting"),
    [
        (None, {Retention.DELETE_ON_CANCELLATION, Retention.NO_EXTERNALIZED_CHECKPOINTS}),
        (KeyboardInterrupt(), {Retention.DELETE_ON_CANCELLATION, Retention.NO_EXTERNALIZED_CHECKPOINTS}),
        (ValueError(), {Retention.NO_EXTERNALIZED_CHECKPOINTS}),
    ],
    ids=["finished", "cancelled", "failed"],
)
@pytest.mark.parametrize("retention", list(Retention), ids=lambda retention: retention.name)
def test_what_becomes_of_checkpoints_when_a_run_ends(
    tmp_path: Path, retention: ExternalizedCheckpointRetention, error: BaseException | None, deleting: set[Any]
) -> None:
    if error is None:
        end(counted(), tmp_path, retention, None)
    else:
        with pytest.raises(type(error)):
            end(counted(), tmp_path, retention, error)
    kept = store(tmp_path).latest()
    assert (kept is None) == (retention in deleting)
    assert bool(list((tmp_path / "job").glob("chk-*"))) == (kept is not None)


def test_a_run_that_merely_ends_deletes_nothing(tmp_path: Path) -> None:
    config = with_checkpointing(retention=Retention.NO_EXTERNALIZED_CHECKPOINTS)
    with HarnessAttempt(counted(), tmp_path, config=config) as attempt:
        attempt.run_epoch()
    assert store(tmp_path).latest() is not None


@pytest.mark.parametrize("retention", list(Retention), ids=lambda retention: retention.name)
def test_a_stopped_job_is_not_forgotten(tmp_path: Path, retention: ExternalizedCheckpointRetention) -> None:
    config = with_checkpointing(retention=retention)
    with HarnessAttempt(counted(), tmp_path, config=config) as attempt:
        attempt.run_epoch()
        attempt.stop_with_savepoint()
    with pytest.raises(ValueError), HarnessAttempt(counted(), tmp_path, config=config):
        raise ValueError
    with HarnessAttempt(counted(), tmp_path, config=config) as attempt:
        assert attempt.finished


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_a_job_that_was_stopped_goes_on_only_from_its_savepoint(tmp_path: Path) -> None:
    graph = counted()
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        before = sorted(collected(graph, attempt.collected))
        savepoint = attempt.stop_with_savepoint()
        assert attempt.finished
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.finished
        assert attempt.restored is not None
        assert (attempt.restored.checkpoint_id, attempt.restored.stopped, attempt.restored.end_of_input) == (
            2,
            True,
            False,
        )
        again = attempt.stop_with_savepoint(str(tmp_path / "elsewhere"))
    for path in savepoint, again:
        with HarnessAttempt(graph, tmp_path / path.rpartition("-")[2], restore_from=path) as attempt:
            rest = []
            while not attempt.finished:
                attempt.run_epoch()
                rest += collected(graph, attempt.collected)
        counts = sorted((row[0], row[1]) for row in [*before, *rest])
        assert counts == [(f"k{k}", n) for k in range(4) for n in range(1, 7)]
    with HarnessAttempt(graph, tmp_path, restore_from=savepoint) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert not attempt.finished
        attempt.run_epoch()
        assert attempt.finished


def test_a_stopped_job_stays_so_when_it_is_rescaled(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
        attempt.stop_with_savepoint()
    with HarnessAttempt(counted(), tmp_path, parallelism=3) as attempt:
        attempt.commit_restored()
        assert attempt.stopped
    with HarnessAttempt(counted(), tmp_path) as attempt:
        assert attempt.finished
        assert {vertex.parallelism for vertex in attempt.graph.vertices} == {3}
    with HarnessAttempt(counted(), tmp_path, restore_from="chk-3") as attempt:
        attempt.commit_restored()
    with HarnessAttempt(counted(), tmp_path) as attempt:
        assert not attempt.finished
        assert {vertex.parallelism for vertex in attempt.graph.vertices} == {3}


def test_draining_fires_what_waits_for_event_time(tmp_path: Path) -> None:
    env = environment(1)
    windows = events(env, RECORDS, per_epoch=8).key_by("key").window(TumblingEventTimeWindows(100_000))
    graph = collect_graph(windows.reduce(lambda a, b: a).uid("windows"))
    with HarnessAttempt(graph, tmp_path) as attempt:
        attempt.run_epoch()
        assert collected(graph, attempt.collected) == []
        savepoint = attempt.stop_with_savepoint(drain=True)
        assert len(collected(graph, attempt.collected)) == 4
    with HarnessAttempt(graph, tmp_path) as attempt:
        assert attempt.finished
        assert attempt.restored is not None
        assert attempt.restored.end_of_input
    with HarnessAttempt(graph, tmp_path / "other", restore_from=savepoint) as attempt:
        assert attempt.finished


def test_there_is_nothing_to_stop_with_before_the_first_checkpoint(tmp_path: Path) -> None:
    with (
        HarnessAttempt(counted(), tmp_path) as attempt,
        pytest.raises(CheckpointError, match="no completed checkpoint"),
    ):
        attempt.stop_with_savepoint()


# --- disposing --------------------------------------------------------------------------------------------------------


def test_a_savepoint_is_disposed_of(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
        savepoint = StorageLocation(attempt.savepoint())
    savepoint.open().put("notes.txt", b"mine")
    dispose_savepoint(savepoint, owner="test", now_ms=0)
    assert [info.key for info in savepoint.open().list()] == ["notes.txt"]
    with pytest.raises(RestoreError, match="is not a savepoint"):
        dispose_savepoint(savepoint, owner="test", now_ms=0)
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()


def test_a_checkpoint_of_a_job_is_not_disposed_of(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
        checkpoint = StorageLocation(str(tmp_path / "job/chk-1"))
        with pytest.raises(CheckpointError, match=r"'test' may still be running"):
            dispose_savepoint(checkpoint, owner="somebody", now_ms=0)
        attempt.run_epoch()
    with pytest.raises(CheckpointError, match="chk-2 is retained by its job"):
        dispose_savepoint(replace(checkpoint, url=str(tmp_path / "job/chk-2")), owner="somebody", now_ms=0)
