"""The writer of the Iceberg sink. It needs no catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.datastream.connectors.base import Json, WriterInitContext

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergWriter"]


class IcebergWriter(TableWriter):
    """Stages the data files of one epoch of one subtask.

    Args:
        sink: The sink.
        context: Who is writing.
        type_info: Type of the records.
    """

    def __init__(self, sink: IcebergSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        if sink.filled is not None:
            where = f"the sink of Iceberg table {sink.table!r}"
            sink.filled.check(where, columns_of(type_info), context.partition)
        super().__init__(sink.files, context, sink.row_type(type_info))
        self._filled = None if sink.filled is None else sink.filled.values(context.partition)
        self._has_fields, self._context = bool(pa.types.is_struct(type_info.arrow_type)), context

    def write(self, column: pa.Array) -> None:
        columns = column.flatten() if self._has_fields else [column]
        columns += [pa.repeat(pa.scalar(v, pa.string()), len(column)) for v in (self._filled or {}).values()]
        columns = [array.cast(field.type) for array, field in zip(columns, self._schema, strict=True)]
        super().write(pa.StructArray.from_arrays(columns, fields=list(self._schema)) if self._flat else columns[0])

    def prepare_commit(self) -> list[Json]:
        facts = {"staged_ms": current_millis(), "partition": self._context.partition}
        files = [{**file, **facts} for file in super().prepare_commit()]
        if not files and self._filled is not None and self._context.subtask == 0:  # it replaces what is there, too
            files = [{"key": "", "rows": 0, "bytes": 0, "sha256": self._context.execution, **facts}]
        return files
