"""State whose values are changed in place, that two handles share, or that is asked for when it is first needed."""

from pyflink.common import Row, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1]


class Mutate(KeyedProcessFunction):
    """Changes what it got from state, and calls update() or not."""

    def open(self, ctx):
        self.row = ctx.get_state(
            ValueStateDescriptor("row", Types.ROW_NAMED(["n", "seen"], [Types.INT(), Types.LIST(Types.INT())]))
        )
        self.d = ctx.get_state(ValueStateDescriptor("d", Types.MAP(Types.STRING(), Types.INT())))
        self.m = ctx.get_map_state(MapStateDescriptor("m", Types.STRING(), Types.LIST(Types.INT())))

    def process_element(self, v, ctx):
        r = self.row.value()
        if r is None:
            r = Row(n=0, seen=[])
        r["n"] = r["n"] + 1
        r.seen.append(v[1])
        self.row.update(r)
        d = self.d.value()
        if d is None:
            d = {}
        d["n"] = d.get("n", 0) + v[1]
        self.d.update(d)
        if not self.m.contains("x"):
            self.m.put("x", [])
        x = self.m.get("x")
        x.append(v[1])
        self.m.put("x", x)
        yield v, r, d, x, self.row.value().seen, ctx.get_current_key()
        ctx.timer_service().register_event_time_timer(v[1] + 500)

    def on_timer(self, ts, ctx):
        r = self.row.value()
        r["n"] = -1
        self.row.update(r)
        yield (
            ts,
            self.row.value().as_dict(),
            sorted(self.d.value().items()),
            list(self.m.items()),
            ctx.get_current_key(),
        )


class Same(KeyedProcessFunction):
    def open(self, ctx):
        a = ValueStateDescriptor("same", Types.INT())
        self.a = ctx.get_state(a)
        self.b = ctx.get_state(ValueStateDescriptor("same", Types.INT()))

    def process_element(self, v, ctx):
        self.a.update((self.b.value() or 0) + v[1])
        yield self.b.value()


class Late(KeyedProcessFunction):
    """Asks for its state when it first needs it."""

    def open(self, ctx):
        self.ctx = ctx
        self.s = {}

    def process_element(self, v, ctx):
        name = f"s{v[1] % 2}"
        if name not in self.s:
            self.s[name] = self.ctx.get_state(ValueStateDescriptor(name, Types.INT()))
        self.s[name].update((self.s[name].value() or 0) + 1)
        yield v, name, self.s[name].value()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    ds = env.from_collection(
        [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5), ("b", 7)], Types.TUPLE([Types.STRING(), Types.INT()])
    )
    ds = ds.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    )
    ds.key_by(lambda v: v[0]).process(Mutate()).print("mutate")
    ds.key_by(lambda v: v[0]).process(Same()).print("same")
    ds.key_by(lambda v: v[0]).process(Late()).print("late")
    env.execute()


if __name__ == "__main__":
    main()
