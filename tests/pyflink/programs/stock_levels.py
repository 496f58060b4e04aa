"""Deliveries and sales in one union, put into the order of event time per item, and the levels that follow."""

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import FlatMapFunction, KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import AggregateFunction
from pyflink.datastream.state import AggregatingStateDescriptor, ListStateDescriptor, ValueStateDescriptor

DELIVERIES = [("bolt", 100, 5000), ("nail", 40, 1000), ("bolt", 20, 30000), ("gear", 3, 12000)]
SALES = ["bolt 30 7000, bolt 80 9000", "nail 15 2000", "gear 1 13000, nail 25 900, bolt 5 31000", ""]


def move():
    return Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()])


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


class Split(FlatMapFunction):
    def flat_map(self, value):
        for sale in filter(None, value.split(", ")):
            item, count, time = sale.split()
            yield item, -int(count), int(time)


class Least(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return min(value, accumulator)

    def get_result(self, accumulator):
        return f"least {accumulator}"

    def merge(self, a, b):
        return min(a, b)


class Level(KeyedProcessFunction):
    """Event time tells when all earlier moves of an item have come."""

    def open(self, runtime_context):
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", move()))
        self.level = runtime_context.get_state(ValueStateDescriptor("level", Types.INT()))
        self.least = runtime_context.get_aggregating_state(AggregatingStateDescriptor("least", Least(), Types.INT()))

    def process_element(self, value, ctx):
        self.waiting.add(value)
        ctx.timer_service().register_event_time_timer(value[2])

    def on_timer(self, timestamp, ctx):
        moves = sorted(self.waiting.get(), key=lambda move: move[2])
        due = [move for move in moves if move[2] <= timestamp]
        self.waiting.update([move for move in moves if move[2] > timestamp])
        for _, count, _ in due:
            level = (self.level.value() or 0) + count
            self.level.update(level)
            self.least.add(level)
        yield f"{ctx.get_current_key()} at {timestamp}: {self.level.value()}, {self.least.get()}"


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(60)).with_timestamp_assigner(At())
    deliveries = env.from_collection(DELIVERIES, move())
    sales = env.from_collection(SALES, Types.STRING()).flat_map(Split(), move())
    moves = deliveries.union(sales).assign_timestamps_and_watermarks(strategy)
    moves.key_by(lambda m: m[0], Types.STRING()).process(Level(), Types.STRING()).print()
    env.execute("stock levels")


if __name__ == "__main__":
    main()
