"""Stores operator state as typed Arrow data in the metadata, or in Parquet files if it is larger.

``state_files`` describes partitions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.errors import CorruptStateError, ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.state.files.state_files import file_of, sha256_of, state_file
from dagster_flinkpy.state.files.transfers import Uploads
from dagster_flinkpy.storage import ObjectStore

__all__ = ["INLINE_BELOW", "read_partitions", "write_partitions"]

INLINE_BELOW = 20_000
"""A state with fewer bytes is part of the metadata (Flink: ``state.storage.fs.memory-threshold``)."""

Json = Any


def write_partitions(
    table: pa.Table, store: ObjectStore, *, split: bool, written_by: str = "", uploads: Uploads | None = None
) -> tuple[Json, ...]:
    """Stores a state.

    Args:
        table: The state, one row per element or entry.
        store: The object store, rooted at the job's prefix.
        split: Whether each row is a separate partition. Otherwise all rows are one partition.
        written_by: Part of the names of the files; see ``state_file``.
        uploads: Uploads a file in the background. Default: it is there when the function returns.

    Returns:
        The partitions, in the order of the rows.
    """
    batch = _batch(table)
    slices = [batch.slice(i, 1) for i in range(len(batch))] if split else [batch]
    if not slices:
        return ()  # nothing would name the file
    if batch.nbytes < INLINE_BELOW:
        inline = [base64.b64encode(part.serialize().to_pybytes()).decode() for part in slices]
        if sum(map(len, inline)) < INLINE_BELOW:
            return tuple({"arrow": each} for each in inline)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    path = state_file(sha256, written_by)

    def write() -> None:
        with suppress(PreconditionFailedError):  # named by content, so an existing file is the same
            store.put(path, data, if_none_match=True)

    if uploads is None:
        write()
    else:
        uploads.submit(path, write)
    file = {"file": sha256, **({"by": written_by} if written_by else {})}
    return tuple({**file, "row": i} for i in range(len(batch))) if split else (file,)


def read_partitions(partitions: Sequence[Json], schema: pa.Schema, store: ObjectStore, what: str) -> pa.Table:
    """Returns the rows of some partitions, in order.

    Args:
        partitions: Partitions that :func:`write_partitions` returned, possibly of several states of the same type.
        schema: The schema of the rows.
        store: The object store, rooted at the job's prefix.
        what: Names the state in messages.

    Raises:
        CorruptStateError: A file is missing or damaged, or a partition is malformed.
    """
    files: dict[str, pa.Table] = {}
    parts = [schema.empty_table()]
    for partition in partitions:
        try:
            if "arrow" in partition:
                data = base64.b64decode(partition["arrow"], validate=True)
                parts.append(pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(data), schema)]))
                continue
            path = file_of(partition)
            if path is None:
                raise KeyError("file")
            if path not in files:
                files[path] = _read_file(path, schema, store)
            stored, row = files[path], partition.get("row")
            if row is not None and not 0 <= row < len(stored):
                raise ValueError(f"its file has no row {row}")
            parts.append(stored if row is None else stored.slice(row, 1))
        except (pa.ArrowException, binascii.Error, KeyError, TypeError, ValueError, OSError) as error:
            raise CorruptStateError(f"{what} cannot be read: {error}") from error
    return pa.concat_tables(parts).combine_chunks()


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _read_file(path: str, schema: pa.Schema, store: ObjectStore) -> pa.Table:
    where = f"{store.url}/{path}"
    try:
        data, _ = store.get(path)
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"state file {where} is missing") from error
    if hashlib.sha256(data).hexdigest() != sha256_of(path):
        raise CorruptStateError(f"state file {where} is damaged: its content does not match its checksum")
    return pq.read_table(pa.BufferReader(data)).cast(schema)
