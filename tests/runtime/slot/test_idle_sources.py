"""A source is idle when nothing has come for its timeout, however often others have something to read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagster_flinkpy.common import Duration, TimestampAssigner, Types, WatermarkStrategy
from dagster_flinkpy.datastream import ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.runtime.epoch import EpochInput
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


class EventTime(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value, ctx.timer_service().current_watermark()


def test_a_source_is_idle_though_another_one_reads_all_the_time(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Millis())
    strategy = strategy.with_idleness(Duration.of_millis(10))
    source = CollectionSource([100, 200, 300, 400, 500], Types.LONG())
    busy, silent = (env.from_source(source, strategy, uid).uid(uid) for uid in ("busy", "silent"))
    graph = collect_graph(busy.union(silent).process(EventTime(), PAIR).uid("times"))
    rows, clock = list[WireRow](), ManualClock(0)
    task = PipelinedTask(
        replace(make_job(graph, tmp_path, inputs={}), clock=clock),
        0,
        graph.stage_vertices(0),
        0,
        ResultPartition({}, rows.append),
        InputGate({}, lambda: None, 1),
        later=lambda mail: mail(),
        on_error=lambda error, task: None,
    )
    task.open()
    for number, uids in enumerate((("busy", "silent"), ("busy",), ("busy",), ("busy",), ("busy",), ())):
        split = SourceSplit(str(number), {"subtask": 0, "end": number + 1}, number)
        parts = {(uid, 0): (split,) for uid in uids}
        task.begin(EpochInput(1, parts, open=bool(parts), timed=True))
        while task.is_available:
            task.step()
        clock.time += 6
    results = EpochResults.of([row for row in rows if row.kind is not Kind.OPERATOR_EVENT], 1)
    event_time = dict(collected(graph, results.collected))
    assert event_time[300] == 99, "event time waits for its timeout"
    assert event_time[500] == 399
