"""Rules that are broadcast to keyed transactions, with timers, a top list in map state, and a join with expiry."""

from pyflink.common import Duration, Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    CoFlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    StreamExecutionEnvironment,
)
from pyflink.datastream.functions import AggregateFunction
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)


def payment():
    return Types.ROW_NAMED(["account", "amount", "time"], [Types.STRING(), Types.DOUBLE(), Types.LONG()])


def rules_state():
    return MapStateDescriptor("rules", Types.STRING(), Types.DOUBLE())


PAYMENTS = [
    Row("x", 10.0, 1),
    Row("y", 250.0, 2),
    Row("x", 900.0, 3),
    Row("z", 5.0, 7),
    Row("y", 260.0, 12),
    Row("x", 20.5, 40),
    Row("z", 999.0, 41),
]
REFUNDS = [Row("y", 250.0, 4), Row("x", 1.0, 50), Row("z", 5.0, 30)]
UNMATCHED = OutputTag("unmatched", Types.STRING())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.time


class Apply(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext):
        self.count.update((self.count.value() or 0) + 1)
        rules = ctx.get_broadcast_state(rules_state())
        ctx.timer_service().register_event_time_timer(value.time + 5)
        for name in sorted(rules.keys()):
            if value.amount > rules[name]:
                yield f"{ctx.get_current_key()} {name} {value.amount} {self.count.value()}"

    def process_broadcast_element(self, value, ctx: KeyedBroadcastProcessFunction.Context):
        rules = ctx.get_broadcast_state(rules_state())
        if value[1] < 0:
            rules.remove(value[0])
        else:
            rules.put(value[0], value[1])
        yield f"rules {sorted(k for k, _ in rules.items())} {'big' in rules}"

    def on_timer(self, timestamp, ctx: KeyedBroadcastProcessFunction.OnTimerContext):
        yield f"timer {ctx.get_current_key()} {timestamp} {self.count.value()}"


class Top(KeyedProcessFunction):
    """The two greatest amounts, in map state; a timer tells them once."""

    def open(self, runtime_context):
        self.top = runtime_context.get_map_state(MapStateDescriptor("top", Types.LONG(), Types.DOUBLE()))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value, ctx):
        self.top.put(value.time, value.amount)
        self.mean.add(value.amount)
        if len(list(self.top.keys())) > 2:
            least = min(self.top.items(), key=lambda item: item[1])[0]
            self.top.remove(least)
        ctx.timer_service().register_event_time_timer(100)

    def on_timer(self, timestamp, ctx):
        top = sorted(self.top.values(), reverse=True)
        yield ctx.get_current_key(), top, round(self.mean.get(), 3)
        self.top.clear()
        self.mean.clear()
        assert self.top.is_empty()


class Mean(AggregateFunction):
    def create_accumulator(self):
        return [0.0, 0]

    def add(self, value, accumulator):
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return [a[0] + b[0], a[1] + b[1]]


class Match(KeyedCoProcessFunction):
    """Payments with refunds of the same amount; what waits longer than 20 goes to a side output."""

    def open(self, runtime_context):
        self.payments = runtime_context.get_list_state(ListStateDescriptor("payments", payment()))
        self.refunds = runtime_context.get_list_state(ListStateDescriptor("refunds", payment()))

    def process_element1(self, value, ctx):
        yield from self._match(value, self.payments, self.refunds, ctx)

    def process_element2(self, value, ctx):
        yield from self._match(value, self.refunds, self.payments, ctx)

    def _match(self, value, mine, others, ctx):
        left = list(others.get())
        for other in left:
            if other.amount == value.amount:
                left.remove(other)
                others.update(left)
                yield f"{value.account} {value.amount} {abs(value.time - other.time)}"
                return
        mine.add(value)
        ctx.timer_service().register_event_time_timer(value.time + 20)

    def on_timer(self, timestamp, ctx):
        for name, state in (("payment", self.payments), ("refund", self.refunds)):
            rest = []
            for each in state.get():
                if each.time + 20 <= timestamp:
                    yield UNMATCHED, f"{name} {each.account} {each.amount}"
                else:
                    rest.append(each)
            state.update(rest)


class Interleave(CoFlatMapFunction):
    def flat_map1(self, value):
        if value.amount > 100:
            yield "payment", value.amount

    def flat_map2(self, value):
        yield "refund", value.amount
        yield "refund", -value.amount


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(10)).with_timestamp_assigner(At())
    payments = env.from_collection(PAYMENTS, payment()).assign_timestamps_and_watermarks(strategy)
    refunds = env.from_collection(REFUNDS, payment()).assign_timestamps_and_watermarks(strategy)
    by_account = payments.key_by(lambda p: p.account, Types.STRING())

    top = Types.TUPLE([Types.STRING(), Types.LIST(Types.DOUBLE()), Types.DOUBLE()])
    by_account.process(Top(), top).print("top")
    matched = by_account.connect(refunds.key_by(lambda r: r.account, Types.STRING())).process(Match(), Types.STRING())
    matched.get_side_output(UNMATCHED).print("unmatched")
    payments.connect(refunds).flat_map(Interleave(), Types.TUPLE([Types.STRING(), Types.DOUBLE()])).print("co")
    env.execute("payments")

    none = env.from_collection(
        [("big", 500.0), ("huge", 950.0), ("small", 1.0), ("small", -1.0)],
        Types.TUPLE([Types.STRING(), Types.DOUBLE()]),
    )
    timeless = env.from_collection([], payment()).assign_timestamps_and_watermarks(strategy)
    timeless.key_by(lambda p: p.account, Types.STRING()).connect(none.broadcast(rules_state())).process(
        Apply(), Types.STRING()
    ).print("rules")
    env.execute("rules")


if __name__ == "__main__":
    main()
