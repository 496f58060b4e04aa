from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import (
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.operator_specs import KeyedProcessSpec
from dagster_flinkpy.datastream.program.execution import ExecutionSettings
from dagster_flinkpy.datastream.program.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    PartitionerKind,
    StreamPartitioner,
    build_job_graph,
)
from dagster_flinkpy.errors import (
    ConfigurationError,
    DuplicateUidError,
    JobGraphError,
    MissingUidError,
    MissingUidWarning,
    ParallelismError,
)

PAIR = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return []


class Unkeyed(ProcessFunction):
    def process_element(self, value, ctx):
        return []


class Both(CoProcessFunction):
    def process_element1(self, value, ctx):
        return []

    def process_element2(self, value, ctx):
        return []


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def pairs(env: StreamExecutionEnvironment, name: str = "pairs") -> DataStream:
    source = CollectionSource([("a", 1)], PAIR)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), name)


def identity(value: object) -> object:
    return value


def kinds(graph: JobGraph) -> list[PartitionerKind]:
    return [e.partitioner.kind for e in graph.edges]


# --- uids -------------------------------------------------------------------------------------------------------------


def test_a_uid_set_twice_names_both_operators(env: StreamExecutionEnvironment) -> None:
    pairs(env).uid("it").map(identity, PAIR).uid("it").name("second")
    with pytest.raises(DuplicateUidError, match=r"'it' is set on 2 operators \(pairs, second\)"):
        env.get_job_graph()


def test_operators_without_uid_get_their_name_numbered(env: StreamExecutionEnvironment) -> None:
    pairs(env, "My pairs!").map(identity, PAIR).map(identity, PAIR).filter(bool).uid("map_2")
    assert [v.uid for v in env.get_job_graph().vertices] == ["my_pairs", "map", "map_3", "map_2"]
    assert [v.uid_set for v in env.get_job_graph().vertices] == [False, False, False, True]


def test_only_stateful_operators_need_a_uid_and_all_that_lack_one_are_named(env: StreamExecutionEnvironment) -> None:
    stream = pairs(env).uid("pairs").map(identity, PAIR)
    env.get_job_graph().require_uids()
    stream.key_by("key").process(Keyed()).name("first")
    stream.key_by("key").process(Keyed()).name("second")
    with pytest.raises(MissingUidError, match=r"first \(keyed_process\), second \(keyed_process\)"):
        env.get_job_graph().require_uids()


def test_a_stateful_operator_without_uid_is_a_warning(env: StreamExecutionEnvironment) -> None:
    stream = pairs(env).uid("pairs").map(identity, PAIR)
    stream.key_by("key").process(Keyed()).name("first")
    stream.key_by("key").process(Keyed()).name("second")
    with pytest.warns(
        MissingUidWarning, match=r"no uid: first \(keyed_process\), second \(keyed_process\)\."
    ) as warned:
        env.get_job_graph()
        env.get_job_graph()
    assert [w.filename for w in warned] == [__file__]
    stream.key_by("key").process(Keyed()).name("third")
    with pytest.warns(MissingUidWarning, match=r"no uid: third \(keyed_process\)\.") as warned:
        env.get_job_graph()


@pytest.mark.parametrize("collect", [False, True])
def test_a_program_that_is_run_without_uids_and_keeps_no_checkpoints_warns_once(
    env: StreamExecutionEnvironment, monkeypatch: pytest.MonkeyPatch, collect: bool
) -> None:
    """If checkpoints are kept, it is an error. If not, sources and sinks need no uid."""

    class Executor:
        def execute(self, graph: JobGraph, settings: ExecutionSettings) -> None:
            pass

        def execute_and_collect(self, graph: JobGraph, settings: ExecutionSettings) -> Iterator[object]:
            return iter(())

    monkeypatch.setattr("dagster_flinkpy.datastream.program.program.get_executor", Executor)

    def run() -> None:
        keyed = pairs(env).key_by("key").process(Keyed())
        if collect:
            keyed.execute_and_collect()
        else:
            env.execute()

    for _ in range(2):  # a new program each time
        with pytest.warns(MissingUidWarning, match=r"no uid: KeyedProcess \(keyed_process\)\.") as warned:
            run()
        assert [w.filename for w in warned] == [__file__]
    env.get_checkpoint_config().set_checkpoint_storage_dir("checkpoints")
    with warnings.catch_warnings(), pytest.raises(MissingUidError, match="keyed_process"):
        warnings.simplefilter("error")
        run()


