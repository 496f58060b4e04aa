import pickle

from pyflink.common import Row, RowKind, Types
from pyflink.datastream import (
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)


def USER():
    return Types.ROW_NAMED(["id", "name", "score"], [Types.INT(), Types.STRING(), Types.DOUBLE()])


def NESTED():
    return Types.ROW_NAMED(
        ["user", "tags", "props", "pos"],
        [
            Types.ROW_NAMED(["first", "last"], [Types.STRING(), Types.STRING()]),
            Types.LIST(Types.STRING()),
            Types.MAP(Types.STRING(), Types.INT()),
            Types.TUPLE([Types.INT(), Types.INT()]),
        ],
    )


class Keep(KeyedProcessFunction):
    def open(self, ctx: RuntimeContext):
        self.last = ctx.get_state(ValueStateDescriptor("last", USER()))
        self.all = ctx.get_list_state(ListStateDescriptor("all", USER()))
        self.by = ctx.get_map_state(MapStateDescriptor("by", Types.STRING(), USER()))

    def process_element(self, value, ctx):
        before = self.last.value()
        self.last.update(value)
        self.all.add(value)
        self.by.put(value.name, value)
        yield Row(
            before=str(before),
            now=str(self.last.value()),
            n=len(list(self.all.get())),
            names=str(sorted(self.by.keys())),
            scores=sum(r.score for r in self.all.get()),
            eq=self.last.value() == value,
            lastname=self.last.value()["name"],
        )


class ByKind(KeySelector):
    def get_key(self, value):
        return Row(value.id % 2, value.name[0])


class Total(ReduceFunction):
    def reduce(self, a, b):
        return Row(id=a.id, name=a.name + b.name, score=a.score + b.score)


class Change(MapFunction):
    def map(self, value):
        value["score"] = value["score"] * 2
        value[1] = value[1].upper()
        value._fields = ["a", "b", "c"]
        return str(value), value.a, hasattr(value, "_fields"), hasattr(Row(1), "_fields")


def equal(r):
    other = Row(score=r.score, id=r.id, name=r.name)
    copied = pickle.loads(pickle.dumps(r))
    return (
        other == r,
        copied == r,
        Row(*r) == r,
        Row(*r) == Row(*other),
        len({r, copied}),
        sorted([r, other], key=len)[0].id,
    )


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    users = env.from_collection(
        [(1, "al", 1.5), (2, "bo", 2.0), (3, "cy", 0.25), (4, "bb", 8.0), (1, "ax", 3.0)], USER()
    )
    users.print("users")
    users.key_by(lambda r: r.id % 2).process(Keep()).print("keep")
    users.key_by(ByKind(), Types.ROW([Types.INT(), Types.STRING()])).reduce(Total()).print("row key")
    users.key_by(lambda r: Row(k=r.id % 2), Types.ROW_NAMED(["k"], [Types.INT()])).map(
        lambda r: r.name, Types.STRING()
    ).print("named key")
    users.key_by(lambda r: Row(k=r.id % 2)).map(lambda r: r.name, Types.STRING()).print("untyped row key")
    users.key_by(lambda r: (r.id % 2, r.name[0])).reduce(lambda a, b: Row(a.id + b.id, a.name, b.score)).print(
        "tuple key"
    )
    users.key_by(lambda r: r[0], Types.INT()).min_by("score").print("min_by")
    users.key_by(lambda r: r[0], Types.INT()).max_by("score").print("max_by")
    users.key_by(lambda r: 0).sum("score").print("sum")
    users.key_by(lambda r: 0).max(2).print("max")
    users.map(lambda r: {**r.as_dict(), "x": 1}).print("dict")
    users.map(lambda r: Row(*r, r.id)).print("wider")
    users.map(lambda r: Row(**{k: v for k, v in r.as_dict().items() if k != "id"})).print("narrower")
    users.map(lambda r: r[1:]).print("slice")
    users.map(lambda r: tuple(r), Types.TUPLE([Types.INT(), Types.STRING(), Types.DOUBLE()])).print("tuple")
    users.map(lambda r: Row(score=r.score, id=r.id, name=r.name), USER()).print("reordered")
    users.map(Change()).print("changed")
    users.map(equal).print("equal")
    users.map(lambda r: (r._fields, list(r._values), repr(r), str(r), len(r))).print("inside")
    users.filter(lambda r: "name" in r and r.score > 1).map(lambda r: r.get_fields_by_names(["name", "id"])).print(
        "filtered"
    )
    users.flat_map(lambda r: [Row(c, r.id) for c in r.name], Types.ROW([Types.STRING(), Types.INT()])).map(
        lambda r: r.f0 if hasattr(r, "f0") else r[0]
    ).print("flat")
    nested = env.from_collection([1, 2]).map(
        lambda i: Row(user=Row(first=f"f{i}", last="l"), tags=["a"] * i, props={"k": i}, pos=(i, -i)), NESTED()
    )
    nested.print("nested")
    nested.map(lambda r: (r.user.first, r["user"]["last"], r.tags[0], r.props["k"], r.pos[1], r.as_dict(True))).print(
        "nested fields"
    )
    nested.key_by(lambda r: r.user, Types.ROW_NAMED(["first", "last"], [Types.STRING(), Types.STRING()])).map(
        lambda r: r.user.last
    ).print("key nested")
    users.map(
        lambda r: Row.of_kind(RowKind.DELETE if r.id % 2 else RowKind.UPDATE_AFTER, r.id, r.name),
        Types.ROW([Types.INT(), Types.STRING()]),
    ).print("kinds")
    users.map(lambda r: Row.of_kind(RowKind.DELETE, r.id)).map(lambda r: (str(r.get_row_kind()), r)).print(
        "kinds pickled"
    )
    T = Row("name", "n")
    users.map(lambda r: T(r.name, r.id)).key_by(lambda r: r.name).map(lambda r: (r, r.n)).print("template")
    users.map(lambda r: [r, {"r": r}, (r,)]).print("in containers")
    env.execute()
    with users.map(lambda r: r, USER()).execute_and_collect() as rs:
        for r in rs:
            print("collected", r, r.id, type(r).__name__, r == Row(id=r[0], name=r[1], score=r[2]))
    for r in users.map(lambda r: Row(r.id, r.name), Types.ROW([Types.INT(), Types.STRING()])).execute_and_collect():
        print("collected unnamed", r, r[0])
    for r in users.map(lambda r: Row(r.id, r.name)).execute_and_collect():
        print("collected pickled", r, r[0])
    for r in nested.execute_and_collect(limit=1):
        print("collected nested", r)


if __name__ == "__main__":
    main()
