"""How many records the tasks of a job have read so far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dagster_flinkpy.spark.record_counts import RecordCounts, TaskCount
from tests.runtime.harness import collect_graph, make_job, run_epoch
from tests.runtime.programs import environment, events

RECORDS = [(key, i, 0) for i, key in enumerate("abcabcab")]


def test_each_stage_counts_what_it_reads(tmp_path: Path) -> None:
    stream = events(environment(2), RECORDS).filter(lambda event: event.key != "c").uid("some")
    graph = collect_graph(stream.key_by("key").map(lambda event: event).uid("same"))
    with RecordCounts(shared=True) as counts:
        run_epoch(replace(make_job(graph, tmp_path), counts=counts.folder))
        assert counts.by_stage() == {0: 8, 1: 6}
        folder = Path(counts.folder)
    assert not folder.exists()
    assert counts.by_stage() == {}


def test_elsewhere_nothing_is_counted(tmp_path: Path) -> None:
    graph = collect_graph(events(environment(2), RECORDS))
    with RecordCounts(shared=False) as counts:
        run_epoch(replace(make_job(graph, tmp_path), counts=counts.folder))
        assert counts.by_stage() == {}


def test_another_try_of_a_task_begins_again() -> None:
    with RecordCounts(shared=True) as counts:
        first = TaskCount(counts.folder, 0, 1)
        first.add(300)
        first.add(300)
        assert counts.by_stage() == {0: 600}
        first.close()
        first.add(1)
        second = TaskCount(counts.folder, 0, 1)
        second.add(5)
        other = TaskCount(counts.folder, 0, 0)
        other.add(70)
        assert counts.by_stage() == {0: 75}


def test_a_folder_that_is_gone_counts_nothing() -> None:
    with RecordCounts(shared=True) as counts:
        folder = counts.folder
    count = TaskCount(folder, 0, 0)
    count.add(1)
    count.close()
