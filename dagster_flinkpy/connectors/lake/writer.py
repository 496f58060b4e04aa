"""What the writers of Delta Lake and Iceberg tables have in common."""

from __future__ import annotations

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.table_writer import TableWriter
from dagster_flinkpy.connectors.lake.lake_sink import LakeSink
from dagster_flinkpy.datastream.connectors.base import Json, WriterInitContext

__all__ = ["LakeWriter"]


class LakeWriter(TableWriter):
    """Stages the data files of one epoch of one subtask.

    Args:
        sink: The sink.
        context: Who is writing.
        type_info: Type of the records.
        written: Type of the rows of files. Default: that of the records.
    """

    def __init__(
        self,
        sink: LakeSink,
        context: WriterInitContext,
        type_info: TypeInformation,
        written: TypeInformation | None = None,
    ) -> None:
        self._filled, self._context = dict[str, str | None](), context
        if sink.filled is not None:
            sink.filled.check(f"the sink of {sink.what}", columns_of(type_info), context.partition)
            self._filled = sink.filled.values(context.partition)
        super().__init__(sink.files, context, written or type_info)

    def _facts(self) -> Json:
        return {"staged_ms": current_millis(), "partition": self._context.partition}

    def prepare_commit(self) -> list[Json]:
        return [{**file, **self._facts()} for file in super().prepare_commit()]
