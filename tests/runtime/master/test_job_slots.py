from __future__ import annotations

from pathlib import Path

import pytest

from dagster_flinkpy.common import Configuration, Types
from dagster_flinkpy.datastream import SlotSharingGroup, StreamExecutionEnvironment
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import TaskSlots
from dagster_flinkpy.storage import StorageLocation

LONG = Types.LONG()


def environment(parallelism: int = 8) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    mapped = env.from_collection([1, 2, 3], LONG).uid("numbers").rebalance().map(lambda v: v, LONG).uid("map")
    mapped.set_parallelism(parallelism)
    return env


def test_a_job_that_needs_more_slots_says_so_once() -> None:
    graph, lines = environment().get_job_graph(), list[str]()
    slots = JobSlots("job", graph, [graph], SparkSettings(), lines.append)
    for executors in ({"driver": 2}, {"driver": 2}, {"1": 2, "2": 2}, {"1": 4, "2": 4}):
        slots.take_note(TaskSlots(executors, None))
    assert lines == ["job 'job' needs 8 slots, has 2: 4 waves", "job 'job' needs 8 slots, has 4: 2 waves"]
    assert slots.plan is not None and (slots.plan.needed, slots.plan.had) == (8, 8)


def test_a_group_whose_tasks_have_more_cores_needs_more_slots() -> None:
    env = environment(4)
    env.register_slot_sharing_group(
        SlotSharingGroup.builder("default").set_cpu_cores(1.5).set_task_heap_memory_mb(64).build()
    )
    graph, lines = env.get_job_graph(), list[str]()
    slots = JobSlots("job", graph, [graph], SparkSettings(), lines.append)
    slots.take_note(TaskSlots({"driver": 4}, 4))
    assert lines == [], "in local mode tasks have one core each"
    slots.take_note(TaskSlots({"1": 2, "2": 2}, 4, cores=1))
    slots.take_note(TaskSlots({"1": 4, "2": 4}, 8, cores=2))
    assert lines == ["job 'job' needs 8 slots, has 4: 2 waves"], "slots of two cores are enough"
    with pytest.raises(
        NoResourceAvailableError, match=r"no executor .* as a task of slot-sharing group 'default' needs"
    ):
        slots.take_note(TaskSlots({"1": 1, "2": 1}, 2, cores=1))


def test_without_groups_regions_do_not_wait_for_slots() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_collection([1], LONG).uid("a").blocking()
    source.map(lambda v: v, LONG).uid("b")
    graph = env.get_job_graph()
    slots = JobSlots("job", graph, graph.regions(), SparkSettings(master="local[1]"), lambda line: None)
    assert slots.acquire(0) and slots.acquire(1)
    slots.release(0)
    slots.release(1)


def attempt(
    env: StreamExecutionEnvironment, folder: Path, *, in_process: bool = False, parallelism: int | None = None
) -> JobAttempt:
    settings = SparkSettings(master="local[2]")
    storage = StorageLocation(str(folder))
    config = JobConfig("job", storage, settings, require_all_slots=True, in_process=in_process)
    return JobAttempt(env.get_job_graph(), config, owner="test", parallelism=parallelism)


def test_regions_with_groups_share_the_slots_that_spark_has() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_collection([1], LONG).uid("a").slot_sharing_group("a").blocking()
    source.map(lambda v: v, LONG).uid("b").slot_sharing_group("b")
    graph = env.get_job_graph()
    for number, side_by_side in ((1, False), (2, True)):
        settings = SparkSettings(master=f"local[{number}]")
        slots = JobSlots("job", graph, graph.regions(), settings, lambda line: None)
        slots.open(JobSession(SharedSession(settings, lambda line: None)))
        assert slots.acquire(0)
        assert slots.acquire(1) == side_by_side
        slots.release(0)
        assert side_by_side or slots.acquire(1)


def test_a_job_that_must_have_all_slots_touches_nothing_if_there_are_fewer(tmp_path: Path) -> None:
    with pytest.raises(
        NoResourceAvailableError, match=r"job 'job' needs all of its 8 slots at once .* has 2"
    ) as refused:
        attempt(environment(), tmp_path).__enter__()
    assert (refused.value.needed, refused.value.had) == (8, 2)
    assert list(tmp_path.rglob("*")) == []


def test_a_job_that_has_all_slots_starts(tmp_path: Path) -> None:
    with attempt(environment(2), tmp_path) as started:
        assert started.token == 1


def test_the_parallelism_of_the_restored_checkpoint_counts(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1, 2, 3], LONG).uid("numbers").rebalance().map(lambda v: v, LONG).uid("map")
    with attempt(env, tmp_path, in_process=True) as first:
        first.run_epoch()
    with attempt(env, tmp_path, in_process=True, parallelism=4) as rescaled:
        completed = rescaled.commit_restored().checkpoint_id
    with pytest.raises(NoResourceAvailableError, match="4 slots"):
        attempt(env, tmp_path).__enter__()
    with attempt(env, tmp_path, in_process=True) as again:
        assert again.latest is not None and again.latest.checkpoint_id == completed


def test_in_this_process_there_are_no_slots(tmp_path: Path) -> None:
    with attempt(environment(), tmp_path, in_process=True) as started:
        started.run_epoch()


def test_the_option_and_the_call() -> None:
    options = Configuration.from_dict({"execution.require-all-slots": "true"})
    assert StreamExecutionEnvironment.get_execution_environment(options).get_config().is_require_all_slots()
    env = environment()
    assert not env.get_config().is_require_all_slots()
    env.get_config().set_require_all_slots(True)
    assert env.get_config().is_require_all_slots()


def test_env_execute_requires_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster_flinkpy.runtime.master.slots import job_slots

    monkeypatch.setattr(job_slots, "slots_of_local_master", lambda settings: TaskSlots({"driver": 2}, 2))
    monkeypatch.setattr("dagster_flinkpy.runtime.master.local_executor.start_server", lambda: None)
    env = environment()
    env.get_config().set_require_all_slots(True)
    with pytest.raises(NoResourceAvailableError):
        env.execute()
