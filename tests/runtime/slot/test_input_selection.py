"""Functions of several inputs that say what is read next, also while checkpoints are taken."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.datastream import (
    CheckpointedFunction,
    CheckpointingMode,
    CoProcessFunction,
    InputSelectable,
    InputSelection,
    KeyedCoProcessFunction,
    KeyedMultipleInputProcessFunction,
    ProcessAllWindowFunction,
)
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ListStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.window import CountTumblingWindowAssigner
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.runtime.exchange import result_partition
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.wire import Kind
from dagster_flinkpy.runtime.slot import deployment
from dagster_flinkpy.runtime.task.selected_inputs import SelectedInputs, Waiting
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.pairs import pairs
from tests.ranges import SIZE, Ranges
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment, events
from tests.runtime.slot.test_live_failures import restarts

COUNT = 30
LEFT = [(f"k{i % 4}", i, i) for i in range(COUNT)]
RIGHT = [(f"k{i % 4}", i, 100 + i) for i in range(COUNT)]


class Alternates(CoProcessFunction, InputSelectable, CheckpointedFunction):
    """Reads a record of the first input, then one of the second, and so on."""

    def __init__(self, raises_at: int | None = None) -> None:
        self._raises_at = raises_at

    def initialize_state(self, context: Any) -> None:
        self._state = context.get_operator_state_store().get_list_state(ListStateDescriptor("turn", Types.LONG()))
        self._turn = next(iter(self._state.get()), 0)

    def open(self, runtime_context: Any) -> None:
        self._first = runtime_context.get_attempt_number() == 0

    def next_selection(self) -> InputSelection:
        return (InputSelection.FIRST, InputSelection.SECOND)[self._turn % 2]

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value.value == self._raises_at and self._first:
            raise ValueError("boom")
        self._turn += 1
        yield value.value

    process_element2 = process_element1

    def snapshot_state(self, context: Any) -> None:
        self._state.update([self._turn])


class FirstThenSecond(Alternates):
    """Reads all of the first input before the second one."""

    def next_selection(self) -> InputSelection:
        return InputSelection.FIRST if self._turn < COUNT else InputSelection.ALL


def program(function: Any, *, per_epoch: tuple[int, int] = (7, 7), far: bool = True) -> JobGraph:
    env = environment()
    left = events(env, LEFT, uid="left", per_epoch=per_epoch[0])
    right = events(env, RIGHT, uid="right", per_epoch=per_epoch[1])
    if far:
        left, right = left.rebalance(), right.rebalance()
    return collect_graph(left.connect(right).process(function, Types.LONG()).uid("selects"))


def values(graph: JobGraph, folder: Path, how: dict[str, Any], **checkpointing: Any) -> list[int]:
    """Runs a job to its end, and returns what its function has emitted."""
    config = {
        "checkpointing": CoordinatorConfig(interval=timedelta(milliseconds=10), **checkpointing),
        "failover": restarts(5),
    }
    found: list[int] = []
    with HarnessAttempt(graph, folder, live=True, threads=True, config=config) as attempt:
        while not attempt.finished:
            for _ in attempt.run_epochs(**{"limit": 1, **how}):
                found += collected(graph, attempt.collected)
    return found


ALTERNATING = [value for pair in zip(range(COUNT), range(100, 100 + COUNT), strict=True) for value in pair]
IN_ORDER = [*range(COUNT), *range(100, 100 + COUNT)]
MODES = [
    {},
    {"unaligned": True},
    {"unaligned": True, "aligned_timeout": timedelta(milliseconds=1)},
    {"mode": CheckpointingMode.AT_LEAST_ONCE},
]


@pytest.mark.parametrize(
    ("mode", "how", "per_epoch"),
    pairs(MODES, [{}, {"limit": 3}, {"periodic": True}], [(7, 7), (4, 11), (11, 4)]),
    ids=str,
)
def test_a_function_reads_its_inputs_as_it_selects_them(
    tmp_path: Path, mode: dict[str, Any], how: dict[str, Any], per_epoch: tuple[int, int]
) -> None:
    assert values(program(Alternates(), per_epoch=per_epoch), tmp_path, how, **mode) == ALTERNATING


@pytest.mark.parametrize("far", [True, False])
def test_all_of_the_first_input_may_come_first(tmp_path: Path, far: bool) -> None:
    assert values(program(FirstThenSecond(), far=far), tmp_path, {}) == IN_ORDER


@pytest.mark.short
@pytest.mark.parametrize("mode", MODES[:3], ids=str)
@pytest.mark.parametrize("raises_at", [3, 17, 111])
def test_what_was_not_selected_is_there_after_a_failure(tmp_path: Path, mode: dict[str, Any], raises_at: int) -> None:
    assert values(program(Alternates(raises_at), per_epoch=(4, 11)), tmp_path, {}, **mode) == ALTERNATING


def test_the_next_run_goes_on_with_what_was_not_selected(tmp_path: Path) -> None:
    graph, found, finished = program(FirstThenSecond(), per_epoch=(3, 9)), list[int](), False
    while not finished:
        with HarnessAttempt(graph, tmp_path, live=True) as attempt:
            attempt.run_epoch()
            found += collected(graph, attempt.collected)
            finished = attempt.finished
    assert found == IN_ORDER


class ByKey(KeyedCoProcessFunction, InputSelectable):
    """Reads two records of the first input for each one of the second."""

    read = 0

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def next_selection(self) -> InputSelection:
        return InputSelection.SECOND if self.read % 3 == 2 else InputSelection.FIRST

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.read += 1
        self._count.update((self._count.value() or 0) + 1)
        yield value.value * 1000 + self._count.value()

    process_element2 = process_element1


def by_key() -> JobGraph:
    env = environment(2)
    left, right = events(env, LEFT, uid="left", per_epoch=4), events(env, RIGHT, uid="right", per_epoch=9)
    joined = left.key_by("key").connect(right.key_by("key")).process(ByKey(), Types.LONG()).uid("selects")
    return collect_graph(joined)


@pytest.mark.parametrize("widths", [(2,), (2, 3, 1, 4)], ids=str)
def test_records_that_wait_keep_their_keys_at_any_parallelism(tmp_path: Path, widths: tuple[int, ...]) -> None:
    graph, found, finished, parallelism = by_key(), list[int](), False, itertools.cycle(widths)
    while not finished:
        with HarnessAttempt(graph, tmp_path, live=True, parallelism=next(parallelism)) as attempt:
            attempt.run_epoch()
            found += collected(attempt.graph, attempt.collected)
            finished = attempt.finished
    assert sorted(value // 1000 for value in found) == IN_ORDER
    counts = sorted(value % 1000 for value in found)
    keys = [len([1 for key, _, _ in (*LEFT, *RIGHT) if key == f"k{i}"]) for i in range(4)]
    assert counts == sorted(number for most in keys for number in range(1, most + 1))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=30), st.data())
def test_records_come_as_they_are_selected_in_the_order_of_their_input(
    given_: list[tuple[int, int]], data: st.DataObject
) -> None:
    selections: list[InputSelection] = [InputSelection.ALL]

    class Draws(InputSelectable):
        def next_selection(self) -> InputSelection:
            selections.append(InputSelection(*data.draw(st.sets(st.integers(1, 3)))))
            return selections[-1]

    operator: Any = SimpleNamespace(
        call=lambda what, call: call(), context=SimpleNamespace(vertex=SimpleNamespace(uid="f"))
    )
    channels = {(i, 0): i for i in range(3)}
    inputs = SelectedInputs(operator, Draws(), channels, dict.fromkeys(channels, ("source",)), JobGraph((), ()))
    put: dict[int, list[int]] = {0: [], 1: [], 2: []}
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def process(each: Waiting) -> None:
        assert selections[-1].is_input_selected(each.channel[0] + 1)
        got[each.channel[0]] += each.value.values
        inputs.work_off(process)  # as a timer would: nothing happens

    for number, (i, size) in enumerate(given_):
        values_ = [10 * number + each for each in range(size)]
        batch = StreamBatch(Types.LONG(), np.zeros(size, np.int64), column=pa.array(values_, pa.int64()))
        put[i] += values_
        inputs.put(i, Waiting((i, 0), Kind.BUFFER, batch, 0))
        inputs.work_off(process)
    for each in inputs.left():
        got[each.channel[0]] += each.value.slice(each.read, len(each.value)).values
    assert got == put


@pytest.mark.parametrize(
    ("common", "hold_up"),
    [
        ("nothing", True),
        ("a source", False),
        ("a source far before", False),
        ("a join", False),
        ("a sink", False),
    ],
)
def test_inputs_that_are_not_selected_hold_up_others_only_if_they_have_nothing_in_common(
    common: str, hold_up: bool
) -> None:
    env = environment()
    left = events(env, LEFT, uid="left")
    right = left if common == "a source" else events(env, RIGHT, uid="right")
    if common == "a source far before":
        right = right.union(left.map(lambda each: each, left.get_type()).uid("again"))
    if common == "a join":
        left.connect(right).process(Alternates(), Types.LONG()).uid("join")
    if common == "a sink":
        left.union(right).print().uid("all")
    graph = collect_graph(left.connect(right).process(Alternates(), Types.LONG()).uid("selects"))
    operator: Any = SimpleNamespace(
        call=lambda what, call: call(), context=SimpleNamespace(vertex=SimpleNamespace(uid="selects"))
    )
    channels = {(edge.id, 0): edge.input_index for edge in graph.inputs("selects")}
    inputs = SelectedInputs(operator, Wrong(InputSelection.FIRST), channels, dict.fromkeys(channels, ("left",)), graph)
    inputs.work_off(lambda each: None)
    assert inputs.blocked(open_epoch=False) == {channel for channel, i in channels.items() if hold_up and i == 1}
    assert inputs.blocked(open_epoch=True) == set()  # the sources must read their splits before a barrier can come


class OneOfThree(KeyedMultipleInputProcessFunction, InputSelectable):
    def get_inputs(self) -> Any:
        return [self.each, self.each, self.each]

    def each(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.value

    def next_selection(self) -> InputSelection:
        return InputSelection(3, 1)


def test_when_all_selected_inputs_have_ended_the_others_are_read(tmp_path: Path) -> None:
    env = environment()
    streams = [events(env, RIGHT, uid=f"s{i}", per_epoch=10).key_by("key") for i in range(3)]
    graph = collect_graph(streams[0].connect(*streams[1:]).process(OneOfThree(), Types.LONG()).uid("selects"))
    assert sorted(values(graph, tmp_path, {})) == sorted(3 * [*range(100, 100 + COUNT)])


class First(CoProcessFunction, InputSelectable):
    def next_selection(self) -> InputSelection:
        return InputSelection.FIRST

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield -value


def test_a_full_output_of_an_input_that_waits_does_not_hold_up_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first source only ends when the second one has asked for its next part, too."""
    monkeypatch.setattr(deployment, "CREDIT", 1)
    monkeypatch.setattr(result_partition, "_FIRST_SIZE", 1)
    env, none = environment(), WatermarkStrategy.no_watermarks()
    sources = [env.from_source(Ranges(tmp_path, 3), none, uid).uid(uid).rebalance() for uid in ("left", "right")]
    graph = collect_graph(sources[0].connect(sources[1]).process(First(), Types.LONG()).uid("selects"))
    found = values(graph, tmp_path / "job", {"periodic": True})
    assert found[: 3 * SIZE] == [*range(3 * SIZE)]
    assert found[3 * SIZE :] == [-n for n in range(3 * SIZE)]


