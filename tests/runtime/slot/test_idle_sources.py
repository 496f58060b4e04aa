"""A source is idle when nothing has come for its timeout, however often others have something to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster_flinkpy.common import Duration, TimestampAssigner, Types, WatermarkStrategy
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream import ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.epoch import EpochInput, Reached
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.result_partition import ResultPartition
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from tests.runtime.harness import ManualClock, collect_graph, collected, make_job

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class Millis(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value


IN_ORDER = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Millis())


class EventTime(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value, ctx.timer_service().current_watermark()


def times(
    folder: Path, strategy: WatermarkStrategy, clock: ManualClock
) -> tuple[JobGraph, PipelinedTask, list[WireRow]]:
    """Returns a task with two sources, `busy` and `silent`, which time out after 10 ms, and what it sends."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    strategy = strategy.with_idleness(Duration.of_millis(10))
    source = CollectionSource([100, 200, 300, 400, 500], Types.LONG(), batch_size=1)
    busy, silent = (env.from_source(source, strategy, uid).uid(uid) for uid in ("busy", "silent"))
    graph, rows = collect_graph(busy.union(silent).process(EventTime(), PAIR).uid("times")), list[WireRow]()
    task = PipelinedTask(
        replace(make_job(graph, folder, inputs={}), clock=clock),
        0,
        graph.stage_vertices(0),
        0,
        ResultPartition({}, rows.append),
        InputGate({}, lambda: None, 1),
        later=lambda mail: mail(),
        on_error=lambda error, task: None,
    )
    task.open()
    return graph, task, rows


def event_times(graph: JobGraph, rows: list[WireRow]) -> dict[int, int]:
    """Returns event time at each record."""
    results = EpochResults.of([row for row in rows if row.kind is not Kind.OPERATOR_EVENT], 1)
    return dict(collected(graph, results.collected))


def test_a_source_is_idle_though_another_one_reads_all_the_time(tmp_path: Path) -> None:
    clock = ManualClock(0)
    graph, task, rows = times(tmp_path, IN_ORDER, clock)
    for number, uids in enumerate((("busy", "silent"), ("busy",), ("busy",), ("busy",), ("busy",), ())):
        split = SourceSplit(str(number), {"subtask": 0, "end": number + 1}, number)
        parts = {(uid, 0): (split,) for uid in uids}
        task.begin(EpochInput(1, parts, open=bool(parts), timed=True))
        while task.is_available:
            task.step()
        clock.time += 6
    event_time = event_times(graph, rows)
    assert event_time[300] == 99, "event time waits for its timeout"
    assert event_time[500] == 399


def test_a_source_of_a_group_is_not_idle_because_another_one_reads_for_long(tmp_path: Path) -> None:
    clock = ManualClock(0)
    aligned = IN_ORDER.with_watermark_alignment("group", Duration.of_hours(1))
    graph, task, rows = times(tmp_path, aligned, clock)
    busy, silent = (SourceSplit("0", {"subtask": 0, "end": end}) for end in (4, 1))
    task.begin(EpochInput(1, {("busy", 0): (busy,), ("silent", 0): (silent,)}, open=True, timed=True))
    while task.is_available:
        task.step()
        clock.time += 6
    task.on_processing_time()  # nobody has asked whether it has more
    split = SourceSplit("4", {"subtask": 0, "end": 5}, 4)
    task.begin(EpochInput(1, {("silent", 0): (split,)}, timed=True))
    while task.is_available:
        task.step()
    assert event_times(graph, rows)[500] == 99
    assert MAX_WATERMARK not in [reached for reached, *_ in told_of("silent", rows)]


def told_of(uid: str, rows: list[WireRow]) -> list[Reached]:
    """Returns what the driver is told of a source that waits for others."""
    told = [json.loads(row.payload.to_pybytes()) for row in rows if row.kind is Kind.OPERATOR_EVENT]
    return [tuple(each["aligned"][uid]) for each in told if uid in each.get("aligned", {})]


def test_others_hear_at_once_that_a_source_is_idle(tmp_path: Path) -> None:
    clock = ManualClock(0)
    seldom = IN_ORDER.with_watermark_alignment("group", Duration.of_hours(1), Duration.of_days(1))
    _, task, rows = times(tmp_path, seldom, clock)
    split = SourceSplit("0", {"subtask": 0, "end": 1})
    task.begin(EpochInput(1, {("busy", 0): (split,), ("silent", 0): (split,)}, open=True, timed=True))
    while task.is_available:
        task.step()
    assert told_of("silent", rows)[-1] == (99, False, False)
    clock.time += 10
    task.on_processing_time()
    assert told_of("silent", rows)[-1] == (MAX_WATERMARK, False, False)


def test_a_source_that_waits_for_others_is_no_longer_idle(tmp_path: Path) -> None:
    clock = ManualClock(0)
    aligned = IN_ORDER.with_watermark_alignment("group", Duration.of_hours(1))
    graph, task, rows = times(tmp_path, aligned, clock)
    both = SourceSplit("0", {"subtask": 0, "end": 1})
    busy, silent = SourceSplit("1", {"subtask": 0, "end": 3}, 1), SourceSplit("3", {"subtask": 0, "end": 4}, 3)
    task.begin(EpochInput(1, {("busy", 0): (both,), ("silent", 0): (both,)}, open=True, timed=True))
    while task.is_available:
        task.step()
    clock.time += 10
    task.on_processing_time()
    task.set_limits({"silent": 0})
    task.begin(EpochInput(1, {("busy", 0): (busy,), ("silent", 0): (silent,)}, open=True, timed=True))
    while task.is_available:
        task.step()
    assert event_times(graph, rows)[300] == 99, "it has a record with an earlier time, for all that is known"
