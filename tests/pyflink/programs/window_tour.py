from collections.abc import Iterable

from pyflink.common import Duration, Row, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    AggregateFunction,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    WindowFunction,
)
from pyflink.datastream.state import ReducingStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import (
    CountTrigger,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)

DATA = [
    ("a", 1, 1000),
    ("a", 2, 2500),
    ("b", 5, 3000),
    ("a", 3, 4999),
    ("a", 4, 5000),
    ("b", 7, 11000),
    ("a", 8, 14000),
    ("c", 1, 30000),
    ("a", 9, 31000),
    ("c", 2, 29999),
]


class Assigner(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[2])


class Avg(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Show(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        w = context.window()
        yield key, w.start, w.end, w.max_timestamp(), list(elements)


class Counting(ProcessWindowFunction):
    def process(self, key, context, elements):
        per_key = context.global_state().get_state(ValueStateDescriptor("g", Types.LONG()))
        per_window = context.window_state().get_state(ValueStateDescriptor("w", Types.LONG()))
        per_key.update((per_key.value() or 0) + len(list(elements)))
        per_window.update((per_window.value() or 0) + 1)
        return [Row(key, per_key.value(), per_window.value(), context.window().end)]

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("w", Types.LONG())).clear()


class WF(WindowFunction[tuple, tuple, str, TimeWindow]):
    def apply(self, key, window, inputs):
        return [(key, window.start, window.end, sum(i[1] for i in inputs))]


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element):
        return 1000 if element[0] == "b" else 3000


class Cumulative(TumblingEventTimeWindows):
    """Cumulating windows of 5 and 10 seconds."""

    def __init__(self):
        super().__init__(10000, 0)

    def assign_windows(self, element, timestamp, context):
        start = timestamp - timestamp % 10000
        return [TimeWindow(start, end) for end in (start + 5000, start + 10000) if timestamp < end]


class EarlyTrigger(Trigger):
    """Fires each second record, and at the end."""

    def __init__(self):
        self.desc = ReducingStateDescriptor("n", lambda a, b: a + b, Types.LONG())

    def on_element(self, element, timestamp, window, ctx):
        ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(self.desc)
        count.add(1)
        if count.get() >= 2:
            count.clear()
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE_AND_PURGE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.desc)
        ctx.register_event_time_timer(window.max_timestamp())

    def can_merge(self):
        return True

    def clear(self, window, ctx):
        ctx.delete_event_time_timer(window.max_timestamp())
        ctx.get_partitioned_state(self.desc).clear()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(2))
        .with_idleness(Duration.of_minutes(1))
        .with_timestamp_assigner(Assigner())
    )
    T = Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()])
    ds = env.from_collection(DATA, type_info=T).assign_timestamps_and_watermarks(strategy)
    keyed = ds.key_by(lambda x: x[0], key_type=Types.STRING())

    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5))).process(Show()).print("tumbling")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5), Time.seconds(1))).process(Show()).print("offset")
    keyed.window(TumblingEventTimeWindows.of(Time.hours(24), Time.hours(-8))).process(Show()).print("day")
    keyed.window(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5))).aggregate(
        Avg(), output_type=Types.DOUBLE()
    ).print("sliding avg")
    keyed.window(SlidingEventTimeWindows.of(Time.seconds(4), Time.seconds(3), Time.seconds(1))).process(Show()).print(
        "sliding"
    )
    keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(3))).process(Show()).print("session")
    keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(3))).aggregate(Avg(), Show()).print("session agg")
    keyed.window(EventTimeSessionWindows.with_dynamic_gap(Gap())).reduce(
        lambda a, b: (a[0], a[1] + b[1], max(a[2], b[2])), Show()
    ).print("dynamic")
    keyed.window(DynamicEventTimeSessionWindows(Gap())).apply(WF()).print("dynamic apply")
    keyed.window(Cumulative()).apply(
        WF(), Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.INT()])
    ).print("cumulative")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(10))).trigger(EarlyTrigger()).process(Show()).print("early")
    keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(3))).trigger(EarlyTrigger()).process(Show()).print(
        "early session"
    )
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5))).process(
        Counting(), Types.ROW([Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()])
    ).print("states")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5))).aggregate(
        Avg(),
        Show(),
        accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
        output_type=Types.PICKLED_BYTE_ARRAY(),
    ).print("agg process")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5))).aggregate(Avg(), output_type=Types.DOUBLE()).print(
        "agg only"
    )
    keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))).process(Global()).print(
        "global"
    )
    keyed.count_window(2).reduce(lambda a, b: (a[0], a[1] + b[1], b[2])).print("count")
    keyed.count_window(3, 1).apply(CW()).print("count slide")
    ds.window_all(TumblingEventTimeWindows.of(Time.seconds(10))).reduce(lambda a, b: ("all", a[1] + b[1], b[2])).print(
        "all"
    )
    ds.window_all(EventTimeSessionWindows.with_gap(Time.seconds(5))).aggregate(Avg()).print("all avg")
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(2500))).allowed_lateness(1000).side_output_late_data(
        OutputTag("late", Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()]))
    ).process(Show()).print("named").name("my sink").set_parallelism(1)
    env.execute()


class Global(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, [e[1] for e in elements], type(context.window()).__name__


class CW(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, [i[1] for i in inputs], type(window).__name__


if __name__ == "__main__":
    main()
