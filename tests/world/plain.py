"""A source and a sink that nobody else touches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import base
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, SplitEnumerator, TwoPhaseCommittingSink
from tests.runtime.programs import FolderSink
from tests.world.stage import EVENT, Record, Sink, Source

__all__ = ["PlainSink", "PlainSource"]


class _Rounds(SplitEnumerator):
    def __init__(self, folder: Path, restored: Json | None) -> None:
        self._folder, self._read = folder, (restored or {"read": 0})["read"]
        self._planned = self._read

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        self._planned = len(list(self._folder.iterdir()))
        splits = [SourceSplit(str(number)) for number in range(self._read, self._planned)]
        return [splits[i::parallelism] for i in range(parallelism)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        self._read = self._planned

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot_state(self) -> Json:
        return {"read": self._read}


class _RoundSource(base.Source):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return _Rounds(self._folder, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        records = json.loads((self._folder / split.split_id).read_text())[split.offset :]
        if records:
            yield EVENT.to_arrow([tuple(record) for record in records]), split.offset + len(records)


class PlainSource(Source):
    """Files that nobody else touches."""

    title, acts = "", ()
    _rounds = 0

    def put(self, records: Sequence[Record]) -> None:
        folder = self.place.folder / "input"
        folder.mkdir(exist_ok=True)
        (folder / str(self._rounds)).write_text(json.dumps(records))
        self._rounds += 1

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        folder = self.place.folder / "input"
        folder.mkdir(exist_ok=True)
        return env.from_source(_RoundSource(folder), WatermarkStrategy.no_watermarks(), "rounds").uid("rounds")


class PlainSink(Sink):
    """A folder that nobody else touches."""

    title, acts = "", ()

    def sink(self) -> TwoPhaseCommittingSink:
        return FolderSink(self.place.folder / "output")

    def rows(self) -> Sequence[Record]:
        return FolderSink(self.place.folder / "output").rows()
