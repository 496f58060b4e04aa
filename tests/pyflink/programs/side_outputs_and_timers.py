from pyflink.common import Duration, Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

UNMATCHED = OutputTag("unmatched", Types.ROW([Types.STRING(), Types.LONG()]))


def event_type():
    # PyFlink cannot send a type to its workers that it has used already.
    return Types.ROW_NAMED(["user", "item", "time"], [Types.STRING(), Types.STRING(), Types.LONG()])


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.time


class Join(KeyedCoProcessFunction):
    """Orders and payments of a user that are at most 10 ms apart."""

    def open(self, runtime_context: RuntimeContext):
        self.orders = runtime_context.get_map_state(MapStateDescriptor("orders", Types.LONG(), event_type()))
        self.payments = runtime_context.get_map_state(MapStateDescriptor("payments", Types.LONG(), event_type()))

    def process_element1(self, value, ctx: "KeyedCoProcessFunction.Context"):
        for time in sorted(self.payments.keys()):
            if abs(time - value.time) <= 10:
                yield Row(value.user, value.item, time - value.time)
        self.orders.put(value.time, value)
        ctx.timer_service().register_event_time_timer(value.time + 10)

    def process_element2(self, value, ctx: "KeyedCoProcessFunction.Context"):
        for time in sorted(self.orders.keys()):
            if abs(time - value.time) <= 10:
                yield Row(value.user, self.orders.get(time)[1], value.time - time)
        self.payments.put(value.time, value)

    def on_timer(self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext"):
        near = [time for time in self.payments if abs(time - (timestamp - 10)) <= 10]
        if not near:
            yield UNMATCHED, Row(ctx.get_current_key(), timestamp - 10)
        self.orders.remove(timestamp - 10)


class Chain(KeyedProcessFunction):
    """Timers that register timers."""

    def open(self, runtime_context: RuntimeContext):
        self.left = runtime_context.get_state(ValueStateDescriptor("left", Types.INT()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        if self.left.value() is None:
            self.left.update(3)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        left = self.left.value() - 1
        yield ctx.get_current_key(), timestamp, left
        if left:
            self.left.update(left)
            ctx.timer_service().register_event_time_timer(timestamp + 5)
        else:
            self.left.clear()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    by_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5)).with_timestamp_assigner(EventTime())

    def events(records):
        stream = env.from_collection([Row(*record) for record in records], event_type())
        return stream.assign_timestamps_and_watermarks(by_time)

    orders = events([("ann", "book", 10), ("bob", "pen", 12), ("ann", "cup", 40), ("cem", "hat", 41)])
    payments = events([("ann", "visa", 15), ("bob", "cash", 30), ("ann", "cash", 50), ("dan", "visa", 60)])
    joined = orders.key_by(lambda e: e.user, Types.STRING()).connect(payments.key_by(lambda e: e.user, Types.STRING()))
    result = joined.process(Join(), Types.ROW([Types.STRING(), Types.STRING(), Types.LONG()]))
    result.print("joined").set_parallelism(1)
    result.get_side_output(UNMATCHED).print("unmatched").set_parallelism(1)
    orders.key_by(lambda e: e.user).process(Chain()).print("chain").set_parallelism(1)
    numbers = env.from_source(NumberSequenceSource(1, 20), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    by_rest = numbers.key_by(lambda v: v % 3, Types.LONG()).reduce(lambda a, b: max(a, b))
    by_rest.filter(lambda v: v > 17).print("greatest").set_parallelism(1)
    env.execute()


if __name__ == "__main__":
    main()
