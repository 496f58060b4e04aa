"""Orders and shipments that lie within an interval of each other, joined in map state; event time frees what waits."""

from pyflink.common import Duration, Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, OutputTag, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

ORDER = Types.ROW_NAMED(["id", "item", "time"], [Types.STRING(), Types.STRING(), Types.LONG()])
SHIPMENT = Types.ROW_NAMED(["order", "carrier", "time"], [Types.STRING(), Types.STRING(), Types.LONG()])
ORDERS = [
    Row("o1", "lamp", 1000),
    Row("o2", "desk", 1500),
    Row("o3", "sofa", 9000),
    Row("o4", "vase", 20000),
    Row("o2", "desk", 26000),
]
SHIPMENTS = [
    Row("o1", "rail", 2500),
    Row("o2", "road", 9000),
    Row("o3", "rail", 8500),
    Row("o3", "ship", 13999),
    Row("o3", "road", 14001),
    Row("o2", "ship", 27000),
    Row("o9", "road", 30000),
]
BEFORE, AFTER = 1000, 5000
ALONE = OutputTag("alone", Types.STRING())


class At(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value.time


class Join(KeyedCoProcessFunction):
    """Joins a shipment with the orders from AFTER before it to BEFORE after it, once both have come."""

    def open(self, runtime_context):
        self.orders = runtime_context.get_map_state(MapStateDescriptor("orders", Types.LONG(), Types.STRING()))
        self.shipments = runtime_context.get_map_state(MapStateDescriptor("shipments", Types.LONG(), Types.STRING()))
        self.joined = runtime_context.get_state(ValueStateDescriptor("joined", Types.INT()))

    def process_element1(self, value, ctx):
        self.orders.put(value.time, value.item)
        ctx.timer_service().register_event_time_timer(value.time + AFTER)

    def process_element2(self, value, ctx):
        self.shipments.put(value.time, value.carrier)
        ctx.timer_service().register_event_time_timer(value.time + BEFORE + AFTER + AFTER)

    def on_timer(self, timestamp, ctx):
        item = self.orders.get(timestamp - AFTER)
        if item is not None:
            ordered = timestamp - AFTER
            found = sorted(t for t in self.shipments if ordered - BEFORE <= t <= ordered + AFTER)
            for time in found:
                self.joined.update((self.joined.value() or 0) + 1)
                yield ctx.get_current_key(), item, self.shipments.get(time), time - ordered
            if not found:
                yield ALONE, f"order {ctx.get_current_key()} of {ordered}: nothing shipped"
            self.orders.remove(ordered)
        shipped = timestamp - BEFORE - AFTER - AFTER
        if self.shipments.contains(shipped):
            self.shipments.remove(shipped)
            yield ALONE, f"shipment of {shipped} forgotten, {self.joined.value() or 0} joined"


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(60)).with_timestamp_assigner(At())
    orders = env.from_collection(ORDERS, ORDER).assign_timestamps_and_watermarks(strategy)
    shipments = env.from_collection(SHIPMENTS, SHIPMENT).assign_timestamps_and_watermarks(strategy)
    result = Types.TUPLE([Types.STRING(), Types.STRING(), Types.STRING(), Types.LONG()])
    joined = (
        orders.key_by(lambda o: o.id, Types.STRING())
        .connect(shipments.key_by(lambda s: s.order, Types.STRING()))
        .process(Join(), result)
    )
    joined.print("joined")
    joined.get_side_output(ALONE).print("alone")
    env.execute("interval join")


if __name__ == "__main__":
    main()
