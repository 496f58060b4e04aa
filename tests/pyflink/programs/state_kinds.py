from pyflink.common import Row, Time, Types
from pyflink.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

RECORDS = [("a", 1), ("b", 2), ("a", 3), ("a", -4), ("b", 5), ("c", 6), ("a", 0), ("b", -7), ("c", 8)]


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1] if accumulator[1] else None

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Largest(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2)


def long_ttl():
    builder = StateTtlConfig.new_builder(Time.days(1))
    builder = builder.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
    builder = builder.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
    return builder.cleanup_full_snapshot().cleanup_in_rocksdb_compact_filter(1000).build()


def no_ttl():
    builder = StateTtlConfig.new_builder(Time.milliseconds(1))
    return builder.set_update_type(StateTtlConfig.UpdateType.Disabled).build()


class AllKinds(KeyedProcessFunction):
    """0 clears all state of its key; a negative number removes from it."""

    def __init__(self, ttl=None):
        self.ttl = ttl

    def limited(self, descriptor):
        if self.ttl is not None:
            descriptor.enable_time_to_live(self.ttl())
        return descriptor

    def open(self, runtime_context: RuntimeContext):
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        row = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
        self.value = runtime_context.get_state(self.limited(ValueStateDescriptor("value", row)))
        self.list = runtime_context.get_list_state(self.limited(ListStateDescriptor("list", Types.LONG())))
        self.map = runtime_context.get_map_state(self.limited(MapStateDescriptor("map", Types.STRING(), Types.LONG())))
        self.largest = runtime_context.get_reducing_state(
            self.limited(ReducingStateDescriptor("largest", Largest(), Types.LONG()))
        )
        self.sum = runtime_context.get_reducing_state(
            self.limited(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        )
        self.mean = runtime_context.get_aggregating_state(
            self.limited(AggregatingStateDescriptor("mean", Mean(), pair))
        )

    def process_element(self, value, ctx):
        key, number = value
        before = self.value.value()
        yield key, number, "before", None if before is None else (before.n, before.text), list(self.list.get())
        if number == 0:
            for state in (self.value, self.list, self.map, self.largest, self.sum, self.mean):
                state.clear()
        elif number < 0:
            self.list.update([number])
            for name in list(self.map.keys()):
                if name.startswith("twice"):
                    self.map.remove(name)
            self.value.clear()  # PyFlink cannot update a Row to None
        else:
            self.value.update(Row(n=number, text=str(number)))
            self.list.add(number)
            self.list.add_all([number * 10, number * 100])
            self.map.put(f"n{number}", number)
            self.map[f"twice{number}"] = 2 * number
            # PyFlink's put_all() fails on a dict.
            self.map.put_all({"last": number, "first": self.map.get("first") or number}.items())
            self.largest.add(number)
            self.sum.add(number)
            self.mean.add(number)
        yield key, number, "map", sorted(self.map.items()), sorted(self.map.keys()), sorted(self.map.values())
        yield key, number, "entries", "last" in self.map, self.map["last"], self.map.is_empty(), sorted(self.map)
        yield (
            key,
            number,
            "next",
            [next(each(), None) is None for each in (self.map.items, self.map.keys, self.map.values)],
        )
        yield key, number, "merged", self.largest.get(), self.sum.get(), self.mean.get()
        yield key, number, "list", list(self.list), list(self.list.get())


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = env.from_collection(RECORDS, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
    keyed = records.key_by(lambda record: record[0], key_type=Types.STRING())
    keyed.process(AllKinds()).print("plain")
    keyed.process(AllKinds(long_ttl)).print("ttl")
    keyed.process(AllKinds(no_ttl)).print("disabled")
    long = long_ttl()
    print(long.get_update_type().name, long.get_state_visibility().name, long.get_ttl().to_milliseconds())
    print(long.get_ttl_time_characteristic().name, long.is_enabled(), long.get_cleanup_strategies().in_full_snapshot())
    env.execute("state")


if __name__ == "__main__":
    main()
