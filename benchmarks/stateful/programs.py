"""The programs of the stateful suite, as users of this library write them: seven jobs from Parquet to Parquet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.stateful import functions, rules
from benchmarks.stateful.input import Input
from benchmarks.stateful.rules import PARTITIONS
from dagster_flinkpy.common import Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.window import EventTimeSessionWindows

Kind = Literal["process function", "windows or timers"]
Tables = Callable[[str], Any]
"""Returns the stream of a table."""


@dataclass(frozen=True)
class Program:
    """What a program reads, what it is made of, and how it gets from its tables to its output."""

    tables: tuple[str, ...]
    kind: Kind
    build: Callable[[Tables], Any]


def _deduplicate(tables: Tables) -> Any:
    return tables("events").key_by("id").process(functions.Deduplicate(), functions.FIRST)


def _top_n(tables: Tables) -> Any:
    return tables("events").key_by("user").process(functions.TopN(), functions.BEST)


def _sessions(tables: Tables) -> Any:
    windows = tables("events").key_by("user").window(EventTimeSessionWindows.with_gap(Time.milliseconds(rules.GAP)))
    pair = Types.TUPLE([Types.LONG()] * 2)
    return windows.aggregate(functions.SessionTotals(), functions.Session(), pair, functions.SESSION)


def _fraud(tables: Tables) -> Any:
    return tables("events").key_by("user").process(functions.Fraud(), functions.ALERT)


def _interval_join(tables: Tables) -> Any:
    both = tables("events").connect(tables("payments")).key_by("id", "id")
    return both.process(functions.IntervalJoin(), functions.PAID)


def _enrichment(tables: Tables) -> Any:
    products = tables("products").broadcast(functions.PRODUCTS)
    return tables("events").key_by("user").connect(products).process(functions.Enrich(), functions.ENRICHED)


def _features(tables: Tables) -> Any:
    return tables("measurements").key_by("user").process(functions.RunningFeatures(), functions.MEANS)


PROGRAMS = {
    "deduplicate": Program(("events",), "process function", _deduplicate),
    "top_n": Program(("events",), "process function", _top_n),
    "sessions": Program(("events",), "windows or timers", _sessions),
    "fraud": Program(("events",), "windows or timers", _fraud),
    "interval_join": Program(("events", "payments"), "windows or timers", _interval_join),
    "enrichment": Program(("events", "products"), "process function", _enrichment),
    "features": Program(("measurements",), "process function", _features),
}


def program(name: str, source: Input, output: str, parallelism: int) -> StreamExecutionEnvironment:
    """Returns a program that has an epoch for each slice of the input.

    Args:
        name: The program.
        source: What it reads.
        output: Folder for the output as Parquet files.
        parallelism: Parallelism of all operators but the sources, which have a subtask for each partition: a subtask
            that read one partition after the other would have late records.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)

    def table(name: str) -> Any:
        watermarks = WatermarkStrategy.no_watermarks()
        if name != "products":
            watermarks = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
        parquet = ParquetSource(source.location(name), bounded=True, max_files_per_epoch=PARTITIONS)
        return env.from_source(parquet, watermarks, name).uid(name).set_parallelism(PARTITIONS)

    PROGRAMS[name].build(table).uid(name).sink_to(ParquetSink(output)).uid("sink")
    return env
