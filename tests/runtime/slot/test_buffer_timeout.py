"""When a live task sends records that have not filled a buffer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import MapFunction
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.slot import deployment
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph
from tests.runtime.programs import EVENT, CollectionSource, environment


class Once(SplitEnumerator):
    exhausted = False

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        return [[SourceSplit("0", {})]]

    def on_epoch_read(self, splits: Any) -> None:
        self.exhausted = True

    def snapshot_state(self) -> dict[str, Any]:
        return {}


class WaitsForItsReader(Source):
    """Emits one record, and then nothing until somebody has seen it, or its patience is over."""

    def __init__(self, folder: Path, patience: int) -> None:
        self._folder, self._patience = folder, patience

    @property
    def produced_type(self) -> Any:
        return Types.LONG()

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return Once()

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        yield pa.array([7]), 1
        for _ in range(self._patience):
            if (self._folder / "seen").exists():
                (self._folder / "in time").touch()
                return
            time.sleep(0.001)
            yield pa.array([], pa.int64()), 1


class Sees(MapFunction):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def map(self, value: Any) -> Any:
        (self._folder / "seen").touch()
        return value


@pytest.mark.parametrize(
    ("timeout", "patience", "in_time"),
    [(timedelta(0), 20_000, True), (timedelta(milliseconds=5), 20_000, True), (None, 50, False)],
)
def test_a_record_is_sent_before_its_buffer_is_full(
    timeout: timedelta | None, patience: int, in_time: bool, tmp_path: Path
) -> None:
    source = WaitsForItsReader(tmp_path, patience)
    numbers = environment().from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    graph = collect_graph(numbers.key_by(lambda n: n, Types.LONG()).map(Sees(tmp_path), Types.LONG()).uid("sees"))
    options = ExchangeOptions(ExchangeMode.PIPELINED, buffer_timeout=timeout)
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), exchange=options, in_process=True)
    with JobAttempt(graph, config, owner="test") as attempt:
        attempt.run_epoch()
    assert (tmp_path / "seen").exists()
    assert (tmp_path / "in time").exists() == in_time


def test_a_sender_in_the_slot_of_a_slow_receiver_does_not_send_each_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first record and each call take a second, and nothing else takes time."""
    seconds = tmp_path / "seconds"
    seconds.touch()

    def take_a_second(what: str) -> None:
        with seconds.open("a") as file:
            file.write(f"{what}\n")

    def first(event: Any) -> Any:
        if event.time == 0:
            take_a_second("first")
        return event

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        take_a_second(str(batch.num_rows))
        return batch

    monkeypatch.setattr(deployment, "time", SimpleNamespace(monotonic=lambda: float(len(seconds.read_text().split()))))
    source = CollectionSource([("a", i, i) for i in range(20)], EVENT, batch_size=1)
    records = environment(1).from_source(source, WatermarkStrategy.no_watermarks(), "records").uid("records")
    graph = collect_graph(records.map(first, EVENT).rebalance().map_batch(call, EVENT).uid("slow"))
    options = ExchangeOptions(ExchangeMode.PIPELINED, buffer_timeout=timedelta(seconds=0.5))
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), exchange=options, in_process=True)
    with JobAttempt(graph, config, owner="test") as attempt:
        attempt.run_epoch()
    assert seconds.read_text().split() == ["first", "1", "19"]
