"""A run in the object store: a self-describing Parquet file, which can be read completely or in part.

Row groups end where key groups end, so the rows of a range of key groups are one contiguous slice of the file.

Integrity: a handle has the SHA-256 of the whole file and the SHA-256 of its footer. The footer's key-value metadata
lists the offset, length and SHA-256 of each row group. Reading the whole file checks the first; reading a part checks
the other two. So no part of a file is used without being checked against the handle.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.parquet_encodings import REPEATING, leaves_of
from dagster_flinkpy.errors import CorruptStateError, ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.state_files import state_file
from dagster_flinkpy.state.files.transfers import fetch
from dagster_flinkpy.state.handles import Json, RunHandle, TableSnapshot, count_key_groups, span_of
from dagster_flinkpy.state.layout import (
    APPEND,
    APPEND_VERSION,
    FORMAT_VERSION,
    SortKeys,
    TableLayout,
    hashes_of,
    key_groups_of,
    make_sort_keys,
)
from dagster_flinkpy.storage import ObjectStore

__all__ = ["as_file", "clip_rows", "encode_run", "inline", "read_columns", "read_run", "upload_run"]

ROW_GROUP_ROWS = 32_768
"""After this many rows, a row group ends at the next key group, or at once if the key group is larger."""

_SAMPLE = 2048
"""After this many rows, it is known how to encode a column."""
_DISTINCT = 0.9
"""From this share of different values on, integers are not compressed."""

WHOLE_BELOW = 65_536
"""Smaller files, in bytes, are read completely even if only a part is needed: one request instead of two."""

_VERSION, _STATE, _ROW_GROUPS = b"flinkpy.format_version", b"flinkpy.state", b"flinkpy.row_groups"
_HASH_COLUMN = 1  # Its index among the columns of a file.
_TAIL = 8  # The length of the footer and "PAR1".


def encode_run(
    layout: TableLayout, table: pa.Table, key_groups: KeyGroupRange, written_by: str = ""
) -> tuple[bytes, RunHandle]:
    """Encodes a run. Equal content has equal bytes, and so the same name if the writer is the same.

    Args:
        layout: The layout of the table.
        table: The rows: sorted, not empty, with ``local_schema`` or ``append_schema``.
        key_groups: The key groups of the subtask, and so of the handle.
        written_by: The part of the name that no other execution attempt uses. Default: none, for a separate folder.
    """
    sort_keys = table.column("sort_key").to_numpy()
    groups = key_groups_of(sort_keys)
    columns = [pa.array(groups), pa.array(hashes_of(sort_keys)), *(table.column(f.name) for f in layout.fields)]
    state = {"name": layout.name, **layout.snapshot(()).schema}
    version, plain, appends = FORMAT_VERSION, layout.file_schema, 0
    if APPEND in table.column_names:
        version, plain = APPEND_VERSION, plain.append(table.schema.field(APPEND))
        columns.append(table.column(APPEND))
        appends = int(np.count_nonzero(table.column(APPEND).to_numpy()))
    metadata = {_VERSION: str(version).encode(), _STATE: json.dumps(state, sort_keys=True).encode()}
    schema = plain.with_metadata(metadata)
    stored = pa.table(columns, schema=schema)
    sink = io.BytesIO()
    row_groups: list[Json] = []
    encodings = _encodings(stored)
    writer = pq.ParquetWriter(sink, schema, write_page_index=True, **encodings)
    offset = sink.tell()
    for start, stop in _row_group_bounds(groups):
        writer.write_table(stored.slice(start, stop - start), row_group_size=stop - start)
        end = sink.tell()
        with sink.getbuffer() as written:
            digest = hashlib.sha256(written[offset:end]).hexdigest()
        row_groups.append(
            {
                "key_groups": [int(groups[start]), int(groups[stop - 1])],
                "offset": offset,
                "length": end - offset,
                "sha256": digest,
            }
        )
        offset = end
    writer.add_key_value_metadata({_ROW_GROUPS: json.dumps(row_groups).encode()})
    writer.close()
    data = sink.getvalue()
    footer = _footer(data)
    sha256 = hashlib.sha256(data).hexdigest()
    handle = RunHandle(
        path=state_file(sha256, written_by),
        sha256=sha256,
        bytes=len(data),
        rows=len(table),
        key_groups=key_groups,
        rows_per_key_group=count_key_groups(groups),
        footer_bytes=len(footer),
        footer_sha256=hashlib.sha256(footer).hexdigest(),
        tombstones=int(np.count_nonzero(table.column("deleted").to_numpy())),
        appends=appends,
    )
    return data, handle


def _encodings(table: pa.Table) -> Mapping[str, Any]:
    """Returns how to encode the columns: integers by their differences, others with dictionaries if they repeat.

    Integers such as sums and keys seldom repeat, so dictionaries are useless for them. Differences take half the time
    and half the bytes. If all of them are different, zstd makes them a hundredth smaller for a third of the time.
    """
    leaves = leaves_of(table, _SAMPLE)
    integers = {path: share for path, (kind, share) in leaves.items() if kind in ("INT32", "INT64")}
    return {
        "compression": {path: "none" if integers.get(path, 0) > _DISTINCT else "zstd" for path in leaves},
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        "use_dictionary": [p for p, (_, share) in leaves.items() if p not in integers and share <= REPEATING],
    }


def inline(handle: RunHandle, data: bytes) -> RunHandle:
    """Returns the handle of a run that is part of the metadata instead of a file."""
    return replace(handle, path="", footer_bytes=0, footer_sha256="", data=data)


def as_file(handle: RunHandle) -> RunHandle:
    """Converts the handle of a run in the metadata to that of a file in a folder that is written only once.

    It does not write the file.

    Raises:
        CorruptStateError: The run is damaged.
    """
    data = handle.data
    assert data is not None
    _check(data, handle.bytes, handle.sha256, "in the metadata")
    footer = _footer(data)
    checksum = hashlib.sha256(footer).hexdigest()
    path = state_file(handle.sha256)
    return replace(handle, path=path, footer_bytes=len(footer), footer_sha256=checksum, data=None)


def _footer(data: bytes) -> bytes:
    return data[len(data) - _TAIL - int.from_bytes(data[-_TAIL:-4], "little") :]


def _row_group_bounds(groups: npt.NDArray[np.uint16]) -> Iterator[tuple[int, int]]:
    """Yields where row groups start and stop."""
    # groups: uint16, one a row, ascending. ends: where each key group ends.
    ends = [*(np.flatnonzero(groups[1:] != groups[:-1]) + 1).tolist(), len(groups)]
    start = stop = 0
    for end in ends:
        if end - start > ROW_GROUP_ROWS and stop > start:
            yield start, stop
            start = stop
        while end - start > ROW_GROUP_ROWS:
            yield start, start + ROW_GROUP_ROWS
            start += ROW_GROUP_ROWS
        stop = end
    if stop > start:
        yield start, stop


def upload_run(store: ObjectStore, handle: RunHandle, data: bytes) -> None:
    """Writes a run to the store, unless it exists already: its name identifies its content."""
    try:
        store.put(handle.path, data, if_none_match=True)
    except PreconditionFailedError:
        found = store.head(handle.path)
        if found is None or found.size != handle.bytes:
            store.put(handle.path, data)


def read_run(handle: RunHandle, store: ObjectStore, only: SortKeys | None = None) -> tuple[pa.Table, bool]:
    """Reads the rows of a handle, or all rows of its file if that is cheaper.

    Args:
        handle: The handle of the run, or of a part of it.
        store: The object store, rooted at the prefix that its path is relative to.
        only: Sort keys, sorted. Of a larger file, only the row groups that may have rows with them are read. Default:
            all row groups of the handle.

    Returns:
        The rows with ``local_schema``, and whether they are all rows of the file.

    Raises:
        CorruptStateError: The file is missing, truncated, or not the one that was written. The message names it.
    """
    where = _place(handle, store)
    with _naming_file(where):
        if handle.bytes < WHOLE_BELOW or (handle.is_whole and only is None):
            file = _open_whole(handle, store, where)
            return _localise(file, file.read(), where), True
        return _read_part(handle, store, where, only), False


def _place(handle: RunHandle, store: ObjectStore) -> str:
    """Says where a run is, for messages."""
    return f"{store.url}/{handle.path}" if handle.data is None else f"a state run in the metadata of {store.url}"


@contextmanager
def _naming_file(where: str) -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"state file {where} is missing") from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptStateError(f"state file {where} cannot be read: {error}") from error


def read_columns(handle: RunHandle, store: ObjectStore, layout: TableLayout, columns: Sequence[str]) -> pa.Table | None:
    """Reads some columns of all rows of a file, as they are stored: decoding fewer columns takes less time.

    Args:
        handle: The handle of a whole file.
        store: The object store, rooted at the prefix that its path is relative to.
        layout: The layout of the table.
        columns: Names of the columns of ``layout.file_schema`` to read.

    Returns:
        The columns, or None if the file was written with another layout; then :func:`read_run` can read it.

    Raises:
        CorruptStateError: The file is missing or damaged; the message names it.
    """
    where = _place(handle, store)
    with _naming_file(where):
        file = _open_whole(handle, store, where)
        _metadata(file, where)
        if not file.schema_arrow.remove_metadata().equals(layout.file_schema):
            return None
        return file.read(columns=list(columns))


def _open_whole(handle: RunHandle, store: ObjectStore, where: str) -> pq.ParquetFile:
    data = fetch(store, handle.path, 0, handle.bytes) if handle.data is None else handle.data
    _check(data, handle.bytes, handle.sha256, where)
    return pq.ParquetFile(pa.BufferReader(data))


def _read_part(handle: RunHandle, store: ObjectStore, where: str, only: SortKeys | None) -> pa.Table:
    start = handle.bytes - handle.footer_bytes
    footer = store.get_range(handle.path, start, handle.footer_bytes)
    _check(footer, handle.footer_bytes, handle.footer_sha256, where, "its footer")
    # The fetched parts are put at their positions in a file; its other pages are untouched, and so not allocated.
    image = mmap.mmap(-1, handle.bytes)
    image[start:] = footer
    file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(image)))
    row_groups = json.loads(_metadata(file, where)[_ROW_GROUPS])
    low, high = handle.key_groups.start, handle.key_groups.end
    wanted = [i for i, g in enumerate(row_groups) if g["key_groups"][0] <= high and g["key_groups"][1] >= low]
    if only is not None:
        wanted = [i for i in wanted if _may_hold(file, i, row_groups[i]["key_groups"], only)]
    for first, last in _neighbours(wanted):
        begin, end = row_groups[first]["offset"], row_groups[last]["offset"] + row_groups[last]["length"]
        data = memoryview(fetch(store, handle.path, begin, end - begin))
        for i in range(first, last + 1):
            group = row_groups[i]
            at = group["offset"] - begin
            _check(data[at : at + group["length"]], group["length"], group["sha256"], where, f"its row group {i}")
        image[begin:end] = data
    table = _localise(file, file.read_row_groups(wanted), where)
    start, stop = clip_rows(table.column("sort_key").to_numpy(), handle.span)
    return table.slice(start, stop - start)


def _may_hold(file: pq.ParquetFile, row_group: int, key_groups: list[int], sort_keys: SortKeys) -> bool:
    """Returns whether a row group may have rows with some of these sort keys, by its key groups and its statistics."""
    first, last = key_groups
    start, stop = clip_rows(sort_keys, span_of(KeyGroupRange(first, last)))
    if start == stop or first < last:
        return start < stop
    # If a key group has several row groups, the bounds of their hashes distinguish them.
    statistics = file.metadata.row_group(row_group).column(_HASH_COLUMN).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    hashes = hashes_of(sort_keys[start:stop])
    return bool(((hashes >= statistics.min) & (hashes <= statistics.max)).any())


def _neighbours(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last of each sequence of consecutive numbers."""
    first = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[first], numbers[i - 1]
            first = i


