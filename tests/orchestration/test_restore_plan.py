"""What the plan of a restore says is what the restore does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.evolution import Change, StateOutcome
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    WindowFunction,
)
from dagster_flinkpy.datastream.connectors import FileSource, StreamFormat
from dagster_flinkpy.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import FlinkPyError
from dagster_flinkpy.orchestration.program import RestoreForecast, plan_restore
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, FolderSink, environment, events

RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(12)]
OLD = Types.ROW_NAMED(["n", "name"], [Types.INT(), Types.STRING()])
NEW = Types.ROW_NAMED(["n", "since"], [Types.LONG(), Types.LONG()])


class Keep(KeyedProcessFunction):
    """Has a state for each record of a key.

    Args:
        descriptor: The state.
        value: What is stored.
        error: What `open` raises.
    """

    def __init__(self, descriptor: StateDescriptor, value: Any = None, error: str = "") -> None:
        self._descriptor, self._value, self._error = descriptor, value, error

    def open(self, runtime_context: RuntimeContext) -> None:
        if self._error:
            raise OSError(self._error)
        kinds: dict[type, Callable[[Any], Any]] = {
            ValueStateDescriptor: runtime_context.get_state,
            ListStateDescriptor: runtime_context.get_list_state,
            MapStateDescriptor: runtime_context.get_map_state,
        }
        self._state: Any = kinds[type(self._descriptor)](self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        if isinstance(self._descriptor, ListStateDescriptor):
            self._state.add(self._value)
        elif isinstance(self._descriptor, MapStateDescriptor):
            self._state.put(value.value, self._value)
        else:
            self._state.update(self._value)


class Nothing(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        return []


class Numbers(MapFunction, CheckpointedFunction):
    """Keeps what it has seen in operator state.

    Args:
        of: The type of an element.
        reads: Whether it reads the state when it is initialized.
    """

    def __init__(self, of: TypeInformation, reads: bool) -> None:
        self._of, self._reads = of, reads

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self._seen = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", self._of))
        if self._reads:
            list(self._seen.get())

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._seen.update([1, 2])

    def map(self, value: Any) -> Any:
        return value


Program = Callable[[StreamExecutionEnvironment, Path], None]


def keep(
    descriptor: StateDescriptor, value: Any = None, *, error: str = "", uid: str = "keep", key: str = "key"
) -> Program:
    def build(env: StreamExecutionEnvironment, folder: Path) -> None:
        events(env, RECORDS, per_epoch=4).key_by(key).process(Keep(descriptor, value, error)).uid(uid)

    return build


def numbers(of: TypeInformation, *, reads: bool = False) -> Program:
    def build(env: StreamExecutionEnvironment, folder: Path) -> None:
        events(env, RECORDS, per_epoch=4).map(Numbers(of, reads), EVENT).uid("keep")

    return build


def windows(finish: Callable[[Any], Any]) -> Program:
    def build(env: StreamExecutionEnvironment, folder: Path) -> None:
        keyed = events(env, RECORDS, per_epoch=4).key_by("key").window(TumblingEventTimeWindows(100_000))
        finish(keyed).uid("keep")

    return build


def reads(folder_of: str | None, sink: str = "sink") -> Program:
    def build(env: StreamExecutionEnvironment, folder: Path) -> None:
        if folder_of is None:
            stream = events(env, RECORDS, per_epoch=4)
        else:
            (folder / folder_of).mkdir(exist_ok=True)
            source = FileSource.for_record_stream_format(
                StreamFormat.text_line_format(), str(folder / folder_of)
            ).build()
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "events").uid("events")
            stream = stream.map(lambda line: (line, 0, 0), EVENT).uid("parsed")
        stream.sink_to(FolderSink(folder / sink)).uid("sink")

    return build


LONGS, TEXTS = ListStateDescriptor("s", Types.LONG()), ListStateDescriptor("s", Types.STRING())
INTS = ValueStateDescriptor("s", Types.INT())
WITH_TTL = ValueStateDescriptor("s", Types.INT())
WITH_TTL.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
BY_LONG, BY_TEXT = (MapStateDescriptor("s", kind, Types.LONG()) for kind in (Types.LONG(), Types.STRING()))

CASES: dict[str, tuple[Program, Program, str]] = {
    "the type of a list": (keep(LONGS, 1), keep(TEXTS, "a"), "was LIST of Types.LIST(Types.LONG())"),
    "the key of a map": (keep(BY_LONG, 1), keep(BY_TEXT, 1), "by Types.STRING()"),
    "another kind of state": (keep(LONGS, 1), keep(ValueStateDescriptor("s", Types.LONG()), 1), "as VALUE"),
    "a time to live": (keep(INTS, 1), keep(WITH_TTL, 1), "time to live"),
    "the type of operator state": (numbers(Types.LONG()), numbers(Types.STRING()), "operator state"),
    "keys of another type": (keep(INTS, 1), keep(INTS, 1, key="value"), "the key of state"),
    "a uid": (keep(INTS, 1), keep(INTS, 1, uid="other"), "keep"),
    "another kind of source": (reads(None), reads("lines"), "source"),
    "what windows hold": (
        windows(lambda w: w.reduce(lambda a, b: a)),
        windows(lambda w: w.apply(Nothing(), EVENT)),
        "state",
    ),
}
FITS: dict[str, tuple[Program, Program, list[str]]] = {
    "nothing": (keep(INTS, 1), keep(INTS, 1), []),
    "a wider number": (
        keep(INTS, 1),
        keep(ValueStateDescriptor("s", Types.LONG()), 1),
        ["state 's': its value was Types.INT(), is now Types.LONG()"],
    ),
    "fields": (
        keep(ValueStateDescriptor("s", OLD), (1, "a")),
        keep(ValueStateDescriptor("s", NEW), (1, 2)),
        [
            "state 's': field 'since' is added, null in old values, field 'name' is removed, "
            "field 'n' was Types.INT(), is now Types.LONG()"
        ],
    ),
    "the order of fields": (
        keep(ValueStateDescriptor("s", OLD), (1, "a")),
        keep(ValueStateDescriptor("s", Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.INT()])), ("a", 1)),
        ["state 's': its fields are in another order"],
    ),
    "operator state": (
        numbers(Types.INT()),
        numbers(Types.LONG()),
        ["operator state 'seen': its value was Types.INT(), is now Types.LONG()"],
    ),
    "a state of another name": (
        keep(INTS, 1),
        keep(ValueStateDescriptor("t", Types.INT()), 1),
        ["state 's' is not used: its 4 rows stay"],
    ),
}


def ran(program: Program, folder: Path, **setting: Any) -> str | None:
    """Runs a program for an epoch. Returns why it could not."""
    env = environment(2)
    program(env, folder)
    try:
        with HarnessAttempt(env.get_job_graph(), folder, **setting) as attempt:
            attempt.run_epoch()
    except FlinkPyError as error:
        return str(error)
    return None


def planned(program: Program, folder: Path, **setting: Any) -> RestoreForecast:
    env = environment(2)
    program(env, folder)
    return plan_restore(env, open_checkpoint(StorageLocation(str(folder / "job"))), **setting)


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_refused_in_the_same_words(case: str, tmp_path: Path) -> None:
    before, after, names = CASES[case]
    assert ran(before, tmp_path) is None
    found = planned(after, tmp_path)
    assert found.problem is not None and names in found.problem
    error = ran(after, tmp_path)
    assert error is not None and found.problem in error
    said = {each.state for each in found.evolution.operators}
    assert said & {StateOutcome.INCOMPATIBLE, StateOutcome.REFUSED}


@pytest.mark.parametrize("case", FITS)
def test_what_fits_is_named(case: str, tmp_path: Path) -> None:
    before, after, changes = FITS[case]
    assert ran(before, tmp_path) is None
    found = planned(after, tmp_path)
    assert found.problem is None and not found.unknown
    (own,) = (each for each in found.evolution.operators if each.uid == "keep")
    assert own.state is StateOutcome.KEPT
    assert [said for said in own.details if "state '" in said] == changes
    assert own.change is (Change.CHANGED if changes else Change.UNCHANGED)
    assert ran(after, tmp_path) is None


def test_a_max_parallelism_that_was_changed_is_refused(tmp_path: Path) -> None:
    def more(env: StreamExecutionEnvironment, folder: Path) -> None:
        keyed = events(env, RECORDS, per_epoch=4).key_by("key")
        keyed.process(Keep(INTS, 1)).uid("keep").set_max_parallelism(64)

    assert ran(keep(INTS, 1), tmp_path) is None
    problem = planned(more, tmp_path).problem
    assert problem is not None and "max parallelism" in problem
    assert problem == ran(more, tmp_path)


def test_a_function_that_does_not_open_here_is_unknown(tmp_path: Path) -> None:
    assert ran(keep(INTS, 1), tmp_path) is None
    found = planned(keep(TEXTS, "a", error="no such server"), tmp_path)
    assert found.problem is None
    assert ["no such server" in each for each in found.unknown] == [True]


def test_a_plan_opens_functions_of_its_own(tmp_path: Path) -> None:
    """Those of the program are to be sent to workers after it."""
    assert ran(keep(INTS, 1), tmp_path) is None
    env = environment(2)
    keep(INTS, 1)(env, tmp_path)
    assert plan_restore(env, open_checkpoint(StorageLocation(str(tmp_path / "job")))).problem is None
    with HarnessAttempt(env.get_job_graph(), tmp_path) as attempt:
        attempt.run_epoch()


@pytest.mark.parametrize("allowed", [False, True])
def test_pickled_operator_state_is_read_only_if_the_user_says_so(allowed: bool, tmp_path: Path) -> None:
    """The functions of a user may read it when they are initialized."""
    assert ran(numbers(Types.PICKLED_BYTE_ARRAY(), reads=True), tmp_path) is None
    with pytest.MonkeyPatch.context() as patch:
        read = list[Any]()
        kind = type(Types.PICKLED_BYTE_ARRAY())
        patch.setattr(kind, "from_arrow", lambda self, column: read.append(column) or [None] * len(column))
        found = planned(numbers(Types.PICKLED_BYTE_ARRAY(), reads=True), tmp_path, allow_pickled_state=allowed)
    assert found.problem is None
    assert found.unknown == (() if allowed else ("operator 'keep': operator state 'seen' is pickled",))
    assert bool(read) is allowed
