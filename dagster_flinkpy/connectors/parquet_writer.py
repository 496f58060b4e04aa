"""The writer of Parquet files. It needs PyArrow, so only writing tasks import it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.connectors.staged_files import PART_BYTES, StagedUpload, file_name, partition_folder
from dagster_flinkpy.datastream.connectors.base import CommittingSinkWriter, Json, WriterInitContext
from dagster_flinkpy.storage import ObjectStore

__all__ = ["ParquetWriter"]

_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 17


class ParquetWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask to a staged upload, which begins with the first record.

    Args:
        store: Store rooted at the sink's location.
        context: Who is writing.
        type_info: Type of the records.
        part_bytes: Size of the parts that are sent, in bytes.
    """

    def __init__(
        self,
        store: ObjectStore,
        context: WriterInitContext,
        type_info: TypeInformation,
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._flat = isinstance(type_info, (RowTypeInfo, TupleTypeInfo))
        self._schema = pa.schema(list(type_info.arrow_type) if self._flat else [("value", type_info.arrow_type)])
        self._upload = StagedUpload(store, _key(context), part_bytes)
        self._parquet: pq.ParquetWriter | None = None
        self._group: list[pa.RecordBatch] = []  # the row group that is being filled
        self._group_rows = 0
        self._group_bytes = 0
        self._rows = 0

    def write(self, column: pa.Array) -> None:
        columns = column.flatten() if self._flat else [column]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= _GROUP_ROWS or self._group_bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._group_rows:
            if self._parquet is None:
                self._parquet = pq.ParquetWriter(self._upload, self._schema, compression="zstd")
            self._parquet.write_table(pa.Table.from_batches(self._group, self._schema), row_group_size=_GROUP_ROWS)
            self._rows += self._group_rows
        self._group, self._group_rows, self._group_bytes = [], 0, 0

    def prepare_commit(self) -> list[Json]:
        self._write_group()
        if self._parquet is None:
            return []
        self._parquet.close()
        return [self._upload.finish(self._rows).to_json()]

    def abort(self) -> None:
        self._group, self._parquet = [], None
        self._upload.abort()


def _key(context: WriterInitContext) -> str:
    return f"{partition_folder(context.partition)}{file_name(context)}.parquet"
