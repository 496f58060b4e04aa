from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.slots.slot_plan import RegionSlots, plan_slots, required_slots
from tests.examples import examples

LONG = Types.LONG()


def source(env: StreamExecutionEnvironment, uid: str, parallelism: int = 1) -> DataStream:
    stream = env.from_collection([1, 2, 3], LONG).uid(uid)
    assert isinstance(stream, DataStream)
    return stream.set_parallelism(parallelism)


def then(stream: DataStream, uid: str, parallelism: int, group: str | None = None) -> DataStream:
    """Adds an operator behind a shuffle."""
    mapped = stream.rebalance().map(lambda v: v, LONG).uid(uid).set_parallelism(parallelism)
    return mapped if group is None else mapped.slot_sharing_group(group)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


def test_a_group_needs_its_highest_parallelism(env: StreamExecutionEnvironment) -> None:
    stream = then(then(source(env, "s", 2), "a", 8), "b", 3, "heavy")
    then(stream, "c", 5)
    assert required_slots(env.get_job_graph()) == {"default": 8, "heavy": 5}, "c is in the group of its input"


def test_an_operator_whose_inputs_are_in_different_groups_is_in_the_default_one(
    env: StreamExecutionEnvironment,
) -> None:
    left, right = source(env, "left"), source(env, "right").slot_sharing_group("g")
    then(left.union(right), "both", 1)
    groups = {v.uid: v.slot_sharing_group for v in env.get_job_graph().vertices}
    assert groups == {"left": "default", "right": "g", "both": "default"}


def test_subtasks_run_in_waves(env: StreamExecutionEnvironment) -> None:
    then(source(env, "s", 2), "a", 8)
    plan = plan_slots(env.get_job_graph(), {"driver": 2})
    assert (plan.needed, plan.had, plan.description) == (8, 2, "needs 8 slots, has 2: 4 waves")
    assert [sorted(wave) for wave in plan.waves] == [
        [("a", 0), ("a", 1), ("s", 0), ("s", 1)],
        [("a", 2), ("a", 3)],
        [("a", 4), ("a", 5)],
        [("a", 6), ("a", 7)],
    ]
    enough = plan_slots(env.get_job_graph(), {"1": 4, "2": 4})
    assert enough.description == "needs 8 slots, has 8"


def test_one_slot_is_called_one(env: StreamExecutionEnvironment) -> None:
    source(env, "s")
    assert plan_slots(env.get_job_graph(), {"driver": 1}).description == "needs 1 slot, has 1"


def test_nothing_can_be_planned_without_executors(env: StreamExecutionEnvironment) -> None:
    source(env, "s", 3)
    with pytest.raises(NoResourceAvailableError, match="3 slots are needed, and Spark has no executor") as refused:
        plan_slots(env.get_job_graph(), {})
    assert (refused.value.needed, refused.value.had) == (3, 0)


def test_chained_operators_run_together(env: StreamExecutionEnvironment) -> None:
    mapped = source(env, "s", 4).map(lambda v: v, LONG).uid("m").set_parallelism(4).slot_sharing_group("other")
    then(mapped, "a", 4)
    graph = env.get_job_graph()
    assert required_slots(graph) == {"default": 4, "other": 4}, "the chain is in the group of its first operator"
    plan = plan_slots(graph, {"1": 3, "2": 5})
    (wave,) = plan.waves
    assert all(wave[Subtask("s", i)] == wave[Subtask("m", i)] for i in range(4))


def test_a_task_goes_where_its_state_is(env: StreamExecutionEnvironment) -> None:
    then(source(env, "s", 2), "a", 2)
    prior = {Subtask("a", 0): "2", Subtask("a", 1): "1", Subtask("s", 0): "gone"}
    (wave,) = plan_slots(env.get_job_graph(), {"1": 2, "2": 2}, prior=prior).waves
    assert {task: wave[task].task_manager for task in prior if task.uid == "a"} == {("a", 0): "2", ("a", 1): "1"}


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([None, "g", "h"])), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
def test_each_subtask_runs_once_and_shares_its_slot_only_with_other_operators_of_its_group(
    operators: list[tuple[int, str | None]], slots: list[int]
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = source(env, "s", operators[0][0])
    for i, (parallelism, group) in enumerate(operators):
        stream = then(stream, f"o{i}", parallelism, group)
    graph = env.get_job_graph()
    executors = {f"e{i}": number for i, number in enumerate(slots)}
    if not sum(slots):
        with pytest.raises(NoResourceAvailableError):
            plan_slots(graph, executors)
        return
    plan = plan_slots(graph, executors)
    assert sorted(task for wave in plan.waves for task in wave) == sorted(
        Subtask(v.uid, i) for v in graph.vertices for i in range(v.parallelism)
    )
    assert (len(plan.waves) == 1) == (plan.needed <= plan.had)
    group_of = {v.uid: v.slot_sharing_group for v in graph.vertices}
    for wave in plan.waves:
        assert max(Counter((task.uid, place) for task, place in wave.items()).values()) == 1
        assert len({(place, group_of[task.uid]) for task, place in wave.items()}) == len(set(wave.values()))
        assert all(place.slot < executors[place.task_manager] for place in wave.values())


def regions(env: StreamExecutionEnvironment, *groups: str | None, parallelism: int = 2) -> list[JobGraph]:
    """Returns regions that a blocking edge joins, one for each group."""
    stream = source(env, "s", parallelism)
    if groups[0] is not None:
        stream.slot_sharing_group(groups[0])
    for i, group in enumerate(groups[1:]):
        stream = then(stream.blocking(), f"o{i}", parallelism, group)
    return env.get_job_graph().regions()


def test_regions_of_one_group_run_side_by_side_in_the_same_slots(env: StreamExecutionEnvironment) -> None:
    slots = RegionSlots(regions(env, None, None, None, parallelism=4), {"driver": 2})
    assert [slots.acquire(i) for i in range(3)] == [True, True, True]


def test_regions_of_different_groups_take_turns_if_there_are_too_few_slots(env: StreamExecutionEnvironment) -> None:
    parts = regions(env, "a", "b", "a")
    slots = RegionSlots(parts, {"driver": 3})
    assert slots.acquire(0)
    assert not slots.acquire(1), "one slot is left, and it gets two if it waits"
    assert slots.acquire(2), "it is in the slots of the first region"
    slots.release(0)
    assert not slots.acquire(1)
    slots.release(2)
    assert slots.acquire(1)
    assert not slots.acquire(0)
    slots.release(1)
    assert slots.acquire(0)
    enough = RegionSlots(parts, {"1": 2, "2": 2})
    assert [enough.acquire(i) for i in range(3)] == [True, True, True]


def test_a_region_that_is_too_large_runs_alone_in_waves(env: StreamExecutionEnvironment) -> None:
    slots = RegionSlots(regions(env, "a", "b", parallelism=4), {"driver": 2})
    assert slots.acquire(1)
    assert not slots.acquire(0)
    slots.release(1)
    assert slots.acquire(0)
