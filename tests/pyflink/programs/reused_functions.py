from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor


class Number(MapFunction):
    def __init__(self):
        self.count = 0

    def map(self, value):
        self.count += 1
        return value * 100 + self.count


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    ones = env.from_collection([1, 1, 1], Types.INT())
    number, count = Number(), Count()
    ones.map(number, Types.INT()).map(number, Types.INT()).print("mapped")
    first = ones.key_by(lambda v: v, Types.INT()).process(count, Types.INT())
    first.key_by(lambda v: 0, Types.INT()).process(count, Types.INT()).print("second")
    first.print("first")
    env.execute()


if __name__ == "__main__":
    main()
