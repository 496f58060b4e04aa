"""Windows do what a model of Flink's operator does, whatever the assigner, trigger, contents, batches and restores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import (
    AggregateFunction,
    DataStream,
    OutputTag,
    ProcessWindowFunction,
    ReduceFunction,
    WindowedStream,
)
from dagster_flinkpy.datastream.state import ListStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples
from tests.runtime.operators.window_model import WindowModel

EVENT = Types.ROW_NAMED(["key", "value", "gap"], [Types.STRING(), Types.LONG(), Types.LONG()])
LATE = OutputTag("late", EVENT)
NUMBERS = Types.LIST(Types.LONG())
FIRED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), NUMBERS, Types.LONG(), Types.LONG(), Types.LONG()])


class Values(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return [*accumulator, value.value]

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return sorted(acc_a + acc_b)


class Total(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        if isinstance(value1, int):
            return value1 + value2
        return Row(key=value1.key, value=value1.value + value2.value, gap=value2.gap)


class InOrder(ReduceFunction):
    """For windows that do not merge: there, the order of records counts."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return Row(key=value1.key, value=(7 * value1.value + value2.value) % 1_000_003, gap=value1.gap)


class Describe(ProcessWindowFunction):
    """Emits the key, the window, its contents, and numbers that it keeps for the window and for the key."""

    def __init__(self, merging: bool) -> None:
        self._merging = merging
        self._in_window = ValueStateDescriptor("fired", Types.LONG())
        self._in_key = ValueStateDescriptor("of key", Types.LONG())

    def _count(self, state: Any) -> int:
        state.update((state.value() or 0) + 1)
        number: int = state.value()
        return number

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window, values = context.window(), []
        for each in elements:
            values += each if isinstance(each, list) else [each.value]
        bounds = tuple(window) if isinstance(window, TimeWindow) else (0, 0)
        in_window = 0 if self._merging else self._count(context.window_state().get_state(self._in_window))
        in_key = self._count(context.global_state().get_state(self._in_key))
        yield (
            key,
            *bounds,
            sorted(values) if self._merging else values,
            in_window,
            in_key,
            context.current_watermark(),
        )


class Clears(Describe):
    """Drops the number of a window that ends, and counts it for the key."""

    def clear(self, context: Any) -> None:
        if not self._merging:
            context.window_state().get_state(self._in_window).clear()
        self._count(context.global_state().get_state(self._in_key))


class OwnTrigger(Trigger[Any, Any]):
    """Keeps state, sets and deletes timers of both times, fires and purges by what has come."""

    def __init__(self) -> None:
        self._count = ReducingStateDescriptor("count", Total(), Types.LONG())
        self._seen = ListStateDescriptor("seen", Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.get_partitioned_state(self._count).add(1)
        ctx.get_partitioned_state(self._seen).add(element.value)
        if element.value % 3 == 0:
            ctx.register_event_time_timer(timestamp + element.gap)
            ctx.register_processing_time_timer(ctx.get_current_processing_time() + element.gap)
        if element.value % 4 == 0:
            ctx.delete_event_time_timer(timestamp + 2)
            ctx.delete_processing_time_timer(ctx.get_current_processing_time() + 2)
        if element.value % 7 == 0:
            return TriggerResult.PURGE
        if ctx.get_partitioned_state(self._count).get() % 3 == 0:
            return TriggerResult.FIRE
        return TriggerResult.FIRE_AND_PURGE if element.value % 5 == 0 else TriggerResult.CONTINUE

    def _on_time(self, ctx: Any) -> TriggerResult:
        ctx.get_partitioned_state(self._count).add(10)
        total = sum(ctx.get_partitioned_state(self._seen).get() or [])
        if total % 2:
            return TriggerResult.FIRE
        return TriggerResult.FIRE_AND_PURGE if total % 3 == 0 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self._on_time(ctx)

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self._on_time(ctx)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.merge_partitioned_state(self._count)
        ctx.merge_partitioned_state(self._seen)
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self._count).clear()
        ctx.get_partitioned_state(self._seen).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class OwnGap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        gap: int = element.gap
        return gap


