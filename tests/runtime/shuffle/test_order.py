"""The guarantees about the order of events (docs/shuffle.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import KeyedProcessFunction, ProcessFunction
from tests.examples import examples
from tests.runtime.harness import collect_all, random_order
from tests.runtime.programs import EVENT, environment, events

slow = settings(max_examples=examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
SEEN = Types.TUPLE([Types.LONG(), Types.LONG()])


class WithWatermark(ProcessFunction):
    """Emits the time of a record, and event time at its arrival."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.time, ctx.timer_service().current_watermark()


class Numbered(KeyedProcessFunction):
    """Emits key and value in the order of arrival."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.time, value.value


@slow
@given(seed=st.integers(0, 999), parallelism=st.integers(1, 3))
def test_records_of_one_subtask_and_key_stay_in_order(
    seed: int, parallelism: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Each subtask of the source reads its own slice, with increasing values.
    records = [(f"k{i % 3}", i // 20, i) for i in range(60)]
    stream = events(environment(parallelism), records, batch_size=2).rebalance().map(lambda v: v, EVENT).forward()
    keyed = events(environment(parallelism), records, batch_size=2).key_by("key").process(Numbered(), SEEN)
    seen = collect_all(keyed, tmp_path_factory.mktemp("keyed"), random_order(seed))
    for k in range(3):
        for subtask in range(parallelism):
            own = range(60 * subtask // parallelism, 60 * (subtask + 1) // parallelism)
            values = [value for _, value in seen if value % 3 == k and value in own]
            assert values == sorted(values)
    assert len(collect_all(stream, tmp_path_factory.mktemp("all"), random_order(seed))) == 60


@slow
@given(seed=st.integers(0, 999), parallelism=st.integers(1, 3))
def test_no_watermark_overtakes_a_record(seed: int, parallelism: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    records = [("a", i, i) for i in range(60)]
    stream = events(environment(parallelism), records, batch_size=2).rebalance().process(WithWatermark(), SEEN)
    for time, watermark in collect_all(stream, tmp_path_factory.mktemp("job"), random_order(seed)):
        assert time > watermark


def test_event_time_of_a_union_is_the_least_of_all_its_streams(tmp_path: Path) -> None:
    env = environment(1)
    fast = events(env, [("a", i, i) for i in range(100)], uid="fast")
    slower = [events(env, [("a", i, i) for i in range(50)], uid=f"slow{n}") for n in range(3)]
    seen = collect_all(fast.union(*slower).key_by("key").process(WithWatermark(), SEEN), tmp_path)
    assert len(seen) == 250
    # Event time has never passed a record that arrives later, from any stream.
    times = [time for time, _ in seen]
    assert all(watermark < min(times[i:]) for i, (_, watermark) in enumerate(seen))
    assert max(watermark for _, watermark in seen) > 90
