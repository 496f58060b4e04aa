"""Sessions with a gap of their own, side outputs out of window functions, late data, state per key."""

from collections.abc import Iterable

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import AggregateFunction, ProcessAllWindowFunction, ProcessFunction
from pyflink.datastream.state import ReducingStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import (
    EventTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
)

CLICKS = [
    ("ann", 1000, 3),
    ("bob", 1500, 1),
    ("ann", 2500, 4),
    ("ann", 9000, 1),
    ("bob", 4000, 2),
    ("cid", 12000, 9),
    ("ann", 2600, 5),
    ("bob", 30000, 7),
    ("cid", 3000, 8),
    ("ann", 31000, 2),
]
LATE = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()]))
SHORT = OutputTag("short", Types.STRING())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[1]


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element):
        return 5000 if element[0] == "bob" else 2000


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Describe(ProcessWindowFunction):
    def process(self, key: str, context: ProcessWindowFunction.Context, elements: Iterable) -> Iterable:
        window: TimeWindow = context.window()
        for mean in elements:
            if window.end - window.start <= 2000:
                yield SHORT, f"{key} {window.start}"
            yield key, window.start, window.end, mean


class Seen(ProcessWindowFunction):
    def open(self, runtime_context):
        self.windows = ValueStateDescriptor("windows", Types.LONG())
        self.total = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())

    def process(self, key, context, elements):
        windows = context.global_state().get_state(self.windows)
        windows.update((windows.value() or 0) + 1)
        total = context.global_state().get_reducing_state(self.total)
        for element in elements:
            total.add(element[2])
        over = context.current_watermark() >= context.window().max_timestamp()
        yield f"{key} window {windows.value()} total {total.get()} at {over}"

    def clear(self, context):
        pass


class Busiest(ProcessAllWindowFunction):
    def process(self, context, elements):
        counts = {}
        for name, _, clicks in elements:
            counts[name] = counts.get(name, 0) + clicks
        name = max(sorted(counts), key=lambda n: counts[n])
        yield context.window().start, name, counts[name]


class Lateness(ProcessFunction):
    def process_element(self, value, ctx: ProcessFunction.Context):
        yield f"{value[0]}@{value[1]} {ctx.timestamp()} behind={ctx.timer_service().current_watermark() > value[1]}"


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    kind = Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()])
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)).with_timestamp_assigner(At())
    clicks = env.from_collection(CLICKS, type_info=kind).assign_timestamps_and_watermarks(strategy)
    keyed = clicks.key_by(lambda c: c[0], key_type=Types.STRING())

    result = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.DOUBLE()])
    sessions = (
        keyed.window(EventTimeSessionWindows.with_dynamic_gap(Gap()))
        .allowed_lateness(500)
        .side_output_late_data(LATE)
        .aggregate(Mean(), Describe(), Types.TUPLE([Types.INT(), Types.INT()]), result)
    )
    sessions.print("session")
    sessions.get_side_output(LATE).print("late")
    sessions.get_side_output(SHORT).print("short")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5), Time.seconds(1))).process(Seen(), Types.STRING()).print(
        "seen"
    )
    keyed.window(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5))).reduce(
        lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2])
    ).print("sliding")
    clicks.window_all(TumblingEventTimeWindows.of(Time.seconds(10))).process(
        Busiest(), Types.TUPLE([Types.LONG(), Types.STRING(), Types.INT()])
    ).print("busiest")
    clicks.process(Lateness(), Types.STRING()).print("behind")
    env.execute("sessions")


if __name__ == "__main__":
    main()
