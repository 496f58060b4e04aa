from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import CorruptStateError, StateSchemaError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.reader import read_rows, read_table
from dagster_flinkpy.state.schema_evolution import can_evolve, evolve, read_alike
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.state.conftest import MakeBackend, touch

INT, LONG, STRING = Types.INT(), Types.LONG(), Types.STRING()


def named(**fields: TypeInformation) -> TypeInformation:
    return Types.ROW_NAMED(list(fields), list(fields.values()))


EVOLVING: list[tuple[TypeInformation, TypeInformation, list[Any], list[Any]]] = [
    (INT, LONG, [1, None, -(2**31)], [1, None, -(2**31)]),
    (Types.BYTE(), INT, [1, None], [1, None]),
    (Types.FLOAT(), Types.DOUBLE(), [0.5, None], [0.5, None]),
    (Types.DECIMAL(3, 1), Types.DECIMAL(5, 2), [Decimal("1.5"), None], [Decimal("1.50"), None]),
    (Types.DECIMAL(3, 2), Types.BIG_DEC(), [Decimal("1.5"), None], [Decimal("1.50"), None]),
    (named(a=INT), named(a=INT, b=STRING), [{"a": 1}, None], [{"a": 1, "b": None}, None]),
    (named(a=INT, b=STRING), named(b=STRING), [{"a": 1, "b": "x"}, None], [{"b": "x"}, None]),
    (named(a=INT, b=STRING), named(b=STRING, a=LONG), [{"a": 1, "b": "x"}], [{"b": "x", "a": 1}]),
    (
        named(a=named(x=INT, y=INT), b=INT),
        named(a=named(y=LONG, z=STRING), b=INT),
        [{"a": {"x": 1, "y": 2}, "b": 3}, {"a": None, "b": 4}],
        [{"a": {"y": 2, "z": None}, "b": 3}, {"a": None, "b": 4}],
    ),
    (Types.TUPLE([INT, STRING]), Types.TUPLE([LONG, STRING]), [(1, "a"), None], [(1, "a"), None]),
    (Types.ROW([INT]), Types.ROW([LONG]), [(1,)], [(1,)]),
    (Types.LIST(INT), Types.LIST(LONG), [[1], None, [], [2, None]], [[1], None, [], [2, None]]),
    (
        Types.LIST(named(a=INT)),
        Types.LIST(named(a=LONG, b=INT)),
        [[{"a": 1}], None, [{"a": 2}, None]],
        [[{"a": 1, "b": None}], None, [{"a": 2, "b": None}, None]],
    ),
    (
        Types.MAP(STRING, named(a=INT)),
        Types.MAP(STRING, named(a=LONG)),
        [{"k": {"a": 1}}, None, {}, {"x": {"a": 2}, "y": None}],
        [{"k": {"a": 1}}, None, {}, {"x": {"a": 2}, "y": None}],
    ),
    (Types.MAP(STRING, INT), Types.MAP(STRING, LONG), [{"k": 1}, None], [{"k": 1}, None]),
]


@pytest.mark.parametrize(("stored", "declared", "before", "after"), EVOLVING, ids=str)
def test_values_evolve(stored: Any, declared: Any, before: list[Any], after: list[Any]) -> None:
    assert can_evolve(stored, declared)
    column = stored.to_arrow(before)
    expected = declared.to_arrow(after)
    evolved = evolve(column, (stored, declared))
    assert evolved.type == declared.arrow_type
    assert evolved.equals(expected)
    evolved.validate(full=True)
    around = pa.concat_arrays([column, column, column]).slice(len(column), len(column))
    assert evolve(around, (stored, declared)).equals(expected)
    assert evolve(column.slice(0, 0), (stored, declared)).equals(expected.slice(0, 0))
    assert evolve(column, (stored,)) is column


REFUSED = [
    (Types.BIG_DEC(), Types.DECIMAL(38, 18)),
    (Types.DECIMAL(5, 2), Types.DECIMAL(5, 3)),
    (Types.DECIMAL(5, 2), Types.DECIMAL(4, 2)),
    (Types.DECIMAL(5, 2), Types.DOUBLE()),
    (LONG, INT),
    (INT, Types.DOUBLE()),
    (LONG, STRING),
    (Types.DOUBLE(), Types.FLOAT()),
    (named(a=INT), named(b=INT)),
    (named(a=LONG), named(a=INT)),
    (named(a=INT), named(a=STRING, b=INT)),
    (Types.TUPLE([INT]), Types.TUPLE([INT, INT])),
    (Types.ROW([INT]), Types.ROW([INT, INT])),
    (Types.ROW([INT]), named(f0=LONG, f1=INT)),
    (named(a=INT), Types.TUPLE([INT])),
    (Types.LIST(INT), Types.BASIC_ARRAY(LONG)),
    (Types.LIST(LONG), Types.LIST(INT)),
    (Types.MAP(INT, INT), Types.MAP(LONG, INT)),
    (Types.MAP(INT, LONG), Types.MAP(INT, INT)),
    (Types.LIST(INT), LONG),
    (Types.PICKLED_BYTE_ARRAY(), Types.PRIMITIVE_ARRAY(Types.BYTE())),
]


