"""Rows that are read in any order are the rows that are read in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state import reader
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.reader import parts_of, read_rows, read_table, table_schema
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.examples import examples
from tests.state.conftest import touch

LONG = Types.LONG()
STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["put", "clear", "add"]), st.integers(0, 9)), max_size=12),
    min_size=1,
    max_size=6,
)


def write(folder: Path, epochs: list[list[tuple[int, str, int]]], clip: KeyGroupRange) -> tuple[list[Any], Any]:
    """Value, list and map state of some keys, changed in several epochs; each leaves a run."""
    store = LocalObjectStore(folder / "store")
    snapshot: KeyedSnapshot | None = None
    for epoch in epochs:
        backend = ColumnarKeyedStateBackend(
            operator="op",
            key_groups=KeyGroupRange(0, 15),
            max_parallelism=16,
            store=store,
            cache=RunCache(folder / "cache"),
            restored=snapshot,
            inline_below=0,
        )
        backend.bind_key_type(LONG)
        value: Any = backend.get_state(ValueStateDescriptor("value", LONG))
        listed: Any = backend.get_state(ListStateDescriptor("list", LONG))
        mapped: Any = backend.get_state(MapStateDescriptor("map", LONG, LONG))
        touch(backend, LONG, [key for key, _, _ in epoch])
        for key, step, number in epoch:
            backend.set_current_key(key)
            if step == "clear":
                value.clear()
                listed.clear()
                mapped.remove(number)
            else:
                value.update(number)
                listed.add(number) if step == "add" else listed.update([number])
                mapped.put(number, key)
        snapshot = backend.snapshot()
    assert snapshot is not None
    tables = [replace(t, runs=tuple(r for run in t.runs if (r := run.clip(clip)))) for t in snapshot.tables]
    return tables, store


@settings(max_examples=examples(40), deadline=None)
@given(epochs=STEPS, end=st.integers(0, 15))
def test_rows_in_any_order_are_all_rows(tmp_path_factory: Any, epochs: Any, end: int) -> None:
    tables, store = write(tmp_path_factory.mktemp("state"), epochs, KeyGroupRange(0, end))
    for table in tables:
        names = table_schema(table).names
        expected = read_table(table, store)
        for columns in (names, ["key"], ["value", "key_hash"]):
            found = read_rows(table, store, columns)
            assert found.schema.equals(expected.select(columns).schema)
            assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.select(columns).to_pylist()))


@settings(max_examples=examples(40), deadline=None)
@given(epochs=STEPS, end=st.integers(0, 15), most=st.integers(1, 20))
def test_parts_have_all_rows_in_order(tmp_path_factory: Any, epochs: Any, end: int, most: int) -> None:
    tables, store = write(tmp_path_factory.mktemp("state"), epochs, KeyGroupRange(0, end))
    for table in tables:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "SECTION_ROWS", most)
            parts = [*parts_of(table)]
        assert pa.concat_tables([read_table(part, store) for part in parts]).equals(read_table(table, store))
        for part in parts:
            assert part.rows <= most or len({g for run in part.runs for g, _ in run.rows_by_key_group()}) == 1


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    tables, store = write(tmp_path, [[(n, "put", n) for n in range(9)]], KeyGroupRange(0, 15))
    (table,) = (table for table in tables if table.name == "value")
    path = tmp_path / "store" / table.runs[0].path
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptStateError, match=table.runs[0].path):
        read_rows(table, store, ["value"])
