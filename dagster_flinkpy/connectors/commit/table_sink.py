"""What the sinks into folders of files have in common: Parquet, CSV and JSON lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from dagster_flinkpy.common.arguments import check_argument, check_number, names_in
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import PARTITION_TYPES, columns_of, is_nested
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.datastream.connectors.base import (
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered
from dagster_flinkpy.storage import StorageLocation

__all__ = ["StagedParquet", "TableSink", "check_folder", "checked_location"]


def checked_location(call: str, folder: Any) -> StorageLocation:
    """Returns a folder that was given to a call as a location."""
    check_argument(call, folder, (str, StorageLocation), "a path, s3://..., or a StorageLocation")
    return StorageLocation(folder) if isinstance(folder, str) else folder


def check_folder(call: str, location: StorageLocation, unreadable: str) -> None:
    """Checks that the library of a table format finds a folder by its name.

    Args:
        call: What the folder was given to, for the message.
        location: The folder.
        unreadable: A regular expression: what the library takes for something else.

    Raises:
        ConfigurationError: The name has something like that.
    """
    name = location.url if location.local_path is None else str(location.local_path)
    if (found := re.search(unreadable, name)) is not None:
        raise ConfigurationError(
            f"{call} cannot have a folder with {found[0]!r} in its name, {name}: its library would look for the table "
            "in another folder. Choose another name"
        )


class TableSink(TwoPhaseCommittingSink):
    """Writes files into a location. A subclass chooses the format, and describes the arguments."""

    file_format: ClassVar[str]
    """The name of the format: its Dagster kind, and the suffix of files."""
    compressions: ClassVar[dict[str, str]]
    """What `compression` may be, and the suffix that it adds to the names of files."""
    keeps_partition_columns = False
    """Whether files have the columns of `partition_by`, too."""

    def __init__(
        self,
        location: StorageLocation | str,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        max_file_bytes: int | None = None,
        compression: str | None = None,
    ) -> None:
        call = f"{type(self).__name__}()"
        self.partition_by = names_in(call, "partition_by", partition_by)
        self.sort_by = names_in(call, "sort_by", sort_by)
        if max_file_bytes is not None:
            check_number(call, max_file_bytes, "bytes")
            if max_file_bytes <= 0:
                raise ConfigurationError(f"{call} needs a positive max_file_bytes, not {max_file_bytes}")
        compression = next(iter(self.compressions)) if compression is None else compression
        if compression not in self.compressions:
            raise ConfigurationError(f"{call}: compression {compression!r} must be one of {list(self.compressions)}")
        if "partition" in partition_by:
            raise ConfigurationError(
                f"{call} cannot partition by a column 'partition': Dagster's partitions have folders of that name"
            )
        self.location = checked_location(call, location)
        self.max_file_bytes = max_file_bytes
        self.compression = compression

    @property
    def suffix(self) -> str:
        """The end of the names of files."""
        return f".{self.file_format}{self.compressions[self.compression]}"

    def validate(self, type_info: TypeInformation | None) -> None:
        where = f"the sink of {self.location.url}"
        if type_info is None or isinstance(type_info, PickledBytesTypeInfo):
            raise ConfigurationError(
                f"{where} needs typed records: declare output_type=..., such as Types.ROW_NAMED([...], [...]), on the "
                "operator before it"
            )
        columns = columns_of(type_info)
        for name in (*self.partition_by, *self.sort_by):
            if name not in columns:
                raise ConfigurationError(f"{where} has no column {name!r}: the records have {list(columns)}")
        for name in self.partition_by:
            if columns[name] not in PARTITION_TYPES:
                raise ConfigurationError(
                    f"{where} cannot partition by {name!r}, a {columns[name]}: use text, a whole number, a boolean or "
                    "a date"
                )
        for name in self.sort_by:
            if is_nested(columns[name]):
                raise ConfigurationError(f"{where} cannot sort by {name!r}, a {columns[name]}")
        if columns and set(columns) <= set(self.partition_by):
            raise ConfigurationError(f"{where} partitions by all columns, so its files would have none")
        for name, kind in columns.items():
            if name not in self.partition_by:
                self.validate_column(name, kind)

    def validate_column(self, name: str, type_info: TypeInformation) -> None:
        """Checks that the format can contain a column. By default it can.

        Raises:
            ConfigurationError: It cannot; the message says what to do.
        """

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        self.validate(type_info)
        return call_registered("table_writer", self, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> StagedFileCommitter:
        if context.job_id.startswith("_"):
            raise ConfigurationError(
                f"the files of job {context.job_id!r} in {self.location.url} would begin with its name, and readers "
                "ignore files that begin with '_': give the job another name"
            )
        store = self.location.open()
        if next(store.list("_delta_log/"), None) is not None:
            raise ConfigurationError(
                f"the sink of {self.location.url} would write {self.file_format} files into a Delta Lake table: those "
                "who read the table would not see them, and its VACUUM would delete them. Use a DeltaSink, or another "
                "folder"
            )
        return StagedFileCommitter(store, context)

    def for_owner(self, owner: str) -> TwoPhaseCommittingSink:
        """Returns the sink with which an owner, such as an asset, replaces what it has written, and nothing of others.

        Names of files tell whose they are, so it is the sink itself.
        """
        return self

    def kinds(self) -> set[str]:
        return {self.file_format}

    def uri(self) -> str:
        return self.location.url


class StagedParquet(TableSink):
    """Parquet files that are put into a target, or named by the log of one, when their checkpoint is complete.

    Whoever does that says which columns they can have.
    """

    file_format: ClassVar[str] = "parquet"
    compressions: ClassVar[dict[str, str]] = {"zstd": ""}
