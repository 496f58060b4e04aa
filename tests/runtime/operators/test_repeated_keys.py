from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.shuffle import key_dictionary
from dagster_flinkpy.testing.local_run import run_local
from tests.examples import examples

EVENT = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self._count.update((self._count.value() or 0) + 1)
        yield ctx.get_current_key(), value.name, self._count.value()


def results(records: list[tuple[str, int]], parallelism: int) -> list[list[Any]]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    events = env.from_collection(records, EVENT)
    by_field, by_function = events.key_by("name"), events.key_by(lambda event: event.name + "!", Types.STRING())
    streams = (
        by_field.process(Count()),
        by_function.process(Count()),
        by_field.sum("number"),
        by_function.max("number"),
    )
    return run_local(env, *streams)


@settings(max_examples=examples(20))
@given(
    st.lists(st.tuples(st.text(max_size=2), st.integers(-9, 9)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_results_do_not_depend_on_how_keys_are_sent(
    records: list[tuple[str, int]], parallelism: int, repeated: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_dictionary, "RESTS", 0)
        patch.setattr(key_dictionary, "REPEATED", repeated)
        patch.setattr(key_dictionary, "ROWS", 1)
        found = results(records, parallelism)
        patch.setattr(key_dictionary, "ROWS", 10**9)
        assert found == results(records, parallelism)
