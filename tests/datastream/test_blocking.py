from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSinkSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph, PartitionerKind
from dagster_flinkpy.errors import JobGraphError, MissingUidError

PAIR = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def pairs(env: StreamExecutionEnvironment, uid: str = "pairs") -> DataStream:
    source = CollectionSource([("a", 1)], PAIR)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), uid).uid(uid)


def identity(stream: DataStream, uid: str) -> DataStream:
    return stream.map(lambda value: value, PAIR).uid(uid)


def shapes(graph: JobGraph) -> list[tuple[list[str], list[tuple[str, str, PartitionerKind]]]]:
    return [
        ([v.uid for v in r.vertices], [(e.source, e.target, e.partitioner.kind) for e in r.edges])
        for r in graph.regions()
    ]


def test_a_sink_and_a_source_take_the_place_of_a_blocking_edge(env: StreamExecutionEnvironment) -> None:
    pairs(env).blocking().key_by("key").reduce(lambda a, b: a).uid("last")
    graph = env.get_job_graph()
    assert [e.blocking for e in graph.edges] == [True]
    assert shapes(graph) == [
        (["pairs", "pairs.exchange"], [("pairs", "pairs.exchange", PartitionerKind.FORWARD)]),
        (["pairs.exchange.last", "last"], [("pairs.exchange.last", "last", PartitionerKind.HASH)]),
    ]
    first, second = graph.regions()
    assert (first.vertex("pairs.exchange").output_type, second.edges[0].type_info) == (PAIR, PAIR)
    for region in (first, second):
        region.require_uids()
        assert [r.vertices for r in region.regions()] == [region.vertices]
        assert [e.id for e in region.edges] == list(range(len(region.edges)))
        assert not any(e.blocking for e in region.edges)


def test_a_forward_edge_stays_chained_behind_the_blocking_edge(env: StreamExecutionEnvironment) -> None:
    identity(pairs(env).set_parallelism(3).blocking(), "map")
    first, second = env.get_job_graph().regions()
    assert (first.number_of_stages, second.number_of_stages) == (1, 1)
    assert [v.parallelism for v in (*first.vertices, *second.vertices)] == [3, 3, 2, 2]
    wider = second.with_parallelism(4)
    assert [v.parallelism for v in wider.vertices] == [4, 4]
    assert wider.number_of_stages == 1


def test_the_fingerprint_knows_blocking_edges(env: StreamExecutionEnvironment) -> None:
    other = StreamExecutionEnvironment.get_execution_environment()
    identity(pairs(env), "map")
    identity(pairs(other).blocking(), "map")
    assert env.get_job_graph().fingerprint != other.get_job_graph().fingerprint


def test_a_region_comes_behind_those_it_reads(env: StreamExecutionEnvironment) -> None:
    a, b = pairs(env, "a"), pairs(env, "b")
    joined = identity(a.blocking().union(identity(b.blocking(), "b_map").blocking()), "joined")
    identity(joined.blocking(), "end")
    uids = [[v.uid for v in r.vertices if "exchange" not in v.uid] for r in env.get_job_graph().regions()]
    assert uids == [["a"], ["b"], ["b_map"], ["joined"], ["end"]]


def test_parts_without_a_blocking_edge_are_one_region(env: StreamExecutionEnvironment) -> None:
    identity(pairs(env, "c"), "c_map")
    identity(pairs(env, "a").blocking(), "b")
    identity(pairs(env, "d"), "d_map")
    regions = env.get_job_graph().regions()
    uids = [[v.uid for v in r.vertices if "exchange" not in v.uid] for r in regions]
    assert uids == [["c", "c_map", "d", "d_map"], ["a"], ["b"]]
    assert [e.id for e in regions[0].edges] == [0, 1]
    assert regions[0].regions() == [regions[0]]


def test_an_edge_that_parts_nothing_is_refused(env: StreamExecutionEnvironment) -> None:
    source = pairs(env)
    identity(source.union(identity(source.blocking(), "map")), "joined")
    with pytest.raises(JobGraphError, match=r"blocking edges pairs -> map do not separate the program"):
        env.get_job_graph().regions()


def test_regions_in_a_circle_are_refused(env: StreamExecutionEnvironment) -> None:
    a, b = pairs(env, "a"), pairs(env, "b")
    identity(a.union(identity(b.blocking(), "b2")), "ab")
    identity(b.union(identity(a.blocking(), "a2")), "ba")
    with pytest.raises(JobGraphError, match=r"blocking edges a -> a2, b -> b2 do not separate"):
        env.get_job_graph().regions()


def test_both_ends_need_a_uid(env: StreamExecutionEnvironment) -> None:
    pairs(env).blocking().map(lambda value: value).name("Nameless")
    with pytest.raises(MissingUidError, match=r"Nameless \(map\)"):
        env.get_job_graph().require_uids()


