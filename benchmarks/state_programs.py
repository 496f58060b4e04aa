"""The events of the state benchmark, and our programs over them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common import Configuration, Types, WatermarkStrategy
from dagster_flinkpy.datastream import (
    BatchState,
    KeyedBatchFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor

TEXT_EVENT = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])
EVENT = Types.ROW_NAMED(["key", "value"], [Types.LONG()] * 2)
SPREAD = 2_654_435_761
"""Event i has key i * SPREAD mod keys. It is a prime, so ``keys`` events in a row touch each key once, unordered."""
VALUES = 1_000
"""Event i has value i mod VALUES."""
RARE = 100_003
"""A process function emits a record for each count that is divisible by this."""
_BATCH = 65_536


def events(start: int, stop: int, keys: int) -> pa.StructArray:
    """Returns events by their numbers."""
    numbers = np.arange(start, stop)
    columns = [pa.array(numbers * SPREAD % keys), pa.array(numbers % VALUES)]
    return pa.StructArray.from_arrays(columns, fields=list(EVENT.arrow_type))


class Events(Source):
    """Reads the next events in each epoch, divided among the subtasks.

    Args:
        keys: Number of keys.
        per_epoch: Number of events in an epoch.
        text: Whether keys are strings. Default: longs.
    """

    def __init__(self, keys: int, per_epoch: int, *, text: bool = False) -> None:
        self._keys, self._per_epoch, self._text = keys, per_epoch, text

    @property
    def produced_type(self) -> Any:
        return TEXT_EVENT if self._text else EVENT

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Numbers(self._per_epoch, (restored or {}).get("next", 0))

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        first, stop = split.properties["start"], split.properties["stop"]
        names = _names(self._keys) if self._text else None
        for start in range(first, stop, _BATCH):
            column = events(start, min(start + _BATCH, stop), self._keys)
            if names is not None:
                columns = [names.take(column.field(0)), column.field(1)]
                column = pa.StructArray.from_arrays(columns, fields=list(TEXT_EVENT.arrow_type))
            yield column, start - first + len(column)


@cache
def _names(keys: int) -> pa.Array[Any]:
    return pa.array([f"customer-{key:08}" for key in range(keys)])


class _Numbers(SplitEnumerator):
    exhausted = False

    def __init__(self, per_epoch: int, since: int) -> None:
        self._per_epoch, self._next = per_epoch, since

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        since, self._next = self._next, self._next + self._per_epoch
        bounds = [since + self._per_epoch * i // parallelism for i in range(parallelism + 1)]
        return [[SourceSplit(str(start), {"start": start, "stop": stop})] for start, stop in pairwise(bounds)]

    def on_epoch_read(self, splits: Any) -> None:
        pass

    def snapshot_state(self) -> dict[str, Any]:
        return {"next": self._next}


class Totals(KeyedBatchFunction):
    """Count and sum per key, in columns. Reports the cost of its first lookup, which opens the stored runs."""

    TOTAL = ValueStateDescriptor("total", Types.ROW_NAMED(["count", "sum"], [Types.LONG()] * 2))

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seconds, self._bytes = 0.0, 0
        self._looked = False
        group = runtime_context.get_metrics_group()
        group.gauge("open_us", lambda: int(self._seconds * 1e6))
        group.gauge("open_read_bytes", lambda: self._bytes)
        group.gauge("peak_rss_bytes", _peak_rss)

    def process_batch(self, keys: pa.Array[Any], batch: pa.RecordBatch, state: BatchState) -> None:
        table = pa.table({"key": keys, "value": batch.column("value")})
        grouped = table.group_by("key").aggregate([([], "count_all"), ("value", "sum")]).combine_chunks()
        distinct = grouped.column("key").combine_chunks()
        started, read = time.perf_counter(), _bytes_read()
        stored = state.lookup(self.TOTAL, distinct)
        if not self._looked:
            self._looked = True
            self._seconds, self._bytes = time.perf_counter() - started, _bytes_read() - read
        totals = []
        for i, added in enumerate(("count_all", "value_sum")):
            before = pc.fill_null(pc.struct_field(stored, [i]), 0)
            totals.append(pc.add(before, grouped.column(added).combine_chunks()))
        state.update(self.TOTAL, distinct, pa.StructArray.from_arrays(totals, fields=list(stored.type)))


def _peak_rss() -> int:
    """Returns the peak memory of this process in bytes, including shared and memory-mapped pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def _bytes_read() -> int:
    """Returns the bytes that this process got from read(). Memory-mapped data does not count."""
    return int(Path("/proc/self/io").read_text().split()[1])


class Sum(KeyedProcessFunction):
    """Computes a sum per key, record by record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        total = (self._sum.value() or 0) + value.value
        self._sum.update(total)
        if total % RARE == 0:
            return [value]
        return None


def totals(keys: int, per_epoch: int, parallelism: int) -> JobGraph:
    """Returns a program with state ``long -> (long, long)``, in columns."""
    env, keyed = _stream(keys, per_epoch, parallelism)
    keyed.process_batch(Totals(), EVENT).uid("totals")
    return env.get_job_graph()


def process_function(keys: int, per_epoch: int, parallelism: int) -> JobGraph:
    """Returns a program with a ``ValueState`` of a long, record by record."""
    env, keyed = _stream(keys, per_epoch, parallelism)
    keyed.process(Sum(), EVENT).uid("process")
    return env.get_job_graph()


def builtin_sum(keys: int, per_epoch: int, parallelism: int, *, text: bool = False) -> JobGraph:
    """Returns a program with the built-in aggregation."""
    env, keyed = _stream(keys, per_epoch, parallelism, text)
    keyed.sum("value").uid("sum")
    return env.get_job_graph()


def mini_batch_sum(keys: int, per_epoch: int, parallelism: int, *, text: bool = False) -> JobGraph:
    """Returns a program with the built-in aggregation and a result per key and epoch, as ``GROUP BY`` has it."""
    env, keyed = _stream(keys, per_epoch, parallelism, text)
    env.configure(Configuration().set_boolean("table.exec.mini-batch.enabled", True))
    keyed.sum("value").uid("sum")
    return env.get_job_graph()


def _stream(keys: int, per_epoch: int, parallelism: int, text: bool = False) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    source = env.from_source(Events(keys, per_epoch, text=text), WatermarkStrategy.no_watermarks(), "events").uid(
        "events"
    )
    return env, source.key_by("key")
