from dataclasses import dataclass

from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor


@dataclass
class Point:
    x: int
    y: str


class MakePoint(MapFunction):
    def __init__(self, label):
        self.label = label

    def open(self, runtime_context: RuntimeContext):
        self.counter = runtime_context.get_metrics_group().add_group("points").counter("made")
        self.limit = int(runtime_context.get_job_parameter("limit", "3"))

    def map(self, value):
        self.counter.inc()
        return Point(min(value.x, self.limit), self.label)


class Add(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.PICKLED_BYTE_ARRAY()))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx):
        before = self.sum.value() or Point(0, "")
        self.sum.update(Point(before.x + value.x, before.y + value.y))
        self.all.add(value)
        yield self.sum.value(), isinstance(value, Point), list(self.all.get())


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    points = env.from_collection([Point(i, "in") for i in range(6)])
    made = points.map(MakePoint("made"))
    made.key_by(lambda p: p.x % 2).process(Add()).print("added")
    made.map(lambda p: {p.x: lambda: p.y}).map(lambda f: [v() for v in f.values()]).print("functions")
    env.execute()
    with made.execute_and_collect() as results:
        for result in results:
            print("collected", result, isinstance(result, Point))


if __name__ == "__main__":
    main()
