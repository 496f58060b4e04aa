"""On a real Spark, checkpoints complete while a region behind a blocking edge is busy. See test_unaligned_edges.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.datastream import MapFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.runtime.master.deployments import pipelined_region
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events
from tests.waiting import until

pytestmark = pytest.mark.spark

RECORDS = [(f"k{i % 3}", i, i) for i in range(12)]


class Busy(MapFunction):
    """Says that it has begun, and goes on when a file exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def map(self, value: Any) -> Any:
        (self.folder / "begun").touch()
        until((self.folder / "go").exists, "nobody lets the region go on")
        return value


def program(folder: Path) -> tuple[JobGraph, FolderSink]:
    env, sink = environment(1), FolderSink(folder / "sink")
    stream = events(env, RECORDS, per_epoch=2).blocking().map(Busy(folder), EVENT).uid("busy")
    stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def test_checkpoints_do_not_wait_for_a_busy_region(
    tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined_region, "_CANCEL_SECONDS", 1.0)  # the busy function does not give up
    graph, sink = program(tmp_path)
    config = JobConfig(
        "job",
        StorageLocation(str(tmp_path)),
        spark=spark_settings,
        checkpointing=CoordinatorConfig(unaligned=True),
    )
    with pytest.raises(KeyboardInterrupt), JobAttempt(graph, config, owner="test") as attempt:
        for epoch in attempt.run_epochs():
            if epoch.checkpoint_id == 4:
                until((tmp_path / "begun").exists, "the region does not begin")
                raise KeyboardInterrupt
    latest = attempt.latest
    assert latest is not None
    (reader,) = (operator for operator in latest.operators if operator.in_flight)
    read_by_the_busy_job = reader.in_flight[0]["checkpoint_id"]
    assert [output["checkpoint_id"] for output in reader.in_flight] == list(range(read_by_the_busy_job, 5))
    assert sink.rows() == []
    (tmp_path / "go").touch()
    with JobAttempt(graph, config, owner="test", parallelism=2) as attempt:
        list(attempt.run_epochs())
        assert attempt.finished
    rows = sink.rows()
    assert Counter((key, number) for key, number, _ in rows) == Counter(
        (key, number) for key in ("k0", "k1", "k2") for number in range(1, 5)
    )
    assert {key: total for key, number, total in rows if number == 4} == {"k0": 18, "k1": 22, "k2": 26}
    assert sink.staged() == []
