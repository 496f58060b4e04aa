from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    numbers = env.from_collection([1, 2, 3, 4, 5, 6], type_info=Types.INT())
    numbers.map(lambda v: v * v, output_type=Types.INT()).filter(lambda v: v % 2 == 0).print()
    numbers.flat_map(lambda v: [v] * (v % 3)).map(
        lambda v: Row(v, str(v)), Types.ROW([Types.INT(), Types.STRING()])
    ).print()
    numbers.map(lambda v: (v, {"v": [v]})).print()
    env.execute("basic")
    with (
        numbers.map(lambda v: (v % 2, v))
        .key_by(lambda v: v[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .execute_and_collect() as results
    ):
        for result in results:
            print("collected", result)


if __name__ == "__main__":
    main()
