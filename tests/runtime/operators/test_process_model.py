"""Process functions of two inputs do what a model of Flink's operators does: timers, state, watermarks and restores."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import (
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    TimeDomain,
)
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples
from tests.runtime.operators.process_model import MIN, ListModel, MapModel, OperatorModel, ValueModel

RECORD = Types.TUPLE([Types.STRING(), Types.PICKLED_BYTE_ARRAY()])
"""A key, and what the function does with the record: steps, each with a number."""
TRACE = Types.TUPLE([Types.STRING(), Types.PICKLED_BYTE_ARRAY()])
COUNT = ValueStateDescriptor("count", Types.LONG())
LIST = ListStateDescriptor("list", Types.LONG())
MAP = MapStateDescriptor("map", Types.LONG(), Types.LONG())
NEVER = ListStateDescriptor("never", Types.LONG())
RULES = MapStateDescriptor("rules", Types.LONG(), Types.LONG())
MOST_FIRINGS = 12


def reaction(key: str, time: int, event: bool, firings: int) -> list[tuple[str, int]]:
    """Returns what a timer does, which looks like chance and is always the same."""
    if firings >= MOST_FIRINGS:
        return [("list", time)]
    chance, steps = crc32(f"{key} {time} {event} {firings}".encode()), []
    for name, odds in (("event", 2), ("process", 4), ("no event", 2), ("no process", 3), ("list", 2), ("clear", 6)):
        chance, lot = divmod(chance, odds)
        if lot == 0:
            chance, by = divmod(chance, 6)
            steps.append((name, time + by - 2))
    return steps


class Acts:
    """Functions that do steps, and emit what they see then. The model sets their states before it calls them."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)
        self.list = runtime_context.get_list_state(LIST)
        self.map = runtime_context.get_map_state(MAP)
        self.firings = runtime_context.get_state(ValueStateDescriptor("firings", Types.LONG()))

    def act(self, steps: list[tuple[str, int]], ctx: Any) -> None:
        timers = ctx.timer_service()
        for name, number in steps:
            match name:
                case "event":
                    timers.register_event_time_timer(number)
                case "no event":
                    timers.delete_event_time_timer(number)
                case "process":  # one of the past fires when the subtask does anything
                    timers.register_processing_time_timer(max(number, timers.current_processing_time()))
                case "no process":
                    timers.delete_processing_time_timer(number)
                case "list":
                    self.list.add(number)
                case "put":
                    self.map.put(number % 3, number)
                case "remove":
                    self.map.remove(number % 3)
                case "clear":
                    [self.list, self.map, self.count][number % 3].clear()

    def seen(self, what: str, ctx: Any) -> tuple[Any, ...]:
        timers = ctx.timer_service()
        self.count.update((self.count.value() or 0) + 1)
        states = self.count.value(), list(self.list.get()), sorted(self.map.items())
        return what, ctx.timestamp(), timers.current_watermark(), timers.current_processing_time(), *states

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        event, key = ctx.time_domain() is TimeDomain.EVENT_TIME, ctx.get_current_key()
        self.firings.update((self.firings.value() or 0) + 1)
        self.act(reaction(key, timestamp, event, self.firings.value()), ctx)
        yield key, self.seen(f"{'event' if event else 'processing'} {timestamp}", ctx)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.act(value[1], ctx)
        yield value[0], self.seen("first", ctx)


class Both(Acts, KeyedCoProcessFunction):
    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.act(value[1], ctx)
        yield value[0], self.seen("second", ctx)


