"""Readings of meters: value state of single precision with a time to live, event-time timers, untyped output."""

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import StateTtlConfig, ValueStateDescriptor

READINGS = [
    ("hall", 1_000, 20.5),
    ("roof", 1_500, -3.25),
    ("hall", 2_200, 21.1),
    ("cave", 9_000, 12.0),
    ("hall", 9_500, 19.7),
    ("roof", 8_000, -3.6),
    ("cave", 9_100, 12.3),
]


class ReadAt(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


def lasting(name, kind):
    """State that is kept for an hour since it was last read or written."""
    descriptor = ValueStateDescriptor(name, kind)
    descriptor.enable_time_to_live(
        StateTtlConfig.new_builder(Time.hours(1))
        .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
        .disable_cleanup_in_background()
        .build()
    )
    return descriptor


class Drift(KeyedProcessFunction):
    """The change since the last reading, and the highest value once a meter has been silent for three seconds."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(lasting("last", Types.FLOAT()))
        self.highest = runtime_context.get_state(lasting("highest", Types.FLOAT()))
        self.silent_at = runtime_context.get_state(lasting("silent at", Types.LONG()))

    def process_element(self, value, ctx):
        before = self.last.value()
        if before is not None:
            yield value[0], round(value[2] - before, 3)
        self.last.update(value[2])
        highest = self.highest.value()
        self.highest.update(value[2] if highest is None else max(highest, value[2]))
        due = self.silent_at.value()
        if due is not None:
            ctx.timer_service().delete_event_time_timer(due)
        self.silent_at.update(ctx.timestamp() + 3_000)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_000)

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} silent since {timestamp - 3_000}, at most {self.highest.value():.2f}"
        self.highest.clear()


class Sums(KeyedProcessFunction):
    """A running sum in single precision, as it is after each reading."""

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(lasting("sum", Types.FLOAT()))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0.0) + value[2])
        yield value[0], self.sum.value()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(20)).with_timestamp_assigner(ReadAt())
    readings = env.from_collection(READINGS, Types.TUPLE([Types.STRING(), Types.LONG(), Types.FLOAT()]))
    by_meter = readings.assign_timestamps_and_watermarks(strategy).key_by(lambda value: value[0])
    by_meter.process(Drift()).print("drift")
    by_meter.process(Sums()).print("sum")
    env.execute("meters")


if __name__ == "__main__":
    main()
