"""Slot-sharing groups whose tasks have more cores than others, on a cluster with two executors of two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import SlotSharingGroup
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from tests.chaos.cluster import Cluster
from tests.runtime.harness import collect_graph, collected
from tests.runtime.programs import environment

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

LONG = Types.LONG()


def program(cores: float) -> JobGraph:
    def cores_of_this_task(value: Any) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return int(context.cpus())

    group = SlotSharingGroup.builder("large").set_cpu_cores(cores).set_task_heap_memory_mb(64).build()
    numbers = environment(3).from_collection([1, 2, 3, 4], LONG).uid("numbers")
    return collect_graph(
        numbers.rebalance().map(cores_of_this_task, LONG).uid("large").slot_sharing_group(group).set_parallelism(3)
    )


def attempt(graph: JobGraph, folder: Path, cluster: Cluster, said: list[str]) -> JobAttempt:
    config = JobConfig("slots", StorageLocation(str(folder)), cluster.settings)
    return JobAttempt(graph, config, owner="test", on_progress=said.append)


def test_tasks_of_a_group_have_the_cores_of_its_slots(cluster: Cluster, tmp_path: Path) -> None:
    said: list[str] = []
    with attempt(program(1.5), tmp_path, cluster, said) as running:
        running.run_epoch()
        assert collected(running.graph, running.collected) == [2] * 4
    assert any(line.startswith("job 'slots' needs 7 slots, has ") for line in said), "one, and six of the group"


def test_no_executor_has_as_many_cores(cluster: Cluster, tmp_path: Path) -> None:
    with (
        attempt(program(64), tmp_path, cluster, []) as running,
        pytest.raises(NoResourceAvailableError, match="no executor of Spark has as many cores"),
    ):
        running.run_epoch()
