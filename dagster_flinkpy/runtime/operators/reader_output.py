"""What a reader of a source in Flink's shape emits, and the event time of its splits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK, WatermarkStrategy
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.datastream.connectors.source import ReaderOutput, SourceOutput
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.stream_operator import StreamOperator
from dagster_flinkpy.runtime.operators.timestamps_operator import EventTime, UnitCheck
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["BatchingOutput"]


class _SplitOutput(SourceOutput):
    """Keeps the records of a split, or those that belong to none, and follows their event time."""

    def __init__(self, owner: BatchingOutput, time: EventTime) -> None:
        self._owner, self.time = owner, time
        self._batches: list[StreamBatch] = []
        self._values: list[Any] = []
        self._times: list[int] = []

    def collect(self, record: Any, timestamp: int | None = None) -> None:
        self._values.append(record)
        self._times.append(NO_TIMESTAMP if timestamp is None else timestamp)
        self._owner.size += 1

    def collect_column(self, records: pa.Array, timestamps: pa.Array | None = None) -> None:
        vertex = self._owner.operator.context.vertex
        what = f"operator {vertex.uid!r}: collect_column()"
        column = fit_column(records, vertex.output_type, what)
        times = pa.nulls(len(column), pa.int64()) if timestamps is None else timestamps
        if len(times) != len(column):
            raise TypeMismatchError(f"{what} got {len(column)} records and {len(times)} timestamps")
        self._end_batch()
        numbers = pc.fill_null(times.cast(pa.int64()), NO_TIMESTAMP).to_numpy(zero_copy_only=False)
        self._batches.append(StreamBatch(vertex.output_type, numbers, column=column, producer=vertex.uid))
        self._owner.size += len(column)

    def _end_batch(self) -> None:
        if self._values:
            vertex = self._owner.operator.context.vertex
            times: npt.NDArray[np.int64] = np.array(self._times, dtype=np.int64)
            self._batches.append(StreamBatch(vertex.output_type, times, values=self._values, producer=vertex.uid))
            self._values, self._times = [], []

    def take(self) -> Iterator[StreamBatch]:
        """Yields all with their timestamps, and forgets it."""
        self._end_batch()
        taken, self._batches = self._batches, []
        for batch in taken:
            self.time.assign(batch)
            yield batch


class BatchingOutput(ReaderOutput):
    """Keeps what a reader emits until its operator takes it (Flink: ``WatermarkOutputMultiplexer``)."""

    def __init__(self, operator: StreamOperator, strategy: WatermarkStrategy) -> None:
        self.operator, self._strategy = operator, strategy
        context = operator.context
        self._unit = UnitCheck(context.vertex.uid, context.watermark)
        self._main = self._create()
        self._main_used = False
        self._splits: dict[str, _SplitOutput] = {}
        self._released: list[_SplitOutput] = []
        self.size = 0
        """How many records it has."""

    def _create(self) -> _SplitOutput:
        return _SplitOutput(self, EventTime(self._strategy, self.operator, MIN_WATERMARK, self._unit))

    def collect(self, record: Any, timestamp: int | None = None) -> None:
        self._main_used = True
        self._main.collect(record, timestamp)

    def collect_column(self, records: pa.Array, timestamps: pa.Array | None = None) -> None:
        self._main_used = True
        self._main.collect_column(records, timestamps)

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return self._splits.setdefault(split_id, self._create())

    def release_output_for_split(self, split_id: str) -> None:
        if (output := self._splits.pop(split_id, None)) is not None:
            self._released.append(output)

    def take(self) -> Iterator[StreamBatch]:
        """Yields all with their timestamps, and forgets it."""
        released, self._released, self.size = self._released, [], 0
        for output in (self._main, *released, *self._splits.values()):
            yield from output.take()

    def ahead_of(self, watermark: int) -> set[str]:
        """Returns the splits that are further in event time."""
        return {name for name, output in self._splits.items() if output.time.watermark > watermark}

    @property
    def watermark(self) -> int:
        """The event time up to which all records have come, of those that were taken: the least over the splits."""
        outputs = [*([self._main] if self._main_used else []), *self._splits.values()]
        return min((output.time.watermark for output in outputs), default=MIN_WATERMARK)
