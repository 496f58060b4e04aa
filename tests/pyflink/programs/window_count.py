from pyflink.common import Types
from pyflink.datastream import ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import WindowFunction
from pyflink.datastream.state import ReducingStateDescriptor
from pyflink.datastream.window import (
    CountTrigger,
    CountWindow,
    GlobalWindow,
    GlobalWindows,
    PurgingTrigger,
    Trigger,
    TriggerResult,
)

RECORD = Types.TUPLE([Types.STRING(), Types.INT()])
RECORDS = [("ab"[i % 3 // 2], i) for i in range(20)]


class Ids(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key, window, inputs):
        yield key, window.id, window.max_timestamp(), [i[1] for i in inputs]


class Global(ProcessWindowFunction[tuple, tuple, str, GlobalWindow]):
    def process(self, key, context, elements):
        yield key, context.window().max_timestamp(), [e[1] for e in elements]


class SumTrigger(Trigger):
    """Fires when the sum of a window reaches a limit; a negative number purges."""

    def __init__(self, limit):
        self.limit = limit
        self.sum = ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG())

    def on_element(self, element, timestamp, window, ctx):
        total = ctx.get_partitioned_state(self.sum)
        total.add(element[1])
        if element[1] % 7 == 0:
            return TriggerResult.PURGE
        if total.get() >= self.limit:
            total.clear()
            return TriggerResult.FIRE_AND_PURGE
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.sum)

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.sum).clear()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    keyed = env.from_collection(RECORDS, type_info=RECORD).key_by(lambda r: r[0], key_type=Types.STRING())
    keyed.count_window(3).apply(Ids()).print("tumbling")
    keyed.count_window(4, 2).apply(Ids()).print("sliding")
    keyed.count_window(2, 3).apply(Ids()).print("with gaps")
    keyed.count_window(3).reduce(lambda a, b: (a[0], a[1] + b[1])).print("reduce")
    keyed.count_window(4).trigger(CountTrigger.of(2)).apply(Ids()).print("early")
    keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(3)).process(Global()).print("global")
    keyed.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(3))).process(Global()).print(
        "purging"
    )
    keyed.window(GlobalWindows.create()).trigger(SumTrigger(20)).process(Global()).print("own trigger")
    keyed.window(GlobalWindows.create()).process(Global()).print("never")
    env.execute()


if __name__ == "__main__":
    main()
