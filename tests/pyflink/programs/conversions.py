from decimal import Decimal

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment

PAIR = Types.ROW([Types.INT(), Types.STRING()])
NAMED = Types.ROW_NAMED(["n", "s"], [Types.INT(), Types.STRING()])

MAPPED = {
    "row other order": (Row(s="a", n=1), NAMED),
    "row unnamed as named": (Row(1, "a"), NAMED),
    "int as double": (1, Types.DOUBLE()),
    "int as float": (1, Types.FLOAT()),
    "none as string": (None, Types.STRING()),
    "none as int": (None, Types.INT()),
    "none in map": ({"a": None}, Types.MAP(Types.STRING(), Types.INT())),
    "int as decimal": (1, Types.BIG_DEC()),
    "nested row in tuple": ((Row(1, "a"), 2), Types.TUPLE([PAIR, Types.INT()])),
    "row in list": ([Row(1, "a")], Types.LIST(PAIR)),
    "basic array": ([1, 2], Types.BASIC_ARRAY(Types.INT())),
    "object array": ([Row(1, "a")], Types.OBJECT_ARRAY(PAIR)),
    "primitive array": ([1, 2], Types.PRIMITIVE_ARRAY(Types.INT())),
    "bytes": (b"ab", Types.PRIMITIVE_ARRAY(Types.BYTE())),
    "bytearray": (bytearray(b"ab"), Types.PRIMITIVE_ARRAY(Types.BYTE())),
    "decimal": (Decimal("1.25"), Types.BIG_DEC()),
}

COLLECTED = {
    "list as row": ([1, "a"], PAIR),
    "tuple as row": ((1, "a"), PAIR),
    "dict as named": ({"n": 1, "s": "a"}, NAMED),
    "row other order": (Row(s="a", n=1), NAMED),
    "list as tuple": ([1, "a"], Types.TUPLE([Types.INT(), Types.STRING()])),
    "row as tuple": (Row(1, "a"), Types.TUPLE([Types.INT(), Types.STRING()])),
    "tuple array": ((1, 2), Types.PRIMITIVE_ARRAY(Types.INT())),
}


def show(label, stream):
    # A key keeps PyFlink from handing the Python value on as it is.
    stream.key_by(lambda v: 0, Types.INT()).map(lambda v: (v, type(v).__name__)).print(label)


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    for label, (value, kind) in MAPPED.items():
        show(f"{label} mapped", env.from_collection([1]).map(lambda _, value=value: value, kind))
    env.execute()
    for label, (value, kind) in COLLECTED.items():
        show(f"{label} collection", env.from_collection([value], kind))
    env.execute()


if __name__ == "__main__":
    main()
