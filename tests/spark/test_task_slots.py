from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import (
    TaskSlots,
    ask_for_slots,
    await_slots,
    copies_slow_tasks,
    slots_of_local_master,
)

MASTERS = {
    "local": 1,
    "local[1]": 1,
    "local[4]": 4,
    "local[4,2]": 4,
    "local[*]": None,
    "local-cluster[2,1,1024]": None,
}


@pytest.mark.parametrize(("master", "slots"), MASTERS.items(), ids=MASTERS)
def test_a_local_master_says_how_many_slots_it_has(master: str, slots: int | None) -> None:
    told = slots_of_local_master(SparkSettings(master=master))
    assert told == (None if slots is None else TaskSlots({"driver": slots}, slots))


def test_other_masters_have_to_be_asked() -> None:
    assert slots_of_local_master(SparkSettings(mode="remote", remote="sc://host:1")) is None
    assert slots_of_local_master(SparkSettings(mode="classic", master="spark://host:7077")) is None
    assert slots_of_local_master(SparkSettings(master="local[4]", conf={"spark.task.cpus": "2"})) is None


def cluster(splits: int | None, **conf: Any) -> Any:
    """Returns a session of which only the configuration and EXPLAIN are used."""
    plan = "== Physical Plan ==\n" + ("LocalTableScan" if splits is None else f"Range (0, 1, step=1, splits={splits})")
    options = {"spark." + key.replace("_", "."): str(value) for key, value in conf.items()}
    result = SimpleNamespace(collect=lambda: [(plan,)])
    return SimpleNamespace(conf=SimpleNamespace(get=options.get), sql=lambda text: result)


CLUSTERS = {
    "local": (cluster(8, master="local[*]"), {"driver": 8}, 8),
    "one executor, as far as Spark tells": (cluster(8, master="spark://host:7077"), {"cluster": 8}, 8),
    "local-cluster": (cluster(2, master="local-cluster[2,1,1024]", executor_cores=1), {"1": 1, "2": 1}, 2),
    "executors of one size": (cluster(8, executor_cores=4), {"1": 4, "2": 4}, 8),
    "the last one is smaller": (cluster(6, executor_cores=4), {"1": 4, "2": 2}, 6),
    "tasks with two cores": (cluster(8, executor_cores=4, task_cpus=2), {"1": 2, "2": 2}, 4),
    "a core of each executor is left": (cluster(6, executor_cores=3, task_cpus=2), {"1": 1, "2": 1}, 2),
    "executors that come when tasks wait": (
        cluster(4, executor_cores=2, dynamicAllocation_enabled="true", dynamicAllocation_maxExecutors=10),
        {"1": 2, "2": 2},
        20,
    ),
    "any number of executors": (cluster(4, executor_cores=2, dynamicAllocation_enabled="true"), {"1": 2, "2": 2}, None),
    "the number of parts is set": (cluster(8, default_parallelism=3), None, None),
    "the number of parts of a leaf is set": (cluster(8, sql_leafNodeDefaultParallelism=3), None, None),
    "another plan": (cluster(None), None, None),
}


@pytest.mark.parametrize(("spark", "executors", "limit"), CLUSTERS.values(), ids=CLUSTERS)
def test_clusters(spark: Any, executors: dict[str, int] | None, limit: int | None) -> None:
    slots = ask_for_slots(spark)
    assert (slots and (slots.executors, slots.limit)) == (executors and (executors, limit))
    if slots is not None:
        local = "driver" in slots.executors
        assert slots.cores == (None if local else int(spark.conf.get("spark.task.cpus", 1)))


@pytest.mark.spark
def test_a_real_spark_connect_server_tells(spark: SparkSession) -> None:
    assert ask_for_slots(spark) == TaskSlots({"driver": 3}, 3)


@pytest.mark.parametrize("on", ["true", "false"])
@pytest.mark.parametrize("threshold", [{}, {"speculation_task_duration_threshold": "10m"}])
def test_spark_copies_slow_tasks_only_with_a_threshold(on: str, threshold: dict[str, str]) -> None:
    assert copies_slow_tasks(cluster(8, speculation=on, **threshold)) == (on == "true" and bool(threshold))


AWAITED = {
    "there are enough": ([4], 4),
    "executors register": ([2, 2, 6], 6),
    "time is over": ([2, 2, 2, 2], 2),
}


@pytest.mark.parametrize(("answers", "expected"), AWAITED.values(), ids=AWAITED)
def test_executors_register_one_by_one(answers: list[int], expected: int) -> None:
    told, now = iter(answers), [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    slots = await_slots(
        lambda: TaskSlots({"cluster": (number := next(told))}, number),
        lambda slots: 4,
        seconds=1.5,
        wait=wait,
        clock=lambda: now[0],
    )
    assert slots is not None and slots.number == expected
    assert list(told) == []


@pytest.mark.parametrize("answer", [None, TaskSlots({"driver": 2}, 2), TaskSlots({"cluster": 2}, None)])
def test_there_is_nothing_to_wait_for(answer: TaskSlots | None) -> None:
    def refuse(seconds: float) -> None:
        raise AssertionError("waited")

    assert await_slots(lambda: answer, lambda slots: 4, wait=refuse) is answer
