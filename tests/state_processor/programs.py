"""A program with every kind of state, and one that emits the content of its state."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import CheckpointedFunction, KeyedProcessFunction
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.runtime.harness import collect_graph
from tests.runtime.programs import environment, events

PAIR = Types.ROW_NAMED(["count", "sum"], [Types.LONG(), Types.LONG()])
TOTAL = ValueStateDescriptor("total", PAIR)
VALUES = ListStateDescriptor("values", Types.LONG())
SEEN = MapStateDescriptor("seen", Types.LONG(), Types.LONG())
LARGEST = ReducingStateDescriptor("largest", max, Types.LONG())
ANY = ListStateDescriptor("any", Types.PICKLED_BYTE_ARRAY())
RECENT = ValueStateDescriptor("recent", Types.LONG())
RECENT.enable_time_to_live(StateTtlConfig.new_builder(timedelta(hours=1)).build())
PART = ListStateDescriptor("part", Types.LONG())
SHARED = ListStateDescriptor("shared", Types.STRING())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class AllKinds(KeyedProcessFunction, CheckpointedFunction):
    """Keeps state of each kind for each key."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self._part = store.get_list_state(PART)
        self._shared = store.get_union_list_state(SHARED)
        self._rules = store.get_broadcast_state(RULES)

    def snapshot_state(self, context: Any) -> None:
        pass

    def open(self, runtime_context: Any) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()
        self._total = runtime_context.get_state(TOTAL)
        self._values = runtime_context.get_list_state(VALUES)
        self._seen = runtime_context.get_map_state(SEEN)
        self._largest = runtime_context.get_reducing_state(LARGEST)
        self._any = runtime_context.get_list_state(ANY)
        self._recent = runtime_context.get_state(RECENT)
        self._part.update([10 * self._subtask, 10 * self._subtask + 1])
        self._shared.update([f"subtask {self._subtask}"])
        self._rules.put("limit", 7)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        total = self._total.value()
        count, summed = (0, 0) if total is None else (total.count, total.sum)
        self._total.update(Row(count + 1, summed + value.value))
        self._values.add(value.value)
        self._seen.put(value.value % 3, value.value)
        self._largest.add(value.value)
        self._any.add({"value": value.value})
        self._recent.update(value.value)
        ctx.timer_service().register_event_time_timer(1_000_000 + value.value)


RECORDS = [(f"k{i % 7}", i, i) for i in range(60)]


def all_kinds(parallelism: int = 2, records: Iterable[tuple[str, int, int]] = RECORDS) -> JobGraph:
    stream = events(environment(parallelism), list(records), per_epoch=20).key_by("key")
    return collect_graph(stream.process(AllKinds(), Types.LONG()).uid("kinds"))
