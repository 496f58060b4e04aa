from pyflink.common import Types
from pyflink.datastream import KeySelector, MapFunction, Partitioner, RuntimeContext, StreamExecutionEnvironment


class Where(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.index = runtime_context.get_index_of_this_subtask()
        self.parallelism = runtime_context.get_number_of_parallel_subtasks()

    def map(self, value):
        return value, self.index, self.parallelism


class Remainder(Partitioner):
    def partition(self, key, num_partitions):
        return key % num_partitions


class Opened:
    def open(self, runtime_context: RuntimeContext):
        self.plus = 1
        print("open", type(self).__name__, runtime_context.get_number_of_parallel_subtasks(), flush=True)

    def close(self):
        print("close", type(self).__name__, self.plus, flush=True)


class OpenedSelector(Opened, KeySelector):
    def get_key(self, value):
        return value + self.plus


class OpenedPartitioner(Opened, Partitioner):
    def partition(self, key, num_partitions):
        return (key + self.plus) % num_partitions


def show(label, stream):
    with stream.execute_and_collect() as results:
        for result in sorted(results):
            print(label, result)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    numbers = env.from_collection(list(range(8)), Types.INT())
    by_class = numbers.partition_custom(Remainder(), lambda v: v).map(Where())
    by_class.print("custom").set_parallelism(1)
    numbers.partition_custom(lambda key, n: (key + 1) % n, lambda v: v).map(Where()).print("lambda").set_parallelism(1)
    one = env.from_collection([4, 5], Types.INT()).set_parallelism(1)
    one.partition_custom(OpenedPartitioner(), OpenedSelector()).map(Where()).print("opened").set_parallelism(1)
    by_selector = one.key_by(OpenedSelector(), Types.INT())
    by_selector.reduce(lambda a, b: a + b).print("by selector").set_parallelism(1)
    env.execute()
    show("keyed", numbers.key_by(lambda v: v % 3, key_type=Types.INT()).map(lambda v: v * 2, Types.INT()))
    show("union", numbers.union(numbers.map(lambda v: -v, Types.INT())).map(lambda v: v, Types.INT()))
    show("rebalanced", numbers.rebalance().map(lambda v: v, Types.INT()))
    show("rescaled", numbers.rescale().map(lambda v: v, Types.INT()))
    show("shuffled", numbers.shuffle().map(lambda v: v, Types.INT()))
    show("broadcast", numbers.broadcast().map(Where()))
    show("sequence", env.from_collection([3, 1, 2]).map(lambda v: v + 1).set_parallelism(1))


if __name__ == "__main__":
    main()