@dataclass(frozen=True)
class Program:
    """Windows, and what they compute."""

    assigner: WindowAssigner[Any, Any]
    trigger: Trigger[Any, Any] | None
    lateness: int
    contents: str
    clears: bool

    @property
    def merges(self) -> bool:
        return isinstance(self.assigner, MergingWindowAssigner)

    @property
    def function(self) -> ProcessWindowFunction:
        return (Clears if self.clears else Describe)(self.merges)

    @property
    def fold(self) -> Any:
        reduce = Total() if self.merges else InOrder()
        return {"elements": None, "aggregated": Values(), "reduced": reduce}[self.contents]

    def build(self, stream: DataStream) -> DataStream:
        windowed: WindowedStream = stream.key_by("key").window(self.assigner).side_output_late_data(LATE)
        windowed = windowed.allowed_lateness(self.lateness) if self.lateness else windowed
        windowed = windowed.trigger(self.trigger) if self.trigger is not None else windowed
        if self.contents == "aggregated":
            return windowed.aggregate(self.fold, self.function, NUMBERS, FIRED)
        if self.contents == "reduced":
            return windowed.reduce(self.fold, self.function, FIRED)
        return windowed.process(self.function, FIRED)

    def model(self) -> WindowModel:
        trigger = self.trigger or self.assigner.get_default_trigger(None)
        return WindowModel(self.assigner, trigger, self.lateness, self.fold, self.function)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    def span(most: int) -> Time:
        return Time.milliseconds(draw(st.integers(1, most)))

    event_time = draw(st.booleans())
    tumbling, sliding, sessions = draw(
        st.just((TumblingEventTimeWindows, SlidingEventTimeWindows, EventTimeSessionWindows))
        if event_time
        else st.just((TumblingProcessingTimeWindows, SlidingProcessingTimeWindows, ProcessingTimeSessionWindows))
    )
    kind = draw(st.sampled_from(["tumbling", "sliding", "sliding", "sessions", "sessions", "own gaps", "global"]))
    assigner: Any = {
        "tumbling": lambda: tumbling.of(Time.milliseconds(9), Time.milliseconds(draw(st.integers(-8, 8)))),
        "sliding": lambda: sliding.of(span(12), span(14)),
        "sessions": lambda: sessions.with_gap(span(8)),
        "own gaps": lambda: sessions.with_dynamic_gap(OwnGap()),
        "global": GlobalWindows.create,
    }[kind]()
    triggers: list[Any] = [CountTrigger(draw(st.integers(1, 4))), OwnTrigger()]
    if kind != "global":
        continuous = ContinuousEventTimeTrigger if event_time else ContinuousProcessingTimeTrigger
        triggers += [None, None, EventTimeTrigger() if event_time else ProcessingTimeTrigger(), continuous.of(span(7))]
    trigger = draw(st.sampled_from(triggers))
    if trigger is not None and draw(st.integers(0, 2)) == 0:
        trigger = PurgingTrigger(trigger)
    lateness = draw(st.sampled_from([0, 0, 2, 5, 20])) if event_time and kind != "global" else 0
    contents = draw(st.sampled_from(["elements", "aggregated", "reduced"]))
    return Program(assigner, trigger, lateness, contents, draw(st.booleans()))


RECORD = st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.integers(1, 9), st.integers(-15, 12))
"""Key, value, gap, and how far its time is from the current one, in milliseconds."""
STEPS = st.lists(
    st.one_of(
        st.lists(RECORD, min_size=1, max_size=12),
        st.lists(RECORD, min_size=1, max_size=3),
        st.tuples(st.just("time"), st.integers(0, 12)),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    ),
    max_size=14,
)


def send(harness: OperatorTestHarness, records: list[tuple[Any, int]]) -> None:
    """Sends records as one batch."""
    times = np.array([time for _, time in records], dtype=np.int64)
    batch = StreamBatch(EVENT, times, values=[value for value, _ in records], producer="input1")
    for writer in harness._region._inputs["input1"]:
        writer.emit(batch)
        writer.flush()
    harness._region._settle()


def by_key(records: list[Any]) -> dict[str, list[Any]]:
    """Groups records by key, as only the order of a key's records is given."""
    groups: dict[str, list[Any]] = {}
    for key, *rest in records:
        groups.setdefault(key, []).append(rest)
    return groups


@settings(max_examples=examples(60), deadline=None)
@given(program=programs(), steps=STEPS, parallelism=st.integers(1, 3))
def test_windows_do_what_those_of_flink_do(program: Program, steps: list[Any], parallelism: int) -> None:
    model, now = program.model(), 0
    with OperatorTestHarness.for_stream(
        program.build, input_type=EVENT, side_outputs=[LATE], parallelism=parallelism
    ) as harness:
        for step in steps:
            match step:
                case ("time", after):
                    now += after
                    harness.process_watermark(now)
                    harness.set_processing_time(now)
                    model.watermark(now)
                    model.processing_time(now)
                case ("restore", subtasks):
                    harness.restore(harness.snapshot(), parallelism=subtasks)
                case records:
                    given_ = [(Row(key=k, value=v, gap=g), max(0, now + d)) for k, v, g, d in records]
                    send(harness, given_)
                    for value, time in given_:
                        model.element(value, time)
            fired = [(record[0], time, record) for record, time in harness.output_with_timestamps]
            assert by_key(fired) == by_key(model.fired)
            late = [(record.key, record) for record in harness.side_output(LATE)]
            assert by_key(late) == by_key([(key, record) for key, _, record in model.late])
