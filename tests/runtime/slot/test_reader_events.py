"""Each event of a reader comes to its enumerator once and in order, whether epochs are open or not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from tests.runtime.harness import HarnessAttempt, collect_graph, collected

SPLITS, SIZE = 8, 4


class _Enumerator(SplitEnumerator):
    def __init__(self, context: SplitEnumeratorContext, heard: Path) -> None:
        self._context, self._heard, self._left = context, heard, list(range(SPLITS))

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None) -> None:
        if self._left:
            self._context.assign_split([self._left.pop(0), 0], subtask_id)
        else:
            self._context.signal_no_more_splits(subtask_id)

    def handle_source_event(self, subtask_id: int, event: Any) -> None:
        with self._heard.open("a") as file:
            file.write(f"{event}\n")
        self._context.send_event_to_source_reader(subtask_id, event)

    def add_splits_back(self, splits: Sequence[Any], subtask_id: int) -> None:
        raise AssertionError("nothing fails")

    def snapshot_state(self) -> Any:
        return self._left


class _Reader(SourceReader):
    """Says something whenever it can, and reads a record between two barriers if its epochs are not open."""

    def __init__(self, context: SourceReaderContext) -> None:
        self._context = context
        self._splits: list[Any] = []
        self._said, self._no_more = 0, False

    def _say(self) -> None:
        self._said += 1
        self._context.send_source_event_to_coordinator(self._said)

    def start(self) -> None:
        self._context.send_split_request()

    def add_splits(self, splits: Sequence[Any]) -> None:
        self._splits += splits
        self._say()

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._say()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if not self._splits:
            return InputStatus.END_OF_INPUT if self._no_more else InputStatus.NOTHING_AVAILABLE
        number, at = self._splits.pop(0)
        output.collect(number * SIZE + at)
        self._say()
        if at + 1 < SIZE:
            self._splits.insert(0, [number, at + 1])
        else:
            self._context.send_split_request()
        return InputStatus.NOTHING_AVAILABLE

    def is_available(self) -> Future[None]:
        now = Future[None]()
        now.set_result(None)
        return now

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Any]:
        return self._splits


class _Talking(Source):
    produced_type = Types.LONG()
    discovery_interval = timedelta(milliseconds=1)

    def __init__(self, heard: Path) -> None:
        self._heard = heard

    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator:
        return _Enumerator(context, self._heard)

    def restore_enumerator(self, context: SplitEnumeratorContext, checkpoint: Any) -> SplitEnumerator:
        raise AssertionError("nothing is restored")

    def create_reader(self, context: SourceReaderContext) -> SourceReader:
        return _Reader(context)


def test_events_come_once_and_in_order(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = _Talking(tmp_path / "heard")
    graph = collect_graph(env.from_source(source, WatermarkStrategy.no_watermarks(), "talking").uid("talking"))
    config = {"checkpointing": CoordinatorConfig(interval=timedelta(milliseconds=10))}
    with HarnessAttempt(graph, tmp_path, live=True, threads=True, config=config) as attempt:
        rows, turn = list[int](), 0
        while not attempt.finished:
            limit, periodic = ((1, False), (2, False), (1, True), (1, False), (1, True), (3, False))[turn % 6]
            for _ in attempt.run_epochs(limit, periodic=periodic):
                rows += collected(graph, attempt.collected)
            turn += 1
    assert sorted(rows) == list(range(SPLITS * SIZE))
    heard = [int(line) for line in (tmp_path / "heard").read_text().splitlines()]
    assert heard == list(range(1, len(heard) + 1))
    assert len(heard) > SPLITS * SIZE
