"""Barriers and partitioners on a real Spark. Tests that need no Spark are in test_barriers_in_job.py."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.reports.job_metrics import TIMES, operator_metrics
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph, collected
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events

pytestmark = pytest.mark.spark

RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(40)]


@pytest.fixture(autouse=True)
def one_server(spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives programs that name no Spark the server of the session."""
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))


def attempt_of(graph: JobGraph, folder: Path, **config: Any) -> JobAttempt:
    return JobAttempt(graph, JobConfig("job", StorageLocation(str(folder)), **config), owner="test")


def test_each_barrier_of_an_attempt_is_a_checkpoint(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "sink")
    stream = events(environment(2), RECORDS, per_epoch=8).rebalance().map(lambda v: v, EVENT).uid("map")
    counts = stream.key_by("key").process(CountPerKey(), COUNTED).uid("count")
    counts.sink_to(sink).uid("sink")
    graph = counts.get_execution_environment().get_job_graph()
    config = {"checkpointing": CoordinatorConfig(num_retained=9), "latency_tracking_interval": timedelta(seconds=1)}
    with attempt_of(graph, tmp_path, **config) as attempt:
        *_, epoch = attempt.run_epochs(3)
        assert epoch.checkpoint_id == 3
        metadata = [attempt._store.load(i) for i in (1, 2, 3)]
        assert len(sink.rows()) == 24
    for each in metadata:
        count = each.operator("count")
        assert count is not None
        assert sum(s.metrics["records_in"] for s in count.subtasks) == 8
        assert max(s.metrics.get("latency_ms_max", -1) for s in count.subtasks) >= -1
        measured = {operator.uid: operator_metrics(operator) for operator in each.operators}
        assert measured["map"].total["numBytesOut"] == measured["count"].total["numBytesIn"] > 0
        assert all(sum(s[name] for name in TIMES) == 1000 for m in measured.values() for s in m.subtasks)
    job = epoch.metrics.job
    assert job["lastCheckpointSparkDuration"] > 0
    assert job["lastCheckpointHeadDuration"] >= 0
    first = epoch.statistics.history[0].phases
    assert first is not None and first.latency_ms_p50 is not None and first.latency_ms_p99 is not None
    assert first.latency_ms_p99 >= first.latency_ms_p50 > 0, "the first markers are sent at once"
    with attempt_of(graph, tmp_path, **config) as attempt:
        assert [epoch.checkpoint_id for epoch in attempt.run_epochs(3)] == [4, 5]
        assert attempt.finished
    rows = sink.rows()
    assert sorted(row[:2] for row in rows) == [(f"k{k}", n) for k in range(4) for n in range(1, 11)]
    assert [row[2] for row in rows if row[1] == 10] == [sum(range(k, 40, 4)) for k in range(4)]


def test_an_unaligned_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    env = environment(1)
    small = events(env, RECORDS[:8], uid="small", per_epoch=4)
    large = events(env, [(f"k{i % 4}", i, i) for i in range(200)], uid="large", per_epoch=100, batch_size=10)
    graph = collect_graph(small.union(large).key_by("key").process(CountPerKey(), COUNTED).uid("count"))
    records: list[Any] = []
    in_flight = []
    for _ in range(2):
        with attempt_of(graph, tmp_path, checkpointing=CoordinatorConfig(unaligned=True)) as attempt:
            epoch = attempt.run_epoch()
            records += collected(attempt.graph, attempt.collected)
        in_flight.append(any(s.channel_state for o in epoch.metadata.operators for s in o.subtasks))
    assert in_flight == [True, False]
    assert sorted(n for key, n, _ in records if key == "k0") == list(range(1, 53))


def test_every_partitioner_brings_every_record(tmp_path: Path) -> None:
    stream = environment(3).from_collection(list(range(30)), Types.LONG()).uid("numbers").rebalance()
    for how in (
        lambda s: s.rescale(),
        lambda s: s.shuffle(),
        lambda s: s.partition_custom(lambda key, n: key % n, lambda value: value),
        lambda s: s.global_(),
    ):
        stream = how(stream.map(lambda v: v, Types.LONG()))
    collect = collect_graph(stream.map(lambda v: v, Types.LONG()).broadcast().map(lambda v: v, Types.LONG()))
    with attempt_of(collect, tmp_path) as attempt:
        attempt.run_epoch()
        assert sorted(collected(attempt.graph, attempt.collected)) == sorted(list(range(30)) * 3)