@pytest.mark.parametrize(("stored", "declared"), REFUSED, ids=str)
def test_all_else_is_refused_and_both_types_are_named(
    stored: TypeInformation, declared: TypeInformation, make_backend: MakeBackend
) -> None:
    assert not can_evolve(stored, declared)
    before = make_backend(key_type=STRING)
    before.get_state(ValueStateDescriptor("state", stored))
    after = make_backend(before.snapshot(), key_type=STRING)
    with pytest.raises(StateSchemaError, match=r"state 'state' was .* and is now declared as") as error:
        after.get_state(ValueStateDescriptor("state", declared))
    assert str(stored) in str(error.value)
    assert str(declared) in str(error.value)


def test_one_name_for_two_states_is_refused(make_backend: MakeBackend) -> None:
    backend = make_backend(key_type=STRING)
    backend.get_state(ValueStateDescriptor("state", INT))
    backend.get_state(ValueStateDescriptor("state", INT))
    for descriptor in (ValueStateDescriptor("state", STRING), MapStateDescriptor("state", STRING, INT)):
        with pytest.raises(StateSchemaError, match=r"declares state 'state' twice: as VALUE of Types.INT\(\) and as "):
            backend.get_state(descriptor)


def test_kind_and_map_key_and_time_to_live_stay(make_backend: MakeBackend) -> None:
    before = make_backend(key_type=STRING)
    before.get_state(MapStateDescriptor("map", INT, INT))
    before.get_state(ValueStateDescriptor("value", Types.LIST(INT)))
    after = make_backend(before.snapshot(), key_type=STRING)
    with pytest.raises(StateSchemaError):
        after.get_state(MapStateDescriptor("map", LONG, INT))
    with pytest.raises(StateSchemaError):
        after.get_state(ListStateDescriptor("value", LONG))


V1, V2, V3 = named(a=INT, b=INT), named(a=LONG), named(a=LONG, b=INT, c=STRING)


def stored_again(snapshot: KeyedSnapshot) -> KeyedSnapshot:
    return KeyedSnapshot.from_json(snapshot.to_json())


def values(snapshot: KeyedSnapshot, store: LocalObjectStore) -> dict[str, Any]:
    rows = read_table(snapshot.tables[0], store).to_pylist()
    return {row["key"]: row["value"] for row in rows}


@pytest.mark.parametrize("inline_below", [0, 20_000])
def test_old_runs_live_on_beside_new_ones(
    make_backend: MakeBackend, store: LocalObjectStore, inline_below: int
) -> None:
    """A field is removed and added again. Values from before the removal do not come back."""
    snapshot: KeyedSnapshot | None = None
    expected: dict[str, Any] = {}
    for generation, (kind, row) in enumerate(
        [(V1, Row(a=1, b=10)), (V2, Row(a=2)), (V3, Row(a=2**40, b=30, c="c")), (V3, Row(a=4, b=40, c="d"))]
    ):
        backend = make_backend(snapshot, key_type=STRING, inline_below=inline_below)
        state = backend.get_state(ValueStateDescriptor("state", kind))
        names = kind.get_field_names()
        expected = {key: {name: old.get(name) for name in names} for key, old in expected.items()}
        keys = [f"old {i}" for i in range(generation)]
        touch(backend, STRING, [*keys, f"old {generation}"])
        for key in keys:
            backend.set_current_key(key)
            assert state.value().as_dict() == expected[key]
        for key in [f"old {generation}", *(f"{generation} {i}" for i in range(3 if generation else 60))]:
            touch(backend, STRING, [key])
            backend.set_current_key(key)
            state.update(row)
            expected[key] = row.as_dict()
        snapshot = stored_again(backend.snapshot())
        assert snapshot.tables[0].value == kind.to_json()
        assert values(snapshot, store) == expected
    assert snapshot is not None
    runs = snapshot.tables[0].runs
    assert [len(run.value_types) for run in runs] == [2, 1, 0, 0]  # all of them are still as they were written
    halves = [snapshot.restrict(KeyGroupRange(0, 7)), snapshot.restrict(KeyGroupRange(8, 15))]
    rescaled = KeyedSnapshot.concat([half for half in halves if half], KeyGroupRange(0, 15))
    assert values(rescaled, store) == expected


