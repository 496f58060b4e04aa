"""The functions of the stateful suite: the same source runs in this library and in PyFlink.

PyFlink's Python has no ``dagster_flinkpy``, and imports PyFlink's classes of the same names.
"""

from __future__ import annotations

from typing import Any

try:
    from benchmarks.stateful.rules import ALPHA, LARGE, SMALL, SUSPICIOUS, TOP, TTL, WITHIN
    from dagster_flinkpy.common import Row, Time, Types
    from dagster_flinkpy.datastream import (
        AggregateFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        ProcessWindowFunction,
        RuntimeContext,
    )
    from dagster_flinkpy.datastream.state import (
        ListStateDescriptor,
        MapStateDescriptor,
        StateTtlConfig,
        ValueStateDescriptor,
    )
except ImportError:  # in PyFlink's environment
    from pyflink.common import Row, Time, Types  # type: ignore[import-not-found, no-redef]
    from pyflink.datastream import (  # type: ignore[import-not-found, no-redef]
        AggregateFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        ProcessWindowFunction,
        RuntimeContext,
    )
    from pyflink.datastream.state import (  # type: ignore[import-not-found, no-redef]
        ListStateDescriptor,
        MapStateDescriptor,
        StateTtlConfig,
        ValueStateDescriptor,
    )
    from rules import (  # type: ignore[import-not-found, no-redef]
        ALPHA,
        LARGE,
        SMALL,
        SUSPICIOUS,
        TOP,
        TTL,
        WITHIN,
    )

_LONG = Types.LONG()
_LONGS = [_LONG] * 9

EVENT = Types.ROW_NAMED(["id", "user", "product", "amount", "time"], _LONGS[:5])
FIRST = EVENT
BEST = Types.ROW_NAMED(["user", "rank", "amount", "time"], _LONGS[:4])
SESSION = Types.ROW_NAMED(["user", "start", "end", "events", "revenue"], _LONGS[:5])
ALERT = Types.ROW_NAMED(["user", "small_time", "time", "amount"], _LONGS[:4])
PAID = Types.ROW_NAMED(["id", "user", "amount", "order_time", "time"], _LONGS[:5])
ENRICHED = Types.ROW_NAMED(["id", "user", "time", "category", "price"], _LONGS[:5])
MEANS = Types.ROW_NAMED(["user", "time", *(f"f{i}" for i in range(20))], [_LONG] * 2 + [Types.DOUBLE()] * 20)


class Deduplicate(KeyedProcessFunction):
    """The first event of each id. An id is forgotten after an hour."""

    def open(self, runtime_context: RuntimeContext) -> None:
        seen = ValueStateDescriptor("seen", Types.BOOLEAN())
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(TTL)).build())
        self._seen = runtime_context.get_state(seen)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if self._seen.value() is None:
            self._seen.update(True)
            yield value


class TopN(KeyedProcessFunction):
    """The greatest amounts of each user: each event that is among them when it comes, with its rank."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._best = runtime_context.get_state(ValueStateDescriptor("best", Types.LIST(Types.LONG())))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        best, amount = self._best.value() or [], value.amount
        if len(best) < TOP or amount > best[-1]:
            rank = sum(other >= amount for other in best)
            self._best.update([*best[:rank], amount, *best[rank : TOP - 1]])
            yield Row(value.user, rank + 1, amount, value.time)


class SessionTotals(AggregateFunction):
    """Number of events and revenue of a session."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value.amount

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Session(ProcessWindowFunction):
    """Adds user and window to the totals of a session."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> Any:
        window = context.window()
        for events, revenue in elements:
            yield Row(key, window.start, window.end, events, revenue)


class Fraud(KeyedProcessFunction):
    """A small payment and right after it, within a minute, a large one. A timer ends the minute."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._small = runtime_context.get_state(ValueStateDescriptor("small", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        small, time, amount = self._small.value(), value.time, value.amount
        if small is not None:
            if amount > LARGE and time <= small + SUSPICIOUS:  # the timer may be late
                yield Row(value.user, small, time, amount)
            ctx.timer_service().delete_event_time_timer(small + SUSPICIOUS)
            self._small.clear()
        if amount < SMALL:
            ctx.timer_service().register_event_time_timer(time + SUSPICIOUS)
            self._small.update(time)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        self._small.clear()
        return []


class IntervalJoin(KeyedCoProcessFunction):
    """Each order with its payments of the next ten seconds. Both sides wait in state for the other one."""

    def open(self, runtime_context: RuntimeContext) -> None:
        order = Types.TUPLE([Types.LONG()] * 3)
        self._orders = runtime_context.get_list_state(ListStateDescriptor("orders", order))
        self._payments = runtime_context.get_list_state(ListStateDescriptor("payments", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Any:
        user, amount, ordered = value.user, value.amount, value.time
        self._orders.add((user, amount, ordered))
        ctx.timer_service().register_event_time_timer(ordered + WITHIN)
        for paid in self._payments:
            if ordered <= paid <= ordered + WITHIN:
                yield Row(value.id, user, amount, ordered, paid)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Any:
        paid = value.time
        self._payments.add(paid)
        ctx.timer_service().register_event_time_timer(paid)
        for user, amount, ordered in self._orders:
            if ordered <= paid <= ordered + WITHIN:
                yield Row(value.id, user, amount, ordered, paid)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Any:
        self._orders.update([order for order in self._orders if order[2] + WITHIN > timestamp])
        self._payments.update([paid for paid in self._payments if paid > timestamp])
        return []


PRODUCTS = MapStateDescriptor("products", Types.LONG(), Types.TUPLE([Types.LONG()] * 2))


class Enrich(KeyedBroadcastProcessFunction):
    """Each event with category and price of its product. Events wait in state until the products are complete: until
    the watermark, the smaller one of both inputs, has reached them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        waiting = Types.TUPLE([Types.LONG()] * 5)
        self._waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", waiting))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        product = ctx.get_broadcast_state(PRODUCTS).get(value.product)
        if product is None:
            self._waiting.add((value.id, value.user, value.time, value.product, value.amount))
            ctx.timer_service().register_event_time_timer(value.time)
        else:
            category, rate = product
            yield Row(value.id, value.user, value.time, category, value.amount * rate)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(PRODUCTS).put(value.product, (value.category, value.rate))
        return []

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Any:
        for event, user, time, product, amount in self._waiting:
            category, rate = ctx.get_broadcast_state(PRODUCTS).get(product)
            yield Row(event, user, time, category, amount * rate)
        self._waiting.clear()


class RunningFeatures(KeyedProcessFunction):
    """The exponential moving average of 20 columns per user, after each record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._means = runtime_context.get_state(ValueStateDescriptor("means", Types.LIST(Types.DOUBLE())))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        user, time, *values = value
        means = self._means.value()
        if means is not None:
            values = [mean + ALPHA * (new - mean) for mean, new in zip(means, values, strict=True)]
        self._means.update(values)
        yield Row(user, time, *values)
