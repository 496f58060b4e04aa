from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import CountTrigger, EventTimeSessionWindows, TumblingEventTimeWindows

RECORD = Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()])
RECORDS = [("a", 1, 1), ("a", 2, 2), ("b", 3, 3), ("a", 11, 4), ("b", 4, 5), ("a", 3, 6), ("a", 12, 7), ("a", 25, 8)]


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Stateful(ProcessWindowFunction):
    def open(self, runtime_context):
        self.firings = ValueStateDescriptor("firings", Types.INT())
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.INT()))

    def process(self, key, context, elements):
        firings = context.window_state().get_state(self.firings)
        firings.update((firings.value() or 0) + 1)
        by_window = context.global_state().get_map_state(MapStateDescriptor("by_window", Types.LONG(), Types.INT()))
        by_window.put(context.window().start, len(elements))
        self.seen.add(len(elements))
        yield key, context.window().start, firings.value(), sorted(by_window.items()), list(self.seen.get())

    def clear(self, context):
        context.window_state().get_state(self.firings).clear()


class OfKey(ProcessWindowFunction):
    def process(self, key, context, elements):
        state = context.global_state().get_state(ValueStateDescriptor("total", Types.INT()))
        state.update((state.value() or 0) + sum(e[2] for e in elements))
        yield key, context.window().start, context.window().end, state.value()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(EventTime())
    stream = env.from_collection(RECORDS, type_info=RECORD).assign_timestamps_and_watermarks(strategy)
    keyed = stream.key_by(lambda r: r[0], key_type=Types.STRING())
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(10))
    keyed.window(tumbling).process(Stateful()).print("once")
    keyed.window(tumbling).trigger(CountTrigger.of(1)).process(Stateful()).print("each")
    keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).process(OfKey()).print("sessions")
    keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).trigger(CountTrigger.of(2)).process(
        OfKey()
    ).print("counted sessions")
    env.execute()


if __name__ == "__main__":
    main()
