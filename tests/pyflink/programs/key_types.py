"""Keys of all types, with state and timers of each key."""

import datetime
import math

from pyflink.common import Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor

NUMBERS = [0.0, math.nan, math.inf, 1.5]
KEYS = {
    "string": (lambda v: "äb"[v % 2], Types.STRING()),
    "int": (lambda v: v % 3 - 1, Types.INT()),
    "long": (lambda v: 2**40 * (v % 3), Types.LONG()),
    "short": (lambda v: v % 3, Types.SHORT()),
    "byte": (lambda v: v % 3, Types.BYTE()),
    "boolean": (lambda v: v % 3 == 0, Types.BOOLEAN()),
    "double": (lambda v: NUMBERS[v % 4], Types.DOUBLE()),
    "float": (lambda v: NUMBERS[v % 4], Types.FLOAT()),
    "date": (lambda v: datetime.date(1969, 12, 31 - v % 2), Types.SQL_DATE()),
    "time": (lambda v: datetime.time(1, v % 2, 3), Types.SQL_TIME()),
    "timestamp": (lambda v: datetime.datetime(2024, 1, 1, v % 2, 0, 0, 123000), Types.SQL_TIMESTAMP()),
    "tuple": (lambda v: ("k", v % 2), Types.TUPLE([Types.STRING(), Types.INT()])),
    "tuple of a double": (lambda v: (NUMBERS[v % 4], v % 2), Types.TUPLE([Types.DOUBLE(), Types.INT()])),
    "tuple of a date": (lambda v: (datetime.date(2024, 1, 2), v % 2), Types.TUPLE([Types.SQL_DATE(), Types.INT()])),
    "tuple in a tuple": (
        lambda v: (("a", v % 2), "c"),
        Types.TUPLE([Types.TUPLE([Types.STRING(), Types.INT()]), Types.STRING()]),
    ),
    "row": (lambda v: Row("k", v % 2), Types.ROW([Types.STRING(), Types.INT()])),
    "row of a double": (lambda v: Row(NUMBERS[v % 4], v % 2), Types.ROW([Types.DOUBLE(), Types.INT()])),
    "row of a date": (lambda v: Row(datetime.date(2024, 1, 1 + v % 2)), Types.ROW([Types.SQL_DATE()])),
    "named row": (lambda v: Row(a="k", b=v % 2), Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.INT()])),
    "untyped string": (lambda v: f"s{v % 2}", None),
    "untyped int": (lambda v: v % 2, None),
    "untyped float": (lambda v: v % 2 + 0.5, None),
    "untyped tuple": (lambda v: ("t", v % 2), None),
    "untyped row": (lambda v: Row(t="t", n=v % 2), None),
    "untyped date": (lambda v: datetime.date(2024, 1, 1 + v % 2), None),
    "untyped timestamp": (lambda v: datetime.datetime(2024, 1, 1, v % 2), None),
    "untyped time": (lambda v: datetime.time(v % 2, 5, 6, 7), None),
}


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value * 10


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(value)
        ctx.timer_service().register_event_time_timer(1000 + value % 2)
        key = ctx.get_current_key()
        yield f"{value} {type(key).__name__} {key!r} {self.count.value()}"

    def on_timer(self, timestamp, ctx):
        key = ctx.get_current_key()
        self.count.update(self.count.value() + 100)
        yield f"timer {timestamp} {type(key).__name__} {key!r} {self.count.value()} {list(self.seen.get())}"


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    numbers = env.from_collection(list(range(12)), Types.INT())
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    numbers = numbers.assign_timestamps_and_watermarks(by_time)
    for name, (key, key_type) in KEYS.items():
        numbers.key_by(key, key_type=key_type).process(Count(), Types.STRING()).print(name)
    env.execute("keys")


if __name__ == "__main__":
    main()
