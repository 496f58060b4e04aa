"""Moving averages over the last readings of a sensor, in sliding count windows, and what is far from them."""

from pyflink.common import Types
from pyflink.datastream import MapFunction, StreamExecutionEnvironment
from pyflink.datastream.functions import AggregateFunction, RuntimeContext
from pyflink.datastream.state import ListStateDescriptor, ReducingStateDescriptor

READING = Types.TUPLE([Types.STRING(), Types.DOUBLE()])
READINGS = [
    ("oven", 180.0), ("hall", 19.5), ("oven", 182.5), ("oven", 179.0), ("hall", 20.0), ("cave", 8.25), ("oven", 240.0),
    ("hall", 20.5), ("oven", 181.0), ("hall", 26.0), ("oven", 180.5), ("cave", 8.5), ("hall", 20.25), ("oven", 183.0),
]  # fmt: skip


class Average(AggregateFunction):
    def create_accumulator(self):
        return "", 0.0, 0

    def add(self, value, accumulator):
        return value[0], accumulator[1] + value[1], accumulator[2] + 1

    def get_result(self, accumulator):
        return accumulator[0], round(accumulator[1] / accumulator[2], 3), accumulator[2]

    def merge(self, a, b):
        return a[0], a[1] + b[1], a[2] + b[2]


class Deviation(MapFunction):
    """Compares a reading with the three before it, and keeps the greatest difference."""

    def open(self, runtime_context: RuntimeContext):
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", Types.DOUBLE()))
        self.greatest = runtime_context.get_reducing_state(ReducingStateDescriptor("greatest", max, Types.DOUBLE()))

    def map(self, value):
        name, reading = value
        last = list(self.last.get() or [])
        mean = sum(last) / len(last) if last else reading
        self.greatest.add(round(abs(reading - mean), 3))
        self.last.update([*last, reading][-3:])
        return name, round(reading - mean, 3), self.greatest.get()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    readings = env.from_collection(READINGS, READING).key_by(lambda r: r[0], Types.STRING())
    accumulator = Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.INT()])
    readings.count_window(4, 2).aggregate(Average(), accumulator_type=accumulator, output_type=accumulator).print(
        "average"
    )
    deviations = readings.map(Deviation(), Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.DOUBLE()]))
    deviations.filter(lambda d: abs(d[1]) > 4).print("far")
    deviations.key_by(lambda d: d[0], Types.STRING()).max_by(2).print("greatest")
    env.execute("moving average")


if __name__ == "__main__":
    main()