def test_keys_come_behind_the_blocking_edge(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobGraphError, match="call blocking\\(\\) before key_by"):
        pairs(env).key_by("key").blocking()


def test_a_blocking_stream_is_no_operator(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobGraphError, match="is not an operator"):
        pairs(env).blocking().uid("x")


def same(df: Any) -> Any:
    return df


def test_a_spark_transform_is_the_source_of_its_region(env: StreamExecutionEnvironment) -> None:
    source = pairs(env)
    source.blocking().map(lambda value: value, PAIR).uid("map")
    identity(source.transform_spark(same, PAIR).uid("first").transform_spark(same, PAIR).uid("second"), "end")
    assert shapes(env.get_job_graph()) == [
        (["pairs", "pairs.exchange"], [("pairs", "pairs.exchange", PartitionerKind.FORWARD)]),
        (["pairs.exchange.map", "map"], [("pairs.exchange.map", "map", PartitionerKind.FORWARD)]),
        (["first", "first.exchange"], [("first", "first.exchange", PartitionerKind.FORWARD)]),
        (["second", "end"], [("second", "end", PartitionerKind.FORWARD)]),
    ]
    for region in env.get_job_graph().regions():
        region.require_uids()


def test_united_streams_come_to_a_spark_transform_through_one_blocking_edge(env: StreamExecutionEnvironment) -> None:
    a, b = pairs(env, "a").set_parallelism(3), pairs(env, "b")
    a.union(b).transform_spark(same, PAIR).uid("t").blocking().map(lambda value: value, PAIR).uid("map")
    assert shapes(env.get_job_graph()) == [
        (
            ["a", "b", "t.union.exchange"],
            [("a", "t.union.exchange", PartitionerKind.REBALANCE), ("b", "t.union.exchange", PartitionerKind.FORWARD)],
        ),
        (["t", "t.exchange"], [("t", "t.exchange", PartitionerKind.FORWARD)]),
        (["t.exchange.map", "map"], [("t.exchange.map", "map", PartitionerKind.FORWARD)]),
    ]


def test_a_spark_transform_that_parts_nothing_is_refused(env: StreamExecutionEnvironment) -> None:
    source = pairs(env)
    identity(source.union(source.transform_spark(same, PAIR).uid("t")), "joined")
    with pytest.raises(JobGraphError, match=r"blocking edges pairs -> t do not separate the program"):
        env.get_job_graph().regions()


def test_what_a_spark_transform_cannot_read_is_refused(env: StreamExecutionEnvironment) -> None:
    stream, numbers = pairs(env), env.from_collection([1], Types.LONG())
    with pytest.raises(JobGraphError, match="before key_by"):
        stream.key_by("key").transform_spark(same, PAIR)
    with pytest.raises(JobGraphError, match="cannot follow rebalance"):
        stream.broadcast().transform_spark(same, PAIR)
    with pytest.raises(JobGraphError, match="needs records with fields"):
        numbers.transform_spark(same, PAIR)
    with pytest.raises(JobGraphError, match="have no type"):
        numbers.map(lambda n: n).transform_spark(same, PAIR)
    timed = Types.ROW_NAMED(["rowtime"], [Types.LONG()])
    with pytest.raises(JobGraphError, match="'rowtime' is the column of event time; rename the field"):
        stream.transform_spark(same, timed)
    stream.transform_spark(same, PAIR)
    with pytest.raises(MissingUidError, match=r"Spark Transform \(spark_transform\)"):
        env.get_job_graph().require_uids()


def test_an_edge_keeps_segments_for_as_long_as_one_of_its_readers_asks(env: StreamExecutionEnvironment) -> None:
    source, day = pairs(env), timedelta(days=1)
    identity(source.blocking(day), "a")
    identity(source.blocking(2 * day).blocking(), "b")
    identity(source.blocking(), "c")
    other = identity(pairs(env, "other").blocking(), "d")
    other.blocking(day).union(pairs(env, "third")).transform_spark(same, PAIR).uid("t").print().uid("printed")
    specs = {v.uid: v.spec for v in env.get_job_graph().split().vertices}
    found = {uid: spec.sink.retain for uid, spec in specs.items() if isinstance(spec, BlockingEdgeSinkSpec)}
    assert found == {"pairs.exchange": 2 * day, "other.exchange": None, "t.union.exchange": day}


@pytest.mark.parametrize("retain", [timedelta(0), timedelta(days=-1), 7])
def test_segments_are_kept_for_a_span_of_time(env: StreamExecutionEnvironment, retain: Any) -> None:
    with pytest.raises(JobGraphError, match="needs a timedelta above 0"):
        pairs(env).blocking(retain)
