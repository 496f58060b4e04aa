"""Records that are in flight at an unaligned barrier come again by themselves, event time from those who send it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.common import Time
from dagster_flinkpy.datastream import TumblingEventTimeWindows
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.shuffle.wire import Kind, encode_element
from dagster_flinkpy.runtime.task.channel_state import ChannelStateWriter, InFlightRow, read_channel_state
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, make_job, random_order, run_epoch
from tests.runtime.programs import environment, events

RECORDS = [(f"k{i % 3}", i * 10, i) for i in range(30)]


def sums(parallelism: int, per_epoch: int | None = None) -> JobGraph:
    stream = events(environment(parallelism), RECORDS, per_epoch=per_epoch)
    windows = stream.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
    return collect_graph(windows.reduce(lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2])).uid("windows"))


def test_no_event_time_is_stored(tmp_path: Path) -> None:
    kinds: set[int] = set()
    for seed in range(8):
        graph, folder = sums(2, per_epoch=10), tmp_path / str(seed)
        config = {"checkpointing": CoordinatorConfig(unaligned=True)}
        with HarnessAttempt(graph, folder, config=config, order=random_order(seed)) as attempt:
            [windows] = [each for each in attempt.run_epoch().metadata.operators if each.uid == "windows"]
            store = StorageLocation(str(folder)).child("job").open()
            for subtask in windows.subtasks:
                rows = read_channel_state(subtask.channel_state, graph.inputs("windows"), store, operator="windows")
                kinds |= {row.kind for row in rows}
    assert kinds == {Kind.BUFFER}


def test_event_time_that_an_earlier_release_has_stored_makes_no_record_late(tmp_path: Path) -> None:
    """It is of a sender that has begun anew, and has not sent what comes before it."""
    graph = sums(1)
    job = make_job(graph, tmp_path)
    writer = ChannelStateWriter(job.job_storage.open, "1-1")
    [edge] = graph.inputs("windows")
    writer.add(InFlightRow(edge, 0, Kind.WATERMARK, encode_element(Kind.WATERMARK, ("events", 10_000))))
    parts = writer.parts()
    for upload in writer.uploads:
        upload.result()
    with_state = replace(job, inputs={("windows", 0): SubtaskState(0, channel_state=parts)})
    found = [collected(graph, run_epoch(each).collected) for each in (job, with_state)]
    assert len(found[0]) == 9
    assert found[0] == found[1]
