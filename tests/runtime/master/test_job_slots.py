from __future__ import annotations

from pathlib import Path

import pytest

from dagster_flinkpy.common import Configuration, Types
from dagster_flinkpy.datastream import DataStream, SlotSharingGroup, StreamExecutionEnvironment
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots, required_slots
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import TaskSlots
from dagster_flinkpy.storage import StorageLocation

LONG = Types.LONG()
CLUSTER = SparkSettings(mode="remote", remote="sc://cluster:15002")


def environment(parallelism: int = 8) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    mapped = env.from_collection([1, 2, 3], LONG).uid("numbers").rebalance().map(lambda v: v, LONG).uid("map")
    mapped.set_parallelism(parallelism)
    return env


def test_a_job_that_needs_more_slots_says_so_once() -> None:
    graph, lines = environment().get_job_graph(), list[str]()
    slots = JobSlots("job", graph, SparkSettings(), lines.append)
    for executors in ({"driver": 2}, {"driver": 2}, {"1": 2, "2": 2}, {"1": 4, "2": 4}):
        slots.take_note(TaskSlots(executors, None))
    said = "job 'job' needs 8 slots, and Spark has {}: its tasks take turns"
    assert lines == [said.format(2), said.format(4)]
    assert (slots.needed, slots.had) == (8, 8)


def test_a_group_whose_tasks_have_more_cores_needs_more_slots() -> None:
    env = environment(4)
    env.register_slot_sharing_group(
        SlotSharingGroup.builder("default").set_cpu_cores(1.5).set_task_heap_memory_mb(64).build()
    )
    graph, lines = env.get_job_graph(), list[str]()
    slots = JobSlots("job", graph, SparkSettings(), lines.append)
    slots.take_note(TaskSlots({"driver": 4}, 4))
    assert lines == [], "in local mode tasks have one core each"
    slots.take_note(TaskSlots({"1": 2, "2": 2}, 4, cores=1))
    slots.take_note(TaskSlots({"1": 4, "2": 4}, 8, cores=2))
    assert lines == ["job 'job' needs 8 slots, and Spark has 4: its tasks take turns"], "slots of two cores are enough"
    with pytest.raises(
        NoResourceAvailableError, match=r"no executor .* as a task of slot-sharing group 'default' needs"
    ):
        slots.take_note(TaskSlots({"1": 1, "2": 1}, 2, cores=1))


def then(stream: DataStream, uid: str, parallelism: int, group: str | None = None) -> DataStream:
    """Adds an operator behind a shuffle."""
    mapped = stream.rebalance().map(lambda v: v, LONG).uid(uid).set_parallelism(parallelism)
    return mapped if group is None else mapped.slot_sharing_group(group)


def test_a_group_needs_its_highest_parallelism() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_collection([1, 2, 3], LONG).uid("s").set_parallelism(2)
    then(then(then(source, "a", 8), "b", 3, "heavy"), "c", 5)
    assert required_slots(env.get_job_graph()) == {"default": 8, "heavy": 5}, "c is in the group of its input"


def test_a_chain_is_in_the_group_of_its_first_operator() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_collection([1, 2, 3], LONG).uid("s").set_parallelism(4)
    mapped = source.map(lambda v: v, LONG).uid("m").set_parallelism(4).slot_sharing_group("other")
    then(mapped, "a", 3)
    assert required_slots(env.get_job_graph()) == {"default": 4, "other": 3}


def test_an_operator_whose_inputs_are_in_different_groups_is_in_the_default_one() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    left, right = env.from_collection([1], LONG).uid("left"), env.from_collection([1], LONG).uid("right")
    then(left.union(right.slot_sharing_group("g")), "both", 1)
    groups = {v.uid: v.slot_sharing_group for v in env.get_job_graph().vertices}
    assert groups == {"left": "default", "right": "g", "both": "default"}


def test_live_tasks_of_different_regions_share_no_slots() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_collection([1], LONG).uid("a").set_parallelism(2)
    then(source.blocking(), "b", 3)
    graph = env.get_job_graph()
    slots = JobSlots("job", graph, SparkSettings(), print)
    assert (slots.needed, slots.needed_to_live()) == (3, 5)
    assert slots.needed_to_live(2) == 1 + 2


def slots_of(
    parallelism: int, settings: SparkSettings, had: int | None, monkeypatch: pytest.MonkeyPatch, cores: int
) -> JobSlots:
    """Returns the slots of a job, on a Spark that has some, and a machine that has some cores."""
    monkeypatch.setattr("dagster_flinkpy.runtime.master.slots.job_slots.available_cores", lambda: cores)
    graph = environment(parallelism).get_job_graph()
    slots = JobSlots("job", graph, settings, print)
    if had is not None:
        slots.take_note(TaskSlots({"driver": had}, had))
    return slots


@pytest.mark.parametrize(
    ("parallelism", "had", "cores", "expected"),
    [
        (2, 8, 2, 1),
        (3, 8, 2, 1),  # with two in a process, a core would have twice as much as the other one
        (4, 8, 2, 2),
        (16, 64, 4, 4),
        (19, 64, 4, 4),
        (16, None, 4, 4),
        (4, 4, 8, 2),  # a slot is left to others
        (16, 4, 8, 6),
        (16, 2, 8, 16),
        (2, 1, 8, 1),  # nothing would be left
    ],
)
def test_slots_share_a_process_if_there_are_twice_as_many_as_cores_or_too_few_of_spark(
    parallelism: int, had: int | None, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_of(parallelism, SparkSettings(), had, monkeypatch, cores)
    assert slots.slots_per_process(spare=1) == expected


def test_a_cluster_has_the_cores_that_spark_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(8, CLUSTER, 16, monkeypatch, cores=1)
    assert slots.slots_per_process(spare=1) == 1
    slots.take_note(TaskSlots({"1": 2, "2": 2}, 4))
    assert [slots.slots_per_process(spare=spare) for spare in (0, 1)] == [2, 3]


def test_slots_wait_for_executors_that_spark_may_add(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(8, CLUSTER, None, monkeypatch, cores=1)
    for limit in (None, 16):
        slots.take_note(TaskSlots({"1": 2}, limit))
        assert slots.slots_per_process(spare=1) == 1


def attempt(
    env: StreamExecutionEnvironment, folder: Path, *, in_process: bool = False, parallelism: int | None = None
) -> JobAttempt:
    settings = SparkSettings(master="local[2]")
    storage = StorageLocation(str(folder))
    config = JobConfig("job", storage, settings, require_all_slots=True, in_process=in_process)
    return JobAttempt(env.get_job_graph(), config, owner="test", parallelism=parallelism)


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
