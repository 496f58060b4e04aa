"""A savepoint of this library becomes one of Flink."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import TupleTypeInfo, TypeInformation
from dagster_flinkpy.datastream import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from dagster_flinkpy.datastream.state import MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.header import StateHeader
from dagster_flinkpy.flink_savepoint.java_encoders import encoder_of, key_serializer
from dagster_flinkpy.flink_savepoint.python_coders import coder_of, encoder_of_type
from dagster_flinkpy.flink_savepoint.savepoint import METADATA
from dagster_flinkpy.flink_savepoint.serializers import decoder_of
from dagster_flinkpy.key_hashes import assign_to_key_group
from dagster_flinkpy.orchestration.flink_import import export_savepoint
from dagster_flinkpy.orchestration.flink_job import flink_job
from dagster_flinkpy.state_processor import FlinkSavepointReader, read_savepoint, write_savepoint
from dagster_flinkpy.state_processor.flink_export import ExportReport, ExportTarget, export_to_flink
from dagster_flinkpy.state_processor.sql import query_state
from dagster_flinkpy.storage import StorageLocation
from tests.flink_savepoint.corpus import DECLARED, SAVEPOINTS, program
from tests.flink_savepoint.test_import import IMPORTED, imported, rows_of
from tests.runtime.harness import HarnessAttempt


def exported(name: str, folder: Path, **options: Any) -> tuple[ExportReport, FlinkSavepointReader]:
    """Imports a savepoint of Flink, and exports it again."""
    report, _ = imported(name, folder)
    target = StorageLocation(str(folder / "flink"))
    back = export_savepoint(StorageLocation(report.url), program(name, folder), target, **options)
    found = read_savepoint(back.url, DECLARED[name])
    assert isinstance(found, FlinkSavepointReader)
    return back, found


def headers(reader: FlinkSavepointReader, uid: str) -> dict[str, StateHeader]:
    """Returns what the files of an operator say of its states, by name."""
    operator = reader.metadata.operator(uid)
    assert operator is not None
    found = {}
    for subtask in operator.subtasks:
        for file in (reader.savepoint.keyed_file(operator, subtask), reader.savepoint.operator_file(operator, subtask)):
            found |= {each.name: each for each in file.header.states} if file is not None else {}
    return found


@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_savepoint_is_exported_as_it_was(name: str, tmp_path: Path) -> None:
    report, found = exported(name, tmp_path)
    before = read_savepoint(str(SAVEPOINTS / name / "savepoint"), DECLARED[name])
    assert isinstance(before, FlinkSavepointReader)
    assert report.exported
    for each in report.exported:
        if each.name == "position":
            continue
        mine, theirs = (rows_of(reader, each.uid, each.name) for reader in (found, before))
        assert mine == theirs
        assert headers(found, each.uid)[each.flink_name] == headers(before, each.uid)[each.flink_name]


TEXT, LONG = st.text(max_size=200), st.integers(-(1 << 63), (1 << 63) - 1)
DECIMAL = st.decimals(allow_nan=False, allow_infinity=False)
MILLIS = st.integers(-60_000_000_000_000, 200_000_000_000_000)
TIMESTAMP = MILLIS.map(lambda millis: datetime(1970, 1, 1) + timedelta(milliseconds=millis))
TIME = st.integers(0, 86_399_999).map(lambda millis: (datetime(1970, 1, 1) + timedelta(milliseconds=millis)).time())
Kind = tuple[TypeInformation, st.SearchStrategy[Any]]
BASIC: list[Kind] = [
    (Types.STRING(), TEXT),
    (Types.LONG(), LONG),
    (Types.INT(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (Types.SHORT(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (Types.BOOLEAN(), st.booleans()),
    (Types.DOUBLE(), st.floats(allow_nan=False)),
    (Types.BIG_DEC(), DECIMAL),
    (Types.SQL_DATE(), st.dates()),
    (Types.SQL_TIME(), TIME),
    (Types.SQL_TIMESTAMP(), TIMESTAMP),
    (Types.INSTANT(), st.builds(Instant, st.integers(-(1 << 40), 1 << 40), st.integers(0, 999_999_999))),
]


def nested(
    kinds: list[tuple[TypeInformation, st.SearchStrategy[Any]]],
) -> tuple[TypeInformation, st.SearchStrategy[Any]]:
    """Returns a row, with nulls, of a tuple of these types and of each of them."""
    types, values = [kind for kind, _ in kinds], [value for _, value in kinds]
    row = st.tuples(st.tuples(*values), *(st.none() | value for value in values)).map(lambda fields: Row(*fields))
    return Types.ROW([Types.TUPLE(types), *types]), row


PYTHON_ONLY = [
    (Types.LIST(Types.LONG()), st.lists(st.none() | LONG, max_size=5)),
    (Types.PRIMITIVE_ARRAY(Types.INT()), st.lists(st.integers(0, 9), max_size=5)),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), st.binary(max_size=5)),
    (Types.MAP(Types.STRING(), Types.LONG()), st.dictionaries(TEXT, st.none() | LONG, max_size=5)),
]


@given(st.data())
def test_what_is_written_as_python_does_is_read_again(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from([*BASIC, *PYTHON_ONLY, nested([*BASIC, *PYTHON_ONLY])]))
    value = data.draw(values)
    written = encoder_of_type(kind)(value)
    assert coder_of(kind)(written, 0) == (value, len(written))


@given(st.data())
def test_a_key_that_is_written_as_java_does_is_read_again(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from([*BASIC, nested(BASIC)]))
    serializer, value = key_serializer(kind), data.draw(values)
    written = encoder_of(serializer)(value)
    assert decoder_of(serializer)(written, 0) == (value, len(written))


def test_state_that_flink_cannot_have_is_an_error_that_names_all_of_it(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_collection([1, 2], Types.LONG()).uid("numbers")
    numbers.key_by(lambda n: n, Types.LONG()).sum().uid("sum").print()
    numbers.key_by(lambda n: n, Types.LONG()).process(Kept(), Types.LONG()).uid("kept").print()
    with HarnessAttempt(flink_job(env, "job").graph, tmp_path / "job", live=True) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(tmp_path / "savepoint"))
    target = tmp_path / "flink"
    with pytest.raises(UnsupportedSavepointError) as caught:
        export_savepoint(StorageLocation(savepoint), env, StorageLocation(str(target)))
    for problem in (
        "operator 'numbers' is a CollectionSource; positions of a FileSource",
        "operator 'sum', state '_op_state': Flink gives the state of sum()",
        "operator 'kept', state 'kept': a pickled value inside of another one",
    ):
        assert problem in str(caught.value)
    assert not target.exists()
    report = export_savepoint(
        StorageLocation(savepoint), env, StorageLocation(str(target)), allow_non_restored_state=True
    )
    assert report.exported == ()
    assert len(report.left_behind) == 3


@pytest.mark.parametrize(
    "kind", [Types.BOOLEAN(), Types.BIG_DEC(), Types.LONG(), Types.STRING(), Types.TUPLE([Types.BOOLEAN()])], ids=str
)
def test_null_where_flink_has_none_is_an_error(kind: TypeInformation, tmp_path: Path) -> None:
    value = (None,) if isinstance(kind, TupleTypeInfo) else None
    rows = pa.table({"key": ["a"], "at": ["b"], "value": kind.to_arrow([value])})
    writer = write_savepoint().with_keyed_state(
        "op", MapStateDescriptor("map", Types.STRING(), kind), rows, key="key", map_key="at", value="value"
    )
    reader = read_savepoint(writer.write(str(tmp_path / "savepoint")))
    target = StorageLocation(str(tmp_path / "flink"))
    with pytest.raises(UnsupportedSavepointError, match="operator 'op', state 'map': a value cannot be written"):
        export_to_flink(reader, target, [ExportTarget("op")])
    assert target.open().head(METADATA) is None


KEYS: list[tuple[TypeInformation, list[Any]]] = [
    (Types.ROW_NAMED(["b", "a"], [Types.LONG(), Types.STRING()]), [Row(7, "x")]),
    (Types.ROW([Types.TUPLE([Types.LONG()])]), [Row((7,))]),
    (Types.TUPLE([Types.ROW([Types.LONG(), Types.LONG()])]), [(Row(7, 8),)]),
    (Types.DOUBLE(), [float("nan"), 0.0, -0.0]),
    (Types.BIG_DEC(), [Decimal("1.1"), Decimal("1.10")]),
]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=str)
def test_a_key_is_in_the_group_of_flinks_hash_and_is_found(
    kind: TypeInformation, keys: list[Any], tmp_path: Path
) -> None:
    rows = pa.table({"key": kind.to_arrow(keys), "value": list(range(len(keys)))})
    state = ValueStateDescriptor("one", Types.LONG())
    writer = write_savepoint().with_keyed_state("op", state, rows, key="key", value="value", key_type=kind)
    target = StorageLocation(str(tmp_path / "flink"))
    export_to_flink(read_savepoint(writer.write(str(tmp_path / "savepoint"))), target, [ExportTarget("op")])
    found = read_savepoint(target.url, {"op": [state]}).state("op", "one")
    for value, key in enumerate(keys):
        (row,) = found.for_keys([key]).to_pylist()
        assert (row["value"], row["key_group"]) == (value, assign_to_key_group(Row(key), 128))


class Kept(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept", Types.TUPLE([Types.PICKLED_BYTE_ARRAY()])))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> list[int]:
        self.kept.update((value,))
        return [value]


RULES = MapStateDescriptor("rules", Types.LONG(), Types.STRING())


class TwoOfOneName(KeyedBroadcastProcessFunction):
    """Has a keyed state with the name of its broadcast state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._own = runtime_context.get_state(ValueStateDescriptor("rules", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> list[int]:
        self._own.update(value)
        return []

    def process_broadcast_element(self, value: int, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(value, "rule")


def test_states_of_one_name_are_both_exported(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    one, other = (
        env.from_collection([1, 2, 3], Types.LONG()).uid("one"),
        env.from_collection([7], Types.LONG()).uid("other"),
    )
    keyed = one.key_by(lambda n: n, Types.LONG()).connect(other.broadcast(RULES))
    keyed.process(TwoOfOneName(), Types.LONG()).uid("twice").print()
    with HarnessAttempt(flink_job(env, "job").graph, tmp_path / "job", live=True) as attempt:
        attempt.run_epoch()
        savepoint = attempt.savepoint(str(tmp_path / "savepoint"))
    stored = read_savepoint(savepoint)
    found = {state.kind: state.to_arrow().num_rows for state in stored.states if state.name == "rules"}
    assert found == {"VALUE": 3, "BROADCAST": 1}
    assert stored.state("twice", "rules").kind == "VALUE"
    assert query_state(stored, "select count(*) n from twice.rules").to_pylist() == [{"n": 3}]
    target = StorageLocation(str(tmp_path / "flink"))
    report = export_savepoint(StorageLocation(savepoint), env, target, allow_non_restored_state=["one", "other"])
    assert sorted(state.rows for state in report.exported if state.name == "rules") == [1, 3]
