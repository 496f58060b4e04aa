"""Orders that are sent again are dropped by their id; what changed in them goes to a side output."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor

FIELDS = ["shop", "id", "total", "tags"]
ORDERS = [
    Row("north", 1, 10.5, ["new"]),
    Row("south", 1, 7.0, []),
    Row("north", 1, 10.5, ["new"]),
    Row("north", 2, 3.25, ["gift", "new"]),
    Row("south", 1, 8.0, []),
    Row("north", 1, 10.5, ["new", "paid"]),
    Row("north", 2, 3.25, ["gift", "new"]),
    Row("east", 5, 0.0, []),
    Row("south", 2, 70.0, ["bulk"]),
]
CHANGED, FREE = OutputTag("changed", Types.STRING()), OutputTag("free", Types.STRING())


def order():
    return Types.ROW_NAMED(FIELDS, [Types.STRING(), Types.INT(), Types.DOUBLE(), Types.LIST(Types.STRING())])


class First(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.INT(), order()))
        self.dropped = runtime_context.get_state(ValueStateDescriptor("dropped", Types.LONG()))

    def process_element(self, value, ctx):
        known = self.seen.get(value.id)
        if known is None:
            self.seen.put(value.id, value)
            yield value
            return
        self.dropped.update((self.dropped.value() or 0) + 1)
        for name in ("total", "tags"):
            if known[name] != value[name]:
                yield CHANGED, f"{ctx.get_current_key()}/{value.id}: {name} {known[name]} -> {value[name]}"
        yield CHANGED, f"{ctx.get_current_key()}: {self.dropped.value()} dropped"


class Paid(ProcessFunction):
    def process_element(self, value, ctx):
        if value.total == 0:
            yield FREE, f"{value.shop}/{value.id} is free"
        else:
            yield value


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    orders = env.from_collection(ORDERS, order())
    first = orders.key_by(lambda o: o.shop, Types.STRING()).process(First(), order())
    first.get_side_output(CHANGED).print("changed")
    paid = first.process(Paid(), order())
    paid.get_side_output(FREE).print("free")
    paid.print("order")
    paid.map(lambda o: (o.shop, o.total), Types.TUPLE([Types.STRING(), Types.DOUBLE()])).key_by(
        lambda o: o[0], Types.STRING()
    ).sum(1).print("revenue")
    env.execute("deduplicated orders")


if __name__ == "__main__":
    main()
