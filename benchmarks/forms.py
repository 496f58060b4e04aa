"""The forms of stateful Python that programs are made of, compared with a ``ValueState`` function in the same run.

Each is a job in one process, at parallelism 1, from Parquet files to Parquet files with one checkpoint. A second run of
each has four times the events, which should take four times as long. Times are those of the processor, so that other
work on the machine has little influence.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.report import line
from dagster_flinkpy.common import Row, Time, Types, WatermarkStrategy
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import (
    AggregateFunction,
    BatchAggregateFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from dagster_flinkpy.testing import run_local

EVENTS, GROWTH, KEYS, ROUNDS = 250_000, 4, 100_000, 3
WINDOW, PANES, GAP, COUNT, LAST = 500_000, 10, 50_000, 10, 9
"""Milliseconds, of which each has one event; windows that a record is in; milliseconds; records; values."""

EVENT = Types.ROW_NAMED(["key", "value", "time"], [Types.LONG()] * 3)
TRIPLE = Types.TUPLE([Types.LONG()] * 3)
TOTAL = Types.ROW_NAMED(["total"], [Types.LONG()])
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
_RARE = 100_003


class _Function(KeyedProcessFunction):
    """Counts; emits a record now and then."""

    def _emit(self, count: int) -> list[Row] | None:
        return [Row(count)] if count % _RARE == 0 else None


class Value(_Function):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + value.value
        self._count.update(count)
        return self._emit(count + 1)


class Last(_Function):
    """A value that can change, so state copies it when it is read and when it is written."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last = runtime_context.get_state(ValueStateDescriptor("last", Types.LIST(Types.LONG())))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        last = (self._last.value() or [])[-LAST:]
        last.append(value.value)
        self._last.update(last)
        return self._emit(value.value + 1)


class MapOfRows(_Function):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows = runtime_context.get_map_state(MapStateDescriptor("rows", Types.LONG(), EVENT))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        kind = value.value % 3
        row = self._rows.get(kind)
        if row is not None:
            value.value += row.value
        self._rows.put(kind, value)
        return self._emit(value.value + 1)


