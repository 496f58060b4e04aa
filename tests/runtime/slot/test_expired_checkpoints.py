"""Live tasks whose checkpoints expire go on, if the job tolerates that. Slots are threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.runtime.harness import HarnessAttempt
from tests.runtime.slot.test_declined_checkpoints import all_state_in_files, done, program, uploads_fail
from tests.runtime.slot.test_live_failures import assert_exact, restarts
from tests.waiting import LIMIT

__all__ = ["all_state_in_files"]

TIMEOUT_MS = 600_000


class Clock:
    """The clock of the master, which a test sets forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ms = 0
        self.attempt: HarnessAttempt | None = None
        monkeypatch.setattr("dagster_flinkpy.runtime.master.job._now", self._now)

    def _now(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def pass_timeout(self) -> None:
        """Lets the timeout of checkpoints pass."""
        assert self.attempt is not None
        self._ahead_ms += TIMEOUT_MS
        self.attempt._mailbox.wake()

    def expire(self, expired: threading.Event) -> None:
        """Lets timeouts pass until a checkpoint has expired: another one if tasks have read something meanwhile."""
        until = time.monotonic() + LIMIT
        self.pass_timeout()
        while not expired.wait(2):
            assert time.monotonic() < until, "it does not expire"
            self.pass_timeout()


def running(
    graph: JobGraph, folder: Path, clock: Clock, on_progress: Callable[[str], object] = print, **config: Any
) -> HarnessAttempt:
    """Returns an attempt that tolerates two failures, or as many as it is told."""
    config["checkpointing"] = CoordinatorConfig(tolerable_failed=config.pop("tolerates", 2))
    attempt = HarnessAttempt(graph, folder, live=True, threads=True, config=config, on_progress=on_progress)
    clock.attempt = attempt
    return attempt


def upload_waits(monkeypatch: pytest.MonkeyPatch, checkpoint_id: int, wait: Callable[[], object]) -> None:
    """Lets the first upload that belongs to a checkpoint wait for something."""
    waited = threading.Lock()

    def fails(key: str, tries: int) -> bool:
        if key.startswith(f"shared/1-{checkpoint_id}-") and waited.acquire(blocking=False):
            wait()
        return False

    uploads_fail(monkeypatch, fails)


@pytest.mark.short
@pytest.mark.parametrize("slow", [1, 3, 5])
@pytest.mark.parametrize("regions", [False, True])
def test_the_next_checkpoint_takes_over_what_tasks_acknowledge_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int, regions: bool
) -> None:
    graph, sink = program(tmp_path, regions=regions)
    clock, expired = Clock(monkeypatch), threading.Event()

    def note(line: str) -> None:
        if line.startswith(f"checkpoint {slow} was aborted"):
            expired.set()

    def wait() -> None:
        clock.expire(expired)

    upload_waits(monkeypatch, slow, wait)
    with running(graph, tmp_path, clock, note, tolerates=10) as attempt:  # others may expire with it
        numbers = done(attempt)
        assert slow not in numbers
        assert (attempt.token, attempt._deployed.failover.graph.restarts) == (1, 0)
        history = attempt._deployed.master.state.coordinator.statistics.history
        reasons = {each.checkpoint_id: each.reason for each in history if each.reason is not None}
        assert slow in reasons
        assert {*reasons.values()} == {CheckpointFailureReason.CHECKPOINT_EXPIRED}, "another one may be pending, too"
    assert_exact(sink)


def test_the_job_restarts_if_tasks_hang_for_more_timeouts_than_it_tolerates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, sink = program(tmp_path)
    clock = Clock(monkeypatch)

    def wait() -> None:
        attempt: Any = clock.attempt
        state, until = attempt._deployed.master.state, time.monotonic() + LIMIT
        while state.error is None:
            assert time.monotonic() < until, "the job does not restart"
            clock.pass_timeout()
            time.sleep(0.01)

    upload_waits(monkeypatch, 2, wait)
    with running(graph, tmp_path, clock, failover=restarts(1)) as attempt:
        assert done(attempt)[0] == 1
        assert attempt.token == 2
    assert_exact(sink)


def test_no_file_of_an_expired_checkpoint_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = program(tmp_path)
    clock, expired, named = Clock(monkeypatch), threading.Event(), set[str]()

    def wait() -> None:
        clock.expire(expired)

    upload_waits(monkeypatch, 2, wait)

    def note(line: str) -> None:
        if line.startswith("checkpoint 2 was aborted"):
            expired.set()

    with running(graph, tmp_path, clock, note) as attempt:
        for epoch in attempt.run_epochs():
            named |= set(epoch.metadata.files())
    assert expired.is_set()
    assert {each.key for each in LocalObjectStore(tmp_path / "job").list("shared/")} <= named