class Wrong(Alternates):
    def __init__(self, selection: Any) -> None:
        self._selection = selection

    def next_selection(self) -> InputSelection:
        selection: InputSelection = self._selection
        return selection


@pytest.mark.parametrize(
    ("selection", "error"),
    [(None, TypeMismatchError), (1, TypeMismatchError), (InputSelection(3), ConfigurationError)],
    ids=str,
)
def test_a_wrong_selection_names_the_operator(tmp_path: Path, selection: Any, error: type[Exception]) -> None:
    attempt = HarnessAttempt(program(Wrong(selection)), tmp_path, live=True)
    with attempt, pytest.raises(error, match=r"next_selection\(\) of operator 'selects' returned"):
        attempt.run_epoch()


@pytest.mark.parametrize("wrong", [0, -1, True, "1"])
def test_inputs_have_numbers_from_one(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="from 1"):
        InputSelection(wrong)


def test_a_selection_is_a_value() -> None:
    assert InputSelection(2, 1) == InputSelection(1, 2) != InputSelection.ALL
    assert repr(InputSelection(2, 1)) == "InputSelection(1, 2)"
    assert InputSelection.ALL.are_all_inputs_selected()
    assert [InputSelection.SECOND.is_input_selected(i) for i in (1, 2)] == [False, True]


