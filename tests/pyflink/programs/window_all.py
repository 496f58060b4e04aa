from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import AllWindowFunction, ProcessAllWindowFunction
from pyflink.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    TimeWindow,
    TumblingEventTimeWindows,
)

RECORDS = [(1, "a"), (4, "b"), (11, "c"), (15, "d"), (18, "e"), (40, "f")]


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[0]


class Join(AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return accumulator + value[1]

    def get_result(self, accumulator):
        return "".join(sorted(accumulator))

    def merge(self, a, b):
        return a + b


class Apply(AllWindowFunction[tuple, tuple, TimeWindow]):
    def apply(self, window, inputs):
        return [(window.start, window.end, list(inputs))]


class Process(ProcessAllWindowFunction[tuple, tuple, TimeWindow]):
    def process(self, context, elements):
        return [(context.window().start, context.window().end, list(elements))]


class Elements(ProcessAllWindowFunction):
    def process(self, context, elements):
        yield [e[1] for e in elements]


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    stream = env.from_collection(RECORDS, type_info=Types.TUPLE([Types.LONG(), Types.STRING()]))
    stream = stream.assign_timestamps_and_watermarks(strategy)
    windows = stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    windows.apply(Apply()).print("apply")
    stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(10))).process(Process()).print("process")
    stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(20))).aggregate(Join(), Apply()).print(
        "aggregate apply"
    )
    stream.window_all(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).aggregate(Join()).print(
        "session aggregate"
    )
    stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(
        lambda a, b: (a[0], a[1] + b[1])
    ).print("reduce")
    stream.window_all(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(
        lambda a, b: (a[0], a[1] + b[1]), Process()
    ).print("reduce process")
    stream.window_all(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))).process(Elements()).print(
        "global"
    )
    env.execute()


if __name__ == "__main__":
    main()
