"""What tutorials do first: words, unions, custom partitions, rich functions, a job in several steps."""

import re
from dataclasses import dataclass

import numpy as np
from pyflink.common import Configuration, Row, Types
from pyflink.datastream import (
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)

LINES = ["A key, its keys; one KEY", "the keeper's key -- a keyhole", "", "one key one"]


@dataclass
class Reading:
    sensor: str
    value: float


class Tokens(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.lines = runtime_context.get_metrics_group().add_group("words").counter("lines")
        self.name = runtime_context.get_task_name_with_subtasks().endswith("(1/1)")

    def flat_map(self, value):
        self.lines.inc()
        for word in re.findall(r"[a-z]+", value.lower()):
            yield word, 1


class FirstLetter(KeySelector):
    def get_key(self, value):
        return value[0][0], len(value[0]) > 2


class Longest(ReduceFunction):
    def reduce(self, a, b):
        return (a[0] if len(a[0]) >= len(b[0]) else b[0]), a[1] + b[1]


class Big(FilterFunction):
    def open(self, runtime_context):
        self.limit = int(runtime_context.get_job_parameter("limit", "5"))

    def filter(self, value):
        return value > self.limit


class Modulo(Partitioner):
    def partition(self, key, num_partitions):
        return key % num_partitions


class Numpy(MapFunction):
    def map(self, value):
        return Row(
            np.int64(value), np.float64(value) / 4, [np.int32(value), 7], {"n": np.int64(value)}, np.bool_(value > 1)
        )


def main():
    config = Configuration()
    config.set_string("parallelism.default", "1")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    env.get_config().set_global_job_parameters({"limit": "2"})

    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    words = env.from_collection(LINES, Types.STRING()).flat_map(Tokens(), output_type=pair)
    words.key_by(lambda w: w[0]).sum(1).print("sum")
    words.key_by(FirstLetter(), key_type=Types.TUPLE([Types.STRING(), Types.BOOLEAN()])).reduce(Longest()).print("long")
    words.key_by(lambda w: w[0], Types.STRING()).reduce(lambda a, b: (a[0], a[1] + b[1])).filter(
        lambda w: w[1] == 2
    ).map(lambda w: w[0], Types.STRING()).print("twice")

    numbers = env.from_collection([1, 2, 3], Types.INT()).union(env.from_collection([4, 5], Types.INT()))
    numbers.filter(Big()).rebalance().partition_custom(Modulo(), lambda v: v).map(lambda v: v * 10, Types.INT()).print(
        "big"
    )
    mixed = Types.ROW_NAMED(
        ["n", "quarter", "list", "map", "many"],
        [
            Types.LONG(),
            Types.DOUBLE(),
            Types.LIST(Types.INT()),
            Types.MAP(Types.STRING(), Types.LONG()),
            Types.BOOLEAN(),
        ],
    )
    rows = numbers.map(Numpy(), mixed)
    rows.print("rows")
    rows.map(lambda r: f"{r.n}|{r['quarter']}|{r[2][0]}|{r.map['n']}|{r.many}", Types.STRING()).print("text")
    rows.key_by(lambda r: r.many).max("n").map(lambda r: r.as_dict()["n"], Types.LONG()).print("max")

    readings = env.from_collection([Reading("a", 1.5), Reading("b", 2.5), Reading("a", 4.0)])
    readings.key_by(lambda r: r.sensor).reduce(lambda a, b: Reading(a.sensor, a.value + b.value)).map(
        lambda r: f"{r.sensor}={r.value}"
    ).print("readings")
    readings.map(lambda r: r.value, Types.FLOAT()).print("floats")
    env.execute("tour")


if __name__ == "__main__":
    main()
