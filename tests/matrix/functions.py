"""User functions of the matrix's programs. Their total output does not depend on the order of records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream import (
    AggregateFunction,
    AsyncFunction,
    BatchAggregateFunction,
    CoordinatedFunction,
    FilterFunction,
    InputSelectable,
    InputSelection,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OperatorCoordinator,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tests.runtime.programs import EVENT

OUT = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG(), Types.LIST(Types.LONG())])
"""The records that each leg of a program writes: kind, key, time, numbers."""
LATE = OutputTag("late", EVENT)
ODD = OutputTag("odd", EVENT)
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
BUCKET = 20
END = 10**9
"""A time that event time only passes at the end of input."""


class Values(AggregateFunction):
    """All values, sorted."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return [*accumulator, value if isinstance(value, int) else value.value]

    def get_result(self, accumulator: list[int]) -> list[int]:
        return sorted(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return sorted(acc_a + acc_b)


class Digits(BatchAggregateFunction):
    """How many records there are, and the last digits of their values."""

    def get_accumulator_type(self) -> Any:
        return Types.ROW_NAMED(["n", "digits"], [Types.LONG(), Types.STRING()])

    def get_result_type(self) -> Any:
        return self.get_accumulator_type()

    def lift(self, batch: pa.RecordBatch) -> pa.Table:
        digits = [str(value % 10) for value in batch["value"].to_pylist()]
        return pa.table({"n": pa.repeat(1, len(digits)), "digits": pa.array(digits, pa.string())})

    def merge(self, accumulators: pa.RecordBatch, groups: pa.Array[Any]) -> pa.Table:
        merged: dict[int, tuple[int, str]] = {}
        for group, n, digits in zip(groups.to_pylist(), *accumulators.to_pydict().values(), strict=True):
            before, others = merged.get(group, (0, ""))
            merged[group] = before + n, "".join(sorted({*others, *digits}))
        return pa.table({name: [each[i] for each in merged.values()] for i, name in enumerate(["n", "digits"])})


class Larger(ReduceFunction):
    """The larger of two records by value, then by time."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return max(value1, value2, key=lambda record: (record.value, record.time))


class EveryKindOfState(KeyedProcessFunction):
    """Keeps each record in all kinds of state. One timer closes a bucket of time, another one fires at the end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self._buckets = runtime_context.get_map_state(MapStateDescriptor("buckets", Types.LONG(), Types.LONG()))
        self._most = runtime_context.get_reducing_state(ReducingStateDescriptor("most", max, Types.LONG()))
        self._all = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("all", Values(), Types.LIST(Types.LONG()))
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        timers, end = ctx.timer_service(), value.time // BUCKET * BUCKET + BUCKET
        self._count.update((self._count.value() or 0) + 1)
        self._list.add(value.value)
        self._most.add(value.value)
        self._all.add(value.value)
        timers.register_event_time_timer(END)
        if timers.current_watermark() >= end - 1:
            yield "late", ctx.get_current_key(), value.time, [value.value]
            return
        self._buckets.put(end, (self._buckets.get(end) or 0) + value.value)
        timers.register_event_time_timer(end - 1)
        timers.register_event_time_timer(end + 7)
        timers.delete_event_time_timer(end + 7)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        key = ctx.get_current_key()
        if timestamp == END:
            numbers = [self._count.value(), self._most.get(), *sorted(self._list), *self._all.get()]
            yield "all", key, timestamp, numbers
            self._list.clear()
        else:
            yield "bucket", key, timestamp, [self._buckets.get(timestamp + 1)]
            self._buckets.remove(timestamp + 1)


class Count(KeyedProcessFunction):
    """A running count, which depends on the order of a key's records."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self._count.update((self._count.value() or 0) + 1)
        yield "count", ctx.get_current_key(), value.time, [self._count.value(), value.value]


class Edits(KeyedProcessFunction):
    """Changes, clears and refills each kind of state, and timers, as the value of the record says."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._value = runtime_context.get_state(ValueStateDescriptor("value", Types.LIST(Types.LONG())))
        self._list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self._map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        timers, time = ctx.timer_service(), value.time
        match value.value:
            case 0:
                values = [*(self._value.value() or []), time]
                self._value.update(values if len(values) < 4 else None)
                values.append(-1)  # nobody sees it
            case 1:
                self._value.clear()
                self._list.update([time, time + 1])
            case 2:
                self._list.clear()
                self._list.add(time)
            case 3:
                for element in self._list.get():
                    if element % 2:
                        self._list.add(element + 1)
            case 4:
                self._map.put(time % 5, time)
            case 5:
                for key, _ in self._map.items():
                    if key % 2:
                        self._map.remove(key)
                    else:
                        self._map.put(key + 1, time)
            case 6:
                self._map.clear()
                self._map.put(1, time)
                self._list.clear()
            case 7:
                timers.register_event_time_timer(time + 10)
                timers.register_event_time_timer(time + 10)
                timers.register_event_time_timer(time + 13)
                timers.delete_event_time_timer(time + 13)
            case 8:
                timers.register_event_time_timer(time - 100)
                timers.delete_event_time_timer(60)
                timers.register_event_time_timer(60)
            case _:
                timers.delete_event_time_timer(60)
                timers.delete_event_time_timer(time + 5)
        yield self._shown("edit", ctx.get_current_key(), time)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield self._shown("timer", ctx.get_current_key(), timestamp)
        self._list.add(timestamp)
        if timestamp % 3 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 1)
            ctx.timer_service().delete_event_time_timer(timestamp + 10)
        if timestamp % 4 == 0:
            self._map.clear()

    def _shown(self, what: str, key: str, time: int) -> tuple[str, str, int, list[int]]:
        pairs = [number for pair in sorted(self._map.items()) for number in pair]
        return what, key, time, [*(self._value.value() or []), -1, *self._list.get()[-20:], -1, *pairs]


