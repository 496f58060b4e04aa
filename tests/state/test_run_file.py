from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state.files import run_file
from dagster_flinkpy.state.files.run_file import clip_rows, encode_run, read_run, upload_run
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import TableLayout, key_groups_of, make_sort_keys, sort_order
from dagster_flinkpy.storage.local import LocalObjectStore

ALL = KeyGroupRange(0, 127)
LAYOUT = TableLayout("v", "VALUE", Types.LONG(), value_type=Types.LONG())


def sorted_table(rows: int, layout: TableLayout = LAYOUT, max_parallelism: int = 128) -> pa.Table:
    column = layout.key_type.to_arrow(list(range(rows)))
    hashes = hash_keys(layout.key_type, column)
    sort_keys = make_sort_keys(key_groups_of_hashes(hashes, max_parallelism), hashes)
    order = pa.array(sort_order(sort_keys, [column]))
    arrays = [pa.array(sort_keys), column, pa.array(range(rows)), pa.array([False] * rows)]
    return pa.table(arrays, schema=layout.local_schema).take(order)


class CountingStore(LocalObjectStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.bytes_read = 0

    def get(self, key: str) -> tuple[bytes, str]:
        data, etag = super().get(key)
        self.bytes_read += len(data)
        return data, etag

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        self.bytes_read += len(data)
        return data


@pytest.fixture
def counting(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


@pytest.fixture
def written(counting: CountingStore, monkeypatch: pytest.MonkeyPatch) -> tuple[RunHandle, bytes, pa.Table]:
    monkeypatch.setattr(run_file, "ROW_GROUP_ROWS", 1000)
    table = sorted_table(50_000)
    data, handle = encode_run(LAYOUT, table, ALL)
    upload_run(counting, handle, data)
    return handle, data, table


def test_whole_files_come_back(written: tuple[RunHandle, bytes, pa.Table], counting: CountingStore) -> None:
    handle, _, table = written
    read, whole = read_run(handle, counting)
    assert whole
    assert read.equals(table)
    assert read.schema.equals(table.schema)


def test_a_few_keys_need_a_few_row_groups(
    written: tuple[RunHandle, bytes, pa.Table], counting: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, data, table = written
    some = table.take(pa.array([7, 20_000, 20_001, 49_999]))
    sort_keys = some.column("sort_key").to_numpy()
    read, whole = read_run(handle, counting, sort_keys)
    assert not whole
    assert counting.bytes_read < handle.footer_bytes + len(data) / 4
    assert set(some.column("key").to_pylist()) <= set(read.column("key").to_pylist())
    nothing, _ = read_run(handle, counting, sort_keys[:0])
    assert nothing.equals(table.slice(0, 0))


def test_row_groups_of_one_key_group_are_told_apart_by_hash(
    counting: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "ROW_GROUP_ROWS", 1000)
    monkeypatch.setattr(run_file, "WHOLE_BELOW", 0)
    table = sorted_table(30_000, max_parallelism=1)
    keys = pa.array([-(2**40) * i for i in range(30_000)])  # their hashes have both signs
    hashes = hash_keys(Types.LONG(), keys)
    sort_keys = make_sort_keys(key_groups_of_hashes(hashes, 1), hashes)
    table = table.set_column(0, LAYOUT.local_schema.field("sort_key"), pa.array(sort_keys))
    table = table.set_column(1, LAYOUT.local_schema.field("key"), keys).take(pa.array(sort_order(sort_keys, [keys])))
    data, handle = encode_run(LAYOUT, table, KeyGroupRange(0, 0))
    upload_run(counting, handle, data)
    for i in (0, 14_000, 15_999, 29_999):
        counting.bytes_read = 0
        read, _ = read_run(handle, counting, table.column("sort_key").to_numpy()[i : i + 1])
        assert table.column("key")[i].as_py() in read.column("key").to_pylist()
        assert len(read) <= 2000
        assert counting.bytes_read < handle.footer_bytes + len(data) / 8


def test_equal_content_has_equal_bytes_and_name(written: tuple[RunHandle, bytes, pa.Table]) -> None:
    handle, data, table = written
    chunked = pa.concat_tables([table.slice(0, 777), table.slice(777)])
    assert encode_run(LAYOUT, chunked.combine_chunks(), ALL) == (data, handle)
    assert handle.path == f"shared/{hashlib.sha256(data).hexdigest()}.parquet"


@pytest.mark.parametrize("max_parallelism", [1, 4, 128])
def test_row_groups_end_with_key_groups(max_parallelism: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "ROW_GROUP_ROWS", 1000)
    data, _ = encode_run(LAYOUT, sorted_table(20_000, max_parallelism=max_parallelism), ALL)
    file = pq.ParquetFile(pa.BufferReader(data))
    groups = [set(file.read_row_group(i)["key_group"].to_pylist()) for i in range(file.num_row_groups)]
    assert all(file.metadata.row_group(i).num_rows <= 1000 for i in range(file.num_row_groups))
    if max_parallelism == 128:
        assert all(not a & b for i, a in enumerate(groups) for b in groups[i + 1 :])
        assert any(len(g) > 1 for g in groups)
    else:
        assert all(len(g) == 1 for g in groups)
    assert file.metadata.row_group(0).column(0).statistics.has_min_max


def test_a_file_explains_itself(written: tuple[RunHandle, bytes, pa.Table]) -> None:
    metadata = pq.ParquetFile(pa.BufferReader(written[1])).metadata.metadata
    assert metadata[b"flinkpy.format_version"] == b"1"
    assert b'"name": "v"' in metadata[b"flinkpy.state"]
    assert b"LONG" in metadata[b"flinkpy.state"]


def test_integers_are_stored_as_differences(counting: CountingStore) -> None:
    """The same holds for integers that jump over the whole range."""
    wide = [(-1) ** i * (2**63 - 1 - i) for i in range(1_000)]
    table = sorted_table(1_000).set_column(2, LAYOUT.local_schema.field("value"), pa.array(wide))
    data, handle = encode_run(LAYOUT, table, ALL)
    upload_run(counting, handle, data)
    assert read_run(handle, counting)[0].column("value").to_pylist() == wide
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    encoded = {
        c.path_in_schema for c in map(group.column, range(group.num_columns)) if "DELTA_BINARY_PACKED" in c.encodings
    }
    assert encoded == {"key_group", "key_hash", "key", "value"}


def test_integers_that_repeat_are_compressed() -> None:
    layout = TableLayout("v", "VALUE", Types.LONG(), Types.LONG(), value_type=Types.LONG())
    plain = sorted_table(5_000)
    windows = plain.take(pa.array(np.repeat(np.arange(5_000), 4)))
    windows = windows.append_column("namespace", pa.array(1_700_000_000_000 + np.tile(np.arange(4), 5_000) * 3_600_000))
    columns, sizes = list[dict[str, str]](), list[int]()
    for own, table in ((LAYOUT, plain), (layout, windows.select(layout.local_schema.names))):
        data, _ = encode_run(own, table.cast(own.local_schema), ALL)
        group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
        found = [group.column(i) for i in range(group.num_columns)]
        columns.append({each.path_in_schema: each.compression for each in found})
        sizes.append(len(data))
    plain_ones = {path for path, compression in columns[0].items() if compression == "UNCOMPRESSED"}
    assert plain_ones == {"key_hash", "key", "value"}
    assert {*columns[1].values()} == {"ZSTD"}
    assert sizes[1] < 2 * sizes[0], "four windows of a key have the same key and hash"


def test_only_texts_and_floats_that_repeat_have_dictionaries(counting: CountingStore) -> None:
    fields = ["distinct", "few", "number", "same"]
    kind = Types.ROW_NAMED(fields, [Types.STRING(), Types.STRING(), Types.DOUBLE(), Types.DOUBLE()])
    layout = TableLayout("v", "VALUE", Types.STRING(), value_type=kind)
    n = 10_000
    values: list[dict[str, Any] | None] = [
        {"distinct": f"d{i}", "few": f"f{i % 7}", "number": i / 3, "same": None if i % 3 else 0.5} for i in range(n)
    ]
    values[5] = None
    columns = [
        make_sort_keys(np.arange(n, dtype=np.uint16) // 100, np.zeros(n, dtype=np.int32)),
        pa.array([f"key-{i:05}" for i in range(n)]),
        pa.array(values, type=kind.arrow_type),
        np.zeros(n, dtype=np.bool_),
    ]
    table = pa.table(columns, schema=layout.local_schema)
    data, handle = encode_run(layout, table, ALL)
    upload_run(counting, handle, data)
    assert read_run(handle, counting)[0].equals(table)
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    paths = {c.path_in_schema for c in map(group.column, range(group.num_columns)) if c.has_dictionary_page}
    assert paths == {"value.few", "value.same"}


def test_a_part_is_read_by_range(written: tuple[RunHandle, bytes, pa.Table], counting: CountingStore) -> None:
    handle, _, table = written
    clip = handle.clip(KeyGroupRange(32, 63))
    assert clip is not None
    read, whole = read_run(clip, counting)
    start, stop = clip_rows(table["sort_key"].to_numpy(), clip.span)
    assert not whole
    assert read.equals(table.slice(start, stop - start))
    assert np.unique(key_groups_of(read["sort_key"].to_numpy())).tolist() == list(range(32, 64))
    # A quarter of the rows, the footer, and at most one row group too many at both ends.
    body = handle.bytes - handle.footer_bytes
    assert counting.bytes_read < handle.footer_bytes + body * (0.25 + 2 / 50)


def test_duckdb_reads_the_files(written: tuple[RunHandle, bytes, pa.Table], counting: CountingStore) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = f"{counting.url.removeprefix('file://')}/{written[0].path}"
    query = f"select count(*), sum(value), min(key_group), max(key_group) from '{path}' where not deleted"
    assert duckdb.sql(query).fetchall() == [(50_000, sum(range(50_000)), 0, 127)]


def test_an_upload_of_known_content_is_repaired_or_left_alone(counting: CountingStore) -> None:
    data, handle = encode_run(LAYOUT, sorted_table(10), ALL)
    upload_run(counting, handle, data)
    upload_run(counting, handle, data)
    counting.put(handle.path, data[:-1])
    upload_run(counting, handle, data)
    assert counting.get(handle.path)[0] == data


def damage_missing(store: LocalObjectStore, handle: RunHandle, data: bytes) -> None:
    store.delete(handle.path)


def damage_truncated(store: LocalObjectStore, handle: RunHandle, data: bytes) -> None:
    store.put(handle.path, data[: len(data) // 3])


def damage_empty(store: LocalObjectStore, handle: RunHandle, data: bytes) -> None:
    store.put(handle.path, b"")


def damage_flipped_row(store: LocalObjectStore, handle: RunHandle, data: bytes) -> None:
    # In the middle of the file, in a row group that the clip needs.
    store.put(handle.path, data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])


def damage_flipped_footer(store: LocalObjectStore, handle: RunHandle, data: bytes) -> None:
    store.put(handle.path, data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])


def damage_swapped(store: LocalObjectStore, handle: RunHandle, data: bytes) -> None:
    other, _ = encode_run(LAYOUT, sorted_table(49_999), ALL)
    store.put(handle.path, other)


DAMAGES = [
    damage_missing,
    damage_truncated,
    damage_empty,
    damage_flipped_row,
    damage_flipped_footer,
    damage_swapped,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("key_groups", [ALL, KeyGroupRange(40, 90)])
def test_damaged_files_are_named_and_refused(
    written: tuple[RunHandle, bytes, pa.Table], counting: CountingStore, damage: object, key_groups: KeyGroupRange
) -> None:
    handle, data, _ = written
    clip = handle.clip(key_groups)
    assert clip is not None
    damage(counting, handle, data)  # type: ignore[operator]
    with pytest.raises(CorruptStateError, match=handle.path):
        read_run(clip, counting)


def test_an_unknown_format_version_is_refused(counting: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "FORMAT_VERSION", 99)
    data, handle = encode_run(LAYOUT, sorted_table(10), ALL)
    upload_run(counting, handle, data)
    monkeypatch.undo()
    with pytest.raises(CorruptStateError, match="format version 99"):
        read_run(handle, counting)


VALUES: list[tuple[TypeInformation, list[object]]] = [
    (Types.MAP(Types.STRING(), Types.LIST(Types.DOUBLE())), [{"a": [1.0, None]}, {}, None]),
    (Types.ROW_NAMED(["x", "y"], [Types.BYTE(), Types.SQL_TIME()]), [None, (1, None), (None, None)]),
    (Types.LIST(Types.TUPLE([Types.SHORT(), Types.BIG_DEC()])), [[], [(1, None)], None]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"", b"x", None]),
]


@pytest.mark.parametrize(("value_type", "values"), VALUES)
def test_every_shape_of_value_survives(
    value_type: TypeInformation, values: list[object], counting: CountingStore
) -> None:
    layout = TableLayout("v", "VALUE", Types.LONG(), value_type=value_type)
    arrays = [pa.array([1, 2, 3], pa.uint64()), pa.array([1, 2, 3]), value_type.to_arrow(values), pa.array([False] * 3)]
    table = pa.table(arrays, schema=layout.local_schema)
    data, handle = encode_run(layout, table, ALL)
    upload_run(counting, handle, data)
    read, _ = read_run(handle, counting)
    assert read.equals(table)
    assert read.schema.equals(layout.local_schema)