def test_a_strict_program_is_not_built_without_uids(env: StreamExecutionEnvironment) -> None:
    env.get_config().set_strict(True)
    keyed = pairs(env).uid("pairs").map(identity, PAIR).key_by("key").process(Keyed())
    with pytest.raises(MissingUidError, match="KeyedProcess"):
        env.get_job_graph()
    with pytest.raises(MissingUidError, match="KeyedProcess"):
        env.execute()
    with pytest.raises(MissingUidError, match="KeyedProcess"):
        keyed.execute_and_collect()
    keyed.uid("counts")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.get_job_graph()


def uids(declare: Callable[[StreamExecutionEnvironment], object]) -> list[str]:
    env = StreamExecutionEnvironment.get_execution_environment()
    declare(env)
    return [v.uid for v in env.get_job_graph().vertices]


def test_uids_that_were_not_set_are_stable_for_an_unchanged_program() -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        both = pairs(env).map(identity, PAIR).union(pairs(env).filter(bool))
        both.key_by("key").process(Keyed(), PAIR).map(identity).print()

    assert uids(program) == uids(program)
    assert len(set(uids(program))) == 7


def test_uids_that_were_set_survive_other_operators_and_another_order() -> None:
    def program(env: StreamExecutionEnvironment) -> None:
        first, second = pairs(env).uid("first"), pairs(env).uid("second")
        first.union(second).key_by("key").process(Keyed()).uid("keyed").print().uid("printed")

    def changed(env: StreamExecutionEnvironment) -> None:
        second, first = pairs(env).uid("second"), pairs(env).uid("first")
        mapped = second.map(identity, PAIR).union(first.filter(bool))
        mapped.key_by("key").process(Keyed()).map(identity).print()
        mapped.key_by("key").process(Keyed()).uid("keyed").print().uid("printed")

    assert {"first", "second", "keyed", "printed"} == set(uids(program)) < set(uids(changed))


# --- keys of several inputs -------------------------------------------------------------------------------------------

NUMBERED = Types.ROW_NAMED(["number", "key"], [Types.LONG(), Types.STRING()])
KEYS = {
    "fields": ("key", None, "number", None, "STRING", "LONG"),
    "declared types": (len, Types.INT(), len, Types.LONG(), "INT", "LONG"),
    "a field and a declared type": ("key", None, len, Types.LONG(), "STRING", "LONG"),
    "several fields": (("key", "value"), None, ("number", "key"), None, r"Types.TUPLE", r"Types.TUPLE"),
}


