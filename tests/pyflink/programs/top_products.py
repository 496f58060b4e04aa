"""The best products of each window: sums per product, then a ranking of all products of a window by a timer."""

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import ReduceFunction
from pyflink.datastream.state import ListStateDescriptor
from pyflink.datastream.window import TumblingEventTimeWindows

SALE = Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()])
SALES = [
    ("tea", 3, 1000), ("jam", 9, 2000), ("oil", 4, 2500), ("tea", 5, 9999), ("jam", 1, 10000), ("tea", 2, 12000),
    ("oil", 6, 4000), ("nut", 6, 15000), ("tea", 2, 19999), ("jam", 3, 18000), ("oil", 7, 31000), ("tea", 7, 39000),
]  # fmt: skip


def sums():
    return Types.TUPLE([Types.LONG(), Types.STRING(), Types.INT()])


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Add(ReduceFunction):
    def reduce(self, a, b):
        return a[0], a[1] + b[1], max(a[2], b[2])


class WithWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        for _, count, _ in elements:
            yield context.window().end, key, count


class Rank(KeyedProcessFunction):
    def __init__(self, size):
        self.size = size

    def open(self, runtime_context):
        self.sold = runtime_context.get_list_state(ListStateDescriptor("sold", sums()))

    def process_element(self, value, ctx):
        self.sold.add(value)
        ctx.timer_service().register_event_time_timer(value[0])
        assert ctx.timestamp() == value[0] - 1

    def on_timer(self, timestamp, ctx):
        best = sorted(self.sold.get(), key=lambda each: (-each[2], each[1]))[: self.size]
        self.sold.clear()
        yield f"until {ctx.get_current_key()}: " + ", ".join(f"{name} {count}" for _, name, count in best)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(30)).with_timestamp_assigner(At())
    sales = env.from_collection(SALES, SALE).assign_timestamps_and_watermarks(strategy)
    sold = (
        sales.key_by(lambda s: s[0], Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .reduce(Add(), WithWindow(), sums())
    )
    sold.print("sold")
    sold.key_by(lambda s: s[0], Types.LONG()).process(Rank(2), Types.STRING()).print("top")
    env.execute("top products")


if __name__ == "__main__":
    main()
