"""Programs for the tests of the runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import StorageError

EVENT = Types.ROW_NAMED(["key", "time", "value"], [Types.STRING(), Types.LONG(), Types.LONG()])
COUNTED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])


def environment(parallelism: int = 1, max_parallelism: int | None = 16) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    return env if max_parallelism is None else env.set_max_parallelism(max_parallelism)


def event_time(out_of_orderness_ms: int = 0) -> WatermarkStrategy:
    bound = Duration.of_millis(out_of_orderness_ms)
    return WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner("time")


def events(
    env: StreamExecutionEnvironment,
    records: Sequence[tuple[str, int, int]],
    *,
    uid: str = "events",
    per_epoch: int | None = None,
    batch_size: int = 3,
    strategy: WatermarkStrategy | None = None,
) -> DataStream:
    """Returns a stream of (key, time, value)."""
    source = CollectionSource(records, EVENT, records_per_epoch=per_epoch, batch_size=batch_size)
    return env.from_source(source, strategy or event_time(), uid).uid(uid)


class CountPerKey(KeyedProcessFunction):
    """A running count and sum per key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        self._sum.update((self._sum.value() or 0) + value.value)
        yield ctx.get_current_key(), self._count.value(), self._sum.value()


class Sessions(KeyedProcessFunction):
    """Collects the values of a key until it has been quiet for a while. The output is independent of the order of keys.

    Args:
        gap: Milliseconds of quiet.
    """

    def __init__(self, gap: int) -> None:
        self._gap = gap

    def open(self, runtime_context: RuntimeContext) -> None:
        self._values = runtime_context.get_map_state(MapStateDescriptor("values", Types.LONG(), Types.LONG()))
        self._timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self._values.put(value.value, (self._values.get(value.value) or 0) + 1)
        end = max(value.time + self._gap, self._timer.value() or 0)
        if self._timer.value() is not None:
            ctx.timer_service().delete_event_time_timer(self._timer.value())
        ctx.timer_service().register_event_time_timer(end)
        self._timer.update(end)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        items = list(self._values.items())
        yield ctx.get_current_key(), sum(count for _, count in items), sum(value * count for value, count in items)
        self._values.clear()
        self._timer.clear()


class Calls(KeyedProcessFunction):
    """Calls a plain function for each record, without state.

    Args:
        function: Returns the records to emit.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        return self._function(value, ctx)


class FolderSink(TwoPhaseCommittingSink):
    """Writes records as JSON lines: one file per writer, staged in one folder and renamed into another.

    Args:
        folder: Contains both folders.
        fail_on: A record that cannot be written.
    """

    def __init__(self, folder: Path, *, fail_on: Any = None) -> None:
        self._staged, self._committed = folder / "staged", folder / "committed"
        self._fail_on = fail_on
        self._staged.mkdir(parents=True, exist_ok=True)
        self._committed.mkdir(exist_ok=True)

    def validate(self, type_info: TypeInformation | None) -> None:
        pass

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        name = f"{context.checkpoint_id}.{context.subtask}.{context.execution}"
        return _FolderWriter(self._staged / name, type_info, self._fail_on)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _FolderCommitter(self._staged, self._committed)

    def staged(self) -> list[Path]:
        """Returns the files that are not committed."""
        return sorted(self._staged.iterdir())

    def rows(self) -> list[Any]:
        """Returns the committed records, sorted."""
        lines = (line for file in self._committed.iterdir() for line in file.read_text().splitlines())
        return sorted(tuple(json.loads(line)) for line in lines)


class _FolderWriter(CommittingSinkWriter):
    def __init__(self, path: Path, type_info: TypeInformation, fail_on: Any) -> None:
        self._path, self._type_info, self._fail_on = path, type_info, fail_on
        path.touch()

    def write(self, column: pa.Array) -> None:
        with self._path.open("a") as file:
            for record in self._type_info.from_arrow(column):
                if record == self._fail_on:
                    raise StorageError("the disk is full")
                file.write(json.dumps(list(record)) + "\n")

    def prepare_commit(self) -> list[Any]:
        return [{"name": self._path.name, "rows": len(self._path.read_text().splitlines())}]

    def abort(self) -> None:
        self._path.unlink()


class _FolderCommitter(Committer):
    def __init__(self, staged: Path, committed: Path) -> None:
        self._staged, self._committed = staged, committed

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            name = request.committable["name"]
            if (self._committed / name).exists():
                request.signal_already_committed()
            else:
                (self._staged / name).rename(self._committed / name)

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        kept = {request.committable["name"] for request in keep}
        lingering = [path for path in self._staged.iterdir() if path.name not in kept]
        for path in lingering:
            path.unlink()
        return len(lingering)


class TimerPerRecord(KeyedCoProcessFunction):
    """Registers a timer at the time of each record, and emits those that fire."""

    def process_element1(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value.time)

    process_element2 = process_element1

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()
