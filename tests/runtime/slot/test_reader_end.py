"""A reader that was told to read to its end does so, also if the rest of the epoch is there at once."""

from __future__ import annotations

from pathlib import Path

from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.connectors.sources.source_coordinator import Tell, packed
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.source import JsonSerializer
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.result_partition import ResultPartition
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.shuffle.wire import Kind, WireRow
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from tests.ranges import SIZE, Ranges
from tests.runtime.harness import collect_graph, collected, make_job


def test_an_epoch_that_runs_again_reads_to_the_end_before_its_barrier(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_source(Ranges(tmp_path, 1), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    graph = collect_graph(stream)
    rows = list[WireRow]()
    task = PipelinedTask(
        make_job(graph, tmp_path, inputs={}),
        0,
        graph.stage_vertices(0),
        0,
        ResultPartition({}, rows.append),
        InputGate({}, lambda: None, 1),
        later=lambda mail: mail(),
        on_error=lambda error, task: None,
    )
    task.open()
    split = packed(JsonSerializer(), {"next": 0, "end": SIZE})
    told = ((Tell.SPLIT, split), (Tell.NO_MORE_SPLITS, None), (Tell.END, None))
    splits = tuple(SourceSplit("", {"tell": tell, "value": value}) for tell, value in told)
    task.begin(EpochInput(1, {("numbers", 0): splits}, frozenset({"numbers"}), open=True))
    task.begin(EpochInput(1, {}, frozenset({"numbers"})))  # as its readers had read all when it ran first
    while task.is_available:
        task.step()
    results = EpochResults.of([row for row in rows if row.kind is not Kind.OPERATOR_EVENT], 1)
    assert collected(graph, results.collected) == list(range(SIZE))
    assert results.states
