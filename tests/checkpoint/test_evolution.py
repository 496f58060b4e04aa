from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.evolution import Change, Evolution, StateOutcome, evolution_since
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_program import operator_program
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.common import Time
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedMultipleInputProcessFunction, ReduceFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.window_assigners import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError
from tests.checkpoint.samples import metadata, operator

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def first(record: Any) -> Any:
    return record[0]


def second(record: Any) -> Any:
    return str(record[1])


def program(
    uid: str = "totals",
    seconds: int = 60,
    reduce: Callable[[Any, Any], Any] = lambda a, b: (a[0], a[1] + b[1]),
    key: Callable[[Any], Any] = first,
    rolling: bool = False,
) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([("a", 1)], PAIR).uid("pairs").key_by(key, Types.STRING())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.seconds(seconds)))
    (keyed.reduce(reduce) if rolling else windows.reduce(reduce)).uid(uid)
    return env.get_job_graph()


def taken_by(graph: JobGraph, *, told: bool = True) -> CheckpointMetadata:
    """Returns a checkpoint with keyed state of each keyed operator, and positions of sources."""

    def state(uid: str) -> OperatorState:
        state = operator(uid)
        if not graph.vertex(uid).spec.keyed:
            state = replace(state, subtasks=(), coordinator_state={})
        return replace(state, program=operator_program(graph, uid)) if told else state

    return metadata(7, *(state(v.uid) for v in graph.vertices if v.uid_set))


def of(evolution: Evolution) -> dict[str, tuple[Change, StateOutcome]]:
    return {o.uid: (o.change, o.state) for o in evolution.operators}


KEPT = {"pairs": (Change.UNCHANGED, StateOutcome.KEPT)}


def test_the_same_program_has_nothing_to_say() -> None:
    evolution = evolution_since(taken_by(program()), program())
    assert of(evolution) == {**KEPT, "totals": (Change.UNCHANGED, StateOutcome.KEPT)}
    assert evolution.lines == []


def test_it_survives_the_file() -> None:
    stored = CheckpointMetadata.from_bytes(taken_by(program()).to_bytes(), "it")
    assert evolution_since(stored, program()).lines == []
    assert stored.operators[0].program == operator_program(program(), "pairs")


def test_a_changed_window_size_is_told_with_both_sizes() -> None:
    evolution = evolution_since(taken_by(program()), program(seconds=120))
    assert of(evolution) == {**KEPT, "totals": (Change.CHANGED, StateOutcome.KEPT)}
    heading, line = evolution.lines
    assert heading == "what changed since checkpoint 7 of job 'flights': 1 changed"
    assert "operator 'totals' changed: assigner was TumblingEventTimeWindows(size=60000" in line
    assert "is now TumblingEventTimeWindows(size=120000" in line
    assert line.endswith("; its state is kept (16 rows)")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (program(reduce=lambda a, b: (a[0], a[1] * b[1])), "reduce: the code or the settings of .*changed"),
        (program(key=second), "key selector was first, is now second"),
        (program(rolling=True), "was window, is now reduce"),
    ],
)
def test_changed_functions_keys_and_kinds_are_told(other: JobGraph, told: str) -> None:
    evolution = evolution_since(taken_by(program()), other)
    assert of(evolution) == {**KEPT, "totals": (Change.CHANGED, StateOutcome.KEPT)}
    assert re.search(told, evolution.lines[1])


@pytest.mark.parametrize("by_an_earlier_release", [False, True])
def test_a_function_whose_module_has_another_name_is_unchanged(by_an_earlier_release: bool) -> None:
    def of_module(name: str, factor: int = 1) -> JobGraph:
        def reduce(self: Any, a: Any, b: Any) -> Any:
            return a[0], a[1] + b[1] * factor

        return program(reduce=type("Sum", (ReduceFunction,), {"reduce": reduce, "__module__": name})())

    before = of_module("shop.orders")
    stored = operator_program(before, "totals", with_modules=by_an_earlier_release)
    checkpoint = metadata(7, replace(operator("totals"), program=stored))
    (_, same), (_, other) = (
        evolution_since(checkpoint, graph).operators
        for graph in (
            of_module("store.orders" if not by_an_earlier_release else "shop.orders"),
            of_module("shop.orders", 2),
        )
    )
    assert (same.change, other.change) == (Change.UNCHANGED, Change.CHANGED)


class Nothing(KeyedMultipleInputProcessFunction):
    def get_inputs(self) -> list[Any]:
        return [print] * 3


def joined(*keys: Any) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    pairs = env.from_collection([("a", 1)], PAIR).uid("pairs")
    more = env.from_collection([("b", 2)], PAIR).uid("more")
    one, two, three = (s.key_by(key, Types.STRING()) for s, key in zip((pairs, pairs, more), keys, strict=True))
    one.connect(two, three).process(Nothing()).uid("joined")
    return env.get_job_graph()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ((second, second, first), "key selector of pairs in input 1 was first, is now second"),
        ((first, first, first), "key selector of pairs in input 2 was second, is now first"),
        ((first, second, second), "key selector of more was first, is now second"),
    ],
)
def test_the_changed_key_of_one_of_several_inputs_is_told(keys: tuple[Any, ...], told: str) -> None:
    before = taken_by(joined(first, second, first))
    assert evolution_since(before, joined(first, second, first)).lines == []
    assert told in evolution_since(before, joined(*keys)).lines[1]


