"""A folder of Parquet files as a two-phase-commit sink.

A writer stages one file per subtask and epoch as an upload, which readers cannot see. The committer completes the
uploads after the checkpoint. It recognises an upload that is already completed by the content of the object.
"""

from __future__ import annotations

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.decimals import check_has_scale
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.connectors.staged_files import StagedFileCommitter
from dagster_flinkpy.datastream.connectors.base import (
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["ParquetSink"]


class ParquetSink(TwoPhaseCommittingSink):
    """Writes Parquet files into a location. Readers only see files of completed checkpoints.

    Rows and tuples become one column per field; any other type becomes one column ``value``. Files are named
    ``{job}.{uid}.{checkpoint}.{subtask}.{attempt}-{execution}.parquet``. If the run has a Dagster partition, they are
    in the folder ``partition={partition}/``. A subtask without records writes no file.

    Args:
        location: A folder on S3, or a local one.
    """

    def __init__(self, location: StorageLocation | str) -> None:
        check_argument("ParquetSink()", location, (str, StorageLocation), "a path, s3://..., or a StorageLocation")
        self.location = StorageLocation(location) if isinstance(location, str) else location

    def validate(self, type_info: TypeInformation | None) -> None:
        if type_info is None or isinstance(type_info, PickledBytesTypeInfo):
            raise ConfigurationError(
                f"the Parquet sink {self.location.url} needs typed records: declare output_type=..., such as "
                "Types.ROW_NAMED([...], [...]), on the operator before it"
            )
        check_has_scale(type_info, f"the Parquet sink {self.location.url}")

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        from dagster_flinkpy.connectors.parquet_writer import ParquetWriter

        self.validate(type_info)
        return ParquetWriter(self.location.open(), context, type_info)

    def create_committer(self, context: CommitterInitContext) -> StagedFileCommitter:
        return StagedFileCommitter(self.location.open(), context)

    def kinds(self) -> set[str]:
        return {"parquet"}

    def uri(self) -> str:
        return self.location.url
