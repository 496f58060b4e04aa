import datetime

from pyflink.common import Instant, Row, Types
from pyflink.datastream import StreamExecutionEnvironment


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    values = env.from_collection([1, "a", None, (None, 1), [None], {"n": None}, Row(None)])
    values.print("collection")
    values.map(lambda v: v).print("mapped")
    values.key_by(lambda v: 0).map(lambda v: None if v == 1 else v).print("keyed")
    instants = env.from_collection([0, 1700000000123, 1500]).map(Instant.of_epoch_milli, Types.INSTANT())
    instants.print("instant")
    env.from_collection([1]).map(lambda v: Instant(5, 6000), Types.INSTANT()).print("instant micros")
    instants.map(lambda v: (v, v.to_epoch_milli())).print("instant in python")
    env.from_collection([Instant(7, 0)]).print("instant untyped")
    env.from_collection([1]).map(
        lambda v: (Instant(8, 120000000), v), Types.TUPLE([Types.INSTANT(), Types.INT()])
    ).print("in tuple")
    env.from_collection([1]).map(lambda v: Row(Instant(8, 0), v), Types.ROW([Types.INSTANT(), Types.INT()])).print(
        "in row"
    )
    env.from_collection(
        [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 2, 3, 4), datetime.timedelta(1), 10**30, float("inf")]
    ).print("python values")
    env.execute()


if __name__ == "__main__":
    main()
