from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeDomain,
)
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor

RECORDS = [("a", 10), ("b", 5), ("a", 20), ("a", 10), ("c", 7), ("b", 30), ("c", 9), ("a", 2)]


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Timers(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.chained = runtime_context.get_state(ValueStateDescriptor("chained", Types.BOOLEAN()))

    def process_element(self, value, ctx):
        self.seen.add(value[1])
        service = ctx.timer_service()
        service.register_event_time_timer(value[1] + 100)
        service.register_event_time_timer(value[1] + 100)  # makes one
        service.register_event_time_timer(1000)
        service.register_event_time_timer(-5)  # long past
        service.delete_event_time_timer(110)
        service.delete_event_time_timer(5555)  # there is none
        service.register_processing_time_timer(service.current_processing_time() + 3_600_000)
        assert service.current_processing_time() > 1_600_000_000_000
        yield "element", ctx.get_current_key(), value[1], ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        if timestamp == 1000 and not self.chained.value():
            self.chained.update(True)
            ctx.timer_service().register_event_time_timer(timestamp)  # again
            ctx.timer_service().register_event_time_timer(timestamp + 1)
        yield (
            "timer",
            ctx.get_current_key(),
            timestamp,
            ctx.timestamp(),
            ctx.time_domain().name,
            sorted(self.seen.get()),
        )


class Both(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element1(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(500)

    def process_element2(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + 1000 * value[1])
        ctx.timer_service().register_event_time_timer(500)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.sum.value()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    record = Types.TUPLE([Types.STRING(), Types.LONG()])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    records = env.from_collection(RECORDS, type_info=record).assign_timestamps_and_watermarks(strategy)
    keyed = records.key_by(lambda r: r[0], key_type=Types.STRING())
    keyed.process(Timers()).print("timers")
    other = records.map(lambda r: (r[0], r[1] + 1), output_type=record)
    keyed.connect(other.key_by(lambda r: r[0], key_type=Types.STRING())).process(Both()).print("both")
    env.execute("timers")


if __name__ == "__main__":
    main()
