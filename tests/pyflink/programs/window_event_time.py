from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, ProcessWindowFunction, ReduceFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import WindowFunction
from pyflink.datastream.window import (
    EventTimeTrigger,
    SlidingEventTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    TumblingEventTimeWindows,
    WindowAssigner,
)

RECORD = Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()])
RECORDS = [("a", 1, 1), ("b", 2, 2), ("a", 9, 3), ("a", 10, 4), ("b", 19, 5), ("a", 23, 6), ("b", 20, 7), ("a", 41, 8)]


class Second(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Latest(ReduceFunction):
    def reduce(self, value1, value2):
        return (value1[0], max(value1[1], value2[1]), value1[2] + value2[2])


class Describe(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        yield key, window.start, window.end, window.max_timestamp(), sorted(str(e) for e in elements)


class Bounds(WindowFunction[tuple, tuple, str, TimeWindow]):
    def apply(self, key, window, inputs):
        return [(key, window.start, window.end, list(inputs))]


class ByParity(WindowAssigner):
    """Odd records into windows of 5, even ones into windows of 20."""

    def assign_windows(self, element, timestamp, context):
        size = 5 if element[2] % 2 else 20
        start = TimeWindow.get_window_start_with_offset(timestamp, 0, size)
        return [TimeWindow(start, start + size)]

    def get_default_trigger(self, env):
        return EventTimeTrigger.create()

    def get_window_serializer(self):
        return TimeWindowSerializer()

    def is_event_time(self):
        return True


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5)).with_timestamp_assigner(Second())
    stream = env.from_collection(RECORDS, type_info=RECORD).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda r: r[0], key_type=Types.STRING())
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(10))
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5), Time.milliseconds(2))
    sparse = SlidingEventTimeWindows.of(Time.milliseconds(3), Time.milliseconds(10))

    keyed.window(tumbling).reduce(Latest()).print("tumbling reduce")
    keyed.window(tumbling).reduce(lambda a, b: (a[0], a[1], a[2] * b[2]), Describe()).print("tumbling reduce process")
    keyed.window(tumbling).aggregate(Total(), output_type=Types.DOUBLE()).print("tumbling aggregate")
    keyed.window(sliding).aggregate(Total(), Bounds()).print("sliding aggregate apply")
    accumulator = Types.TUPLE([Types.INT(), Types.INT()])
    keyed.window(sliding).aggregate(Total(), Describe(), accumulator_type=accumulator).print(
        "sliding aggregate process"
    )
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(-3))).process(Describe()).print(
        "offset process"
    )
    keyed.window(sparse).apply(Bounds()).print("sparse apply")
    keyed.window(ByParity()).process(Describe()).print("own assigner")
    hours = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).reduce(Latest())
    hours.key_by(lambda r: 0).window(TumblingEventTimeWindows.of(Time.milliseconds(20))).process(Describe()).print(
        "window of windows"
    )
    env.execute()


if __name__ == "__main__":
    main()
