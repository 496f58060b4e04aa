"""What an epoch costs as a Spark job, compared with Spark itself: 1,000 records, three stages, a completed checkpoint.

The bare job has the same Spark plan: as many stages, tasks, shuffles and sorts, and Python stages that pass on rows of
the size that our job sends. In both, the tasks of the first stage make the records. Both run in turn on one warm
server, the bare job in a session of its own: its Python workers have not loaded this library. The ratio is that of the
medians.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.report import line
from benchmarks.state_programs import Events
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.shuffle.wire import SPARK_SCHEMA, WIRE_SCHEMA
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation

RECORDS, KEYS, STAGES, PARALLELISM, ROUNDS = 1_000, 100, 3, 2, 15

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield value[0], count


def graph() -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(PARALLELISM)
    source = Events(KEYS, RECORDS)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    stream = stream.key_by(lambda v: v[0], Types.LONG()).process(Count(), PAIR).uid("first")
    stream.key_by(lambda v: v[1], Types.LONG()).process(Count(), PAIR).uid("second")
    return env.get_job_graph()


def bare_source(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    size = RECORDS // PARALLELISM // PARALLELISM * 28  # value, timestamp, key and hash of each record
    columns = [list(range(PARALLELISM)), *([0] * PARALLELISM for _ in range(4)), [bytes(size)] * PARALLELISM]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, WIRE_SCHEMA, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA)


def bare_stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def bare_job(spark: Any) -> None:
    rows = spark.range(0, PARALLELISM, 1, PARALLELISM).mapInArrow(bare_source, SPARK_SCHEMA)
    for _ in range(STAGES - 1):
        rows = rows.repartitionById(PARALLELISM, rows.target).sortWithinPartitions("seq", "edge", "channel")
        rows = rows.mapInArrow(bare_stage, SPARK_SCHEMA)
    rows.toArrow()


def seconds(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    bare, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        spark = get_session(SparkSettings())
        spark.range(1).count()  # before its first use a session cannot be cloned
        plain = spark.cloneSession()
        config = JobConfig("overhead", StorageLocation(folder), exchange=ExchangeOptions(ExchangeMode.SPARK))
        with JobAttempt(graph(), config, owner="benchmark") as attempt:
            for _ in range(3):
                bare_job(plain)
                attempt.run_epoch()
            for _ in range(ROUNDS):
                bare.append(seconds(partial(bare_job, plain)))
                ours.append(seconds(attempt.run_epoch))
        plain.stop()
        spark.stop()
    base = statistics.median(bare)
    return [
        line("overhead.bare_seconds", base, "s"),
        line(
            "overhead.microbatch_1k_3_stages_vs_bare",
            statistics.median(ours) / base,
            "ratio of time",
            peer="bare Spark job of the same plan",
            bar="<= 1.2",
            settings={"records": RECORDS, "stages": STAGES, "parallelism": PARALLELISM, "rounds": ROUNDS},
        ),
    ]
