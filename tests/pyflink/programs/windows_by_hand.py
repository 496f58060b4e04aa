"""Count and global windows, triggers by hand, evictions by state, windows over rows and over nothing."""

from pyflink.common import Row, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import StreamExecutionEnvironment, WindowFunction
from pyflink.datastream.functions import AllWindowFunction, ProcessWindowFunction
from pyflink.datastream.state import ReducingStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import (
    CountTrigger,
    CountWindow,
    EventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)

ROW = Types.ROW_NAMED(["name", "n", "at"], [Types.STRING(), Types.INT(), Types.LONG()])
ROWS = [Row("ab"[i % 2] if i % 5 else "c", i, i * 700) for i in range(14)]


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.at


class Join(WindowFunction):
    def apply(self, key, window: CountWindow, inputs):
        yield f"{key}:{','.join(str(r.n) for r in inputs)}"


class JoinAll(AllWindowFunction):
    def apply(self, window: TimeWindow, inputs):
        yield f"{window.start}-{window.end}:{'+'.join(str(r.n) for r in inputs)}"


class SumOver(Trigger):
    """Fires and purges when the sum of a window is over a limit, and at the end of the window."""

    def __init__(self, limit):
        self.limit = limit
        self.sum = ReducingStateDescriptor("sum", lambda a, b: a + b, Types.INT())
        self.fired = ValueStateDescriptor("fired", Types.INT())

    def on_element(self, element, timestamp, window, ctx):
        ctx.register_event_time_timer(window.max_timestamp())
        total = ctx.get_partitioned_state(self.sum)
        total.add(element.n)
        if total.get() > self.limit:
            total.clear()
            fired = ctx.get_partitioned_state(self.fired)
            fired.update((fired.value() or 0) + 1)
            return TriggerResult.FIRE_AND_PURGE
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE if time >= window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window, ctx):
        raise NotImplementedError

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.sum).clear()
        ctx.get_partitioned_state(self.fired).clear()


class Numbers(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        yield key, getattr(window, "start", -1), sorted(r.n for r in elements)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
    rows = env.from_collection(ROWS, ROW).assign_timestamps_and_watermarks(strategy)
    keyed = rows.key_by(lambda r: r.name, Types.STRING())
    numbers = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LIST(Types.INT())])

    keyed.count_window(3).apply(Join(), Types.STRING()).print("count")
    keyed.count_window(4, 2).apply(Join(), Types.STRING()).print("slide")
    keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(2))).process(
        Numbers(), numbers
    ).print("purge")
    keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(4000))).trigger(SumOver(10)).process(
        Numbers(), numbers
    ).print("sum")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(5))).trigger(
        PurgingTrigger.of(EventTimeTrigger.create())
    ).reduce(lambda a, b: Row(name=a.name, n=a.n + b.n, at=max(a.at, b.at))).print("reduce")
    rows.window_all(TumblingEventTimeWindows.of(Time.seconds(3))).apply(JoinAll(), Types.STRING()).print("all")
    keyed.window(TumblingEventTimeWindows.of(Time.seconds(100))).process(Numbers(), numbers).filter(
        lambda v: v[0] > "a"
    ).print("one")
    env.execute("windows")


if __name__ == "__main__":
    main()