class OddAside(ProcessFunction):
    """Sends odd values to a side output."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield (ODD, value) if value.value % 2 else value


class Ask(AsyncFunction):
    """Returns a value, some of them behind later ones."""

    async def async_invoke(self, value: Any) -> Iterable[Any]:
        for _ in range(value.value % 4):
            await asyncio.sleep(0)
        return [value]


class Join(KeyedCoProcessFunction):
    """Emits the records of both sides in a bucket of time when the bucket closes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sides = [
            runtime_context.get_map_state(MapStateDescriptor(side, Types.LONG(), Types.LONG()))
            for side in ("left", "right")
        ]

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self._add(0, value, ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self._add(1, value, ctx)

    def _add(self, side: int, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        end = value.time // BUCKET * BUCKET + BUCKET
        self._sides[side].put(end, (self._sides[side].get(end) or 0) + value.value)
        ctx.timer_service().register_event_time_timer(end - 1)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield "join", ctx.get_current_key(), timestamp, [side.get(timestamp + 1) or 0 for side in self._sides]
        for side in self._sides:
            side.remove(timestamp + 1)


class JoinThree(KeyedMultipleInputProcessFunction):
    """The records of three inputs in a bucket of time, when it closes. The second input has tuples, the third rows."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sums = [
            runtime_context.get_map_state(MapStateDescriptor(f"input{i}", Types.LONG(), Types.LONG())) for i in range(3)
        ]

    def get_inputs(self) -> list[Any]:
        return [self._first, self._second, self._third]

    def _first(self, value: Any, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        self._add(0, value.time, value.value, ctx)

    def _second(self, value: Any, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        self._add(1, value[1], value[2], ctx)

    def _third(self, value: Any, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        self._add(2, value.time, value.value, ctx)

    def _add(self, number: int, time: int, value: int, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        end = time // BUCKET * BUCKET + BUCKET
        self._sums[number].put(end, (self._sums[number].get(end) or 0) + value)
        ctx.timer_service().register_event_time_timer(end - 1)

    def on_timer(self, timestamp: int, ctx: KeyedMultipleInputProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield "three", ctx.get_current_key(), timestamp, [each.get(timestamp + 1) or 0 for each in self._sums]
        for each in self._sums:
            each.remove(timestamp + 1)


class SelectThree(JoinThree, InputSelectable):
    """As `JoinThree`. It reads two of its inputs at a time, others after each record."""

    _read = 0

    def next_selection(self) -> InputSelection:
        return InputSelection(*(i + 1 for i in range(3) if i != self._read % 3))

    def _add(self, number: int, time: int, value: int, ctx: KeyedMultipleInputProcessFunction.Context) -> None:
        self._read += 1
        super()._add(number, time, value, ctx)


class Answers(OperatorCoordinator):
    """Keeps what it hears, and answers."""

    def __init__(self) -> None:
        self._heard: list[Any] = []
        self._gateways: dict[int, Any] = {}

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any) -> None:
        self._heard.append(event)
        self._gateways[subtask].send_event(event)

    def handle_undelivered_event(self, subtask: int, event: Any) -> None:
        """Of a subtask that is not there any more."""

    def checkpoint_coordinator(self, checkpoint_id: int) -> Any:
        return sorted(self._heard)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self._heard = [*(state or ())]

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
        self._gateways[subtask] = gateway


class Tells(ProcessFunction, CoordinatedFunction):
    """Tells its coordinator each record."""

    def create_coordinator(self) -> OperatorCoordinator:
        return Answers()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._tell = runtime_context.send_event_to_coordinator

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        self._tell([value.key, value.time, value.value])
        yield "told", value.key, value.time, [value.value]

    def handle_operator_event(self, event: Any) -> None:
        pass


class ByRules(KeyedBroadcastProcessFunction):
    """Emits the sum of a key's values, and all rules, at the end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self._sum.update((self._sum.value() or 0) + value.value)
        ctx.timer_service().register_event_time_timer(END)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules[value.key] = max(rules.get(value.key) or 0, value.value)

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any]:
        rules = ctx.get_broadcast_state(RULES)
        numbers = [number for _, number in sorted((key, rules.get(key)) for key in rules)]
        yield "rules", ctx.get_current_key(), timestamp, [self._sum.value(), *numbers]


class Numbered(ProcessWindowFunction):
    """Emits the number of a window by count, and its values in order."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        yield "numbered", key, context.window().id, [element.value for element in elements]


ODD_KEYS = {"a": 0.0, "b": -0.0, "c": float("nan")}
"""Keys that Python and Java compare in different ways."""


class OddWindow(ProcessWindowFunction):
    """Emits the values of a window of a key that is a number."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        (values,) = elements
        yield "odd", repr(key), context.window().start, values


class Window(ProcessWindowFunction):
    """Emits the start and the values of a window of records, of one reduced record, or of a list of values.

    Args:
        spoils: Whether it changes the elements afterwards. Default: False.
    """

    def __init__(self, spoils: bool = False) -> None:
        self._spoils = spoils

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        values = sorted(v for e in elements for v in (e if isinstance(e, list) else [e.value]))
        yield "window", key, context.window().start, [context.window().end, *values]
        if self._spoils:
            spoil(elements)


def spoil(value: Any) -> None:
    """Changes a value that may belong to somebody else, with all of its parts."""
    if isinstance(value, Row):
        value.value = -1
    elif isinstance(value, (list, tuple)):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.append(-1)


class Pass(MapFunction):
    """Emits each record. One that spoils changes each later, when the next one comes."""

    def __init__(self, spoils: bool) -> None:
        self._spoils = spoils
        self._emitted: Any = None

    def map(self, value: Any) -> Any:
        if self._spoils:
            spoil(self._emitted)
            self._emitted = value
        return value


class Look(FilterFunction):
    """Keeps all records. One that spoils changes what it looks at."""

    def __init__(self, spoils: bool) -> None:
        self._spoils = spoils

    def filter(self, value: Any) -> bool:
        if self._spoils:
            spoil(value)
        return True


class InPlace(Values):
    """The same, with an accumulator that is changed in place, and one that all keys begin with."""

    shared: ClassVar[list[int]] = []

    def create_accumulator(self) -> list[int]:
        return self.shared

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        accumulator.append(value if isinstance(value, int) else value.value)
        spoil(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        accumulator.sort()
        return accumulator


class Changeable(KeyedProcessFunction):
    """Has values that can change in each kind of state. One that spoils changes all that it has read and written."""

    def __init__(self, spoils: bool) -> None:
        self._spoils = spoils

    def open(self, runtime_context: RuntimeContext) -> None:
        numbers = Types.LIST(Types.LONG())
        self._last = runtime_context.get_state(ValueStateDescriptor("last", numbers))
        self._any = runtime_context.get_state(ValueStateDescriptor("any", Types.PICKLED_BYTE_ARRAY()))
        self._records = runtime_context.get_list_state(ListStateDescriptor("records", EVENT))
        self._digits = runtime_context.get_map_state(MapStateDescriptor("digits", Types.LONG(), EVENT))
        self._most = runtime_context.get_reducing_state(ReducingStateDescriptor("most", Larger(), EVENT))
        values = InPlace() if self._spoils else Values()
        self._all = runtime_context.get_aggregating_state(AggregatingStateDescriptor("all", values, numbers))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        last, pair = (self._last.value() or [])[-3:], (value.time, [value.value])
        last.append(value.value)
        self._last.update(last)
        self._any.update(pair)
        self._records.add(value)
        self._digits.put(value.value % 3, value)
        self._most.add(value)
        self._all.add(value.value)
        time = value.time
        if self._spoils:
            spoil([last, pair, value])
        records, most = self._records.get(), self._most.get()
        digits = sorted(self._digits.items(), key=lambda entry: entry[0])
        read = [
            self._last.value(),
            list(self._any.value()),
            [each.value for each in records],
            [each.value for _, each in digits],
            [most.value],
            self._all.get(),
        ]
        numbers = [number for part in read for each in part for number in (each if isinstance(each, list) else [each])]
        yield "changeable", ctx.get_current_key(), time, numbers
        if self._spoils:
            spoil([read, records, digits, most, numbers])