class KeyedBoth(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        return []

    def process_element2(self, value, ctx):
        return []


@pytest.mark.parametrize(("key1", "type1", "key2", "type2", "name1", "name2"), KEYS.values(), ids=KEYS)
def test_two_inputs_with_keys_of_different_types_are_refused(
    env: StreamExecutionEnvironment, key1, type1, key2, type2, name1: str, name2: str
) -> None:
    first, second = pairs(env).uid("first"), pairs(env).map(identity, NUMBERED).uid("second")
    both = first.key_by(key1, type1).connect(second.key_by(key2, type2))
    both.process(KeyedBoth(), PAIR).uid("both")
    message = rf"'both': the keys of 'first' are .*{name1}.*, of 'second' .*{name2}.*one type"
    with pytest.raises(JobGraphError, match=message):
        env.get_job_graph()


def test_two_inputs_may_have_keys_of_one_type_or_of_one_that_is_not_known_yet(env: StreamExecutionEnvironment) -> None:
    first, second = pairs(env), pairs(env).map(identity, NUMBERED)
    first.connect(second).key_by("key", "key").process(KeyedBoth(), PAIR)
    first.connect(second).key_by("value", "number").process(KeyedBoth(), PAIR)
    first.key_by("key").connect(second.key_by(lambda v: v.number)).process(KeyedBoth(), PAIR)
    env.get_job_graph()


@pytest.mark.parametrize("uid", ["", "a b", "-a", "ü", "a/b"])
def test_a_uid_is_a_plain_name(env: StreamExecutionEnvironment, uid: str) -> None:
    pairs(env).uid(uid)
    with pytest.raises(JobGraphError, match="use letters"):
        env.get_job_graph()


def test_an_unknown_uid_is_answered_with_those_there_are(env: StreamExecutionEnvironment) -> None:
    pairs(env).uid("pairs")
    with pytest.raises(JobGraphError, match=r"'gone'; there are \['pairs'\]"):
        env.get_job_graph().vertex("gone")


def test_a_program_without_operators_is_none(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobGraphError, match="no operators"):
        env.get_job_graph()


# --- parallelism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, None), (-1, 8), (9, 8), (1, 0), (1, 32769)])
def test_parallelisms_out_of_range_name_the_operator(
    env: StreamExecutionEnvironment, parallelism: int, max_parallelism: int | None
) -> None:
    stream = pairs(env).uid("pairs").set_parallelism(parallelism)
    if max_parallelism is not None:
        stream.set_max_parallelism(max_parallelism)
    with pytest.raises(ParallelismError, match="'pairs'"):
        env.get_job_graph()


def test_max_parallelism_is_that_of_the_operator_else_of_the_environment_else_flinks() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    pairs(env).set_parallelism(100)
    (vertex,) = env.get_job_graph().vertices
    assert (vertex.max_parallelism, vertex.max_parallelism_set) == (256, False)
    env.set_max_parallelism(512)
    (vertex,) = env.get_job_graph().vertices
    assert (vertex.max_parallelism, vertex.max_parallelism_set) == (512, True)


def test_with_parallelism_leaves_operators_that_have_one_of_their_own(env: StreamExecutionEnvironment) -> None:
    pairs(env).uid("pairs").set_parallelism(1).map(identity, PAIR).uid("map")
    graph = env.get_job_graph().with_parallelism(5)
    assert {v.uid: v.parallelism for v in graph.vertices} == {"pairs": 1, "map": 5}


def test_a_max_parallelism_that_was_not_set_follows_from_the_parallelism(env: StreamExecutionEnvironment) -> None:
    pairs(env).uid("pairs").map(identity, PAIR).uid("map").set_max_parallelism(150)
    graph = env.get_job_graph()
    assert {v.uid: v.max_parallelism for v in graph.vertices} == {"pairs": 128, "map": 150}
    wider = graph.with_parallelism(100)
    assert {v.uid: v.max_parallelism for v in wider.vertices} == {"pairs": 256, "map": 150}
    assert wider.with_parallelism(2) == graph
    with pytest.raises(ParallelismError, match=r"'map'.* 200 .*above its max parallelism 150"):
        graph.with_parallelism(200)


def test_with_max_parallelisms_changes_those_named(env: StreamExecutionEnvironment) -> None:
    pairs(env).uid("pairs").map(identity, PAIR).uid("map")
    graph = env.get_job_graph().with_max_parallelisms({"map": 64, "gone": 3})
    assert {v.uid: v.max_parallelism for v in graph.vertices} == {"pairs": 128, "map": 64}


def test_a_forward_edge_rebalances_between_different_parallelisms_and_only_there(
    env: StreamExecutionEnvironment,
) -> None:
    pairs(env).set_parallelism(2).map(identity, PAIR)
    graph = env.get_job_graph()
    assert kinds(graph) == [PartitionerKind.FORWARD]
    wider = graph.with_parallelism(3)
    assert kinds(wider) == [PartitionerKind.REBALANCE]
    back = wider.with_parallelism(2)
    assert kinds(back) == [PartitionerKind.FORWARD]
    assert back.is_chained(back.edges[0])


# --- stages and regions -----------------------------------------------------------------------------------------------


def test_a_shuffle_begins_a_stage_and_forward_edges_are_chained(env: StreamExecutionEnvironment) -> None:
    mapped = pairs(env).uid("pairs").map(identity, PAIR).uid("map")
    mapped.key_by("key").process(Keyed(), PAIR).uid("keyed").filter(bool).uid("filter").rebalance().map(identity).uid(
        "last"
    )
    graph = env.get_job_graph()
    assert graph.stages == {"pairs": 0, "map": 0, "keyed": 1, "filter": 1, "last": 2}
    assert [graph.is_chained(e) for e in graph.edges] == [True, False, True, False]
    assert [v.uid for v in graph.stage_vertices(1)] == ["keyed", "filter"]
    assert graph.number_of_stages == 3


def test_a_forward_edge_past_a_shuffle_is_not_chained(env: StreamExecutionEnvironment) -> None:
    source = pairs(env).uid("pairs")
    source.connect(source.rebalance()).process(Both()).uid("both")
    graph = env.get_job_graph()
    assert graph.stages["both"] == 1
    assert kinds(graph) == [PartitionerKind.FORWARD, PartitionerKind.REBALANCE]
    assert not any(graph.is_chained(e) for e in graph.edges)


def test_a_stage_is_as_wide_as_its_widest_operator(env: StreamExecutionEnvironment) -> None:
    source = pairs(env)
    source.rebalance().map(identity).set_parallelism(3)
    source.rebalance().map(identity).set_parallelism(1)
    graph = env.get_job_graph()
    assert [graph.stage_parallelism(s) for s in range(2)] == [2, 3]


def test_parts_that_no_edge_joins_are_one_region(env: StreamExecutionEnvironment) -> None:
    first = pairs(env).uid("a")
    second = pairs(env).uid("b").map(identity).uid("b_map")
    pairs(env).uid("c").union(first).map(identity, PAIR).uid("c_map")
    graph = env.get_job_graph()
    parts = graph.parts()
    assert [[v.uid for v in part.vertices] for part in parts] == [["a", "c", "c_map"], ["b", "b_map"]]
    assert [[e.id for e in part.edges] for part in parts] == [[0, 1], [0]]
    assert graph.regions() == [graph]
    assert second.get_type() == Types.PICKLED_BYTE_ARRAY()


# --- fingerprint ------------------------------------------------------------------------------------------------------


def program(*, uid: str = "map", keyed: bool = True, parallelism: int = 2, function: object = identity) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    stream = pairs(env).uid("pairs").set_parallelism(2).map(function, PAIR).uid(uid)
    (stream.key_by("key").process(Keyed()) if keyed else stream.rebalance().process(Unkeyed())).uid("last")
    return env.get_job_graph()


def test_the_fingerprint_is_of_the_structure() -> None:
    fingerprint = program().fingerprint
    assert program(function=lambda value: value).fingerprint == fingerprint
    assert program(parallelism=3).fingerprint == fingerprint
    assert program().with_parallelism(3).fingerprint == fingerprint
    assert program(uid="other").fingerprint != fingerprint
    assert program(keyed=False).fingerprint != fingerprint


# --- what a graph refuses ---------------------------------------------------------------------------------------------


def test_a_keyed_operator_needs_a_key(env: StreamExecutionEnvironment) -> None:
    stream = pairs(env).uid("pairs")
    stream._then("Keyed", KeyedProcessSpec(Keyed()), None).uid("keyed")
    with pytest.raises(JobGraphError, match="'keyed' is keyed but its input 'pairs' is not"):
        env.get_job_graph()


def test_an_edge_of_a_side_output_that_is_not_declared_is_refused(env: StreamExecutionEnvironment) -> None:
    stream = pairs(env).flat_map(lambda v: [v], PAIR).uid("pairs")
    stream.get_side_output(OutputTag("known")).map(identity).uid("map")
    graph = env.get_job_graph()
    edge = JobEdge(0, "pairs", "map", 0, StreamPartitioner(PartitionerKind.FORWARD), PAIR, side_output="unknown")
    with pytest.raises(ConfigurationError, match="no side output 'unknown'"):
        build_job_graph(graph.vertices, [edge])


def test_vertices_of_a_graph_are_checked_however_it_is_made() -> None:
    (vertex,) = (v for v in program().vertices if v.uid == "pairs")
    assert isinstance(vertex, JobVertex)
    with pytest.raises(DuplicateUidError):
        JobGraph((vertex, vertex), ())
