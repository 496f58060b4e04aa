"""Event time in epoch after epoch, with subtasks of a source that read in turn."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import AggregateFunction, DataStream, KeyedProcessFunction, OutputTag
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from tests.examples import examples
from tests.pairs import pairs
from tests.runtime.harness import HarnessAttempt, Order, collect_graph, collected, random_order, spark_order
from tests.runtime.programs import EVENT, environment, event_time

SECOND = 1000
LATE = OutputTag("late", EVENT)


class Remind(KeyedProcessFunction):
    """Registers a timer three seconds after each record."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value.time + 3 * SECOND)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "timer", ctx.get_current_key(), timestamp


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


RESULT = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()])


def write_files(folder: Path, starts: list[int]) -> None:
    """Writes files of ten seconds each, two seconds out of order."""
    folder.mkdir()
    for i, start in enumerate(starts):
        times = [start + (n if n % 4 else max(n - 2, 0)) * SECOND for n in range(10)]
        rows = {"key": [f"k{n % 3}" for n in range(10)], "time": times, "value": list(range(10))}
        pq.write_table(pa.table(rows), folder / f"{i:02}.parquet")


def reminders_and_windows(folder: Path, parallelism: int) -> JobGraph:
    env = environment(parallelism)
    source = ParquetSource(str(folder), row_type=EVENT, max_files_per_epoch=1, batch_rows=3)
    strategy = event_time(3 * SECOND)
    keyed = env.from_source(source, strategy, "files").uid("files").key_by("key")
    reminders = keyed.process(Remind(), RESULT).uid("reminders")
    windows = keyed.window(TumblingEventTimeWindows.of(Duration.of_seconds(10))).side_output_late_data(LATE)
    counts = windows.aggregate(Count(), output_type=Types.LONG()).uid("windows")
    counted = counts.map(lambda n: ("window", "", n), RESULT).uid("counted")
    late = counts.get_side_output(LATE).map(lambda v: ("late", v.key, v.time), RESULT).uid("late")
    return collect_graph(reminders.union(counted, late))


def run(graph: JobGraph, folder: Path, *, live: bool = False, order: Order = spark_order, **config: Any) -> list[Any]:
    records: list[Any] = []
    checkpointing = {"checkpointing": CoordinatorConfig(**config)}
    with HarnessAttempt(graph, folder, order=order, live=live, config=checkpointing) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
    return sorted(records)


@cache
def straight(*starts: int) -> list[Any]:
    """Returns the result of one subtask, for files that begin at these times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "files", list(starts))
        return run(reminders_and_windows(folder / "files", 1), folder / "job")


@pytest.mark.parametrize(("parallelism", "live"), [(2, False), (3, True), (5, True)])
def test_the_last_file_is_not_late(tmp_path: Path, parallelism: int, live: bool) -> None:
    starts = [n * 10 * SECOND for n in range(4)]
    write_files(tmp_path / "files", starts)
    expected = straight(*starts)
    assert run(reminders_and_windows(tmp_path / "files", parallelism), tmp_path / "job", live=live) == expected
    assert Counter(kind for kind, _, _ in expected) == {"timer": 40, "window": 12}


@settings(max_examples=examples(10), deadline=None)
@given(
    parallelism=st.integers(2, 4),
    live=st.booleans(),
    order=st.integers(0, 999).map(random_order) | st.just(spark_order),
    config=st.sampled_from([{}, {"unaligned": True}, {"mode": CheckpointingMode.AT_LEAST_ONCE}]),
)
def test_nothing_is_late_in_whatever_order_the_channels_are_read(
    parallelism: int, live: bool, order: Order, config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    starts = [n * 10 * SECOND for n in range(5)]
    write_files(folder / "files", starts)
    graph = reminders_and_windows(folder / "files", parallelism)
    assert run(graph, folder / "job", live=live, order=order, **config) == straight(*starts)


@pytest.mark.short
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("parallelism", [2, 3, 5])
def test_what_is_late_does_not_depend_on_who_reads_it(tmp_path: Path, parallelism: int, live: bool) -> None:
    """The third and the last file are older than the event time that was reached before them."""
    starts = [n * 10 * SECOND for n in (0, 3, 1, 4, 6, 2)]
    write_files(tmp_path / "files", starts)
    expected = straight(*starts)
    assert run(reminders_and_windows(tmp_path / "files", parallelism), tmp_path / "job", live=live) == expected
    assert sum(kind == "late" for kind, _, _ in expected) == 20


def of_two_folders(folder: Path, parallelism: int, through: Callable[[DataStream], DataStream]) -> JobGraph:
    """Returns a program with two united sources. The second is ahead in event time and ends first."""
    env = environment(parallelism)
    streams = [
        env.from_source(
            ParquetSource(str(folder / name), row_type=EVENT, max_files_per_epoch=1), event_time(3 * SECOND), name
        ).uid(name)
        for name in ("long", "short")
    ]
    united = through(streams[0].union(streams[1]).map(lambda v: v, EVENT).uid("map"))
    windows = united.key_by("key").window(TumblingEventTimeWindows.of(Duration.of_seconds(10)))
    counts = windows.side_output_late_data(LATE).aggregate(Count(), output_type=Types.LONG()).uid("windows")
    late = counts.get_side_output(LATE).map(lambda v: ("late", v.key, v.time), RESULT).uid("late")
    return collect_graph(counts.map(lambda n: ("window", "", n), RESULT).uid("counted").union(late))


def chained(stream: DataStream) -> DataStream:
    return stream


def stamped(stream: DataStream) -> DataStream:
    return stream.assign_timestamps_and_watermarks(event_time(60 * SECOND)).uid("time")


def write_two_folders(folder: Path) -> None:
    write_files(folder / "long", [n * 10 * SECOND for n in range(5)])
    write_files(folder / "short", [n * 10 * SECOND for n in (3, 4)])


@cache
def straight_of_two_folders(through: Callable[[DataStream], DataStream]) -> list[Any]:
    """Returns the result of one subtask."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_two_folders(folder)
        return run(of_two_folders(folder, 1, through), folder / "job")


@pytest.mark.parametrize(("live", "parallelism", "through"), pairs([False, True], [2, 3], [chained, stamped]))
def test_a_source_that_is_further_on_or_has_ended_does_not_make_another_one_late(
    tmp_path: Path, parallelism: int, live: bool, through: Callable[[DataStream], DataStream]
) -> None:
    """A subtask that reads only the second source in an epoch reads the first one in the next."""
    write_two_folders(tmp_path)
    expected = straight_of_two_folders(through)
    assert run(of_two_folders(tmp_path, parallelism, through), tmp_path / "job", live=live) == expected
    assert Counter(kind for kind, _, _ in expected) == {"window": 15}


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_blocking_edge_keeps_the_event_time_of_each_source_apart(tmp_path: Path, parallelism: int) -> None:
    write_two_folders(tmp_path)
    graph = of_two_folders(tmp_path, parallelism, lambda stream: stream.blocking())
    assert run(graph, tmp_path / "job") == straight_of_two_folders(chained)
