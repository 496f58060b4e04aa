"""The writers of the PostgreSQL sink: to staged files, or into transactions that are prepared."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of, is_nested
from dagster_flinkpy.connectors.columns.record_formats import to_json_text
from dagster_flinkpy.connectors.commit.staged_files import StagedUpload, file_name
from dagster_flinkpy.connectors.commit.staged_rows import check_keys, completed
from dagster_flinkpy.connectors.postgres.session import PostgresTarget, Session, may_pass
from dagster_flinkpy.connectors.postgres.sink import PostgresSink
from dagster_flinkpy.datastream.connectors.base import CommittingSinkWriter, Json, WriterInitContext
from dagster_flinkpy.errors import SinkCommitError, StorageError, TypeMismatchError

__all__ = ["CsvEncoder", "PostgresStagingWriter", "PreparingWriter"]

_OPTIONS = csv.WriteOptions(include_header=False, batch_size=8192)
_NUL_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class CsvEncoder:
    """Encodes records as CSV for ``COPY``. A null is empty, and text is always quoted."""

    def __init__(self, type_info: TypeInformation, filled: Mapping[str, str | None] | None = None) -> None:
        self._flat = isinstance(type_info, (RowTypeInfo, TupleTypeInfo))
        self._columns = columns_of(type_info)
        self._filled = filled or {}

    def encode(self, column: pa.Array) -> bytes:
        arrays = column.flatten() if self._flat else [column]
        encoded = [_encoded(*each, array) for each, array in zip(self._columns.items(), arrays, strict=True)]
        encoded += [pa.repeat(pa.scalar(value, pa.string()), len(column)) for value in self._filled.values()]
        names = [*self._columns, *self._filled]
        out = io.BytesIO()
        csv.write_csv(pa.Table.from_arrays(encoded, names=names), out, _OPTIONS)
        data = out.getvalue()
        if b"\0" in data:
            texts = [(name, each) for name, each in zip(names, encoded, strict=True) if pa.types.is_string(each.type)]
            raise _nul(next(name for name, each in texts if pc.any(pc.match_substring(each, "\0")).as_py()))
        return data


def _encoded(name: str, type_info: TypeInformation, array: pa.Array) -> pa.Array:
    if is_nested(type_info):
        return pa.array([_json(name, type_info, value) for value in array.to_pylist()], pa.string())
    if pa.types.is_binary(array.type):
        return _hex(array)
    if pa.types.is_decimal(array.type):
        return array.cast(pa.string())
    return array


def _nul(name: str) -> TypeMismatchError:
    return TypeMismatchError(
        f"column {name!r} has text with a NUL character (\\0), which PostgreSQL cannot store: remove it with map()"
    )


def _hex(array: pa.Array) -> pa.Array:
    """Writes binary values as PostgreSQL reads them, in hex digits."""
    values = array.cast(pa.large_binary())
    if not len(values):
        return values.cast(pa.large_string())
    # ends: int64, one more than values, ascending: where each value begins in data, and the last one ends.
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    digits = memoryview(data or b"")[ends[0] : ends[-1]].hex().encode()
    starts = pa.py_buffer((ends - ends[0]) * 2)
    text = pa.LargeStringArray.from_buffers(len(values), starts, pa.py_buffer(digits))
    kind = pa.large_string()
    prefixed = pc.binary_join_element_wise(pa.scalar("\\x", kind), text, pa.scalar("", kind))
    return pc.if_else(values.is_null(), pa.scalar(None, kind), prefixed)


def _json(name: str, type_info: TypeInformation, value: Any) -> str | None:
    if value is None:
        return None
    text = to_json_text(name, type_info, value)
    if _NUL_IN_JSON.search(text):
        raise _nul(name)
    return text


class PostgresStagingWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask to a file on the store, as compressed CSV."""

    def __init__(self, sink: PostgresSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        assert sink.staging is not None
        if sink.filled is not None:
            sink.filled.check(f"the sink of table {sink.table!r}", columns_of(type_info), context.partition)
        self._encoder = CsvEncoder(type_info, None if sink.filled is None else sink.filled.values(context.partition))
        self._table, self._key_columns, self._names = f"table {sink.table!r}", sink.key, list(columns_of(type_info))
        self._partition = context.partition
        self._store = sink.staging.open()
        self._key = f"{file_name(context)}.csv.lz4"
        self._upload = StagedUpload(self._store, self._key)
        self._compressor = pa.CompressedOutputStream(pa.PythonFile(self._upload, "w"), "lz4")
        self._behind = ThreadPoolExecutor(1, "compress")
        self._compressing: Future[None] | None = None
        self._rows = 0
        self._finished = False

    def write(self, column: pa.Array) -> None:
        check_keys(self._table, self._key_columns, self._names, column)
        data = self._encoder.encode(column)
        self._await()
        self._compressing = self._behind.submit(self._compressor.write, data)  # while the next batch is encoded
        self._rows += len(column)

    def _await(self) -> None:
        compressing, self._compressing = self._compressing, None
        if compressing is not None:
            compressing.result()

    def prepare_commit(self) -> list[Json]:
        self._await()
        self._behind.shutdown()
        if not self._rows:
            return []
        self._compressor.close()
        staged = completed(self._store, self._upload.finish(self._rows), self._partition)
        self._finished = True
        return [staged.to_json()]

    def abort(self) -> None:
        self._behind.shutdown()
        self._upload.abort()
        if self._finished:
            with suppress(StorageError):  # abort_lingering finds it
                self._store.delete(self._key)


class PreparingWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask in a transaction, and prepares it at the barrier."""

    def __init__(self, sink: PostgresSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        self._session = Session(sink, context.job_id, context.uid)
        self._encoder, self._what = CsvEncoder(type_info), f"table {sink.uri()} of sink {context.uid!r}"
        self._table = PostgresTarget(sink, type_info, self._session)
        self._columns = list(columns_of(type_info))
        self._checkpoint_id = context.checkpoint_id
        digest = hashlib.sha256(context.execution.encode()).hexdigest()[:16]
        self._gid = self._session.gid_prefix + (
            f"{context.checkpoint_id}:{context.subtask}:{context.fencing_token}:{digest}"
        )
        self._connection: Any = None
        self._copy: Any = None
        self._prepared = False
        self._rows = 0

    def write(self, column: pa.Array) -> None:
        data = self._encoder.encode(column)
        with self._errors():
            if self._copy is None:
                self._connection = self._session.connect()
                self._session.begin(self._connection)
                self._cursor = self._connection.cursor()
                self._copying = self._cursor.copy(self._session.copy_into(self._session.target, self._columns))
                self._copy = self._copying.__enter__()
            self._copy.write(data)
        self._rows += len(column)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if may_pass(error):
                raise StorageError(f"{self._what} cannot be reached: {str(error).strip()}") from error
            raise SinkCommitError(
                f"{self._what} refuses the rows of checkpoint {self._checkpoint_id}: {str(error).strip().rstrip('.')}. "
                "Change the table so that it takes them, and run again, which writes them again."
            ) from error

    def prepare_commit(self) -> list[Json]:
        if self._copy is None:
            return []
        with self._errors():
            self._copying.__exit__(None, None, None)
            self._session.check_taken(self._cursor.rowcount, self._rows)
            self._table.check(self._connection)  # what was written to cannot be altered before the end
            self._session.register(self._connection, self._checkpoint_id, self._gid, self._rows, None)
            self._prepared = True  # from now on a failure leaves the outcome open
            self._connection.execute(self._session.two_phase("PREPARE TRANSACTION", self._gid))
            self._connection.close()
        return [{"gid": self._gid, "rows": self._rows}]

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.close()  # the server rolls back
        if self._prepared:
            with suppress(Exception), self._session.connect() as connection:  # abort_lingering finds it
                connection.execute(self._session.two_phase("ROLLBACK PREPARED", self._gid))
