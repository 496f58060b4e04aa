"""One record at a time: the test reads batches of one, PyFlink makes a watermark while the next record waits.

So the records wait in a task of their own: without chaining.
"""

import time

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.window import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

RECORD = Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()])
RECORDS = [
    ("a", 1, 1), ("b", 12, 2), ("a", 3, 3), ("a", 16, 4), ("b", 4, 5), ("a", 9, 6), ("a", 26, 7), ("a", 8, 8),
    ("a", 13, 9), ("b", 31, 10), ("a", 5, 11), ("a", 22, 12), ("b", 60, 13), ("a", 29, 14),
]  # fmt: skip


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Describe(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, context.window().end, sorted(e[2] for e in elements)


def wait(record):
    time.sleep(0.1)
    return record


def main():
    config = Configuration()
    config.set_string("pipeline.auto-watermark-interval", "1 ms")
    config.set_integer("python.fn-execution.bundle.size", 1)
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    stream = (
        env.from_collection(RECORDS, type_info=RECORD)
        .map(wait, RECORD)
        .disable_chaining()
        .assign_timestamps_and_watermarks(strategy)
    )
    keyed = stream.key_by(lambda r: r[0], key_type=Types.STRING())
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(10))
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(5))
    sessions = EventTimeSessionWindows.with_gap(Time.milliseconds(6))

    for name, windows in (
        ("tumbling", keyed.window(tumbling)),
        ("tolerant", keyed.window(tumbling).allowed_lateness(10)),
        ("sliding", keyed.window(sliding).allowed_lateness(4)),
        ("sparse", keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(4), Time.milliseconds(10)))),
        ("session", keyed.window(sessions)),
        ("tolerant session", keyed.window(sessions).allowed_lateness(12)),
        ("counted", keyed.window(tumbling).trigger(CountTrigger.of(1)).allowed_lateness(5)),
        ("purging", keyed.window(tumbling).trigger(PurgingTrigger.of(EventTimeTrigger.create())).allowed_lateness(20)),
    ):
        late = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()]))
        fired = windows.side_output_late_data(late).process(Describe())
        fired.print(name)
        fired.get_side_output(late).print(name + " late")

    # Timers that a trigger registers while a watermark is on its way are seen by PyFlink at the next one only, so the
    # watermark goes in small steps.
    steps = (
        env.from_collection([("c", i, i) for i in range(1, 20) if i not in (11, 17)], type_info=RECORD)
        .map(wait, RECORD)
        .disable_chaining()
    )
    steps = steps.assign_timestamps_and_watermarks(strategy).key_by(lambda r: r[0], key_type=Types.STRING())
    continuous = ContinuousEventTimeTrigger.of(Time.milliseconds(3))
    steps.window(tumbling).trigger(continuous).process(Describe()).print("continuous")
    steps.window(tumbling).trigger(PurgingTrigger.of(continuous)).process(Describe()).print("continuous purging")
    env.execute()


if __name__ == "__main__":
    main()