def _check(data: bytes | bytearray | memoryview, size: int, sha256: str, where: str, part: str = "it") -> None:
    if len(data) != size:
        raise CorruptStateError(f"state file {where} is damaged: {part} has {len(data)} bytes instead of {size}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptStateError(f"state file {where} is damaged: {part} does not have its recorded SHA-256 {sha256}")


def _metadata(file: pq.ParquetFile, where: str) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = file.metadata.metadata or {}
    version = metadata.get(_VERSION, b"none").decode()
    if version not in (str(FORMAT_VERSION), str(APPEND_VERSION)):
        raise CorruptStateError(
            f"state file {where} has format version {version}, but this release reads versions up to {APPEND_VERSION}"
        )
    return metadata


def _localise(file: pq.ParquetFile, stored: pa.Table, where: str) -> pa.Table:
    """Converts the columns of a file to those of a run in memory."""
    state = json.loads(_metadata(file, where)[_STATE])
    layout = TableLayout.of(TableSnapshot.from_json({**state, "runs": []}))
    stored = stored.combine_chunks()
    sort_keys = make_sort_keys(stored.column("key_group").to_numpy(), stored.column("key_hash").to_numpy())
    columns = [pa.array(sort_keys), *(stored.column(field.name).cast(field.type) for field in layout.fields)]
    if APPEND not in stored.column_names:
        return pa.table(columns, schema=layout.local_schema)
    return pa.table([*columns, stored.column(APPEND)], schema=layout.append_schema)


def clip_rows(sort_keys: SortKeys, span: range) -> tuple[int, int]:
    """Returns the slice of sorted rows whose sort keys are in a range."""
    # sort_keys: uint64, ascending.
    start, stop = np.searchsorted(sort_keys, np.array([span.start, span.stop], dtype=np.uint64)).tolist()
    return start, stop
