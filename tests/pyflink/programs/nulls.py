from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    pairs = env.from_collection([(1, "a"), (2, None)])
    pairs.print("untyped")
    pairs.map(lambda v: Row(v[0], v[1]), Types.ROW([Types.INT(), Types.STRING()])).print("row")
    pairs.map(lambda v: Row(n=v[0], s=v[1]), Types.ROW_NAMED(["n", "s"], [Types.INT(), Types.STRING()])).print("named")
    pairs.map(lambda v: Row(n=v[0], s=v[1]), Types.ROW_NAMED(["n", "s"], [Types.INT(), Types.STRING()])).map(
        lambda r: (r.n, r["s"], r[1], list(r), len(r), r.as_dict())
    ).print("fields")
    env.execute()


if __name__ == "__main__":
    main()