class ByRules(Acts, KeyedBroadcastProcessFunction):
    def seen(self, what: str, ctx: Any) -> tuple[Any, ...]:
        return *super().seen(what, ctx), sorted(ctx.get_broadcast_state(RULES).items())

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self.process_element1(value, ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        for name, number in value[1]:
            match name:
                case "list" | "put":
                    rules.put(number % 4, number)
                case "remove":
                    rules.remove(number % 4)
                case "clear":
                    rules.clear()
                case "event":
                    ctx.apply_to_keyed_state(
                        LIST, lambda key, state, n=number: state.add(n) if n % 3 else state.clear()
                    )
                case "no event":
                    ctx.apply_to_keyed_state(COUNT, lambda key, state, n=number: state.update(state.value() + n))
                case "process":
                    ctx.apply_to_keyed_state(MAP, lambda key, state, n=number: state.put(n % 3, n))
                case _:
                    ctx.apply_to_keyed_state(NEVER, lambda key, state: state.add(1))


class Behind(KeyedProcessFunction):
    """Waits for the time of each record, and for a moment."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        if ctx.timestamp() > MIN:
            timers.register_event_time_timer(ctx.timestamp())
        timers.register_processing_time_timer(timers.current_processing_time() + 1)
        yield value[0], ("behind", ctx.timestamp(), timers.current_watermark(), value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        times = timers.current_watermark(), timers.current_processing_time()
        yield ctx.get_current_key(), (ctx.time_domain().name, timestamp, *times)


def states_of_a_key() -> dict[str, Any]:
    return {"count": ValueModel(), "list": ListModel(), "map": MapModel(), "firings": ValueModel()}


class JobModel:
    """Two operators, one behind the other.

    Args:
        broadcast: Whether the second stream is broadcast.
    """

    def __init__(self, broadcast: bool) -> None:
        self._broadcast, self.clock = broadcast, [0]
        self._function, self._behind = ByRules() if broadcast else Both(), Behind()
        self._first = OperatorModel(self._function, states_of_a_key, 2, self.clock)
        self.last = OperatorModel(self._behind, dict, 1, self.clock)

    def records(self, number: int, records: list[tuple[Any, int]]) -> None:
        for value, time in records:
            if number and self._broadcast:
                self._first.broadcast_element(value, time)
            else:
                method = self._function.process_element1 if number == 0 else self._function.process_element2
                self._first.element(value[0], time, method, value)
        self._pass_on()

    def watermark(self, watermark: int, number: int) -> None:
        advanced = self._first.input_watermark(watermark, number)
        self._pass_on()
        if advanced:
            self.last.input_watermark(self._first.watermark, 0)

    def processing_time(self, now: int) -> None:
        self.clock[0] = now
        self._first.processing_time(now)
        self._pass_on()
        self.last.processing_time(now)

    def _pass_on(self) -> None:
        records, self._first.emitted = self._first.emitted, []
        for record, time in records:
            self.last.element(record[0], time, self._behind.process_element, record)


# --- programs ---------------------------------------------------------------------------------------------------------


def build(broadcast: bool, one: DataStream, other: DataStream) -> DataStream:
    keyed = one.key_by(lambda record: record[0], Types.STRING())
    if broadcast:
        traced = keyed.connect(other.broadcast(RULES)).process(ByRules(), TRACE)
    else:
        traced = keyed.connect(other.key_by(lambda record: record[0], Types.STRING())).process(Both(), TRACE)
    return traced.uid("first").key_by(lambda trace: trace[0], Types.STRING()).process(Behind(), TRACE)


STEPS = ["event", "event", "no event", "process", "no process", "list", "put", "remove", "clear"]


def some_moves(seed: int) -> list[tuple[Any, ...]]:
    # Not drawn one by one, because most lists that hypothesis draws are too short.
    draw = random.Random(seed)

    def records() -> list[Any]:
        """Keys, steps, and how far the time of a record is from the current one; None if it has no time."""
        return [
            (
                draw.choice("abc"),
                [(draw.choice(STEPS), draw.randint(-2, 12)) for _ in range(draw.randint(0, 4))],
                draw.choice([None, *range(-3, 10)]),
            )
            for _ in range(draw.randint(1, 8))
        ]

    moves: list[Any] = [
        lambda: ("records", draw.randint(0, 1), records()),
        lambda: ("watermark", draw.choice([[0], [1], [0, 1]]), draw.randint(-2, 12)),
        lambda: ("clock", draw.randint(0, 12)),
        lambda: ("restore", draw.randint(1, 4)),
        lambda: ("keep",),
        lambda: ("restore kept", draw.randint(1, 4)),
        lambda: ("end", draw.choice([[0], [1], [0, 1]])),
    ]
    kinds = draw.choices(moves, [6, 3, 1, 1, 1, 1, 0.2], k=draw.randint(1, 20))
    return [move() for move in kinds]


def send(harness: OperatorTestHarness, name: str, records: list[tuple[Any, int]]) -> None:
    """Sends records as one batch."""
    times = np.array([time for _, time in records], dtype=np.int64)
    batch = StreamBatch(RECORD, times, values=[value for value, _ in records], producer=name)
    for writer in harness._region._inputs[name]:
        writer.emit(batch)
        writer.flush()
    harness._region._settle()


def by_key(records: list[Any]) -> dict[str, list[Any]]:
    """Groups records by key, as only the order of a key's records is given."""
    groups: dict[str, list[Any]] = {}
    for (key, trace), time in records:
        groups.setdefault(key, []).append((trace, MIN if time is None else time))
    return groups


@pytest.mark.parametrize("broadcast", [False, True])
@settings(max_examples=examples(40))
@given(moves=st.integers(0, 10**9).map(some_moves), parallelism=st.integers(1, 3))
def test_process_functions_do_what_those_of_flink_do(broadcast: bool, moves: list[Any], parallelism: int) -> None:
    model, kept, event_time, now = JobModel(broadcast), None, 0, 0
    with OperatorTestHarness.for_stream(
        lambda *streams: build(broadcast, *streams), input_type=[RECORD, RECORD], parallelism=parallelism
    ) as harness:
        for move in moves:
            match move:
                case ("records", number, drawn):
                    sent = [((k, steps), MIN if t is None else max(0, event_time + t)) for k, steps, t in drawn]
                    send(harness, f"input{number + 1}", sent)
                    model.records(number, sent)
                case ("watermark" | "end" as what, numbers, *by):
                    event_time += max(0, *by) if by else 0
                    watermark = 2**63 - 1 if what == "end" else event_time + min(0, *by)
                    for number in numbers:
                        harness.process_watermark(watermark, number)
                        model.watermark(watermark, number)
                case ("clock", by):
                    now, kept = now + by, None  # timers that are due when they are restored fire in any order
                    harness.set_processing_time(now)
                    model.processing_time(now)
                case ("restore", subtasks):
                    harness.restore(harness.snapshot(), parallelism=subtasks)
                case ("keep",):
                    kept = harness.snapshot(), copy.deepcopy(model)
                case ("restore kept", subtasks) if kept is not None:
                    harness.restore(kept[0], parallelism=subtasks)
                    model = copy.deepcopy(kept[1])
                    harness.clear_output()
                    model.last.emitted.clear()
            assert by_key(harness.output_with_timestamps) == by_key(model.last.emitted)
