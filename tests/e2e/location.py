"""A second code location: jobs with daily partitions, that fails until repaired, runs on, and has two versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dagster import DailyPartitionsDefinition, Definitions, in_process_executor

from dagster_flinkpy.common import Row, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.orchestration import (
    FlinkRunConfig,
    build_checkpoint_sensor,
    build_flink_jobs,
    build_job_status_sensors,
    build_restart_sensor,
    build_retention_sensor,
    build_savepoint_sensor,
    build_supervising_sensor,
    flink_assets,
)
from resources import HOME, resources

FIRST_DAY = date(2024, 3, 1)
DAYS = DailyPartitionsDefinition(str(FIRST_DAY), end_date="2024-03-15")
VISIT = Types.ROW_NAMED(["museum"], [Types.STRING()])
GATES = ("north_gate", "south_gate")
WORDS = [["to"], ["be"], ["or"], ["not"], ["to"], ["be"]]
REPAIRED = HOME / "repaired"
TICKETS = [["louvre"], ["met"], ["louvre"], ["louvre"], ["met"]]
TICKET = Types.ROW_NAMED(["museum"], [Types.STRING()])
SOLD = Types.ROW_NAMED(["museum", "sold"], [Types.STRING(), Types.LONG()])
DEPLOYED = HOME / "deployed"
"""The name that the deployed version of the tickets' program gives its state, or ``twice``."""
CLICK = Types.ROW_NAMED(["site"], [Types.STRING()])


def write_visits() -> None:
    """Writes some visits for each day and gate."""
    for number, gate in enumerate(GATES):
        (HOME / "visits" / gate).mkdir(parents=True)
        for day in range(14):
            museums = ["louvre"] * (day + number) + ["prado"] * (day * 3 % 5) + ["met"]
            file = HOME / "visits" / gate / f"{FIRST_DAY + timedelta(days=day)}.parquet"
            pq.write_table(pa.table({"museum": museums}), file)


def expected_visits(home: Path, days: int) -> Counter[tuple[str, str, int]]:
    """Returns what one uninterrupted run over the first days writes: partition, museum, and number of the visit."""
    counts: Counter[str] = Counter()
    rows: Counter[tuple[str, str, int]] = Counter()
    for day in (str(FIRST_DAY + timedelta(days=n)) for n in range(days)):
        for gate in GATES:
            for museum in pq.read_table(home / "visits" / gate / f"{day}.parquet")["museum"].to_pylist():
                counts[museum] += 1
                rows[day, museum, counts[museum]] += 1
    return rows


def visits_env() -> StreamExecutionEnvironment:
    """Counts the visits of each museum at both gates together."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    north, south = (
        env.from_source(
            ParquetSource(str(HOME / "visits" / gate), row_type=VISIT, partition_format="%Y-%m-%d"),
            WatermarkStrategy.no_watermarks(),
            gate,
        ).uid(gate)
        for gate in GATES
    )
    counts = north.union(south).key_by("museum").count().uid("counts")
    counts.sink_to(ParquetSink(str(HOME / "tables" / "visits"))).uid("visits_table")
    return env


def check(word: Row) -> Row:
    """Fails for *or* until it is repaired."""
    if word["word"] == "or" and not REPAIRED.exists():
        raise ValueError("or is not implemented")
    return word


def words_env() -> StreamExecutionEnvironment:
    """Counts words, two per epoch. The sensor would only ask for the second epoch after an hour."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).enable_checkpointing(3_600_000)
    row = Types.ROW_NAMED(["word"], [Types.STRING()])
    words = env.from_source(CollectionSource(WORDS, row, records_per_epoch=2), WatermarkStrategy.no_watermarks(), "w")
    counts = words.uid("words").map(check, row).key_by("word").count().uid("word_counts")
    counts.sink_to(ParquetSink(str(HOME / "tables" / "words"))).uid("words_table")
    return env


def write_clicks(home: Path, number: int, sites: list[str]) -> None:
    """Writes a file for the job that runs on, which must not see half of it."""
    folder = home / "clicks"
    folder.mkdir(exist_ok=True)
    file = folder / f"{number}.new"
    pq.write_table(pa.table({"site": sites}), file)
    file.rename(file.with_suffix(".parquet"))


def clicks_env() -> StreamExecutionEnvironment:
    """Counts the clicks of each site. There may always be more."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    source = ParquetSource(str(HOME / "clicks"), row_type=CLICK)
    clicks = env.from_source(source, WatermarkStrategy.no_watermarks(), "clicks").uid("clicks")
    counts = clicks.key_by("site").count().uid("click_counts")
    counts.sink_to(ParquetSink(str(HOME / "tables" / "clicks"))).uid("clicks_table")
    return env


class Sold(KeyedProcessFunction):
    """Counts the tickets of a museum, each so many times, in a state of some name."""

    def __init__(self, state: str, times: int) -> None:
        self._state, self._times = ValueStateDescriptor(state, Types.LONG()), times

    def open(self, runtime_context: Any) -> None:
        self._sold = runtime_context.get_state(self._state)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        self._sold.update((self._sold.value() or 0) + self._times)
        yield Row(value.museum, self._sold.value())


def tickets_env(state: str = "before", times: int = 1) -> StreamExecutionEnvironment:
    """Counts tickets, one per epoch. State of the first version goes to that of this one."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = CollectionSource(TICKETS, TICKET, records_per_epoch=1)
    tickets = env.from_source(source, WatermarkStrategy.no_watermarks(), "tickets").uid("tickets")
    sold = tickets.key_by("museum").process(Sold(state, times), SOLD).uid("sold")
    sold.sink_to(ParquetSink(str(HOME / "tables" / "tickets"))).uid("tickets_table")
    if state != "before":
        env.migrate_state("sold", 0, lambda states: {ValueStateDescriptor(state, Types.LONG()): states["before"]})
    return env


def deployed_tickets_env() -> StreamExecutionEnvironment:
    deployed = DEPLOYED.read_text() if DEPLOYED.exists() else "before"
    return tickets_env(times=2) if deployed == "twice" else tickets_env(deployed)


visits = flink_assets(visits_env, name="visits", group_name="visits", partitions_def=DAYS)
words = flink_assets(words_env, name="words", group_name="words")
words_jobs = build_flink_jobs(words_env, name="words")
clicks = flink_assets(clicks_env, name="clicks", group_name="clicks")
tickets = flink_assets(deployed_tickets_env, name="tickets", group_name="tickets")
checkpoint_sensor = build_checkpoint_sensor(words, minimum_interval_seconds=1)

defs = Definitions(
    assets=[*visits, *words, *clicks, *tickets],
    sensors=[
        checkpoint_sensor,
        *build_job_status_sensors(words, checkpoint_sensor, minimum_interval_seconds=1),
        build_restart_sensor(words, minimum_interval_seconds=1),
        build_savepoint_sensor(words, words_jobs, condition=lambda last: True, minimum_interval_seconds=1),
        build_retention_sensor(words, words_jobs, minimum_interval_seconds=1),
        build_supervising_sensor(
            clicks, config=FlinkRunConfig(epochs=0, materialize_interval=0), minimum_interval_seconds=1
        ),
    ],
    jobs=[
        *words_jobs,
        *build_flink_jobs(clicks_env, name="clicks"),
        *build_flink_jobs(deployed_tickets_env, name="tickets"),
    ],
    executor=in_process_executor,  # half the processes; the runs of the flights have Dagster's default
    resources=resources,
)
