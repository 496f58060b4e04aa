# ruff: noqa: B007, B023  # that is what it tries
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
LEAST = 0


def big(value):
    return value >= LEAST


class Times(MapFunction):
    def __init__(self, factor):
        self.factor = factor

    def map(self, value):
        return value * self.factor


def main():
    global LEAST
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    numbers = env.from_collection([1, 2, 3, 4, 5, 6], Types.INT())
    for name, least in (("one", 1), ("three", 3), ("five", 5)):
        numbers.filter(lambda v: v >= least).map(lambda v: (name, v), PAIR).print("variable")
    for LEAST in (2, 6):
        numbers.filter(big).print("global")
    times = Times(10)
    numbers.map(times, Types.INT()).print("object")
    times.factor = 100
    numbers.map(times, Types.INT()).print("object")
    table = {"factor": 2}
    numbers.map(lambda v: v * table["factor"], Types.INT()).print("dict")
    table["factor"] = 3
    keyed = []
    for remainder in (2, 3):
        keyed.append(numbers.key_by(lambda v: v % remainder, Types.INT()))
    for stream in keyed:
        stream.reduce(lambda a, b: a + b).print("key")
    for factor in (7, 8):

        class Factor(KeyedProcessFunction):
            def process_element(self, value, ctx):
                yield factor, ctx.get_current_key(), value

        keyed[0].process(Factor()).print("class")
    env.execute()


if __name__ == "__main__":
    main()