def test_a_spark_job_for_each_epoch_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"operator 'selects' selects its inputs, .*execution\.exchange"):
        HarnessAttempt(program(Alternates()), tmp_path)


def test_auto_chooses_tasks_that_live_and_says_why(tmp_path: Path) -> None:
    lines: list[str] = []
    config = JobConfig("job", StorageLocation(str(tmp_path)), exchange=ExchangeOptions(), in_process=True)
    with JobAttempt(program(Alternates()), config, owner="test", on_progress=lines.append) as attempt:
        attempt.run_epoch()
    assert any(line.endswith("because operator 'selects' selects its inputs") for line in lines)


class Windowed(ProcessAllWindowFunction, InputSelectable):
    def next_selection(self) -> InputSelection:
        raise AssertionError("it is refused")

    def process(self, context: Any, elements: Any) -> Iterable[Any]:
        yield from elements


def test_a_function_without_inputs_to_select_is_refused_when_it_opens(tmp_path: Path) -> None:
    stream = events(environment(), LEFT).window_all(CountTumblingWindowAssigner(2))
    attempt = HarnessAttempt(collect_graph(stream.process(Windowed(), Types.LONG()).uid("windowed")), tmp_path)
    with attempt, pytest.raises(ConfigurationError, match="operator 'windowed' has no inputs to select"):
        attempt.run_epoch()
