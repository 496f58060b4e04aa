from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    MergingWindowAssigner,
    SessionWindowTimeGapExtractor,
    TimeWindow,
    TimeWindowSerializer,
)

RECORD = Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()])
# Sessions that grow at both ends, are touched exactly, and come twice.
RECORDS = [
    ("a", 10, 1), ("a", 30, 2), ("a", 19, 3), ("b", 5, 4), ("a", 50, 5), ("a", 41, 6), ("b", 15, 7), ("a", 10, 8),
    ("b", 26, 9), ("a", 70, 10), ("a", 62, 11), ("b", 0, 12), ("a", 100, 13), ("b", 46, 14), ("b", 34, 15),
]  # fmt: skip


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Numbers(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value[2]]

    def get_result(self, accumulator):
        return sorted(accumulator)

    def merge(self, a, b):
        return a + b


class Describe(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, context.window().end, sorted(str(e) for e in elements)


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element):
        return 2 * element[2]


class Adjacent(MergingWindowAssigner):
    """Windows of 10 that merge when they are neighbours, but never across 50."""

    def assign_windows(self, element, timestamp, context):
        start = timestamp - timestamp % 10
        return [TimeWindow(start, start + 10)]

    def merge_windows(self, windows, callback):
        for low, high in ((-1000, 50), (50, 1000)):
            part = sorted(w for w in windows if low <= w.start < high)
            group = []
            for window in [*part, TimeWindow(10**9, 10**9)]:
                if group and window.start > group[-1].end:
                    if len(group) > 1:
                        callback.merge(list(group), TimeWindow(group[0].start, max(w.end for w in group)))
                    group = []
                group.append(window)

    def get_default_trigger(self, env):
        return EventTimeTrigger.create()

    def get_window_serializer(self):
        return TimeWindowSerializer()

    def is_event_time(self):
        return True


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(EventTime())
    stream = env.from_collection(RECORDS, type_info=RECORD).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda r: r[0], key_type=Types.STRING())
    fixed = EventTimeSessionWindows.with_gap(Time.milliseconds(10))
    keyed.window(fixed).reduce(lambda a, b: (a[0], min(a[1], b[1]), a[2] + b[2])).print("reduce")
    keyed.window(fixed).aggregate(Numbers(), Describe()).print("aggregate")
    keyed.window(fixed).process(Describe()).print("process")
    # One record joins two sessions: PyFlink 2.3 loses the accumulator of one of them, but not its elements.
    bridged = env.from_collection([*RECORDS, ("a", 25, 16), ("b", 40, 17), ("a", 55, 18)], type_info=RECORD)
    bridged = bridged.assign_timestamps_and_watermarks(strategy).key_by(lambda r: r[0], key_type=Types.STRING())
    bridged.window(fixed).process(Describe()).print("bridged")
    keyed.window(EventTimeSessionWindows.with_dynamic_gap(Gap())).process(Describe()).print("dynamic")
    keyed.window(Adjacent()).process(Describe()).print("own assigner")
    env.execute()


if __name__ == "__main__":
    main()
