"""Checkpoints at the program's interval within one attempt. Time passes only when the job waits."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.errors import ConfigurationError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Mailbox
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.runtime.harness import HarnessAttempt
from tests.runtime.master.test_job_checkpoints import counted


class Time:
    """A clock in milliseconds. Each Spark job takes ``job_ms``."""

    def __init__(self) -> None:
        self.now, self.job_ms = 1_000_000, 0

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += round(seconds * 1000)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(job, "_now", lambda: fake.now)
    return fake


def attempt(folder: Path, time: Time, fail_at: int | None = None, **checkpointing: Any) -> HarnessAttempt:
    class Timed(HarnessAttempt):
        def _create_mailbox(self) -> Mailbox:
            return InlineMailbox(now=lambda: time.now, wait=time.wait)

        def _on_spark(self, job: EpochJob) -> list[WireRow]:
            time.now += time.job_ms
            return super()._on_spark(job)

    return Timed(counted(fail_at), folder, config={"checkpointing": CoordinatorConfig(**checkpointing)})


def test_checkpoints_are_taken_at_the_interval(tmp_path: Path, time: Time) -> None:
    time.job_ms = 700
    with attempt(tmp_path, time, interval=timedelta(seconds=60), min_pause=timedelta(seconds=5)) as running:
        began, triggered = time.now, []
        while not running.finished:
            triggered.append(next(running.run_epochs(1, periodic=True)).metadata.timestamp_ms)
    assert 5_000 <= triggered[0] - began <= 60_000
    assert [after - before for before, after in pairwise(triggered)] == [60_000, 60_000]


def test_the_pause_counts_from_the_completion(tmp_path: Path, time: Time) -> None:
    time.job_ms = 9_000
    with attempt(tmp_path, time, interval=timedelta(seconds=10), min_pause=timedelta(seconds=8)) as running:
        first = next(running.run_epochs(1, periodic=True)).metadata.timestamp_ms
        completed = time.now
        assert completed == first + 9_000
        second = next(running.run_epochs(1, periodic=True)).metadata.timestamp_ms
        assert second == completed + 8_000


def test_one_that_is_asked_for_comes_between(tmp_path: Path, time: Time) -> None:
    with attempt(tmp_path, time, interval=timedelta(seconds=60)) as running:
        first = next(running.run_epochs(1, periodic=True)).metadata.timestamp_ms
        assert running.run_epoch().metadata.timestamp_ms == first
        assert next(running.run_epochs(1, periodic=True)).metadata.timestamp_ms == first + 60_000


def test_a_failure_ends_the_attempt(tmp_path: Path, time: Time) -> None:
    with attempt(tmp_path, time, fail_at=90, interval=timedelta(seconds=60)) as running:
        next(running.run_epochs(1, periodic=True))
        with pytest.raises(UserFunctionError):
            next(running.run_epochs(1, periodic=True))


def test_an_interval_is_needed(tmp_path: Path, time: Time) -> None:
    with attempt(tmp_path, time) as running, pytest.raises(ConfigurationError, match="enable_checkpointing"):
        next(running.run_epochs(1, periodic=True))
