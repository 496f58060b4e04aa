import datetime
from decimal import Decimal

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment


def show(env, label, values, type_info=None):
    if type_info:
        ds = env.from_collection(values).map(lambda v: v, output_type=type_info)
        ds.map(lambda v: v).print(label + " pickled")
        ds.print(label)
    else:
        env.from_collection(values).print(label)
    env.execute()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    show(env, "untyped", [1, "a", 2.5, (1, "b"), [1, None], {"k": 1}, Row(1, "x"), Row(a=1, b="x"), True])
    show(env, "string", ["a", "", "ü"], Types.STRING())
    show(env, "int", [1, -2], Types.INT())
    show(env, "long", [1, 2**40], Types.LONG())
    show(env, "boolean", [True, False], Types.BOOLEAN())
    show(env, "byte", [1, -2], Types.BYTE())
    show(env, "short", [1, -2], Types.SHORT())
    show(
        env,
        "double",
        [1.0, 0.1, 1e10, 1e-5, 123456789.125, float("inf"), float("nan"), -0.0, 1e7, 1e-3, 9999999.0],
        Types.DOUBLE(),
    )
    show(env, "float", [1.0, 0.5, 1e10, 110.125, 2**-20], Types.FLOAT())
    show(env, "decimal", [Decimal("1.123456789012345678")], Types.BIG_DEC())
    show(env, "tuple", [(1, "a"), (2, "b")], Types.TUPLE([Types.INT(), Types.STRING()]))
    show(env, "row", [Row(1, "a"), Row(2, "b")], Types.ROW([Types.INT(), Types.STRING()]))
    show(
        env, "named", [Row(id=1, name="a"), Row(2, "b")], Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    )
    show(env, "list", [[1, 2], []], Types.LIST(Types.INT()))
    show(env, "map", [{"a": 1}, {}], Types.MAP(Types.STRING(), Types.INT()))
    show(env, "date", [datetime.date(2020, 1, 2)], Types.SQL_DATE())
    show(env, "time", [datetime.time(1, 2, 3)], Types.SQL_TIME())
    show(
        env,
        "timestamp",
        [datetime.datetime(2020, 1, 2, 3, 4, 5, 678000), datetime.datetime(2020, 1, 2, 3, 4, 5)],
        Types.SQL_TIMESTAMP(),
    )
    show(
        env,
        "nested",
        [((1, "a"), [Row(x=1.5)])],
        Types.TUPLE([Types.TUPLE([Types.INT(), Types.STRING()]), Types.LIST(Types.ROW_NAMED(["x"], [Types.DOUBLE()]))]),
    )


if __name__ == "__main__":
    main()
