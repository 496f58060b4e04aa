"""The simulated program with sources, functions and sinks of its own, for tasks that live.

::

    numbers -+- evens ------------------------- key by -+- count -- rebalance -- rows -- files
             +- rebalance -- odds -- key by ------------+

The counts depend on the order of both inputs, but those of a key are 1, 2, 3 and so on, however often tasks restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.common.clock import Clock
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from dagster_flinkpy.connectors.commit.staged_files import StagedUpload, file_name, partition_folder
from dagster_flinkpy.datastream import KeyedCoProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import (
    CommittingSinkWriter,
    Json,
    WriterInitContext,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.shuffle.wire import Kind, decode_buffer
from dagster_flinkpy.runtime.task.channel_state import own_records, read_channel_state
from dagster_flinkpy.storage import ObjectStore
from tests.simulation.bucket import SimulatedStore
from tests.simulation.live_sources import live_source
from tests.simulation.program import KEYS, MAX_PARALLELISM, OUT, Files, SourceShape, here

__all__ = ["WorldClock", "in_flight_of", "live_program"]

ROW = Types.TUPLE([Types.LONG(), Types.LONG()])
"""A record, and the count of its key."""


class WorldClock(Clock):
    """The clock of the actor that asks."""

    def now(self) -> int:
        return here().clock()


class _CountBoth(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        yield value, self._count.value()

    process_element2 = process_element1


class _Number(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


class _LiveFiles(Files):
    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        return _Writer(context, type_info)


class _Writer(CommittingSinkWriter):
    def __init__(self, context: WriterInitContext, type_info: TypeInformation) -> None:
        key = f"{partition_folder(context.partition)}{file_name(context)}"
        self._upload = StagedUpload(SimulatedStore(here(), OUT), key, part_bytes=64)
        self._type_info, self._rows = type_info, 0

    def write(self, column: pa.Array) -> None:
        for row in self._type_info.from_arrow(column):
            self._upload.write(json.dumps(list(row)).encode() + b"\n")
            self._rows += 1

    def prepare_commit(self) -> list[Json]:
        return [self._upload.finish(self._rows).to_json()] if self._rows else []

    def abort(self) -> None:
        self._upload.abort()


@cache
def live_program(
    parallelism: int,
    regions: int,
    source: SourceShape = SourceShape.WHOLE,
    *,
    one_reader: bool = False,
    aligned: bool = False,
) -> JobGraph:
    """Returns the program at a parallelism, in one region or in two, with a source of some shape."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_max_parallelism(MAX_PARALLELISM)
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(_Number())
    in_step = in_order.with_watermark_alignment("numbers", Duration.of_millis(4), Duration.of_days(1))
    strategy = in_step if aligned else WatermarkStrategy.no_watermarks()
    numbers = env.from_source(live_source(source), strategy, "numbers").uid("numbers")
    if regions > 1:
        numbers = numbers.blocking()
    evens = numbers.filter(lambda n: n % 2 == 0).uid("evens")
    if one_reader:
        numbers.set_parallelism(1)
        evens.set_parallelism(1)
    odds = numbers.rebalance().filter(lambda n: n % 2 == 1).uid("odds")
    both = evens.connect(odds).key_by(lambda n: n % KEYS, lambda n: n % KEYS, Types.LONG())
    rows = both.process(_CountBoth(), ROW).uid("count").rebalance().map(lambda row: row, ROW).uid("rows")
    rows.sink_to(_LiveFiles()).uid("files")
    return env.get_job_graph()


def in_flight_of(metadata: CheckpointMetadata, store: ObjectStore) -> list[int]:
    """Returns the records that are in flight at a checkpoint between tasks, or on a blocking edge."""
    graph = live_program(1, 1)
    keeps: dict[str, Callable[[int], bool]] = {"evens": lambda n: n % 2 == 0, "odds": lambda n: n % 2 == 1}
    found: list[int] = []
    for operator in metadata.operators:
        if operator.uid not in {vertex.uid for vertex in graph.vertices}:
            continue
        keep = keeps.get(operator.uid, lambda n: True)
        edges = graph.inputs(operator.uid)
        for subtask in operator.subtasks:
            for row in read_channel_state(subtask.channel_state, edges, store, operator=operator.uid):
                payload = own_records(row, subtask.index, operator.parallelism, operator.max_parallelism)
                if row.kind == Kind.BUFFER and payload is not None:
                    values = decode_buffer(payload, row.edge.type_info).values
                    found += [n for n in map(_record_of, values) if keep(n)]
    return found


def _record_of(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])
