"""Reducing and aggregating state whose accumulators are lists, rows and dicts that are changed in place."""

from pyflink.common import Row, Types
from pyflink.datastream import AggregateFunction, KeyedProcessFunction, ReduceFunction, StreamExecutionEnvironment
from pyflink.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor


class Distinct(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, acc):
        if value not in acc:
            acc.append(value)
        return acc

    def get_result(self, acc):
        return acc

    def merge(self, a, b):
        return a + b


class Stats(AggregateFunction):
    def create_accumulator(self):
        return Row(0, 0.0, None)

    def add(self, value, acc):
        acc[0] += 1
        acc[1] += value
        acc[2] = value if acc[2] is None else max(acc[2], value)
        return acc

    def get_result(self, acc):
        return {"n": acc[0], "mean": acc[1] / acc[0], "max": acc[2]}

    def merge(self, a, b):
        return a


class DictMerge(ReduceFunction):
    def reduce(self, a, b):
        for k, v in b.items():
            a[k] = a.get(k, 0) + v
        return a


class F(KeyedProcessFunction):
    def open(self, ctx):
        self.d = ctx.get_aggregating_state(AggregatingStateDescriptor("d", Distinct(), Types.LIST(Types.INT())))
        self.p = ctx.get_aggregating_state(AggregatingStateDescriptor("p", Distinct(), Types.PICKLED_BYTE_ARRAY()))
        self.s = ctx.get_aggregating_state(
            AggregatingStateDescriptor("s", Stats(), Types.ROW([Types.LONG(), Types.DOUBLE(), Types.INT()]))
        )
        self.r = ctx.get_reducing_state(
            ReducingStateDescriptor("r", DictMerge(), Types.MAP(Types.STRING(), Types.INT()))
        )
        self.t = ctx.get_reducing_state(
            ReducingStateDescriptor(
                "t", lambda a, b: (a[0] + b[0], a[1] + b[1]), Types.TUPLE([Types.INT(), Types.STRING()])
            )
        )

    def process_element(self, value, ctx):
        k, n = value
        yield "before", value, self.d.get(), self.r.get(), self.t.get()
        self.d.add(n)
        self.p.add((n, k))
        self.s.add(n)
        self.r.add({k: n, "all": 1})
        self.t.add((n, k))
        yield value, self.d.get(), self.p.get(), self.s.get(), sorted(self.r.get().items()), self.t.get()
        if n == 4:
            for x in (self.d, self.p, self.s, self.r, self.t):
                x.clear()
            yield "clear", value, self.d.get(), self.p.get(), self.r.get()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    ds = env.from_collection(
        [("a", 1), ("a", 2), ("b", 4), ("a", 1), ("a", 4), ("a", 5), ("b", 6)],
        Types.TUPLE([Types.STRING(), Types.INT()]),
    )
    ds.key_by(lambda v: v[0]).process(F()).print()
    env.execute()


if __name__ == "__main__":
    main()
