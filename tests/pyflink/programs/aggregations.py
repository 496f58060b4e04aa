from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment

RECORDS = [("a", 3, 1.5), ("b", 7, 0.5), ("a", 1, 2.5), ("a", 3, 0.25), ("b", 9, 0.5), ("b", 2, 4.0)]


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    untyped = env.from_collection(RECORDS).key_by(lambda r: r[0])
    tuples = env.from_collection(RECORDS, Types.TUPLE([Types.STRING(), Types.INT(), Types.DOUBLE()])).key_by(
        lambda r: r[0], Types.STRING()
    )
    rows = (
        env.from_collection(RECORDS)
        .map(
            lambda r: Row(k=r[0], n=r[1], x=r[2]),
            Types.ROW_NAMED(["k", "n", "x"], [Types.STRING(), Types.INT(), Types.DOUBLE()]),
        )
        .key_by(lambda r: r.k)
    )
    for label, stream in (("untyped", untyped), ("tuples", tuples), ("rows", rows)):
        stream.sum(1).print(label + " sum")
        stream.min(1).print(label + " min")
        stream.max(2).print(label + " max")
        stream.min_by(2).print(label + " min_by")
        stream.max_by(1).print(label + " max_by")
    rows.sum("x").print("sum by name")
    rows.max_by("n").print("max by name")
    numbers = env.from_collection([3, 1, 2, 5, 4], Types.INT()).key_by(lambda v: v % 2)
    numbers.sum().print("plain sum")
    numbers.min().print("plain min")
    numbers.max_by(0).print("plain max_by")
    env.execute()


if __name__ == "__main__":
    main()
