"""Small buffers that follow each other are processed together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.runtime.shuffle import key_dictionary
from dagster_flinkpy.runtime.task import operator_task
from dagster_flinkpy.testing.local_run import run_local
from tests.examples import examples
from tests.runtime.harness import collect_all, random_order
from tests.runtime.programs import environment, event_time, events

EVENTS = [("abc"[i % 3], i, i) for i in range(64)]


def counts(folder: Path, joined: int, rows: int = operator_task._JOINED_ROWS) -> set[int]:
    """Returns how many records a function of batches gets at once: four senders send four to each of four subtasks."""

    def count(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": pa.array([batch.num_rows] * batch.num_rows)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_task, "_JOINED_SIZE", joined)
        patch.setattr(operator_task, "_JOINED_ROWS", rows)
        stream = events(environment(4), EVENTS, strategy=WatermarkStrategy.no_watermarks())
        return set(collect_all(stream.rebalance().map_batch(count, Types.LONG()), folder))


def test_small_buffers_of_all_senders_are_processed_together(tmp_path: Path) -> None:
    assert counts(tmp_path / "one by one", 0) == {4}
    assert counts(tmp_path / "together", operator_task._JOINED_SIZE) == {16}
    assert counts(tmp_path / "few records", operator_task._JOINED_SIZE, 8) == {8}, "barriers wait for a batch"


class History(KeyedProcessFunction):
    """Emits all numbers of a key so far, and the watermark."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self._numbers.add(value.value)
        yield ctx.get_current_key(), list(self._numbers.get()), ctx.timer_service().current_watermark()


@settings(max_examples=examples(20))
@given(
    seed=st.integers(0, 99),
    parallelism=st.integers(1, 3),
    joined=st.sampled_from([300, 1200, operator_task._JOINED_SIZE]),
)
def test_a_function_sees_the_same_records_watermarks_and_order(
    seed: int, parallelism: int, joined: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def run(size: int) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator_task, "_JOINED_SIZE", size)
            stream = events(environment(parallelism), EVENTS, strategy=event_time(5)).key_by("key").process(History())
            return collect_all(stream, tmp_path_factory.mktemp("history"), random_order(seed))

    assert run(joined) == run(0)


NAMED = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])


@settings(max_examples=examples(20))
@given(
    st.lists(st.tuples(st.text(max_size=2), st.integers(-9, 9)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([600, operator_task._JOINED_SIZE]),
)
def test_dictionaries_of_several_buffers_become_one(
    records: list[tuple[str, int]], parallelism: int, repeated: int, joined: int
) -> None:
    def run(size: int) -> list[list[Any]]:
        patch.setattr(operator_task, "_JOINED_SIZE", size)
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        named = env.from_collection(records, NAMED).rebalance().key_by("name")
        return run_local(env, named.sum("number"), named.process(Numbers()), named.max("number"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_dictionary, "RESTS", 0)
        patch.setattr(key_dictionary, "REPEATED", repeated)
        patch.setattr(key_dictionary, "ROWS", 3)  # so some buffers have a dictionary and others have none
        assert run(joined) == run(0)


class Numbers(KeyedProcessFunction):
    """Emits all numbers of a name so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self._numbers.add(value.number)
        yield ctx.get_current_key(), value.name, list(self._numbers.get())
