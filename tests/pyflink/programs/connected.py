from pyflink.common import Types
from pyflink.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ValueStateDescriptor


class Maps(CoMapFunction):
    def map1(self, value):
        return f"first {value}"

    def map2(self, value):
        return None if value[1] == 2 else f"second {value}"


class FlatMaps(CoFlatMapFunction):
    def flat_map1(self, value):
        for i in range(value % 3):
            yield value, i

    def flat_map2(self, value):
        return [value] if value[1] > 1 else None


class Both(CoProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.INT()))

    def process_element1(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield f"{self.seen.value()} of key"

    def process_element2(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield f"{self.seen.value()} of key"


class KeyedBoth(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield "first", ctx.get_current_key(), value

    def process_element2(self, value, ctx):
        yield "second", ctx.get_current_key(), value


class CountingMap(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return value, self.count.value()


class Twice(FlatMapFunction):
    def flat_map(self, value):
        yield value
        yield value


class FirstOfKey(FilterFunction):
    def open(self, runtime_context: RuntimeContext):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def filter(self, value):
        seen = self.seen.value()
        self.seen.update(True)
        return not seen


ODD = OutputTag("odd", Types.INT())
PLAIN = OutputTag("plain")


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
        if value % 2:
            yield ODD, value
        yield PLAIN, {"value": value, "timestamp": ctx.timestamp()}


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    numbers = env.from_collection([1, 2, 3, 4, 5], Types.INT())
    pairs = env.from_collection([("a", 1), ("b", 2), ("c", 3)])
    numbers.connect(pairs).map(Maps()).print("co-map")
    numbers.connect(pairs).flat_map(FlatMaps()).print("co-flat-map")
    keyed = numbers.key_by(lambda v: v % 2).connect(pairs.key_by(lambda v: v[1] % 2))
    keyed.map(Maps(), Types.STRING()).print("keyed co-map")
    keyed.flat_map(FlatMaps()).print("keyed co-flat-map")
    numbers.connect(pairs).key_by(lambda v: v % 2, lambda v: v[1] % 2).process(KeyedBoth()).print("keyed")
    keyed.process(Both()).print("both")
    by_parity = numbers.key_by(lambda v: v % 2, key_type=Types.INT())
    by_parity.map(CountingMap()).print("keyed map")
    by_parity.flat_map(Twice(), Types.INT()).print("keyed flat_map")
    by_parity.filter(FirstOfKey()).print("keyed filter")
    by_parity.print()
    by_parity.union(numbers).map(lambda v: v + 100).print("union")
    split = numbers.process(Split(), Types.INT())
    split.print("main")
    split.get_side_output(ODD).print("odd")
    split.get_side_output(PLAIN).print("plain")
    env.execute()


if __name__ == "__main__":
    main()
