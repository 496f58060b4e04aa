"""The writer of the Iceberg sink. It needs no catalog."""

from __future__ import annotations

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.commit.staged_rows import without_rows
from dagster_flinkpy.connectors.iceberg.sink import IcebergSink
from dagster_flinkpy.connectors.lake.writer import LakeWriter
from dagster_flinkpy.datastream.connectors.base import Json, WriterInitContext

__all__ = ["IcebergWriter"]


class IcebergWriter(LakeWriter):
    """Stages the data files of one epoch of one subtask."""

    def __init__(self, sink: IcebergSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(sink, context, type_info)
        self._has_fields = bool(pa.types.is_struct(type_info.arrow_type))

    def write(self, column: pa.Array) -> None:
        columns = column.flatten() if self._has_fields else [column]
        columns += [pa.repeat(pa.scalar(value, pa.string()), len(column)) for value in self._filled.values()]
        columns = [array.cast(field.type) for array, field in zip(columns, self._schema, strict=True)]
        super().write(pa.StructArray.from_arrays(columns, fields=list(self._schema)) if self._flat else columns[0])

    def prepare_commit(self) -> list[Json]:
        files = super().prepare_commit()
        if not files and self._filled and self._context.subtask == 0:  # it replaces what is there, too
            files = [without_rows(self._context).to_json()]
        return files
