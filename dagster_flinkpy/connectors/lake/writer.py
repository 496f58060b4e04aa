"""The writers of Delta Lake and Iceberg tables."""

from __future__ import annotations

import pyarrow as pa

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.staged_files import partition_values, value_folder
from dagster_flinkpy.connectors.commit.staged_rows import StagedRowsWriter, check_keys, without_rows
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.connectors.lake.lake_sink import LakeSink
from dagster_flinkpy.datastream.connectors.base import Json, WriterInitContext
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["KeyedRowsWriter", "LakeWriter"]


class LakeWriter(TableWriter):
    """Stages the data files of one epoch of one subtask."""

    def __init__(self, sink: LakeSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(sink.files, context, sink.row_type(type_info))
        self._has_fields = bool(pa.types.is_struct(type_info.arrow_type))
        self._filled = dict[str, str | None]()
        if sink.filled is None:
            return
        sink.filled.check(f"the sink of {sink.what}", columns_of(type_info), context.partition)
        self._filled, in_files = sink.filled.values(context.partition), sink.files.keeps_partition_columns
        folder = "".join(value_folder(name, value, empty_is_null=not in_files) for name, value in self._filled.items())
        if partition_values(folder) != self._filled:
            raise ConfigurationError(
                f"the sink of {sink.what} cannot fill in partition {context.partition!r}: folders of that name have "
                "rows with null. Give the partition another key"
            )
        if not in_files:  # only the folders tell them
            self._folder = folder

    def write(self, column: pa.Array) -> None:
        if self._sink.keeps_partition_columns:  # in Iceberg, files have all columns, of its types
            columns = column.flatten() if self._has_fields else [column]
            columns += [pa.repeat(pa.scalar(value, pa.string()), len(column)) for value in self._filled.values()]
            columns = [array.cast(field.type) for array, field in zip(columns, self._schema, strict=True)]
            column = pa.StructArray.from_arrays(columns, fields=list(self._schema)) if self._flat else columns[0]
        super().write(column)

    def prepare_commit(self) -> list[Json]:
        files = super().prepare_commit()
        if not files and self._sink.keeps_partition_columns and self._filled and self._context.subtask == 0:
            return [without_rows(self._context).to_json()]  # in Iceberg, it replaces what is there, too
        return [{**file, "staged_ms": current_millis(), "partition": self._context.partition} for file in files]


class KeyedRowsWriter(StagedRowsWriter):
    """Stages rows whose key is not null, which the driver writes in place of those with the same key."""

    def __init__(self, sink: LakeSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(sink.staged, context, type_info)
        self._key, self._table = sink.key, sink.what

    def write(self, column: pa.Array) -> None:
        check_keys(self._table, self._key, self._schema.names, column)
        super().write(column)
