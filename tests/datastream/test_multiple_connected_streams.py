"""Streams that one function with any number of inputs reads: what is declared, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream import (
    ConnectedStreams,
    DataStream,
    KeyedMultipleInputBatchFunction,
    KeyedMultipleInputProcessFunction,
    KeyedProcessFunction,
    MultipleConnectedStreams,
    MultipleInputProcessFunction,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.program.job_graph import PartitionerKind
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, JobGraphError

PAIR = Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.LONG()])


class _Gives:
    def __init__(self, inputs: Any) -> None:
        self._inputs = inputs

    def get_inputs(self) -> Any:
        return self._inputs


class Keyed(_Gives, KeyedMultipleInputProcessFunction):
    pass


class Plain(_Gives, MultipleInputProcessFunction):
    pass


class Batches(_Gives, KeyedMultipleInputBatchFunction):
    pass


THREE = [len, len, len]


@pytest.fixture
def streams() -> list[DataStream]:
    env = StreamExecutionEnvironment.get_execution_environment()
    return [
        env.from_collection([("a", 1)], PAIR).uid("pairs"),
        env.from_collection([1], Types.LONG()).uid("numbers"),
        env.from_collection(["a"], Types.STRING()).uid("words"),
    ]


def keyed(streams: list[DataStream]) -> list[DataStream]:
    pairs, numbers, words = streams
    return [pairs.key_by("key"), numbers.key_by(str, Types.STRING()), words.key_by(lambda v: v, Types.STRING())]


def test_each_stream_is_an_input_of_its_own_type(streams: list[DataStream]) -> None:
    pairs, numbers, words = keyed(streams)
    joined = pairs.connect(numbers, words).process(Keyed(THREE), PAIR).uid("joined")
    graph = joined.get_execution_environment().get_job_graph()
    assert [(e.source, e.input_index, e.type_info, e.partitioner.kind) for e in graph.inputs("joined")] == [
        ("pairs", 0, PAIR, PartitionerKind.HASH),
        ("numbers", 1, Types.LONG(), PartitionerKind.HASH),
        ("words", 2, Types.STRING(), PartitionerKind.HASH),
    ]
    vertex = graph.vertex("joined")
    assert (vertex.spec.kind, vertex.output_type) == ("keyed_multiple_input_process", PAIR)
    assert graph.number_of_stages == 2


def test_streams_without_keys_and_united_ones(streams: list[DataStream]) -> None:
    pairs, numbers, words = streams
    labels = numbers.connect(words.union(words.map(str.upper, Types.STRING()).uid("upper")), pairs)
    labels.process(Plain(THREE)).uid("labels")
    graph = pairs.get_execution_environment().get_job_graph()
    edges = [(e.source, e.input_index) for e in graph.inputs("labels")]
    assert edges == [("numbers", 0), ("words", 1), ("upper", 1), ("pairs", 2)]
    assert not graph.vertex("labels").spec.keeps_state


def test_two_streams_may_have_such_a_function_too(streams: list[DataStream]) -> None:
    pairs, numbers, words = keyed(streams)
    assert type(pairs.connect(numbers)) is ConnectedStreams
    assert type(pairs.connect(numbers, words)) is MultipleConnectedStreams
    pairs.connect(numbers).process(Keyed([len, len])).uid("two")
    pairs.connect(numbers).process_batch(Batches([len, len]), PAIR).uid("batches")
    graph = pairs.get_execution_environment().get_job_graph()
    assert [e.input_index for uid in ("two", "batches") for e in graph.inputs(uid)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (Keyed([len, len]), JobGraphError, "Keyed has functions for 2 inputs, but there are 3 connected streams"),
        (Plain([len] * 4), JobGraphError, "Plain has functions for 4 inputs, but there are 3 connected streams"),
        (Keyed({len}), ConfigurationError, r"Keyed\.get_inputs\(\) must return a list of functions, not \{"),
        (Keyed([len, len, "words"]), ConfigurationError, r"Keyed\.get_inputs\(\) must return functions, not 'words'"),
        (Keyed, ConfigurationError, r"process\(\) of 3 streams needs .*the class Keyed: pass an instance"),
        (len, ConfigurationError, r"process\(\) of 3 streams needs a MultipleInputProcessFunction or "),
        (Batches(THREE), ConfigurationError, r"process\(\) of 3 streams needs "),
    ],
)
def test_what_is_no_function_of_three_inputs_is_refused(
    streams: list[DataStream], function: Any, error: type[FlinkPyError], message: str
) -> None:
    pairs, numbers, words = keyed(streams)
    with pytest.raises(error, match=message):
        pairs.connect(numbers, words).process(function)
    pairs.map(lambda v: v).uid("map")
    assert len(pairs.get_execution_environment().get_job_graph().vertices) == 4


def test_batches_need_their_function_and_a_type(streams: list[DataStream]) -> None:
    pairs, numbers, words = keyed(streams)
    connected = pairs.connect(numbers, words)
    with pytest.raises(ConfigurationError, match="needs a KeyedMultipleInputBatchFunction"):
        connected.process_batch(Keyed(THREE), PAIR)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs an output_type that is a column"):
        connected.process_batch(Batches(THREE), Types.PICKLED_BYTE_ARRAY())


def test_keyed_state_needs_keys_on_all_streams(streams: list[DataStream]) -> None:
    pairs, numbers, words = streams
    connected = pairs.connect(numbers.key_by(str), words)
    message = r"has keyed state, so all of its 3 streams need keys; call key_by() on number 1 and 3 before connect()"
    with pytest.raises(JobGraphError, match=f"Keyed {re.escape(message)}"):
        connected.process(Keyed(THREE))
    with pytest.raises(JobGraphError, match=f"Batches {re.escape(message)}"):
        connected.process_batch(Batches(THREE), PAIR)


def test_keys_of_different_types_are_refused(streams: list[DataStream]) -> None:
    pairs, numbers, words = streams
    joined = pairs.key_by("key").connect(words.key_by(str, Types.STRING()), numbers.key_by(abs, Types.LONG()))
    joined.process(Keyed(THREE)).uid("joined")
    with pytest.raises(
        JobGraphError, match=r"'joined': the keys of 'pairs' are .*STRING.*, of 'numbers' .*LONG.*one type"
    ):
        pairs.get_execution_environment().get_job_graph()


def test_streams_of_another_environment_broadcast_streams_and_lists_are_refused(streams: list[DataStream]) -> None:
    pairs, numbers, words = streams
    other = StreamExecutionEnvironment.get_execution_environment().from_collection(["a"], Types.STRING())
    with pytest.raises(JobGraphError, match="two environments"):
        pairs.connect(numbers, other)
    rules = words.broadcast(MapStateDescriptor("rules", Types.STRING(), Types.STRING()))
    for others in ((numbers, rules), (rules, numbers), (numbers, [words])):
        with pytest.raises(ConfigurationError, match=r"connect\(\) needs data streams, not"):
            pairs.connect(*others)  # type: ignore[call-overload]


def test_a_keyed_process_function_is_of_one_stream(streams: list[DataStream]) -> None:
    class One(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            pass

    pairs, numbers, words = keyed(streams)
    with pytest.raises(ConfigurationError, match="of 3 streams needs"):
        pairs.connect(numbers, words).process(One())  # type: ignore[arg-type]
