"""Functions of tasks that live hear how checkpoints end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import CheckpointListener, MapFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import UserFunctionError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph
from tests.runtime.programs import environment, events

RECORDS = [("a", time, time) for time in range(9)]


class Listener(MapFunction, CheckpointListener):
    """Writes down what it hears, and raises when it hears that a checkpoint is complete."""

    def __init__(self, file: Path, refuses: int = 0) -> None:
        self.file, self.refuses = file, refuses

    def map(self, value: Any) -> Any:
        return value

    def _hears(self, news: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{news}\n")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._hears(f"complete {checkpoint_id}")
        if checkpoint_id == self.refuses:
            raise ValueError("not this one")

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        self._hears(f"subsumed {checkpoint_id}")


def attempt(folder: Path, listener: Listener) -> JobAttempt:
    options = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(folder / "store")), exchange=options, in_process=True)
    return JobAttempt(program(listener), config, owner="test", require_uids=False)


def program(listener: Listener) -> JobGraph:
    keyed = events(environment(), RECORDS, per_epoch=3).key_by("key")
    return collect_graph(keyed.sum("value").uid("sum").map(listener, Types.PICKLED_BYTE_ARRAY()).uid("listener"))


def test_functions_hear_that_a_checkpoint_is_complete_and_subsumed(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "heard")
    with attempt(tmp_path, listener) as running:
        done = [epoch.checkpoint_id for epoch in running.run_epochs()]
    heard = listener.file.read_text().splitlines()
    assert [line for line in heard if "complete" in line] == [f"complete {number}" for number in done]
    assert [line for line in heard if "subsumed" in line] == [f"subsumed {number}" for number in done[:-1]]


def test_the_next_epoch_fails_if_a_function_refuses_the_news(tmp_path: Path) -> None:
    running = attempt(tmp_path, Listener(tmp_path / "heard", refuses=1))
    with (
        pytest.raises(UserFunctionError, match=r"notify_checkpoint_complete\(\) of operator 'listener'.*not this one"),
        running,
    ):
        for _ in running.run_epochs():
            pass
    assert running.latest is not None
    assert running.latest.checkpoint_id in (1, 2)  # the second epoch may run already
