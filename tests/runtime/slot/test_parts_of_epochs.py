"""What live tasks keep of the parts of an epoch that the driver tells all of them of."""

from __future__ import annotations

import weakref
from pathlib import Path

from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.exchange.result_partition import ResultPartition
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.runtime.slot.pipelined_task import PipelinedTask
from tests.runtime.harness import collect_graph, make_job
from tests.runtime.programs import COUNTED, CountPerKey, environment, events


def test_a_task_without_sources_keeps_no_part(tmp_path: Path) -> None:
    """It kept all of them, with the splits of all sources, until the run ended."""
    counts = events(environment(), [("a", 1, 1)]).key_by("key").process(CountPerKey(), COUNTED).uid("count")
    graph, rows = collect_graph(counts), list[WireRow]()
    task = PipelinedTask(
        make_job(graph, tmp_path, inputs={}),
        1,
        graph.stage_vertices(1),
        0,
        ResultPartition({}, rows.append),
        InputGate({}, lambda: None, 1),
        later=lambda mail: mail(),
        on_error=lambda error, task: None,
    )
    task.open()
    part = EpochInput(1, {("events", 0): (SourceSplit("0", {}),)}, open=True)
    held = weakref.ref(part)
    task.begin(part)
    del part
    assert held() is None
