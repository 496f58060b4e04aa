from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    AggregateFunction,
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.execution import ExecutionSettings, get_executor
from dagster_flinkpy.datastream.program.job_graph import JobGraph, PartitionerKind
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError, JobGraphError, UnsupportedKeyTypeError
from dagster_flinkpy.state.keys import hash_keys

PAIR = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return []


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        return []

    def process_element2(self, value, ctx):
        return []


class Unkeyed(ProcessFunction):
    def process_element(self, value, ctx):
        return []


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value.value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture
def stream(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([("a", 1)], PAIR)


def windowed(stream: DataStream):
    return stream.key_by("key").window(TumblingEventTimeWindows(10))


# --- bad arguments ----------------------------------------------------------------------------------------------------

BAD: dict[str, Callable[[DataStream], Any]] = {
    "map": lambda s: s.map(3),
    "flat_map": lambda s: s.flat_map("f"),
    "filter": lambda s: s.filter(None),
    "process": lambda s: s.process(Keyed()),
    "process of a callable": lambda s: s.process(lambda value: value),
    "keyed process of a callable": lambda s: s.key_by("key").process(lambda value: value),
    "reduce": lambda s: s.key_by("key").reduce(0),
    "key_by": lambda s: s.key_by(7),
    "key_by no fields": lambda s: s.key_by(()),
    "key_by an unknown field": lambda s: s.key_by(("key", "gone")),
    "key_by a field of pickled records": lambda s: s.map(lambda v: v).key_by("key"),
    "key_by a field of another type": lambda s: s.key_by("value", Types.BOOLEAN()),
    "key_by fields of other types": lambda s: s.key_by(("key", "value"), Types.TUPLE([Types.BOOLEAN()] * 2)),
    "two-input process": lambda s: s.connect(s).process(Keyed()),
    "keyed two-input process without keys": lambda s: s.connect(s.key_by("key")).process(Both()),
    "window process": lambda s: windowed(s).process(lambda key, context, elements: []),
    "window aggregate": lambda s: windowed(s).aggregate(lambda a, b: a),
    "window reduce": lambda s: windowed(s).reduce(1),
    "allowed lateness": lambda s: windowed(s).allowed_lateness(-1),
    "output tag": lambda s: s.get_side_output(OutputTag("")),
    "checkpoint interval": lambda s: s.get_execution_environment().enable_checkpointing(9),
}


@pytest.mark.parametrize("call", BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_when_the_program_is_written(stream: DataStream, call: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        call(stream)
    assert str(refused.value)


KEY_TYPES = [
    *(
        getattr(Types, name)()
        for name in ("STRING", "CHAR", "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE")
    ),
    *(getattr(Types, name)() for name in ("BIG_DEC", "BIG_INT", "SQL_DATE", "SQL_TIME", "SQL_TIMESTAMP", "INSTANT")),
    *(Types.DECIMAL(5, 2), Types.PICKLED_BYTE_ARRAY(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.LIST(Types.LONG())),
    *(Types.MAP(Types.STRING(), Types.LONG()), Types.TUPLE([Types.LONG(), Types.ROW([Types.STRING()])])),
    Types.ROW([Types.LONG(), Types.TUPLE([Types.INSTANT()])]),
]


@pytest.mark.parametrize("kind", [Types.TUPLE([]), Types.TUPLE([Types.LONG(), Types.ROW([])])], ids=str)
def test_a_type_without_fields_is_refused_as_that_of_a_key(
    kind: TypeInformation, env: StreamExecutionEnvironment
) -> None:
    """The job ended with the error of an environment that does not fit together."""
    with pytest.raises(UnsupportedKeyTypeError, match=r"key_by\(\): values of Types\..* are no keys"):
        env.from_collection([1], Types.LONG()).key_by(lambda _: (), kind)


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_a_type_whose_values_cannot_be_hashed_is_refused_as_that_of_a_key(
    kind: TypeInformation, env: StreamExecutionEnvironment
) -> None:
    rows = env.from_collection([], Types.ROW_NAMED(["key"], [kind]))
    declare: list[Callable[[], Any]] = [
        lambda: rows.key_by("key"),
        lambda: rows.key_by(("key",)),
        lambda: rows.key_by(lambda row: row.key, kind),
    ]
    try:
        hash_keys(kind, kind.to_arrow([]))
    except UnsupportedKeyTypeError:
        for key_by in declare:
            with pytest.raises(UnsupportedKeyTypeError, match=r"key_by\(\): values of Types\..* are no keys"):
                key_by()
    else:
        for key_by in declare:
            key_by()


def test_an_unknown_key_field_is_named_with_those_there_are(stream: DataStream) -> None:
    with pytest.raises(JobGraphError, match=r"\['gone'\].*\['key', 'value'\]"):
        stream.key_by("gone")
    assert stream.key_by(("key", "value"), Types.TUPLE(PAIR.get_field_types())).is_keyed


@pytest.mark.parametrize(
    "derive",
    [
        lambda s: s.key_by("key"),
        lambda s: s.rebalance(),
        lambda s: s.broadcast(),
        lambda s: s.global_(),
        lambda s: s.union(s.map(lambda v: v, PAIR)),
        lambda s: s.flat_map(lambda v: [v]).get_side_output(OutputTag("side")),
    ],
    ids=["key_by", "rebalance", "broadcast", "global_", "union", "side output"],
)
def test_what_is_no_operator_takes_no_settings(stream: DataStream, derive: Callable[[DataStream], DataStream]) -> None:
    stream.uid("source")
    derived = derive(stream)
    for setting in (
        lambda: derived.uid("x"),
        lambda: derived.name("x"),
        lambda: derived.set_parallelism(2),
        lambda: derived.set_max_parallelism(2),
        lambda: derived.slot_sharing_group("x"),
    ):
        with pytest.raises(JobGraphError, match="is not an operator"):
            setting()
    assert stream._transformation.uid == "source"


def test_settings_are_chained_and_end_in_the_graph(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    stream.uid("u").name("n").set_parallelism(3).set_max_parallelism(7).slot_sharing_group("g")
    (vertex,) = env.get_job_graph().vertices
    assert (vertex.uid, vertex.name, vertex.parallelism, vertex.max_parallelism) == ("u", "n", 3, 7)
    assert vertex.slot_sharing_group == "g"


# --- streams together -------------------------------------------------------------------------------------------------


def test_union_takes_streams_of_one_type(stream: DataStream) -> None:
    with pytest.raises(JobGraphError, match="streams of one type"):
        stream.union(stream.map(lambda v: v.value, Types.LONG()))


@pytest.mark.parametrize("join", [lambda a, b: a.union(b), lambda a, b: a.connect(b)], ids=["union", "connect"])
def test_streams_of_two_environments_cannot_be_joined(stream: DataStream, join: Callable[..., Any]) -> None:
    other = StreamExecutionEnvironment.get_execution_environment().from_collection([("a", 1)], PAIR)
    with pytest.raises(JobGraphError, match="two environments"):
        join(stream, other)


def test_a_union_has_all_edges_in_one_input(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    other = env.from_collection([("b", 2)], PAIR)
    third = env.from_collection([("c", 3)], PAIR)
    stream.union(other, third).rebalance().map(lambda v: v).uid("map")
    edges = env.get_job_graph().inputs("map")
    assert [(e.source, e.input_index, e.partitioner.kind) for e in edges] == [
        ("collection_source", 0, PartitionerKind.REBALANCE),
        ("collection_source_2", 0, PartitionerKind.REBALANCE),
        ("collection_source_3", 0, PartitionerKind.REBALANCE),
    ]


def test_a_keyed_stream_united_with_one_that_is_not_is_keyed_no_more(stream: DataStream) -> None:
    with pytest.raises(ConfigurationError):
        stream.key_by("key").union(stream).process(Keyed())


def test_connected_streams_have_an_input_each(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    other = env.from_collection([1], Types.LONG()).uid("numbers")
    stream.connect(other).key_by("key", str).process(Both()).uid("both")
    edges = env.get_job_graph().inputs("both")
    assert [(e.source, e.input_index) for e in edges] == [("collection_source", 0), ("numbers", 1)]
    assert [e.type_info for e in edges] == [PAIR, Types.LONG()]


def test_a_process_function_of_two_inputs_needs_no_keys(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    class Plain(CoProcessFunction):
        def process_element1(self, value, ctx):
            return []

        def process_element2(self, value, ctx):
            return []

    stream.connect(stream).process(Plain()).uid("both")
    assert env.get_job_graph().vertex("both").spec.keyed is False


# --- side outputs -----------------------------------------------------------------------------------------------------


def test_a_side_output_has_its_own_type_and_edge(env: StreamExecutionEnvironment, stream: DataStream) -> None:
    processed = stream.process(Unkeyed(), PAIR).uid("process")
    side = processed.get_side_output(OutputTag("side", Types.STRING()))
    assert side.get_type() == Types.STRING()
    side.map(lambda v: v).uid("map")
    (edge,) = env.get_job_graph().inputs("map")
    assert (edge.source, edge.side_output, edge.type_info) == ("process", "side", Types.STRING())
    assert env.get_job_graph().vertex("process").side_outputs == (("side", Types.STRING()),)


def test_a_side_output_without_a_type_is_pickled(stream: DataStream) -> None:
    split = stream.flat_map(lambda v: [v])
    assert split.get_side_output(OutputTag("side")).get_type() == Types.PICKLED_BYTE_ARRAY()


@pytest.mark.parametrize(
    "derive",
    [
        lambda s: s.map(lambda v: v),
        lambda s: s.filter(lambda v: True),
        lambda s: s.key_by("key").reduce(lambda a, b: a),
        lambda s: s.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks()),
        lambda s: s.union(s.flat_map(lambda v: [v], PAIR)),
    ],
    ids=["map", "filter", "reduce", "timestamps", "union"],
)
def test_a_side_output_is_read_where_it_comes_from(
    stream: DataStream, derive: Callable[[DataStream], DataStream]
) -> None:
    """Behind that operator it would be empty, and the records that are sent to it would be lost."""
    split = derive(stream.flat_map(lambda v: [v], PAIR))
    with pytest.raises(JobGraphError, match=r"no side outputs.*call get_side_output\(\)"):
        split.get_side_output(OutputTag("side"))


def test_late_data_keeps_the_type_of_the_stream(stream: DataStream) -> None:
    late = OutputTag("late")
    counted = windowed(stream).side_output_late_data(late).aggregate(Sum(), output_type=Types.LONG())
    assert counted.get_side_output(late).get_type() == PAIR


# --- running ----------------------------------------------------------------------------------------------------------


class _Recorder:
    graph: JobGraph
    settings: ExecutionSettings

    def execute(self, graph: JobGraph, settings: ExecutionSettings) -> str:
        _Recorder.graph, _Recorder.settings = graph, settings
        return "done"

    def execute_and_collect(self, graph: JobGraph, settings: ExecutionSettings):
        _Recorder.graph, _Recorder.settings = graph, settings
        return (("collect", i) for i in range(10))


def test_programs_are_handed_to_the_registered_executor(
    env: StreamExecutionEnvironment, stream: DataStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_flinkpy.datastream.program.program.get_executor", _Recorder)
    env.get_checkpoint_config().set_checkpoint_storage_dir("s3://bucket/checkpoints")
    stream.uid("numbers")
    assert env.execute("my job") == "done"
    assert _Recorder.settings == ExecutionSettings(
        "my job", "s3://bucket/checkpoints", checkpointing=env.get_checkpoint_config()
    )
    with pytest.raises(JobGraphError, match="the program has no operators"):
        env.get_job_graph()  # what ran is forgotten, as in Flink
    assert stream.execute_and_collect(limit=3) == [0, 1, 2]
    assert [v.spec.kind for v in _Recorder.graph.vertices] == ["source", "collect"]
    with stream.map(lambda v: v).execute_and_collect() as records:
        assert next(records) == records.next() - 1 == 0
    assert [v.spec.kind for v in _Recorder.graph.vertices] == ["source", "map", "collect"]


def test_without_a_registered_executor_it_is_said_what_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.registry._registered", {})
    with pytest.raises(ConfigurationError, match="'executor'; import dagster_flinkpy"):
        get_executor()


@pytest.mark.parametrize("fold", ["sum", "min_by"])
def test_aggregated_fields_are_checked_against_the_type(fold: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    tuples = env.from_collection([("a", 1)], Types.TUPLE([Types.STRING(), Types.LONG()]))
    rows = env.from_collection([("a", 1)], Types.ROW_NAMED(["name", "amount"], [Types.STRING(), Types.LONG()]))
    for stream, field, said in [
        (tuples, "amount", "tuples, whose fields have no names"),
        (tuples, "amount", "an index from 0 to 1"),
        (tuples, 2, "the fields 0 to 1 only"),
        (rows, "price", "the fields name, amount only"),
        (rows, 2, "the fields name, amount only"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            getattr(stream.key_by(lambda value: value[0]), fold)(field)
    getattr(tuples.key_by(lambda value: value[0]), fold)(1)
    getattr(rows.key_by("name"), fold)("amount")


def test_types_functions_and_assigners_of_a_wrong_kind_are_refused_where_they_are_given() -> None:
    class Double(MapFunction):
        def map(self, value: int) -> int:
            return 2 * value

    class Same(KeyedProcessFunction):
        def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
            yield value

    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match=r"a collection needs a type from Types\.\*, not <class 'int'>"):
        env.from_collection([1], int)  # type: ignore[arg-type]
    numbers = env.from_collection([1], Types.LONG())
    with pytest.raises(ConfigurationError, match=r"operator 'Map' needs a type from Types\.\*, not <class 'int'>"):
        numbers.map(Double(), int)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"not the class Double: pass an instance, Double\(\)"):
        numbers.map(Double)
    with pytest.raises(ConfigurationError, match=r"not the class Same: pass an instance, Same\(\)"):
        numbers.key_by(lambda v: v).process(Same)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"needs a ProcessFunction, .* call key_by\(\) first"):
        numbers.process(Same())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs the name of a field or a TimestampAssigner, not <function"):
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row: row.at)  # type: ignore[arg-type]
    assert numbers.map(str, Types.STRING()).get_type() == Types.STRING()  # a class may be a plain callable


def test_types_that_are_none_are_refused_where_they_are_declared() -> None:
    for declare in (
        lambda: Types.ROW_NAMED(["a"], [str]),
        lambda: Types.ROW([Types.LONG]),
        lambda: Types.TUPLE([int]),
        lambda: Types.LIST(int),
        lambda: Types.MAP(Types.STRING(), float),
    ):
        with pytest.raises(ConfigurationError, match=r"needs types from Types\.\*, such as Types\.LONG\(\), not <"):
            declare()  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"OutputTag 'late' needs a type from Types\.\*, not <class 'str'>"):
        OutputTag("late", str)  # type: ignore[arg-type]
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match=r"key_by\(\) needs a key type from Types\.\*, not <class 'str'>"):
        env.from_collection(["a"]).key_by(lambda v: v, str)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"from_source\(\) needs a source, .* not 'orders'"):
        env.from_source("orders", WatermarkStrategy.no_watermarks(), "orders")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"from_source\(\) needs a WatermarkStrategy, .* not None"):
        env.from_source(CollectionSource([1], Types.LONG()), None, "orders")  # type: ignore[arg-type]
