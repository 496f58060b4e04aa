"""The requests of an attempt to the store, leadership, statistics, and what tasks leave open."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.errors import (
    CorruptStateError,
    FencedError,
    RestoreError,
    StorageError,
    UserFunctionError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt, ManualClock
from tests.runtime.master.test_job_checkpoints import RECORDS, Ledger, counted, store, with_checkpointing
from tests.runtime.programs import environment, events

# --- the store --------------------------------------------------------------------------------------------------------


class Counted(LocalObjectStore):
    """Records requests, and fails some of them."""

    requests: ClassVar[list[str]] = []
    failing: ClassVar[str | None] = None

    def get(self, key: str) -> tuple[bytes, str]:
        self.requests.append(f"GET {key}")
        return super().get(key)

    def put(self, key: str, data: bytes, **conditions: Any) -> str:
        self.requests.append(f"PUT {key}")
        if key == self.failing:
            raise StorageError("503")
        return super().put(key, data, **conditions)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(Counted, "requests", [])
    monkeypatch.setattr(StorageLocation, "open", lambda self: Counted(self.url.removeprefix("file://")))
    return Counted.requests


def after_last_ack(action: Callable[[], None]) -> type[HarnessAttempt]:
    class Marked(HarnessAttempt):
        def _create_metadata(self, write: Any) -> Any:
            action()
            return super()._create_metadata(write)

    return Marked


def test_a_checkpoint_completes_with_two_requests_after_the_last_acknowledgement(
    tmp_path: Path, requests: list[str]
) -> None:
    hook = Ledger()
    config = with_checkpointing(master_hooks=(hook,))
    with after_last_ack(requests.clear)(counted(), tmp_path, config=config) as attempt:
        for number in (1, 2):
            attempt.run_epoch()
            assert requests[:2] == [f"PUT chk-{number}/_metadata", "PUT HEAD"]


def test_no_id_no_checkpoint(tmp_path: Path, requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
        monkeypatch.setattr(Counted, "failing", "counter")
        with pytest.raises(StorageError, match="503"):
            attempt.run_epoch()
    assert attempt.finished is False


def test_what_was_committed_is_not_looked_at_again(tmp_path: Path) -> None:
    looked: list[int] = []

    class Looking(HarnessAttempt):
        def _commit(self, metadata: Any) -> int:
            looked.append(metadata.checkpoint_id)
            return super()._commit(metadata)

    with Looking(counted(), tmp_path) as attempt:
        attempt.run_epoch()
    with Looking(counted(), tmp_path) as attempt:
        assert looked == [1]
        attempt.run_epoch()
    leader = store(tmp_path).leader()
    assert leader is not None
    assert leader.committed == 2
    store(tmp_path).begin_attempt("dies without a word", 0)
    with Looking(counted(), tmp_path):
        assert looked == [1, 2]


# --- who is at work ---------------------------------------------------------------------------------------------------


def test_who_takes_over_from_a_run_that_may_be_alive_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    with HarnessAttempt(counted(), tmp_path, owner="old run") as old:
        with HarnessAttempt(counted(), tmp_path, owner="new run", on_progress=lines.append):
            assert lines[0].startswith("took over from 'old run'")
        with pytest.raises(FencedError, match="new run"):
            old.run_epoch()
    lines.clear()
    with HarnessAttempt(counted(), tmp_path, on_progress=lines.append):
        assert lines == []


@pytest.mark.parametrize(
    ("overtaken", "reachable", "error", "message"),
    [
        (True, True, FencedError, "new run"),
        (True, False, StorageError, "503"),
        (False, True, CorruptStateError, "is missing"),
    ],
)
def test_files_that_a_newer_run_has_subsumed_are_no_damage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overtaken: bool,
    reachable: bool,
    error: type[Exception],
    message: str,
) -> None:
    def missing(self: HarnessAttempt, epoch: Any) -> Any:
        if not reachable:
            monkeypatch.setattr(CompletedCheckpointStore, "check_leader", unreachable)
        raise CorruptStateError("state file shared/x is missing")

    def unreachable(*args: Any) -> None:
        raise StorageError("503")

    with HarnessAttempt(counted(), tmp_path, owner="old run") as old:
        old.run_epoch()
        if overtaken:
            with HarnessAttempt(counted(), tmp_path, owner="new run"):
                pass
        monkeypatch.setattr(HarnessAttempt, "_on_spark", missing)
        with pytest.raises(error, match=message):
            old.run_epoch()


def test_a_lease_lasts_as_long_as_a_checkpoint_may(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path, config=with_checkpointing(timeout=timedelta(hours=2))) as attempt:
        leader = store(tmp_path).leader()
        assert leader is not None
        assert leader.expires_at - leader.acquired_at == timedelta(hours=2, minutes=1) // timedelta(milliseconds=1)
        attempt.run_epoch()
    leader = store(tmp_path).leader()
    assert leader is not None
    assert not leader.alive(leader.acquired_at)


def test_who_cannot_begin_gives_the_lease_back(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
    with pytest.raises(RestoreError), HarnessAttempt(counted(), tmp_path, restore_from="chk-9"):
        pass
    leader = store(tmp_path).leader()
    assert leader is not None
    assert (leader.token, leader.expires_at, leader.committed) == (2, 0, 1)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_go_on_over_attempts(tmp_path: Path) -> None:
    with HarnessAttempt(counted(), tmp_path) as attempt:
        attempt.run_epoch()
    with HarnessAttempt(counted(fail_at=90), tmp_path) as attempt, pytest.raises(UserFunctionError):
        attempt.run_epoch()
    with HarnessAttempt(counted(), tmp_path) as attempt:
        epoch = attempt.run_epoch()
    statistics = store(tmp_path).statistics()
    assert (statistics.counts.completed, statistics.counts.failed, statistics.counts.restored) == (2, 1, 2)
    assert [(s.checkpoint_id, s.status.value) for s in statistics.history] == [
        (1, "COMPLETED"),
        (2, "FAILED"),
        (3, "COMPLETED"),
    ]
    assert epoch.statistics.to_json() == statistics.to_json()


def test_how_long_gates_have_waited_is_in_the_statistics(tmp_path: Path) -> None:
    class Ticking(ManualClock):
        def now(self) -> int:
            self.time += 5
            return self.time

    with HarnessAttempt(counted(), tmp_path, clock=Ticking()) as attempt:
        epoch = attempt.run_epoch()
    count = epoch.metadata.operator("count")
    assert count is not None
    waited = [subtask.metrics["alignment_ms"] for subtask in count.subtasks]
    assert min(waited) >= 5
    summary = epoch.statistics.summary("alignment_ms")
    assert summary is not None
    assert summary.last == max(waited)
    metrics = [subtask.metrics for each in epoch.metadata.operators for subtask in each.subtasks]
    assert all("start_delay_ms" in each and "barrier_ms" not in each for each in metrics)


# --- what tasks leave open --------------------------------------------------------------------------------------------


def test_what_a_failed_try_of_a_task_left_open_is_gone_when_the_job_has_ended(tmp_path: Path) -> None:
    """Spark retries a task whose store failed. No one learns that the first try could not abort its upload."""
    env = environment(1)
    events(env, RECORDS).sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
    table, said = LocalObjectStore(tmp_path / "table"), list[str]()
    with HarnessAttempt(env.get_job_graph(), tmp_path, on_progress=said.append) as attempt:
        attempt.run_epoch()
        table.create_upload("job.table.0000000001.00000.1-first.parquet")
        table.create_upload("other.table.0000000001.00000.1-first.parquet")
    assert [upload.key.partition(".")[0] for upload in table.list_uploads()] == ["other"]
    assert said[-1] == "aborted 1 open transactions that belong to no checkpoint"


def test_nothing_is_aborted_when_a_run_ends_with_an_error(tmp_path: Path) -> None:
    """It may belong to a checkpoint that HEAD names, although the run never learned that."""
    env = environment(1)
    events(env, RECORDS).sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
    table = LocalObjectStore(tmp_path / "table")
    with pytest.raises(StorageError), HarnessAttempt(env.get_job_graph(), tmp_path):
        table.create_upload("job.table.0000000001.00000.1-first.parquet")
        raise StorageError("the outcome is unknown")
    assert len(list(table.list_uploads())) == 1