def test_event_time_that_goes_on_under_a_changed_strategy_is_told() -> None:
    """Records before it are late, and nothing else says why windows drop them."""

    def read(field: str) -> JobGraph:
        env = StreamExecutionEnvironment.get_execution_environment()
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(field)
        kind = Types.ROW_NAMED(["seconds", "millis"], [Types.LONG(), Types.LONG()])
        env.from_source(CollectionSource([], kind), strategy, "times").uid("times")
        return env.get_job_graph()

    def taken(watermark: int | None) -> CheckpointMetadata:
        program = operator_program(read("millis"), "times")
        subtasks = (SubtaskState(0, watermark=watermark),)
        return metadata(7, OperatorState("times", "times", 1, 8, subtasks, {}, program=program))

    def said(watermark: int | None, field: str) -> list[str]:
        return [line for line in evolution_since(taken(watermark), read(field)).remarks if "goes on from" in line]

    (line,) = said(1_700_000_000_000, "seconds")
    assert line.startswith(
        "event time of 'times' goes on from 2023-11-14 22:13:20 UTC, under the new watermark strategy"
    )
    assert "goes on from 1700000000000000000 ms" in said(1_700_000_000_000_000_000, "seconds")[0]
    assert said(1_700_000_000_000, "millis") == said(None, "seconds") == []


def test_a_dropped_uid_is_told_and_what_takes_its_place_starts_empty() -> None:
    before, now = taken_by(program()), program("sums")
    refused = evolution_since(before, now)
    assert of(refused) == {
        **KEPT,
        "sums": (Change.ADDED, StateOutcome.EMPTY),
        "totals": (Change.REMOVED, StateOutcome.REFUSED),
    }
    assert [o.uid for o in refused.refused] == ["totals"]
    assert refused.lines[0].endswith("1 added, 1 removed")
    assert "operator 'sums' added; starts empty" in refused.lines
    for allowed in (True, ["totals"]):
        assert evolution_since(before, now, allow_non_restored_state=allowed).lines[-1] == (
            "operator 'totals' removed; its state is dropped (16 rows)"
        )
    assert evolution_since(before, now, allow_non_restored_state=["other"]).refused == refused.refused


def test_a_sink_with_other_settings_is_not_said_to_start_empty() -> None:
    """It sounded as if its table did."""

    def written(compression: str) -> JobGraph:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([("a", 1)], PAIR).uid("pairs").sink_to(ParquetSink("t", compression=compression)).uid(
            "table"
        )
        return env.get_job_graph()

    before = metadata(
        7, OperatorState("table", "table", 1, 8, (), None, program=operator_program(written("zstd"), "table"))
    )
    changed = of(evolution_since(before, written("gzip")))["table"]
    assert changed == (Change.CHANGED, StateOutcome.NONE)


def test_a_uid_that_is_allowed_for_nothing_is_told() -> None:
    evolution = evolution_since(taken_by(program()), program(), allow_non_restored_state=["total"])
    assert evolution.lines == [
        "allow_non_restored_state names 'total', but checkpoint 7 of job 'flights' has no such state to leave behind"
    ]


def test_text_is_no_list_of_uids() -> None:
    with pytest.raises(ConfigurationError, match="'totals' is text; give true, false or a list of uids"):
        evolution_since(taken_by(program()), program("sums"), allow_non_restored_state="totals")


def test_what_an_older_release_took_is_unknown() -> None:
    evolution = evolution_since(taken_by(program(), told=False), program(seconds=120))
    assert {o.change for o in evolution.operators} == {Change.UNKNOWN}
    (line,) = evolution.lines
    assert "does not record what 'pairs', 'totals' did" in line and "is unknown" in line


def test_bytecode_of_another_python_is_not_compared() -> None:
    def older(state: OperatorState) -> OperatorState:
        assert state.program is not None
        return replace(state, program=replace(state.program, python="3.1"))

    taken = taken_by(program())
    taken = replace(taken, operators=tuple(map(older, taken.operators)))
    assert evolution_since(taken, program(reduce=lambda a, b: a)).lines == []
    assert "assigner was" in evolution_since(taken, program(seconds=5)).lines[1]


def test_a_setting_of_another_release_is_not_compared() -> None:
    state = taken_by(program()).operators[1]
    assert state.program is not None
    settings = {name: text for name, text in state.program.settings.items() if name != "allowed lateness"}
    other = replace(state, program=replace(state.program, settings={**settings, "of tomorrow": "1"}))
    assert evolution_since(metadata(7, taken_by(program()).operators[0], other), program()).lines == []


class Unspeakable:
    """A function whose description fails, or would take forever."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __call__(self, a: Any, b: Any) -> Any:
        return a


class Raises:
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("table", [Raises(), list(range(300_000))], ids=["raises", "huge"])
def test_what_cannot_be_described_is_not_compared(table: Any) -> None:
    graph = program(reduce=Unspeakable(table))
    for now in (graph, program(reduce=Unspeakable(None))):
        evolution = evolution_since(taken_by(graph), now)
        assert evolution.lines == []
        assert [each.uid for each in evolution.operators if not each.compared] == ["totals"]
