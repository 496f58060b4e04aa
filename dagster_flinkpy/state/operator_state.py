"""How operator state is stored: typed Arrow in the metadata itself, or in Parquet files where it is larger.

A partition, what redistribution moves, is a JSON object: ``{"arrow": base64}`` holds a record batch;
``{"file": sha256, "row": n}`` stands for a row of ``shared/<sha256>.parquet``, and without ``row`` for all of them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.errors import (
    CorruptMetadataError,
    CorruptStateError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from dagster_flinkpy.storage import ObjectStore

__all__ = ["INLINE_BELOW", "file_of", "files_of", "read_partitions", "sha256_of", "write_partitions"]

INLINE_BELOW = 20_000
"""Bytes below which a state is part of the metadata (Flink: ``state.storage.fs.memory-threshold``)."""

Json = Any
_SHA256 = re.compile(r"[0-9a-f]{64}")


def write_partitions(table: pa.Table, store: ObjectStore, *, split: bool) -> tuple[Json, ...]:
    """Stores a state.

    Args:
        table: the state, one row per element or entry.
        store: rooted at the job's prefix.
        split: whether each row is a partition of its own; else all of them are one.

    Returns:
        The partitions, in the order of the rows.
    """
    batch = _batch(table)
    slices = [batch.slice(i, 1) for i in range(len(batch))] if split else [batch]
    if batch.nbytes < INLINE_BELOW:
        inline = [base64.b64encode(part.serialize().to_pybytes()).decode() for part in slices]
        if sum(map(len, inline)) < INLINE_BELOW:
            return tuple({"arrow": each} for each in inline)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    with suppress(PreconditionFailedError):  # named by content, so what is there is the same
        store.put(_path(sha256), data, if_none_match=True)
    return tuple({"file": sha256, "row": i} for i in range(len(batch))) if split else ({"file": sha256},)


def read_partitions(partitions: Sequence[Json], schema: pa.Schema, store: ObjectStore, what: str) -> pa.Table:
    """The rows of some partitions, in order.

    Args:
        partitions: what :func:`write_partitions` gave; parts of several states of one type, too.
        schema: of the rows.
        store: rooted at the job's prefix.
        what: names the state in messages.

    Raises:
        CorruptStateError: a file is missing or damaged, or a partition is none.
    """
    files: dict[str, pa.Table] = {}
    parts = [schema.empty_table()]
    for partition in partitions:
        try:
            if "arrow" in partition:
                data = base64.b64decode(partition["arrow"], validate=True)
                parts.append(pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(data), schema)]))
                continue
            sha256 = partition["file"]
            if sha256 not in files:
                files[sha256] = _read_file(sha256, schema, store)
            stored, row = files[sha256], partition.get("row")
            if row is not None and not 0 <= row < len(stored):
                raise ValueError(f"there is no row {row} in its file")
            parts.append(stored if row is None else stored.slice(row, 1))
        except (pa.ArrowException, binascii.Error, KeyError, TypeError, ValueError, OSError) as error:
            raise CorruptStateError(f"{what} cannot be read: {error}") from error
    return pa.concat_tables(parts).combine_chunks()


def file_of(partition: Json) -> str | None:
    """The path of the file that a partition is in, relative to the job's prefix; None for one in the metadata.

    Raises:
        CorruptMetadataError: it names no such file.
    """
    sha256 = partition.get("file") if isinstance(partition, dict) else None
    if sha256 is None:
        return None
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise CorruptMetadataError(f"operator state names a file by {sha256!r}, which is no SHA-256 checksum")
    return _path(sha256)


def sha256_of(path: str) -> str:
    """The checksum in the path of a file of operator state."""
    return path.removeprefix("shared/").removesuffix(".parquet")


def files_of(partitions: Iterable[Json]) -> set[str]:
    """The paths of all files that some partitions are in."""
    return {path for partition in partitions if (path := file_of(partition)) is not None}


def _path(sha256: str) -> str:
    return f"shared/{sha256}.parquet"


def _batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _read_file(sha256: str, schema: pa.Schema, store: ObjectStore) -> pa.Table:
    path = file_of({"file": sha256})
    assert path is not None
    where = f"{store.url}/{path}"
    try:
        data, _ = store.get(path)
    except ObjectNotFoundError as error:
        raise CorruptStateError(f"state file {where} is missing") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptStateError(f"state file {where} is damaged: it does not have the recorded checksum")
    return pq.read_table(pa.BufferReader(data)).cast(schema)
