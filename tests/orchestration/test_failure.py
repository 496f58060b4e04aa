"""Warnings of the library reach the log of the run that they belong to."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest

from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.runtime.master.mailbox import Lane, ThreadMailbox


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, line: str) -> None:
        self.lines.append(line)


def warn(text: str) -> None:
    logging.getLogger("dagster_flinkpy.some.module").warning("%s", text)


def test_two_runs_of_a_process_get_their_own_warnings() -> None:
    logs, both = [Log(), Log()], threading.Barrier(2)

    def run(number: int) -> None:
        log: Any = logs[number]
        mailbox = ThreadMailbox()
        with flink_failures(log), flink_failures(log):
            both.wait()
            warn(f"of the thread {number}")
            mailbox.submit(Lane.STORE, lambda: warn(f"of the lane {number}"))
            mailbox.take()
            both.wait()
        mailbox.close()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, range(2)))
    assert [log.lines for log in logs] == [[f"of the thread {n}", f"of the lane {n}"] for n in range(2)]
    warn("after them")
    assert not any("after them" in log.lines for log in logs)


def test_a_thread_that_knows_no_run_warns_all() -> None:
    log: Any = Log()
    with flink_failures(log), ThreadPoolExecutor(1) as threads:
        threads.submit(warn, "of metrics").result()
    assert log.lines == ["of metrics"]


def test_errors_are_step_failures() -> None:
    with pytest.raises(dg.Failure, match="a wrong option") as raised, flink_failures():
        raise ConfigurationError("a wrong option")
    assert not raised.value.allow_retries
