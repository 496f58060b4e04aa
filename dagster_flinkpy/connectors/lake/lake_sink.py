"""What the sinks into tables of Delta Lake and Iceberg have in common."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from dagster_flinkpy.common.arguments import check_name, names_in
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import FilledColumns, check_key, check_parquet_type, columns_of
from dagster_flinkpy.connectors.commit.table_sink import TableSink, check_folder
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.tables import RowCount
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LakeSink"]


class LakeSink(TwoPhaseCommittingSink):
    """Appends rows to a table, or replaces rows by key, which wait as ``staged``, or by partition."""

    table_format: ClassVar[str]
    """How names in the registry begin."""
    unreadable: ClassVar[str]
    """A regular expression: what the name of the folder cannot have."""
    without: ClassVar[tuple[TypeInformation, ...]]
    """The types that its columns cannot have, though Parquet files can."""

    def __init__(
        self,
        files: TableSink,
        staged: TableSink,
        *,
        partition_column: str | None,
        key: Sequence[str],
        merge_schema: bool,
    ) -> None:
        if partition_column is not None:
            check_name(f"{type(self).__name__}() as partition_column", partition_column)
            if partition_column == "partition":
                raise ConfigurationError(
                    f"{type(self).__name__}() cannot fill a column 'partition': folders of that name tell Dagster's "
                    "partitions, and not the values of a column. Give partition_column another name"
                )
        self.files, self.staged, self.location = files, staged, files.location
        check_folder(f"{type(self).__name__}()", self.location, self.unreadable)
        self.key, self.merge_schema = names_in(f"{type(self).__name__}()", "key", key), merge_schema
        self.filled: FilledColumns | None = None
        if partition_column is not None:
            self._fill(FilledColumns(partition_column))

    @property
    @abstractmethod
    def what(self) -> str:
        """The table, for messages."""

    def validate(self, type_info: TypeInformation | None) -> None:
        where = f"the sink of {self.what}"
        columns = {} if type_info is None else columns_of(type_info)
        if self.filled is not None:
            self.filled.check_free(where, columns)
        self.files.validate(None if type_info is None else self.row_type(type_info))
        for name, kind in columns.items():
            check_parquet_type(name, kind, self.what, most_digits=38, without=self.without)
        check_key(where, self.key, columns)

    def row_type(self, type_info: TypeInformation) -> TypeInformation:
        """Returns the columns of the data files, for records of a type."""
        return type_info

    def _fill(self, filled: FilledColumns) -> None:
        self.filled = filled

    @property
    def replaces_whole_partitions(self) -> bool:
        return self.filled is not None

    def for_owner(self, owner: str) -> Self:
        """Returns the sink with which an owner, such as an asset, replaces what it has written, and nothing of others.

        The table is partitioned by ``dagster_asset_key`` and ``dagster_partition_key``.

        Raises:
            ConfigurationError: The sink replaces rows by key.
        """
        if self.key:
            raise ConfigurationError(f"{owner!r} replaces all of its rows in {self.what}: leave out key")
        sink = copy.copy(self)
        sink._fill(FilledColumns(owner=owner))
        return sink

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        self.validate(type_info)
        return call_registered("keyed_rows_writer" if self.key else "lake_writer", self, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        does = "upsert_" if self.key else "" if self.filled is None else "partition_"
        return call_registered(f"{self.table_format}_{does}committer", self, context)

    def count_rows(self, known: RowCount | None = None) -> RowCount | None:
        """Counts the rows as the log of the table tells them. Data files are not opened."""
        rows: int | None = call_registered(f"{self.table_format}_row_count", self)
        return None if rows is None else RowCount(rows)

    def uri(self) -> str:
        return self.location.url
