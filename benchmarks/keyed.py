"""Compares keyed processing with the bare shuffle, and with Spark's own ``transformWithState``.

All of them run in turn on one warm session. A ratio compares both sides in the same round, and is the median over the
rounds, because other work on the machine slows down whole rounds. Set-up and a first round are left out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import line
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import SPARK_SCHEMA, Kind, TaskOutput, decode_buffer, rows_of
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

EVENTS, KEYS, PARALLELISM, ROUNDS, BATCH = 5_000_000, 100_000, 2, 5, 65_536
TWS_EVENTS, TWS_BATCHES = 100_000, 4

WINDOW = 500_000
"""Milliseconds."""

EVENT = Types.ROW_NAMED(["key", "value", "time"], [Types.LONG()] * 3)


def events(subtask: int, since: int = 0) -> Iterator[pa.StructArray]:
    """One subtask's share of the events, batch by batch; their time, in milliseconds, starts at ``since``."""
    random = np.random.default_rng(subtask)
    for start in range(0, EVENTS // PARALLELISM, BATCH):
        n = min(BATCH, EVENTS // PARALLELISM - start)
        columns = [
            random.integers(0, KEYS, n),
            random.integers(0, 1000, n),
            np.arange(since + start, since + start + n),
        ]
        yield pa.StructArray.from_arrays([pa.array(c) for c in columns], fields=list(EVENT.arrow_type))


class Events(Source):
    """Reads the same events in each epoch."""

    @property
    def produced_type(self) -> Any:
        return EVENT

    def create_enumerator(self, restored: Any) -> SplitEnumerator:
        return _Endless()

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        offset = 0
        for column in events(**split.properties):
            offset += len(column)
            yield column, offset


class _Endless(SplitEnumerator):
    exhausted = False
    _epochs = 0

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        since = self._epochs * EVENTS
        self._epochs += 1
        return [[SourceSplit(str(i), {"subtask": i, "since": since})] for i in range(parallelism)]

    def on_epoch_read(self, splits: Any) -> None:
        pass

    def snapshot_state(self) -> dict[str, Any]:
        return {}


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._count.value() or 0) + value.value
        self._count.update(count)
        if count % 100_003 == 0:
            return [value]
        return None


def stream(watermarks: WatermarkStrategy | None = None) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(PARALLELISM)
    source = env.from_source(Events(), watermarks or WatermarkStrategy.no_watermarks(), "events").uid("events")
    return env, source.key_by("key")


def process_function() -> JobGraph:
    env, keyed = stream()
    keyed.process(Count(), EVENT).uid("count")
    return env.get_job_graph()


def builtin_sum() -> JobGraph:
    env, keyed = stream()
    keyed.sum("value").uid("sum")
    return env.get_job_graph()


def window_sum() -> JobGraph:
    env, keyed = stream(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time"))
    keyed.window(TumblingEventTimeWindows(WINDOW)).sum("value").uid("windows")
    return env.get_job_graph()


# --- the same shuffle, without us ------------------------------------------------------------------------------------


def shuffle_source(
    graph: JobGraph, batches: Iterator[pa.RecordBatch], *, event_time: bool = False
) -> Iterator[pa.RecordBatch]:
    """Reads and partitions like a source task. With event time, a watermark follows each batch."""
    from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

    subtask = next(batches).column(0)[0].as_py()
    output = TaskOutput()
    (edge,) = graph.edges
    writer = RecordWriter(edge, subtask, PARALLELISM, graph.vertex(edge.target).max_parallelism, output)
    for column in events(subtask):
        times = column.field("time").to_numpy() if event_time else np.full(len(column), NO_TIMESTAMP)
        writer.emit(StreamBatch(EVENT, times, column=column))
        if event_time:
            writer.event(Kind.WATERMARK, int(times[-1] - 1).to_bytes(8, "big", signed=True))
        if output.ready:
            yield from output.drain()
    writer.flush()
    yield from output.drain()
    for _ in batches:
        pass


def dict_loop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Does what a Python program without a state backend would do."""
    counts: dict[int, int] = {}
    for batch in batches:
        for row in rows_of(batch):
            if row.kind is Kind.BUFFER:
                records = decode_buffer(row.payload, EVENT)
                assert records.keys is not None
                keys = records.keys.column.to_numpy().tolist()
                fields = [f.to_numpy().tolist() for f in records.column.flatten()]
                for key, (_, value, _) in zip(keys, zip(*fields, strict=True), strict=True):
                    counts[key] = counts.get(key, 0) + value
    yield from TaskOutput().drain()


def count_consumer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Only decodes and counts."""
    total = 0
    for batch in batches:
        for row in rows_of(batch):
            if row.kind is Kind.BUFFER:
                total += len(decode_buffer(row.payload, EVENT))
    yield from TaskOutput().drain()


def bare(spark: Any, graph: JobGraph, *stages: Callable[[Any], Any], event_time: bool = False) -> None:
    source = partial(shuffle_source, graph, event_time=event_time)
    rows = spark.range(0, PARALLELISM, 1, PARALLELISM).mapInArrow(source, SPARK_SCHEMA)
    for stage in stages:
        rows = rows.repartitionById(PARALLELISM, rows.target).sortWithinPartitions("seq", "edge", "channel")
        rows = rows.mapInArrow(stage, SPARK_SCHEMA)
    rows.toArrow()


def shuffle_again(graph: JobGraph, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decodes its input, and partitions it again."""
    output = TaskOutput()
    (edge,) = graph.edges
    writer = None
    for batch in batches:
        for row in rows_of(batch):
            if writer is None:
                writer = RecordWriter(edge, row.target, PARALLELISM, graph.vertex(edge.target).max_parallelism, output)
            writer.emit(decode_buffer(row.payload, EVENT))
            if output.ready:
                yield from output.drain()
    if writer is not None:
        writer.flush()
    yield from output.drain()


def timed(actions: dict[str, Callable[[], Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the seconds of each round of each action. The actions run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(1 + ROUNDS):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(all_[1:]) for name, all_ in seconds.items()}


# --- Spark itself ----------------------------------------------------------------------------------------------------


def transform_with_state(spark: Any, folder: str) -> float:
    """Returns events per second of ``transformWithState`` on some of the events, without the first micro-batch."""
    import pyarrow.parquet as pq
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._count = handle.getValueState("count", "count long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            count = self._count.get()[0] if self._count.exists() else 0
            last = None
            for last in rows:
                count += last.value
                self._count.update((count,))
            if count % 100_003 == 0 and last is not None:
                yield Row(key=last.key, value=last.value, time=last.time)

        def close(self) -> None:
            pass

    random = np.random.default_rng(7)
    for i in range(TWS_BATCHES):
        columns = [random.integers(0, KEYS, TWS_EVENTS), random.integers(0, 1000, TWS_EVENTS), np.arange(TWS_EVENTS)]
        pq.write_table(pa.table(columns, names=EVENT.field_names), f"{folder}/events-{i}.parquet")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    events = spark.readStream.schema("key long, value long, time long").option("maxFilesPerTrigger", 1).parquet(folder)
    counted = events.groupBy("key").transformWithState(
        statefulProcessor=Counter(),
        outputStructType="key long, value long, time long",
        outputMode="Update",
        timeMode="None",
    )
    query = (
        counted.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress][1:]
    assert len(seconds) == TWS_BATCHES - 1, query.exception()
    return len(seconds) * TWS_EVENTS / sum(seconds)


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    spark = get_session(SparkSettings())
    graph, windows = process_function(), window_sum()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as attempts:

        def job(name: str, program: JobGraph) -> Callable[[], Any]:
            config = JobConfig(name, StorageLocation(folder))
            return attempts.enter_context(JobAttempt(program, config, owner="benchmark")).run_epoch

        seconds = timed(
            {
                "process": job("keyed", graph),
                "sum": job("sum", builtin_sum()),
                "window": job("window", windows),
                "dict": lambda: bare(spark, graph, dict_loop),
                "count": lambda: bare(spark, graph, count_consumer),
                "count in event time": lambda: bare(spark, windows, count_consumer, event_time=True),
                "second shuffle": lambda: bare(spark, graph, partial(shuffle_again, graph), count_consumer),
            }
        )
        peer_rate = None
        if "spark" in peers:
            with tempfile.TemporaryDirectory(dir=folder) as input_folder:
                peer_rate = transform_with_state(spark, input_folder)
    spark.stop()
    settings = {"events": EVENTS, "keys": KEYS, "parallelism": PARALLELISM, "rounds": ROUNDS}
    rate = EVENTS / float(np.median(seconds["process"]))
    second_shuffle = float(np.median(seconds["second shuffle"] - seconds["count"])) * PARALLELISM / EVENTS * 1e6

    def ratio(peer: str, ours: str) -> float:
        return float(np.median(seconds[peer] / seconds[ours]))

    lines = [
        line("keyed.process_function_events_per_s", rate, "events/s", settings=settings),
        line(
            "keyed.process_function_vs_bare_loop",
            ratio("dict", "process"),
            "ratio of rate",
            peer="the same shuffle, a Python loop over a dict",
            bar=">= 0.6",
            settings=settings,
        ),
        line(
            "keyed.builtin_sum_vs_count_consumer",
            ratio("count", "sum"),
            "ratio of rate",
            peer="the same shuffle, a consumer that counts rows",
            bar=">= 0.7",
            settings=settings,
        ),
        line(
            "keyed.window_vs_count_consumer",
            ratio("count in event time", "window"),
            "ratio of rate",
            peer="the same shuffle with its watermarks, a consumer that counts rows",
            bar=">= 0.7",
            settings={**settings, "window_ms": WINDOW, "events_per_ms": PARALLELISM},
        ),
        line(
            "keyed.second_shuffle_us_per_row",
            second_shuffle,
            "us of one core per row of 3 longs",
            bar="<= 0.4",
            settings=settings,
        ),
    ]
    if peer_rate is not None:
        peer_settings = {"events": TWS_EVENTS * (TWS_BATCHES - 1), "keys": KEYS, "state store": "RocksDB"}
        lines += [
            line("keyed.spark_tws_events_per_s", peer_rate, "events/s", settings=peer_settings),
            line(
                "keyed.process_function_vs_spark_tws",
                rate / peer_rate,
                "ratio of rate",
                peer="Spark transformWithState in Python",
                bar=">= 40",
                settings={**settings, "peer": peer_settings},
            ),
        ]
    return lines
