"""Checkpoints that fail without losing anything: the job goes on, and the next checkpoint takes over."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import CheckpointError, ConfigurationError, FencedError, StorageError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job_state
from dagster_flinkpy.runtime.master.failover import FailoverConfig, RestartAllStrategy
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Lane, Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.storage import StorageLocation
from tests.pairs import pairs
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 3}", i, i) for i in range(20)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_state, "_RETRY_AFTER_MS", 0)


def program(folder: Path, *, regions: bool = False) -> tuple[JobGraph, FolderSink]:
    """Five epochs of four records."""
    env, sink = environment(2), FolderSink(folder / "sink")
    counted = events(env, RECORDS, per_epoch=4).key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    if regions:
        counted = counted.blocking().map(lambda v: v, COUNTED).uid("same")
    counted.sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


@cache
def expected(*, regions: bool = False) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        graph, sink = program(Path(folder), regions=regions)
        with HarnessAttempt(graph, Path(folder)) as attempt:
            list(attempt.run_epochs())
        return sink.rows()


def tolerating(number: int, **checkpointing: Any) -> dict[str, Any]:
    return {"checkpointing": CoordinatorConfig(tolerable_failed=number, **checkpointing)}


def fails(monkeypatch: pytest.MonkeyPatch, method: str, numbers: Iterable[int], error: Exception) -> None:
    """Makes the store fail a step of some checkpoints before it does anything."""
    real, bad = getattr(CompletedCheckpointStore, method), set(numbers)

    def step(store: Any, attempt: Any, metadata: Any, **options: Any) -> None:
        if metadata.checkpoint_id in bad:
            raise error
        real(store, attempt, metadata, **options)

    monkeypatch.setattr(CompletedCheckpointStore, method, step)


ERRORS = {"certain": ConfigurationError("too large"), "unknown": StorageError("503")}


@pytest.mark.parametrize(
    ("bad", "regions", "threads", "error"),
    pairs([[1], [2, 3], [5], [4, 5]], [False, True], [False, True], list(ERRORS)),
    ids=str,
)
def test_the_next_checkpoint_commits_the_rows_of_both(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bad: list[int],
    regions: bool,
    threads: bool,
    error: str,
) -> None:
    graph, sink = program(tmp_path, regions=regions)
    fails(monkeypatch, "write_metadata", bad, ERRORS[error])
    with HarnessAttempt(graph, tmp_path, threads=threads, config=tolerating(2)) as attempt:
        done = [epoch.checkpoint_id for epoch in attempt.run_epochs()]
    last = 6 if 5 in bad else 5
    assert done == [n for n in range(1, last + 1) if n not in bad]
    assert attempt.finished
    assert attempt.latest is not None and attempt.latest.end_of_input
    monkeypatch.undo()
    assert sink.rows() == expected(regions=regions)
    assert sink.staged() == []
    with HarnessAttempt(graph, tmp_path) as after:
        assert after.restored is not None and after.restored.checkpoint_id == last


def test_the_order_of_lanes_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(HarnessAttempt):
        """The store is slow: epochs run ahead as far as they may."""

        def _create_mailbox(self) -> Mailbox:
            return InlineMailbox(lambda lanes: next((each for each in lanes if each != Lane.STORE), lanes[0]))

    graph, sink = program(tmp_path)
    fails(monkeypatch, "write_metadata", [1, 3], StorageError("503"))
    with Slow(graph, tmp_path, config=tolerating(1, max_concurrent=3)) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [2, 4, 5]
    monkeypatch.undo()
    assert sink.rows() == expected()


def test_one_epoch_that_was_asked_for_completes_with_another_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path)
    fails(monkeypatch, "write_metadata", [1], StorageError("503"))
    with HarnessAttempt(graph, tmp_path, config=tolerating(1)) as attempt:
        assert attempt.run_epoch().checkpoint_id == 2
        assert len(sink.rows()) == 4
        assert attempt.run_epoch().checkpoint_id == 3
        assert len(sink.rows()) == 8


def test_a_limit_counts_an_epoch_whose_checkpoint_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsOnce(HarnessAttempt):
        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            if job.checkpoint_id == 3:
                raise StorageError("a hiccup")
            return super()._on_spark(job)

    graph, sink = program(tmp_path)
    fails(monkeypatch, "write_metadata", [1], StorageError("503"))
    strategy = FixedDelayRestart(attempts=1, delay=timedelta(0))
    config = {**tolerating(1), "failover": FailoverConfig(strategy, RestartAllStrategy())}
    with FailsOnce(graph, tmp_path, config=config) as attempt:
        completed = [epoch.checkpoint_id for epoch in attempt.run_epochs(4)]
        assert attempt.token == 2, "the job has restarted as a whole"
    assert completed[0] == 2, "it has taken over from checkpoint 1"
    assert len(completed) == 3
    assert len(sink.rows()) == 16


@pytest.mark.parametrize("bad", [1, 2])
def test_a_limit_counts_such_epochs_before_a_rescale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(0))
    graph, sink = program(tmp_path)
    fails(monkeypatch, "write_metadata", [bad], StorageError("503"))
    asker = JobRequests(StorageLocation(str(tmp_path)).child("job"), "asker")

    class Asked(HarnessAttempt):
        def _create_mailbox(self) -> Mailbox:
            return InlineMailbox(random.Random(1).choice)

        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            if job.checkpoint_id == 2:
                asker.submit(Order(RequestKind.RESCALE, parallelism=3))
            return super()._on_spark(job)

    with Asked(graph, tmp_path, config=tolerating(1)) as attempt:
        list(attempt.run_epochs(4))
        assert attempt.graph.vertex("counts").parallelism == 3
    assert len(sink.rows()) == 16


def test_more_failures_in_a_row_than_tolerated_end_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    fails(monkeypatch, "write_metadata", [2, 3], StorageError("503"))
    with pytest.raises(StorageError, match="503"), HarnessAttempt(graph, tmp_path, config=tolerating(1)) as attempt:
        list(attempt.run_epochs())
    assert attempt.latest is not None and attempt.latest.checkpoint_id == 1
    assert sink.staged() == [], "the rows of checkpoint 2 are aborted: they are read again"
    monkeypatch.undo()
    with HarnessAttempt(graph, tmp_path) as again:
        list(again.run_epochs())
    assert sink.rows() == expected()


def test_a_newer_attempt_is_no_failure_to_tolerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = program(tmp_path)
    fails(monkeypatch, "write_metadata", [2], FencedError("a newer attempt"))
    with pytest.raises(FencedError), HarnessAttempt(graph, tmp_path, config=tolerating(9)) as attempt:
        list(attempt.run_epochs())


def test_nobody_knows_whether_head_names_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    fails(monkeypatch, "complete", [2], StorageError("connection reset"))
    with pytest.raises(StorageError, match="reset"), HarnessAttempt(graph, tmp_path, config=tolerating(9)) as attempt:
        list(attempt.run_epochs())
    monkeypatch.undo()
    with HarnessAttempt(graph, tmp_path) as again:
        list(again.run_epochs())
    assert sink.rows() == expected()


def test_head_was_certainly_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    fails(monkeypatch, "complete", [2], ConfigurationError("no"))
    with HarnessAttempt(graph, tmp_path, config=tolerating(1)) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 3, 4, 5]
    monkeypatch.undo()
    assert sink.rows() == expected()


class Hook(MasterTriggerRestoreHook):
    def __init__(self, bad: set[int]) -> None:
        self.bad, self.asked = bad, list[int]()

    def get_identifier(self) -> str:
        return "hook"

    def trigger_checkpoint(self, checkpoint_id: int, timestamp: int) -> Any:
        self.asked.append(checkpoint_id)
        if checkpoint_id in self.bad:
            raise ValueError("not now")
        return checkpoint_id

    def restore_checkpoint(self, checkpoint_id: int, checkpoint_data: Any) -> None:
        return


def test_a_master_hook_that_fails_delays_the_epoch(tmp_path: Path) -> None:
    graph, sink = program(tmp_path)
    hook = Hook({1, 3, 4})
    with HarnessAttempt(graph, tmp_path, config=tolerating(3, master_hooks=(hook,))) as attempt:
        done = [epoch.checkpoint_id for epoch in attempt.run_epochs()]
    assert done == [2, 5, 6, 7, 8]
    assert hook.asked == list(range(1, 9))
    assert sink.rows() == expected()


def test_a_master_hook_that_always_fails_ends_the_attempt(tmp_path: Path) -> None:
    graph, _ = program(tmp_path)
    hook = Hook(set(range(100)))
    config = tolerating(2, master_hooks=(hook,))
    with pytest.raises(CheckpointError, match="not now"), HarnessAttempt(graph, tmp_path, config=config) as attempt:
        list(attempt.run_epochs())
    assert hook.asked == [1, 2, 3]


def test_an_id_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sink = program(tmp_path)
    real, asked = CompletedCheckpointStore.assign_checkpoint_id, list[int]()

    def assign(store: Any, attempt: Any) -> int:
        asked.append(len(asked))
        if len(asked) in (1, 4, 5):
            raise StorageError("503")
        return real(store, attempt)

    monkeypatch.setattr(CompletedCheckpointStore, "assign_checkpoint_id", assign)
    with HarnessAttempt(graph, tmp_path, config=tolerating(2)) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs()] == [1, 2, 3, 4, 5]
    monkeypatch.undo()
    assert sink.rows() == expected()


def test_printed_and_collected_records_come_with_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    env = environment(1)
    numbers = events(env, RECORDS, per_epoch=4)
    numbers.map(lambda event: event.key, Types.STRING()).uid("keys").print().uid("print")
    graph = env.get_job_graph()
    fails(monkeypatch, "write_metadata", [2], StorageError("503"))
    printed: list[list[str]] = []
    with HarnessAttempt(graph, tmp_path, config=tolerating(1)) as attempt:
        for _ in attempt.run_epochs():
            printed.append(capsys.readouterr().out.split())
    assert [len(lines) for lines in printed] == [4, 8, 4, 4]
    assert [line.split("> ")[-1] for lines in printed for line in lines] == [key for key, _, _ in RECORDS]


def test_what_the_program_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "write_metadata", [2, 3], StorageError("503"))
    for call, tolerated in (
        (lambda config: config.set_tolerable_checkpoint_failure_number(2), True),
        (lambda config: config.set_tolerable_checkpoint_failure_number(1), False),
        (lambda config: config.set_fail_on_checkpointing_errors(False), True),
        (lambda config: config.set_fail_on_checkpointing_errors(True), False),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        declared = CheckpointConfig()
        call(declared)
        graph, _ = program(folder)
        checkpointing = {"checkpointing": CoordinatorConfig.of_program(declared)}
        ends = nullcontext() if tolerated else pytest.raises(StorageError)
        with ends, HarnessAttempt(graph, folder, config=checkpointing) as attempt:
            list(attempt.run_epochs())
    with pytest.raises(ConfigurationError, match="at least 0 checkpoints may fail, not -1"):
        CheckpointConfig().set_tolerable_checkpoint_failure_number(-1)


def test_a_tick_that_is_due_before_another_try_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_state, "_RETRY_AFTER_MS", 200)
    fails(monkeypatch, "write_metadata", [1], StorageError("503"))
    over: list[int] = []

    class Watched(ThreadMailbox):
        def take(self, until_ms: int | None) -> Any:
            if (
                until_ms is not None
                and until_ms <= attempt._deployed.master._now() < attempt._deployed.master.state.schedule.retry_ms
            ):
                over.append(until_ms)
            return super().take(until_ms)

    class Attempt(HarnessAttempt):
        def _create_mailbox(self) -> Mailbox:
            return Watched()

    graph, sink = program(tmp_path)
    with Attempt(graph, tmp_path, config=tolerating(1, interval=timedelta(milliseconds=10))) as attempt:
        list(attempt.run_epochs(periodic=True))
    monkeypatch.undo()
    assert len(over) < 5  # it would wait a thousand times for what has passed
    assert sink.rows() == expected()
