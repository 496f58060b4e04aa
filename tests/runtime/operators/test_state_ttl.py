from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeyedProcessFunction
from dagster_flinkpy.datastream.state import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from tests.runtime.harness import HarnessAttempt, ManualClock, collect_graph, collected
from tests.runtime.programs import environment, events

TTL = 1000


class Count(KeyedProcessFunction):
    """Counts recent records per key, and per key and value."""

    def open(self, runtime_context: Any) -> None:
        config = StateTtlConfig.new_builder(Time.milliseconds(TTL)).build()
        count = ValueStateDescriptor("count", Types.LONG())
        by_value = MapStateDescriptor("by_value", Types.LONG(), Types.LONG())
        for descriptor in (count, by_value):
            descriptor.enable_time_to_live(config)
        self._count = runtime_context.get_state(count)
        self._by_value = runtime_context.get_map_state(by_value)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        self._by_value.put(value.value, (self._by_value.get(value.value) or 0) + 1)
        yield value.key, self._count.value(), dict(self._by_value.items())


def test_state_expires_between_epochs_whatever_the_parallelism(tmp_path: Path) -> None:
    keys = [f"k{i}" for i in range(8)]
    values = [[(key, 0, n % 2) for key in keys] for n in range(4)]
    times, parallelisms = [0, 600, 1599, 2600], [2, 3, 1, 2]
    expected = [(1, {0: 1}), (2, {0: 1, 1: 1}), (3, {0: 1, 1: 1}), (1, {1: 1})]
    clock = ManualClock()
    for time, parallelism, (count, by_value) in zip(times, parallelisms, expected, strict=True):
        source = events(environment(), [record for each in values for record in each], per_epoch=8)
        graph = collect_graph(source.key_by("key").process(Count()).uid("count"))
        clock.time = time
        with HarnessAttempt(graph, tmp_path, clock=clock, parallelism=parallelism) as attempt:
            if attempt.restored is not None:
                attempt.commit_restored()
            attempt.run_epoch()
            got = collected(attempt.graph, attempt.collected)
        # At 1599 the entry of 0, written at time 0, starts anew. That of 1, written at 600, expires at 1600.
        assert sorted(got) == sorted((key, count, by_value) for key in keys)