class Map(_Function):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._counts = runtime_context.get_map_state(MapStateDescriptor("counts", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        kind = value.value % 3
        count = (self._counts.get(kind) or 0) + value.value
        self._counts.put(kind, count)
        return self._emit(count + 1)


class Append(_Function):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._values = runtime_context.get_list_state(ListStateDescriptor("values", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self._values.add(value.value)
        return self._emit(value.value + 1)


class Timeout(_Function):
    """A timer per key, which each record moves: one is registered and one is deleted."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        before, due = self._due.value(), value.time + WINDOW
        if before is not None:
            ctx.timer_service().delete_event_time_timer(before)
        ctx.timer_service().register_event_time_timer(due)
        self._due.update(due)
        return self._emit(value.value + 1)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        self._due.clear()


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> Row:
        return Row(accumulator[0] // accumulator[1])

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class MeanInColumns(BatchAggregateFunction):
    def get_accumulator_type(self) -> RowTypeInfo:
        return Types.ROW_NAMED(["total", "count"], [Types.LONG(), Types.LONG()])

    def get_result_type(self) -> RowTypeInfo:
        return TOTAL

    def lift(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"total": batch["value"], "count": np.ones(batch.num_rows, dtype=np.int64)})

    def merge(self, accumulators: pa.RecordBatch, groups: pa.Array[Any]) -> pa.Table:
        starts = np.flatnonzero(np.diff(groups.to_numpy(), prepend=-1))
        columns = {name: accumulators[name].to_numpy() for name in accumulators.schema.names}
        return pa.table({name: np.add.reduceat(values, starts) for name, values in columns.items()})

    def get_results(self, accumulators: pa.RecordBatch) -> pa.Table:
        return pa.table({"total": pc.divide(accumulators["total"], accumulators["count"])})


class Total(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Row]:
        return [Row(sum(element.value for element in elements))]


def _mean(windows: Any) -> Any:
    return windows.aggregate(Mean(), accumulator_type=PAIR, output_type=TOTAL)


def _added(one: Any, other: Any) -> Row:
    return Row(key=one.key, value=one.value + other.value, time=other.time)


def _added_typed(one: Any, other: Any) -> Row:
    return EVENT.row(one.key, one.value + other.value, other.time)


_TUMBLING = TumblingEventTimeWindows.of(Time.milliseconds(WINDOW))
_SLIDING = SlidingEventTimeWindows.of(Time.milliseconds(WINDOW), Time.milliseconds(WINDOW // PANES))

TUPLES = "reduce_tuples"
"""The form of tuples, which PyFlink's documentation reduces: a map in front makes them, and a lambda takes the key."""
CHAINED = "chained"
"""A filter and a map in front of ``value_state``."""
TURNS = 3
"""How often :data:`CHAINED` and ``value_state`` take turns per round, because their difference is small."""

FORMS: dict[str, tuple[Callable[[Any], Any], float | None]] = {
    "value_state": (lambda keyed: keyed.process(Value(), TOTAL), 1),
    "value_of_list": (lambda keyed: keyed.process(Last(), TOTAL), None),
    "map_state": (lambda keyed: keyed.process(Map(), TOTAL), 0.4),
    "map_of_rows": (lambda keyed: keyed.process(MapOfRows(), TOTAL), None),
    "list_state": (lambda keyed: keyed.process(Append(), TOTAL), 0.4),
    "timers": (lambda keyed: keyed.process(Timeout(), TOTAL), 0.25),
    "reduce": (lambda keyed: keyed.reduce(lambda a, b: _added(a, b)), 0.5),
    "reduce_typed": (lambda keyed: keyed.reduce(_added_typed), 0.5),
    TUPLES: (lambda keyed: keyed.reduce(lambda a, b: (a[0], a[1] + b[1], b[2])), None),
    "tumbling_aggregate": (lambda keyed: _mean(keyed.window(_TUMBLING)), 0.4),
    "sliding_aggregate": (lambda keyed: _mean(keyed.window(_SLIDING)), 0.15),
    "tumbling_batch_aggregate": (lambda keyed: keyed.window(_TUMBLING).aggregate(MeanInColumns()), 1.5),
    "sliding_batch_aggregate": (lambda keyed: keyed.window(_SLIDING).aggregate(MeanInColumns()), 2 / PANES),
    "session_aggregate": (
        lambda keyed: _mean(keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(GAP)))),
        0.4,
    ),
    "count_window_reduce": (lambda keyed: keyed.count_window(COUNT).reduce(lambda a, b: _added(a, b)), 0.25),
    "process_window": (lambda keyed: keyed.window(_TUMBLING).process(Total(), TOTAL), 0.25),
}
"""What each form does with the keyed stream, and the share of ``value_state``'s rate that it must reach, or None."""


def write_events(folder: Path, events: int) -> Path:
    """Writes events in a file; event i happens at millisecond i."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(17)
    columns = [random.integers(0, KEYS, events), random.integers(0, 1000, events), np.arange(events)]
    pq.write_table(pa.table(dict(zip(EVENT.field_names, columns, strict=True))), folder / "events.parquet")
    return folder


def run_form(name: str, events: Path, output: Path) -> None:
    """Runs a form, or :data:`CHAINED`, to its end."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    watermarks = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    stream = env.from_source(ParquetSource(str(events)), watermarks, "events").uid("events")
    if name == CHAINED:
        stream = stream.filter(lambda event: event.value >= 0).uid("filter").map(lambda event: event, EVENT).uid("map")
    if name == TUPLES:
        stream = stream.map(lambda event: (event.key, event.value, event.time), TRIPLE).uid("map")
        keyed = stream.key_by(lambda event: event[0], Types.LONG())
    else:
        keyed = stream.key_by("key")
    form = FORMS["value_state" if name == CHAINED else name][0]
    form(keyed).uid(name).sink_to(ParquetSink(str(output))).uid("sink")
    run_local(env)


def run(
    peers: tuple[str, ...] = (),
    *,
    forms: Iterable[str] = (*FORMS, CHAINED),
    events: int = EVENTS,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Returns the rate of each form, its ratio to ``value_state``, and its growth."""
    names = list(dict.fromkeys(["value_state", *forms]))
    seconds: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        inputs = {factor: write_events(Path(folder) / f"events-{factor}", events * factor) for factor in (1, GROWTH)}
        # How long a filter and a map take is a small difference, so the two sides take turns more often.
        turns = ["value_state", CHAINED] * (TURNS - 1) if CHAINED in names else []
        for number in range(rounds):
            for turn, name in enumerate([*names, *turns]):
                for factor, source in inputs.items():
                    start = time.process_time()
                    run_form(name, source, Path(folder) / f"{number}-{turn}-{factor}")
                    seconds.setdefault((name, factor), []).append(time.process_time() - start)
    return [each for name in names for each in _lines(name, seconds, events)]


def _lines(name: str, seconds: dict[tuple[str, int], list[float]], events: int) -> list[dict[str, Any]]:
    median = {side: statistics.median(times) for side, times in seconds.items()}

    def ratio(of: tuple[str, int], to: tuple[str, int]) -> float:
        return median[of] / median[to]

    settings = {"events": events * GROWTH, "keys": KEYS, "parallelism": 1, "rounds": len(seconds[name, 1])}
    if name == CHAINED:
        difference = median[name, GROWTH] - median["value_state", GROWTH]
        per_record = difference / (events * GROWTH) / 2 * 1e6
        what = "forms.filter_or_map_us_per_record"
        return [line(what, per_record, "us", peer="without them", bar="<= 0.35", settings=settings)]
    rate = events * GROWTH / median[name, GROWTH]
    lines = [
        line(f"forms.{name}_events_per_s", rate, "events/s", settings=settings),
        line(
            f"forms.{name}_growth",
            ratio((name, GROWTH), (name, 1)),
            "ratio of time",
            peer=f"{events:,} events",
            bar="<= 4.4",
            settings=settings,
        ),
    ]
    if name != "value_state":
        lines.append(
            line(
                f"forms.{name}_vs_value_state",
                ratio(("value_state", GROWTH), (name, GROWTH)),
                "ratio of rate",
                peer="ValueState function",
                bar="" if (share := FORMS[name][1]) is None else f">= {share}",
                settings=settings,
            )
        )
    return lines
