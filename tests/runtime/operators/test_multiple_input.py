"""Operators with more than two inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import (
    DataStream,
    KeyedMultipleInputBatchFunction,
    KeyedMultipleInputProcessFunction,
    MultipleInputProcessFunction,
    OutputTag,
    RuntimeContext,
)
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, TypeMismatchError, UserFunctionError
from dagster_flinkpy.runtime.task.channel_state import read_channel_state
from dagster_flinkpy.state_processor import read_savepoint
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, make_job, random_order, run_epoch, run_job
from tests.runtime.programs import COUNTED, environment, event_time, events

ORDER = Types.ROW_NAMED(["customer", "amount"], [Types.STRING(), Types.LONG()])
PAYMENT = Types.TUPLE([Types.LONG(), Types.STRING()])
WORD = Types.STRING()
REFUSED = OutputTag("refused", PAYMENT)


class Account(KeyedMultipleInputProcessFunction):
    """What customers owe: orders, payments, and names of those who are to be asked 10 ms later."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.owed = runtime_context.get_state(ValueStateDescriptor("owed", Types.LONG()))

    def get_inputs(self) -> list[Any]:
        return [self.order, self.payment, self.ask]

    def order(self, order: Any, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        self.owed.update((self.owed.value() or 0) + order.amount)

    def payment(self, payment: Any, ctx: KeyedMultipleInputProcessFunction.Context) -> Iterable[Any]:
        owed = (self.owed.value() or 0) - payment[0]
        if owed < 0:
            yield REFUSED, payment
        else:
            self.owed.update(owed)

    def ask(self, customer: str, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp: int, ctx: KeyedMultipleInputProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, self.owed.value() or 0


def accounts(parallelism: int = 1) -> OperatorTestHarness:
    return OperatorTestHarness(
        Account(),
        key_by=["customer", lambda payment: payment[1], lambda customer: customer],
        input_type=[ORDER, PAYMENT, WORD],
        output_type=COUNTED,
        side_outputs=[REFUSED],
        parallelism=parallelism,
        max_parallelism=16,
    )


def test_each_input_has_its_own_type_key_and_function() -> None:
    with accounts(parallelism=2) as harness:
        harness.process_element(Row("ann", 30))
        harness.process_element(Row("bob", 50))
        harness.process_element((20, "bob"), input_index=1)
        harness.process_element((31, "ann"), input_index=1)
        harness.process_element("bob", 100, input_index=2)
        harness.process_watermark(110)
        assert harness.output == [("bob", 110, 30)]
        assert harness.side_output(REFUSED) == [(31, "ann")]
        assert [harness.state("owed", key) for key in ("ann", "bob", "cid")] == [30, 30, None]
        with pytest.raises(TypeMismatchError, match="input2"):
            harness.process_element(Row("ann", 30), input_index=1)
        with pytest.raises(ConfigurationError, match=r"no input 3 .*3 inputs"):
            harness.process_element("ann", input_index=3)


def test_state_and_timers_are_restored_at_another_parallelism_and_can_be_read() -> None:
    with accounts(parallelism=2) as harness:
        for number in range(20):
            harness.process_element(Row(f"c{number}", number))
            harness.process_element(f"c{number}", 5, input_index=2)
        harness.process_watermark(12)
        snapshot = harness.snapshot()
        for parallelism in (1, 3):
            harness.clear_output()
            harness.restore(snapshot, parallelism=parallelism)
            harness.process_element((1, "c7"), input_index=1)
            harness.process_watermark(15, 0)
            harness.process_watermark(15, 2)
            assert harness.output == []
            harness.process_watermark(15, 1)
            assert sorted(harness.output) == sorted((f"c{n}", 15, n - (n == 7)) for n in range(20))
    owed = snapshot.reader.state("operator", "owed").to_arrow().select(["key", "value"]).to_pylist()
    assert {row["key"]: row["value"] for row in owed} == {f"c{number}": number for number in range(20)}


class Timers(KeyedMultipleInputProcessFunction):
    """A timer at the time of each record of any input."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs

    def get_inputs(self) -> tuple[Any, ...]:
        return (self._register,) * self._inputs

    def _register(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark()


@settings(max_examples=examples(25))
@given(
    inputs=st.integers(2, 5),
    advances=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=15),
    parallelism=st.integers(1, 3),
)
def test_event_time_is_that_of_the_input_furthest_behind(
    inputs: int, advances: list[tuple[int, int]], parallelism: int
) -> None:
    reached, expected = [-1] * inputs, []
    with OperatorTestHarness(
        Timers(inputs), key_by=lambda v: v % 3, input_type=Types.LONG(), output_type=Types.TUPLE([Types.LONG()] * 3)
    ) as harness:
        for number in range(41):
            harness.process_element(number, number, number % inputs)
        for number, watermark in advances:
            harness.process_watermark(watermark, number % inputs)
            reached[number % inputs] = max(reached[number % inputs], watermark)
            if min(reached) > max(expected, default=-1):
                expected.append(min(reached))
        assert harness.watermarks == expected
        fired = [(timestamp, watermark) for _, timestamp, watermark in harness.output]
    due = [next((w for w in expected if w >= number), None) for number in range(41)]
    assert fired == [(number, watermark) for number, watermark in enumerate(due) if watermark is not None]


TIMES = [("a", t, 0) for t in range(0, 100, 10)]


@pytest.mark.parametrize("idle", [True, False])
def test_an_idle_input_does_not_hold_the_others_back(tmp_path: Path, idle: bool) -> None:
    env, more = environment(), [("a", 1000, 0)] * 10
    strategy = event_time().with_idleness(Duration.of_minutes(1)) if idle else event_time()
    first = events(env, [*TIMES, *more], uid="first", per_epoch=10)
    second = events(env, [*TIMES[:8], *more], uid="second", per_epoch=8)
    third = events(env, more, uid="third", per_epoch=0, strategy=strategy)
    streams = first.key_by("key").connect(second.key_by("key"), third.key_by("key"))
    graph = collect_graph(streams.process(Timers(3), COUNTED).uid("timers"))
    results = run_epoch(make_job(graph, tmp_path))
    assert results.failure is None
    fired = [timestamp for _, timestamp, _ in collected(graph, results.collected)]
    assert fired == (sorted(range(0, 70, 10)) if idle else [])


# --- barriers ---------------------------------------------------------------------------------------------------------


class Seen(KeyedMultipleInputProcessFunction):
    """How many records of each input there were."""

    def __init__(self, inputs: int) -> None:
        self._inputs = inputs

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.LONG(), Types.LONG()))

    def get_inputs(self) -> list[Any]:
        return [partial(self._count, number) for number in range(self._inputs)]

    def _count(self, number: int, value: Any, ctx: Any) -> Iterable[Any]:
        self._seen.put(number, (self._seen.get(number) or 0) + 1)
        yield ctx.get_current_key(), number, self._seen.get(number)


def seen_in(folder: Path, checkpoint: int) -> dict[int, int]:
    rows = read_savepoint(str(folder / "job" / f"chk-{checkpoint}")).state("seen", "seen").to_arrow().to_pylist()
    return {row["map_key"]: row["value"] for row in rows}


def three(parallelism: int, join: Callable[..., DataStream]) -> DataStream:
    """Three sources of different size, with two epochs of ten records behind a shuffle, or of one."""
    env = environment(parallelism)
    records = [("k", time, 1) for time in range(20)]
    streams = [
        events(env, records, uid="first", per_epoch=10),
        events(env, records, uid="second", per_epoch=10, batch_size=1).rebalance().map(lambda v: tuple(v), COUNTED),
        events(env, records[:2], uid="third", per_epoch=1),
    ]
    return join(streams[0].key_by("key"), streams[1].key_by(lambda v: v[0], Types.STRING()), streams[2].key_by("key"))


@settings(max_examples=examples(8))
@given(parallelism=st.integers(1, 3), live=st.booleans(), seed=st.integers(0, 999))
def test_a_checkpoint_holds_all_records_before_the_barriers_of_all_inputs_and_none_behind(
    tmp_path_factory: pytest.TempPathFactory, parallelism: int, live: bool, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("job")
    graph = collect_graph(three(parallelism, lambda a, b, c: a.connect(b, c).process(Seen(3), COUNTED).uid("seen")))
    config = {"checkpointing": CoordinatorConfig(num_retained=9)}
    with HarnessAttempt(graph, folder, order=random_order(seed), live=live, config=config) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    for checkpoint, expected in ((1, {0: 10, 1: 10, 2: 1}), (2, {0: 20, 1: 20, 2: 2})):
        assert seen_in(folder, checkpoint) == expected


def test_what_was_in_flight_comes_through_its_own_input(tmp_path: Path) -> None:
    """Two inputs read one source, which brings much more than the first input does, behind its barrier."""
    env = environment()
    small = events(env, [("k", time, 1) for time in range(10)], uid="small", per_epoch=5).key_by("key")
    big = events(env, [("k", time, 1) for time in range(400)], uid="big", per_epoch=200, batch_size=20)
    odd = big.filter(lambda v: v.time % 2).uid("odd").key_by("key")
    seen = small.connect(big.key_by("key"), big.key_by("key"), odd).process(Seen(4), COUNTED).uid("seen")
    graph = collect_graph(seen)
    config = {"checkpointing": CoordinatorConfig(unaligned=True)}
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        epoch = attempt.run_epoch()
    state = epoch.metadata.operator("seen")
    assert state is not None
    rows = read_channel_state(
        state.subtasks[0].channel_state, graph.inputs("seen"), attempt._store.store, operator="seen"
    )
    assert {(row.edge.source, row.edge.input_index) for row in rows} >= {("big", 1), ("big", 2), ("odd", 3)}
    with HarnessAttempt(graph, tmp_path, config=config) as attempt:
        attempt.run_epoch()
        assert attempt.finished
    assert seen_in(tmp_path, 2) == {0: 10, 1: 400, 2: 400, 3: 200}


# --- batches ----------------------------------------------------------------------------------------------------------

COUNT = ValueStateDescriptor("count", Types.LONG())
COUNT_OF = Types.ROW_NAMED(["key", "input", "count"], [Types.STRING(), Types.LONG(), Types.LONG()])


class Counts(KeyedMultipleInputProcessFunction):
    """A count over all inputs, record by record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._total = runtime_context.get_state(COUNT)

    def get_inputs(self) -> list[Any]:
        return [partial(self._add, number) for number in range(3)]

    def _add(self, number: int, value: Any, ctx: Any) -> Iterable[Any]:
        self._total.update((self._total.value() or 0) + 1)
        yield Row(ctx.get_current_key(), number, self._total.value())


class BatchCounts(KeyedMultipleInputBatchFunction):
    """The same in columns, once per batch; the records of the inputs have other columns."""

    def get_inputs(self) -> list[Any]:
        return [self.first, self.second, self.first]

    def first(self, keys: Any, batch: pa.RecordBatch, state: Any) -> Any:
        assert batch.schema.names == ["key", "time", "value"]
        return self._add(0, keys, state)

    def second(self, keys: Any, batch: pa.RecordBatch, state: Any) -> Any:
        assert batch.schema.names == ["value"]
        return self._add(1, keys, state)

    def _add(self, number: int, keys: Any, state: Any) -> Any:
        counts = pa.table({"key": keys}).group_by("key").aggregate([([], "count_all")])
        distinct = counts.column("key").combine_chunks()
        total = pc.add(counts.column("count_all").combine_chunks(), pc.fill_null(state.lookup(COUNT, distinct), 0))
        state.update(COUNT, distinct, total)
        return pa.table({"key": distinct, "input": [number] * len(distinct), "count": total})


@pytest.mark.parametrize("first", [True, False], ids=["batches, then records", "records, then batches"])
def test_batches_and_records_keep_the_same_state_at_any_parallelism(tmp_path: Path, first: bool) -> None:
    def graph(batches: bool) -> Any:
        def join(a: DataStream, b: DataStream, c: DataStream) -> DataStream:
            streams = a.connect(b, c)
            result = streams.process_batch(BatchCounts(), COUNT_OF) if batches else streams.process(Counts(), COUNT_OF)
            return result.uid("counts")

        return collect_graph(three(2, join))

    with HarnessAttempt(graph(first), tmp_path) as attempt:
        attempt.run_epoch()
        assert max(row.count for row in collected(attempt.graph, attempt.collected)) == 21
    rows = run_job(graph(not first), tmp_path, rescale_at={0: 3})
    assert max(row.count for row in rows) == 42


# --- without keys, and what goes wrong --------------------------------------------------------------------------------


class Labels(MultipleInputProcessFunction):
    def get_inputs(self) -> list[Any]:
        return [lambda v, ctx: [f"order of {v.customer}"], self.payment, partial(self.word, "word")]

    def payment(self, payment: Any, ctx: MultipleInputProcessFunction.Context) -> Iterable[str]:
        yield f"payment of {payment[1]} at {ctx.timestamp()}"

    def word(self, prefix: str, word: str, ctx: MultipleInputProcessFunction.Context) -> Iterable[str]:
        if word == "poison":
            raise ValueError(word)
        yield f"{prefix} {word}"


def test_inputs_without_keys() -> None:
    with OperatorTestHarness(Labels(), input_type=[ORDER, PAYMENT, WORD], output_type=WORD, parallelism=2) as harness:
        harness.process_element("one", input_index=2)
        harness.process_element((5, "bob"), 7, input_index=1)
        harness.process_element(Row("ann", 1))
        assert harness.output == ["word one", "payment of bob at 7", "order of ann"]
        with pytest.raises(UserFunctionError, match=r"word\(\) of operator 'operator'") as failed:
            harness.process_element("poison", input_index=2)
        assert isinstance(failed.value.__cause__, ValueError)


def test_keys_whose_types_only_the_records_tell_are_of_one_type() -> None:
    harness = OperatorTestHarness(Timers(3), key_by=[lambda v: v, lambda v: v, str], input_type=Types.LONG())
    harness.process_element(1, 1)
    harness.process_element(1, 1, input_index=1)
    with pytest.raises(FlinkPyError, match="operator"):
        harness.process_element(1, 1, input_index=2)


def test_the_harness_needs_an_element_of_a_list_for_each_input() -> None:
    with pytest.raises(ConfigurationError, match="input_type is a list of 2; the function needs 3"):
        OperatorTestHarness(Labels(), input_type=[ORDER, PAYMENT])
    with pytest.raises(ConfigurationError, match="key_by is a list of 1; the function needs 3"):
        OperatorTestHarness(Account(), key_by=["customer"], input_type=[ORDER, PAYMENT, WORD])
    with pytest.raises(ConfigurationError, match="Timers has functions for 1 inputs; it needs two or more"):
        OperatorTestHarness(Timers(1), key_by=lambda v: v)
