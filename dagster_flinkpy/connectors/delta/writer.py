"""The writer of the Delta Lake sink."""

from __future__ import annotations

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.commit.staged_files import value_folder
from dagster_flinkpy.connectors.delta.sink import DeltaSink
from dagster_flinkpy.connectors.lake.writer import LakeWriter
from dagster_flinkpy.datastream.connectors.base import WriterInitContext

__all__ = ["DeltaWriter"]


class DeltaWriter(LakeWriter):
    """Stages the data files of one epoch of one subtask."""

    def __init__(self, sink: DeltaSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(sink, context, type_info)
        if sink.filled is not None:
            self._folder = "".join(value_folder(name, value) for name, value in self._filled.items())
