from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

FACTORS = MapStateDescriptor("factors", Types.STRING(), Types.LONG())
NAMES = MapStateDescriptor("names", Types.LONG(), Types.STRING())
ODD = OutputTag("odd", Types.STRING())


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Rules(BroadcastProcessFunction):
    """What it yields does not depend on which stream comes first."""

    def process_element(self, value, ctx: BroadcastProcessFunction.ReadOnlyContext):
        state = ctx.get_broadcast_state(FACTORS)
        known = list(state.items())
        assert next(state.keys(), None) in state or not known
        assert len(known) == len(list(state.keys())) == len(list(state.values())) == len(list(state))
        assert state.is_empty() == (not known)
        assert all(k in state and state.contains(k) and state[k] == state.get(k) == v for k, v in known)
        yield "element", value, ctx.timestamp()
        if value[1] % 2:
            yield ODD, f"{value[0]}{value[1]}"

    def process_broadcast_element(self, value, ctx: BroadcastProcessFunction.Context):
        factors, names = ctx.get_broadcast_state(FACTORS), ctx.get_broadcast_state(NAMES)
        if value[1] < 0:
            factors.remove(value[0])
            del names[-value[1]]
        elif value[1] == 0:
            factors.clear()
        else:
            factors.put(value[0], value[1])
            factors["last"] = value[1]
            names.put_all({value[1]: value[0]}.items())  # PyFlink's put_all() fails on a dict
        yield "rule", value, sorted(factors.items()), sorted(names.items()), factors.is_empty(), value[0] in factors


class KeyedRules(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(1_000_000)
        yield "element", ctx.get_current_key(), value[1], self.count.value(), ctx.timestamp()

    def process_broadcast_element(self, value, ctx: KeyedBroadcastProcessFunction.Context):
        ctx.get_broadcast_state(FACTORS).put(value[0], value[1])
        yield "rule", value

    def on_timer(self, timestamp, ctx: KeyedBroadcastProcessFunction.OnTimerContext):
        # At the end of both inputs all rules are there.
        rules = sorted(ctx.get_broadcast_state(FACTORS).items())
        yield "timer", ctx.get_current_key(), timestamp, ctx.time_domain().name, self.count.value(), rules


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    pair = Types.TUPLE([Types.STRING(), Types.LONG()])
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    records = env.from_collection([("a", 1), ("b", 2), ("a", 3), ("c", 4)], type_info=pair)
    records = records.assign_timestamps_and_watermarks(strategy)
    rules = env.from_collection([("x", 3), ("y", 2), ("x", 5), ("y", -2), ("z", 0), ("z", 9)], type_info=pair)
    some = rules.filter(lambda r: r[1] > 0).assign_timestamps_and_watermarks(strategy)
    result = records.connect(rules.broadcast(FACTORS, NAMES)).process(Rules())
    result.print("rules")
    result.get_side_output(ODD).print("odd")
    keyed = records.key_by(lambda r: r[0], key_type=Types.STRING())
    keyed.connect(some.broadcast(FACTORS)).process(KeyedRules()).print("keyed")
    env.execute("broadcast")


if __name__ == "__main__":
    main()
