from pyflink.common import Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeDomain,
)
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

RECORDS = [("a", 3, 10), ("b", 7, 20), ("a", 1, 15), ("a", 5, 40), ("b", 9, 35), ("c", 2, 5), ("a", 1, 60)]


class Longest(ReduceFunction):
    def reduce(self, value1, value2):
        return value1 if len(value1) >= len(value2) else value2


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class All(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        row = Types.ROW_NAMED(["n", "t"], [Types.INT(), Types.LONG()])
        self.row = runtime_context.get_state(ValueStateDescriptor("row", row))
        self.tuple = runtime_context.get_state(
            ValueStateDescriptor("tuple", Types.TUPLE([Types.STRING(), Types.DOUBLE()]))
        )
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.INT()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.INT(), Types.STRING()))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        self.longest = runtime_context.get_reducing_state(ReducingStateDescriptor("longest", Longest(), Types.STRING()))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        key, n, t = value
        before = self.row.value()
        self.row.update(Row(n, t))
        pair = self.tuple.value()
        self.tuple.update((key * n, n / 2))
        self.list.add(n)
        if n == 9:
            self.list.update([100])
        if n == 5:
            self.list.add_all([50, 51])
        fresh = self.map.is_empty()
        if self.map.contains(n):
            self.map.put(n, self.map.get(n) + "!")
        else:
            self.map.put(n, key)
            self.map.put(n + 100, "more")
        if n == 3:
            self.map.remove(103)
        self.sum.add(n)
        self.longest.add(key * n)
        self.mean.add(n)
        yield (
            key,
            None if before is None else (before[0], before[1]),
            pair,
            list(self.list.get()),
            fresh,
            sorted(self.map.items()),
            sorted(self.map.keys()),
            sorted(self.map.values()),
            sorted(self.map),
            self.sum.get(),
            self.longest.get(),
            self.mean.get(),
            ctx.timestamp(),
            ctx.get_current_key(),
        )
        ctx.timer_service().register_event_time_timer(t + 10)
        ctx.timer_service().register_event_time_timer(t + 10)
        ctx.timer_service().register_event_time_timer(t + 11)
        ctx.timer_service().delete_event_time_timer(t + 11)
        ctx.timer_service().delete_event_time_timer(1_000_000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield (
            "timer",
            ctx.get_current_key(),
            timestamp,
            ctx.timestamp(),
            ctx.time_domain() == TimeDomain.EVENT_TIME,
            list(self.list.get()),
            self.sum.get(),
        )
        self.list.clear()
        self.sum.clear()
        self.row.clear()
        self.map.clear()
        self.mean.clear()


class Third(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = env.from_collection(RECORDS, Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()]))
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Third())
    timed = records.assign_timestamps_and_watermarks(by_time)
    timed.key_by(lambda v: v[0], key_type=Types.STRING()).process(All()).print("typed key")
    timed.key_by(lambda v: (v[0], 1)).process(All()).print("tuple key")
    timed.key_by(lambda v: Row(v[0]), key_type=Types.ROW([Types.STRING()])).process(All()).print("row key")
    records.key_by(lambda v: v[0] == "a").process(All()).print("no time")
    env.execute()


if __name__ == "__main__":
    main()
