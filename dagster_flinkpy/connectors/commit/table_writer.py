"""The writer of Parquet, CSV and JSON-lines files. It needs PyArrow, so only writing tasks import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from dagster_flinkpy.common.parquet_encodings import repeating
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.columns.record_formats import to_json_lines
from dagster_flinkpy.connectors.commit.staged_files import (
    PART_BYTES,
    StagedFile,
    StagedUpload,
    file_name,
    partition_folder,
    partition_text,
    value_folder,
)
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.datastream.connectors.base import CommittingSinkWriter, Json, WriterInitContext
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["TableWriter"]

_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 17
_BUFFER_BYTES = 256 << 20
"""How many bytes of rows a writer keeps in memory, over all of its files."""
_THREADS = 8
_CSV = csv.WriteOptions(batch_size=8192)
"""Each batch is a call of Python; PyArrow's default is 1,024 rows."""
_MOST_PARTS = 9_000
"""S3 allows 10,000 parts of an upload."""


class _Encoder(NamedTuple):
    write: Callable[[pa.Table], object]
    closes: Sequence[Callable[[], object]]
    """What ends the file, in order."""


def _parquet(upload: StagedUpload, first: pa.Table, types: dict[str, TypeInformation], by: str) -> _Encoder:
    writer = pq.ParquetWriter(upload, first.schema, compression=by, use_dictionary=repeating(first))
    return _Encoder(partial(writer.write_table, row_group_size=_GROUP_ROWS), [writer.close])


def _csv(upload: StagedUpload, first: pa.Table, types: dict[str, TypeInformation], by: str) -> _Encoder:
    out = _compressed(upload, by)
    writer = csv.CSVWriter(out, first.schema, write_options=_CSV)

    def write(table: pa.Table) -> None:
        if table.num_columns == 1 and table.column(0).null_count:
            raise TypeMismatchError(
                f"column {table.column_names[0]!r} is the only one in a CSV file, and a record has null in it: its "
                "line would be empty, and readers skip empty lines. filter() such records out, or add a column"
            )
        writer.write_table(table)

    return _Encoder(write, [writer.close, out.close])


def _json(upload: StagedUpload, first: pa.Table, types: dict[str, TypeInformation], by: str) -> _Encoder:
    out = _compressed(upload, by)
    return _Encoder(lambda table: out.write(to_json_lines(types, table).encode()), [out.close])


def _compressed(upload: StagedUpload, compression: str) -> Any:
    return upload if compression == "none" else pa.CompressedOutputStream(pa.PythonFile(upload, "w"), compression)


_ENCODERS = {"parquet": _parquet, "csv": _csv, "json": _json}


class _OpenFile:
    """A file that is being written. It collects rows, and writes them in groups. ``begin`` only looks at the first."""

    def __init__(self, upload: StagedUpload, begin: Callable[[pa.Table], _Encoder], sort_by: list[Any]) -> None:
        self.upload = upload
        self._begin = begin
        self._encoder: _Encoder | None = None
        self.sort_by = sort_by
        self._group: list[pa.RecordBatch] = []
        self._rows = 0
        self.group_rows = self.group_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._group.append(batch)
        self.group_rows += batch.num_rows
        self.group_bytes += batch.nbytes

    @property
    def size(self) -> int:
        """About how many bytes it has. Sorted rows are not compressed yet."""
        return self.upload.tell() + (self.group_bytes if self.sort_by else 0)

    def write_group(self) -> None:
        if self.group_rows:
            table = pa.Table.from_batches(self._group)
            self._rows += table.num_rows
            if self.sort_by:
                table = table.sort_by(self.sort_by)
            if self._encoder is None:
                self._encoder = self._begin(table)
            self._encoder.write(table)
        self._group, self.group_rows, self.group_bytes = [], 0, 0

    def finish(self) -> StagedFile:
        self.write_group()
        assert self._encoder is not None
        for close in self._encoder.closes:
            close()
        return self.upload.finish(self._rows)


class TableWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask to staged uploads: one file, or several by partition and size."""

    def __init__(
        self, sink: TableSink, context: WriterInitContext, type_info: TypeInformation, *, part_bytes: int = PART_BYTES
    ) -> None:
        self._context = context
        self._flat = isinstance(type_info, (RowTypeInfo, TupleTypeInfo))
        columns = columns_of(type_info)
        self._schema = pa.schema([(name, kind.arrow_type) for name, kind in columns.items()])
        in_path = () if sink.keeps_partition_columns else sink.partition_by
        self._types = {name: kind for name, kind in columns.items() if name not in in_path}
        self._file_schema = pa.schema([(name, kind.arrow_type) for name, kind in self._types.items()])
        self._sink = sink
        self._store = sink.location.open()
        self._part_bytes = part_bytes
        self._most_bytes = min(sink.max_file_bytes or part_bytes * _MOST_PARTS, part_bytes * _MOST_PARTS)
        self._folder, self._name = partition_folder(context.partition), file_name(context)
        self._sort_by = [(name, "ascending") for name in sink.sort_by]
        self._open: dict[str, _OpenFile] = {}
        self._finished: list[StagedFile] = []
        self._uploads: list[StagedUpload] = []

    def write(self, column: pa.Array) -> None:
        if not len(column):
            return
        columns = column.flatten() if self._flat else [column]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        for folder, part in self._partitions(batch):
            file = self._open.get(folder)
            if file is None:
                file = self._open[folder] = self._begin(folder)
            file.add(part)
            if not file.sort_by and (
                file.group_rows >= _GROUP_ROWS or file.group_bytes >= min(_GROUP_BYTES, self._most_bytes)
            ):
                file.write_group()
            if file.size >= self._most_bytes:
                self._finish(folder)
        self._limit_memory()

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields the rows of each partition, in their order, with the folder of the partition."""
        names = self._sink.partition_by
        rows = batch.select(self._file_schema.names)
        if not names:
            yield "", rows
            return
        # codes: int64, one a row, equal for rows of a partition. order: their positions, stably sorted by code. starts:
        # where in order each of the found codes begins; both ascend.
        codes, values = np.zeros(batch.num_rows, np.int64), []
        for name in names:
            encoded = batch.column(name).dictionary_encode(null_encoding="encode")
            values.append(encoded.dictionary.to_pylist())
            codes = codes * len(values[-1]) + encoded.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        found, starts = np.unique(codes[order], return_index=True)
        for code, positions in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            folder = ""
            for name, column in zip(reversed(names), reversed(values), strict=True):
                code, index = divmod(code, len(column))
                value, empty_is_null = partition_text(column[index]), not self._sink.keeps_partition_columns
                folder = value_folder(name, value, empty_is_null=empty_is_null) + folder
            yield folder, rows.take(pa.array(positions))

    def _begin(self, folder: str) -> _OpenFile:
        number = len(self._uploads)
        name = f"{self._folder}{folder}{self._name}{f'-{number}' if number else ''}{self._sink.suffix}"
        upload = StagedUpload(self._store, name, self._part_bytes)
        self._uploads.append(upload)
        encoder = _ENCODERS[self._sink.file_format]
        return _OpenFile(
            upload, lambda first: encoder(upload, first, self._types, self._sink.compression), self._sort_by
        )

    def _limit_memory(self) -> None:
        while sum(file.group_bytes for file in self._open.values()) > _BUFFER_BYTES:
            folder, file = max(self._open.items(), key=lambda item: item[1].group_bytes)
            if file.sort_by:
                self._finish(folder)  # another file begins, because a file is sorted as a whole
            else:
                file.write_group()

    def _finish(self, folder: str) -> None:
        self._finished.append(self._open.pop(folder).finish())

    def prepare_commit(self) -> list[Json]:
        with ThreadPoolExecutor(_THREADS, "finish") as pool:  # each file waits for the store
            self._finished += pool.map(_OpenFile.finish, self._open.values())
        self._open.clear()
        return [file.to_json() for file in self._finished]

    def abort(self) -> None:
        for upload in self._uploads:
            upload.abort()
        self._open.clear()  # an encoder that is dropped ends its file
