"""``flinkpy job`` and ``flinkpy savepoint stop`` beside a run that is at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_flinkpy.checkpoint import requests
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.cli import main
from dagster_flinkpy.errors import JobCancelledError
from dagster_flinkpy.runtime.master.mailbox import Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.master.requests import taken_requests
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.programs import COUNTED, CountPerKey, environment, events
from tests.waiting import LIMIT


class _Running(HarnessAttempt):
    """An attempt that waits for its next periodic checkpoint for ever, on a thread of its own."""

    def _create_mailbox(self) -> Mailbox:
        return ThreadMailbox()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the folder of a job that runs until it is told otherwise."""
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(milliseconds=10))
    monkeypatch.setattr(requests, "_LOOK_SECONDS", 0.01)
    records = [(f"k{i % 4}", i * 10, i) for i in range(24)]
    counted = events(environment(2), records, per_epoch=2).key_by("key").process(CountPerKey(), COUNTED).uid("count")
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(days=1))}
    began, problems = threading.Event(), []

    def run() -> None:
        try:
            with _Running(collect_graph(counted), tmp_path, config=config) as attempt:
                attempt.run_epoch()
                began.set()
                list(attempt.run_epochs(continuous=True))
        except JobCancelledError:
            pass
        except BaseException as error:
            problems.append(error)
        finally:
            began.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(LIMIT)
    yield tmp_path / "job"
    CliRunner().invoke(main, ["job", "cancel", str(tmp_path / "job")])
    thread.join(LIMIT)
    assert not thread.is_alive() and not problems


def invoke(*args: Any, fails: bool = False) -> str:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == int(fails), result.output
    return result.output.strip()


def test_a_running_job_is_asked(job: Path) -> None:
    assert invoke("job", "checkpoint", job) == (job / "chk-2").as_uri()
    path = invoke("job", "savepoint", job, "--target", job.parent / "kept")
    assert path.startswith((job.parent / "kept").as_uri())
    assert "all checksums match" in invoke("savepoint", "verify", path)
    assert "parallelism 3" in invoke("job", "rescale", job, 3)
    assert "100000" in invoke("job", "rescale", job, 100_000, fails=True)
    assert "was cancelled" in invoke("job", "cancel", job)
    assert "no run of the job is at work" in invoke("job", "checkpoint", job, fails=True)
    assert "not a duration" in CliRunner().invoke(main, ["job", "checkpoint", str(job), "--timeout", "soon"]).output


@pytest.mark.parametrize("command", ["job", "savepoint"])
def test_a_running_job_is_stopped(job: Path, command: str) -> None:
    path = invoke(command, "stop", job, "--type", "native", "--drain")
    assert path.endswith("-native")
    described = invoke("savepoint", "describe", path)
    assert "end of input  yes" in described
    if command == "savepoint":  # nothing runs any more, and the savepoint of the stopped job is taken without a run
        assert invoke("savepoint", "stop", job).startswith(job.as_uri())