def test_compaction_writes_the_new_type(make_backend: MakeBackend, store: LocalObjectStore) -> None:
    snapshot = None
    expected = {}
    for generation, kind in enumerate(itertools.repeat(INT, 3)):
        backend = make_backend(snapshot, key_type=STRING)
        state = backend.get_state(ValueStateDescriptor("state", kind))
        touch(backend, STRING, [f"k{generation}"])
        backend.set_current_key(f"k{generation}")
        state.update(generation)
        expected[f"k{generation}"] = generation
        snapshot = backend.snapshot()
    for generation in range(20):
        backend = make_backend(snapshot, key_type=STRING)
        state = backend.get_state(ValueStateDescriptor("state", LONG))
        for key in [f"k{i}" for i in range(generation + 1)]:
            touch(backend, STRING, [key])
            backend.set_current_key(key)
            state.update(2**40)
            expected[key] = 2**40
        snapshot = stored_again(backend.snapshot())
        assert values(snapshot, store) == expected
    assert all(not run.value_types for run in snapshot.tables[0].runs)


def test_a_type_that_comes_back_does_not_bring_back_what_fields_held(
    make_backend: MakeBackend, store: LocalObjectStore
) -> None:
    before = make_backend(key_type=STRING)
    state = before.get_state(ValueStateDescriptor("state", named(a=INT, b=INT)))
    before.set_current_key("k")
    state.update(Row(a=1, b=2))
    snapshot = before.snapshot()
    for kind in (named(a=INT), named(a=INT, b=INT)):
        after = make_backend(snapshot, key_type=STRING)
        after.get_state(ValueStateDescriptor("state", kind))
        snapshot = after.snapshot()
    (table,) = snapshot.tables
    assert values(snapshot, store) == {"k": {"a": 1, "b": None}}
    assert read_rows(table, store, ["value"]).to_pylist() == [{"value": {"a": 1, "b": None}}]


def test_types_that_do_not_follow_each_other_are_not_believed(
    make_backend: MakeBackend, store: LocalObjectStore
) -> None:
    backend = make_backend(key_type=STRING)
    state = backend.get_state(ValueStateDescriptor("state", LONG))
    touch(backend, STRING, ["a"])
    backend.set_current_key("a")
    state.update(1)
    (table,) = backend.snapshot().tables
    with pytest.raises(CorruptStateError, match="names types that cannot have followed each other"):
        read_table(table.with_value_type(INT.to_json()), store)


def test_state_that_is_restored_and_not_touched_has_the_new_type(make_backend: MakeBackend) -> None:
    before = make_backend(key_type=STRING)
    state = before.get_state(ValueStateDescriptor("state", INT))
    touch(before, STRING, ["a"])
    before.set_current_key("a")
    state.update(1)
    unbound = make_backend(before.snapshot())
    unbound.get_state(ValueStateDescriptor("state", LONG))
    (table,) = unbound.snapshot().tables
    assert (table.value, table.runs[0].value_types) == (LONG.to_json(), (INT.to_json(),))


PICKLED, BINARY, DECIMAL = Types.PICKLED_BYTE_ARRAY(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.BIG_DEC()
SWAPPED = named(a=BINARY, b=PICKLED)


@pytest.mark.parametrize(
    ("stored", "declared", "alike"),
    [
        (named(a=PICKLED, b=BINARY), named(a=PICKLED, b=BINARY), True),
        (named(a=PICKLED, b=BINARY), named(b=BINARY, a=PICKLED), True),
        (named(a=PICKLED, b=BINARY), SWAPPED, False),
        (Types.LIST(named(a=PICKLED, b=BINARY)), Types.LIST(SWAPPED), False),
        (Types.TUPLE([PICKLED, BINARY]), Types.ROW([PICKLED, BINARY]), True),
        (Types.TUPLE([DECIMAL, STRING]), Types.TUPLE([STRING, DECIMAL]), False),
        (Types.MAP(STRING, DECIMAL), Types.MAP(DECIMAL, STRING), False),
        (Types.LIST(DECIMAL), Types.BASIC_ARRAY(DECIMAL), True),
    ],
)
def test_what_has_one_arrow_type_is_told_apart_by_its_field(
    stored: TypeInformation, declared: TypeInformation, alike: bool
) -> None:
    assert read_alike(stored.to_json(), declared) is alike
