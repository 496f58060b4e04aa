"""Slot-sharing groups with resources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import MemorySize, SlotSharingGroup, StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

LONG = Types.LONG()


def group(cores: float, name: str = "g") -> SlotSharingGroup:
    return SlotSharingGroup.builder(name).set_cpu_cores(cores).set_task_heap_memory_mb(64).build()


def test_what_a_slot_has() -> None:
    built = (
        SlotSharingGroup.builder("g")
        .set_cpu_cores(1.5)
        .set_task_heap_memory(MemorySize.of_mebi_bytes(3 << 10))
        .set_task_off_heap_memory_mb(2)
        .set_managed_memory_mb(5)
        .set_external_resource("gpu", 1)
        .build()
    )
    heap, off_heap, managed = built.get_task_heap_memory(), built.get_task_off_heap_memory(), built.get_managed_memory()
    assert heap is not None and off_heap is not None and managed is not None
    assert (heap.get_gibi_bytes(), off_heap.get_kibi_bytes(), managed.get_mebi_bytes()) == (3, 2 << 10, 5)
    assert (built.get_name(), built.get_cpu_cores(), built.get_external_resources()) == ("g", 1.5, {"gpu": 1.0})
    assert (MemorySize(1 << 40).get_tebi_bytes(), MemorySize(7).get_bytes()) == (1, 7)
    bare = SlotSharingGroup.builder("g").build()
    assert not bare.has_resources and bare.get_cpu_cores() is bare.get_managed_memory() is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda builder: builder.set_cpu_cores(1).build(),
        lambda builder: builder.set_managed_memory_mb(1).build(),
        lambda builder: builder.set_cpu_cores(1).set_task_heap_memory_mb(0).build(),
        lambda builder: builder.set_cpu_cores(0),
        lambda builder: builder.set_cpu_cores("2"),
        lambda builder: builder.set_task_heap_memory(64),
        lambda builder: builder.set_task_heap_memory_mb(-1),
        lambda builder: builder.set_external_resource("gpu", float("inf")),
    ],
)
def test_what_is_refused(wrong: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError):
        wrong(SlotSharingGroup.builder("g"))


def test_operators_have_the_resources_of_their_group() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().register_slot_sharing_group(group(2, "named"))
    source = env.from_collection([1], LONG).uid("source")
    source.rebalance().map(lambda v: v, LONG).uid("named").slot_sharing_group("named")
    mapped = source.rebalance().map(lambda v: v, LONG).uid("given").slot_sharing_group(group(3))
    mapped.rebalance().map(lambda v: v, LONG).uid("inherited")
    vertices = {v.uid: v.slot_resources for v in env.get_job_graph().vertices}
    assert vertices == {"source": None, "named": group(2, "named"), "given": group(3), "inherited": group(3)}


def test_a_group_has_one_set_of_resources() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().register_slot_sharing_group(group(2))
    env.from_collection([1], LONG).uid("source").slot_sharing_group(group(3))
    with pytest.raises(JobGraphError, match="'g' has two different sets of resources"):
        env.get_job_graph()
