"""Functions that change a value after they have handed it over, or that another one gets too."""

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, MapFunction, OutputTag, ProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

SIDE = OutputTag("side", Types.LIST(Types.INT()))


class Collect(KeyedProcessFunction):
    def open(self, ctx):
        self.l = ctx.get_state(ValueStateDescriptor("l", Types.LIST(Types.INT())))
        self.d = ctx.get_state(ValueStateDescriptor("d", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx):
        seen = self.l.value() or []
        seen.append(value[1])
        self.l.update(seen)
        d = self.d.value() or {}
        d[value[1]] = 1
        self.d.update(d)
        yield seen


class Collect2(Collect):
    def process_element(self, value, ctx):
        for seen in super().process_element(value, ctx):
            yield value[0], seen, self.d.value()


class Collect3(Collect):
    def process_element(self, value, ctx):
        for seen in super().process_element(value, ctx):
            yield Row(value[0], seen)


class Reuse(MapFunction):
    def __init__(self):
        self.out = {"n": 0, "seen": []}

    def map(self, value):
        self.out["n"] = value[1]
        self.out["seen"].append(value[1])
        return self.out


class ReuseRow(MapFunction):
    def __init__(self):
        self.row = Row("", 0)

    def map(self, value):
        self.row[0] = value[0]
        self.row[1] += value[1]
        return self.row


class Side(ProcessFunction):
    def __init__(self):
        self.seen = []

    def process_element(self, value, ctx):
        self.seen.append(value[1])
        yield SIDE, self.seen
        yield value[1]


def mutate(v):
    v["n"] += 100
    return v


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    t = Types.TUPLE([Types.STRING(), Types.INT()])
    ds = env.from_collection([("a", 1), ("b", 2), ("a", 3), ("b", 4)], t)
    k = ds.key_by(lambda v: v[0], Types.STRING())
    k.process(Collect(), Types.LIST(Types.INT())).print("typed")
    k.process(Collect()).print("pickled")
    k.process(Collect2()).print("tuple")
    k.process(Collect3(), Types.ROW([Types.STRING(), Types.LIST(Types.INT())])).print("row")
    k.process(Collect3(), Types.ROW([Types.STRING(), Types.LIST(Types.INT())])).map(lambda r: list(r)).print(
        "row mapped"
    )
    k.process(Collect2()).map(lambda r: str(r)).print("tuple mapped")
    ds.map(Reuse()).print("reuse")
    ds.map(Reuse()).map(lambda v: str(v), Types.STRING()).print("reuse mapped")
    ds.map(Reuse()).rebalance().map(lambda v: str(v), Types.STRING()).print("reuse rebalanced")
    ds.map(ReuseRow(), Types.ROW([Types.STRING(), Types.INT()])).print("reuse row")
    s = ds.process(Side(), Types.INT())
    s.print("main")
    s.get_side_output(SIDE).print("side")
    # two consumers, the first of which changes the value
    dicts = ds.map(lambda v: {"n": v[1]})
    dicts.map(mutate).print("mutated")
    dicts.map(lambda v: str(v)).print("not mutated")
    dicts.map(mutate).print("mutated again")
    env.execute()


if __name__ == "__main__":
    main()
