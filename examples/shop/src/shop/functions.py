"""The functions of the pipeline."""

from collections.abc import Iterable, Iterator
from typing import Any

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.datastream import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

from shop.records import ALERTS, LATE_SALES, ORDER, PAYMENT

HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
PAYMENT_TERM_MS = 2 * HOUR_MS


class Deduplicate(KeyedProcessFunction):
    """Emits the first record of each key, and forgets the key after a day of event time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        if not self._seen.value():
            self._seen.update(True)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + DAY_MS)
            yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        self._seen.clear()


class JoinPayments(KeyedCoProcessFunction):
    """Joins orders with their payments, keyed by ``order_id``.

    An order and a payment match if there are at most two hours between them. They may arrive in either order. A record
    without a match after two hours of event time becomes an alert.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self._order = runtime_context.get_state(ValueStateDescriptor("order", ORDER))
        self._paid = runtime_context.get_state(ValueStateDescriptor("paid", Types.BOOLEAN()))
        self._payments = runtime_context.get_list_state(ListStateDescriptor("payments", PAYMENT))

    def process_element1(self, order: Row, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        self._order.update(order)
        ctx.timer_service().register_event_time_timer(order.ordered_at + PAYMENT_TERM_MS)
        waiting = list(self._payments)
        yield from self._match(order, waiting)
        self._payments.update([payment for payment in waiting if not _matches(order, payment)])

    def process_element2(self, payment: Row, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        order = self._order.value()
        if order is not None and _matches(order, payment):
            yield from self._match(order, [payment])
        else:
            self._payments.add(payment)
            ctx.timer_service().register_event_time_timer(payment.paid_at + PAYMENT_TERM_MS)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        order = self._order.value()
        if order is not None and order.ordered_at + PAYMENT_TERM_MS <= timestamp:
            if not self._paid.value():
                yield ALERTS, Row("order without payment", order.order_id, timestamp)
            self._order.clear()
            self._paid.clear()
        waiting = []
        for payment in self._payments:
            if payment.paid_at + PAYMENT_TERM_MS <= timestamp:
                yield ALERTS, Row("payment without order", payment.order_id, timestamp)
            else:
                waiting.append(payment)
        self._payments.update(waiting)

    def _match(self, order: Row, payments: Iterable[Row]) -> Iterator[Row]:
        for payment in payments:
            if _matches(order, payment):
                self._paid.update(True)
                yield Row(*order, payment.paid_at)


def _matches(order: Row, payment: Row) -> bool:
    return abs(payment.paid_at - order.ordered_at) <= PAYMENT_TERM_MS


class ClickCount(AggregateFunction):
    """Counts the clicks of a session, with the time and page of the last one."""

    ACCUMULATOR = Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING()])

    def create_accumulator(self) -> tuple[int, int, str]:
        return 0, 0, ""

    def add(self, click: Row, accumulator: tuple[int, int, str]) -> tuple[int, int, str]:
        return self.merge(accumulator, (1, click.clicked_at, click.page))

    def merge(self, first: tuple[int, int, str], second: tuple[int, int, str]) -> tuple[int, int, str]:
        _, last_at, last_page = max(first, second, key=lambda accumulator: accumulator[1:])
        return first[0] + second[0], last_at, last_page

    def get_result(self, accumulator: tuple[int, int, str]) -> tuple[int, int, str]:
        return accumulator


class WithSession(ProcessWindowFunction):
    """Adds the customer and the start of the session to its clicks."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context, elements: Iterable[tuple[int, int, str]]
    ) -> Iterator[Row]:
        for clicks, last_at, last_page in elements:
            yield Row(key, context.window().start, last_at, clicks, last_page)


def day_of(timestamp: int) -> int:
    """Returns the beginning of a day, UTC."""
    return timestamp - timestamp % DAY_MS


class TopTen(KeyedProcessFunction):
    """Emits the ten best-selling products of a day, keyed by that day.

    The list is complete when the orders of the day can no longer be paid. Sales after that go to ``LATE_SALES``.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self._amounts = runtime_context.get_map_state(MapStateDescriptor("amounts", Types.STRING(), Types.LONG()))

    def process_element(self, sale: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        due = ctx.get_current_key() + DAY_MS + PAYMENT_TERM_MS
        if ctx.timer_service().current_watermark() >= due:
            yield LATE_SALES, sale
            return
        self._amounts.put(sale.product, (self._amounts.get(sale.product) or 0) + sale.amount)
        ctx.timer_service().register_event_time_timer(due)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        ranked = sorted(self._amounts.items(), key=lambda item: (-item[1], item[0]))
        for rank, (product, amount) in enumerate(ranked[:10], start=1):
            yield Row(ctx.get_current_key(), rank, product, amount)
        self._amounts.clear()
