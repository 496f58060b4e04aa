"""An Iceberg table as a two-phase-commit sink."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

from dagster_flinkpy.common.arguments import check_installed, check_name
from dagster_flinkpy.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.connectors.columns.column_types import FilledColumns, columns_of
from dagster_flinkpy.connectors.commit.table_sink import StagedParquet
from dagster_flinkpy.connectors.lake.lake_sink import LakeSink
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import StorageLocation

__all__ = ["IcebergSink"]

_MAIN = "main"
_TRANSFORM = re.compile(r"(years?|months?|days?|hours?|bucket|truncate|void)\s*[(\[].*", re.IGNORECASE)
"""How people write partition transforms."""


class IcebergSink(LakeSink):
    """Writes rows into an Iceberg table. Needs ``pip install 'dagster-flinkpy[iceberg]'``.

    Subtasks stage Parquet files in the folder of the table. When the checkpoint is complete, the driver adds all of
    them in one snapshot. Readers see all rows of a checkpoint or none. The table is created if it does not exist.

    By default rows are appended. With ``key``, a row replaces the row with the same key. With ``partition_column``, for
    jobs with time partitions, the rows of a partition replace those that earlier runs of the partition have written.

    Args:
        table: The table, ``namespace.name``.
        location: The folder of the table, on S3 or local.
        catalog: The name of the catalog. Default: ``default``.
        properties: Settings of the catalog, as pyiceberg knows them: ``{"type": "sql", "uri":
            "postgresql+psycopg://user@host/database"}``, ``{"type": "rest", "uri": "https://..."}`` or ``{"type":
            "hive", "uri": "thrift://..."}``, which needs the package ``thrift``. Default: those in
            ``~/.pyiceberg.yaml`` or the environment (``PYICEBERG_CATALOG__DEFAULT__URI``), where passwords belong.
        partition_by: Columns by whose values the table is partitioned. Text, whole numbers, booleans or dates. Default:
            none.
        sort_by: Columns by which the rows of each file are sorted, nulls last. Default: as they come.
        max_file_bytes: The size after which a file is full and another one begins. Default: a checkpoint ends it.
        key: Columns that identify a row. Text, whole numbers, booleans, dates or timestamps. Of several rows of a
            checkpoint with the same key the last one counts. Subtasks then stage their rows, and the driver writes
            them, together with the rows that stay in the files of replaced ones.
        partition_column: A column that the sink fills with the key of the Dagster partition. The table is partitioned
            by it. It must not be one of the fields, nor named ``partition``.
        merge_schema: Whether columns that the table does not have are added to it, when the job starts. Rows that are
            there have null in them. Branches have the same columns. Default: the job is refused.
        branch: The branch of the table to which snapshots are added, as with Iceberg's ``toBranch`` of Flink. Other
            branches stay as they are. If it does not exist, the job creates it when it starts: it begins with the rows
            of ``main``. Default: ``main``.

    Raises:
        ConfigurationError: Arguments contradict each other, or pyiceberg is not installed.
    """

    table_format: ClassVar[str] = "iceberg"
    unreadable: ClassVar[str] = "[#?]"
    without = (Types.BIG_INT(),)

    def __init__(
        self,
        table: str,
        location: StorageLocation | str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        max_file_bytes: int | None = None,
        key: Sequence[str] = (),
        partition_column: str | None = None,
        merge_schema: bool = False,
        branch: str = _MAIN,
    ) -> None:
        for name, value in (("table", table), ("catalog", catalog), ("branch", branch)):
            check_name(f"IcebergSink() as {name}", value)
        check_installed("IcebergSink", "pyiceberg", "iceberg")
        if not all(table.split(".")) or "." not in table:
            raise ConfigurationError(f"table {table!r} must be 'namespace.name'")
        if key and partition_column is not None:
            raise ConfigurationError(
                "give a key or a partition_column: rows replace rows with the same key, or those of a partition"
            )
        files = StagedParquet(location, partition_by=partition_by, sort_by=sort_by, max_file_bytes=max_file_bytes)
        files.keeps_partition_columns = True
        if files.location.kms_key_id is not None:
            raise ConfigurationError(
                f"pyiceberg cannot write metadata of {table!r} with a KMS key: make the key the default of the bucket, "
                "and leave kms_key_id out"
            )
        staged = StagedParquet(files.location.child("staged"))
        self.table, self.catalog, self.properties, self.branch = table, catalog, dict(properties or {}), branch
        super().__init__(files, staged, partition_column=partition_column, key=key, merge_schema=merge_schema)

    @property
    def what(self) -> str:
        table = f"Iceberg table {self.table!r}"
        return table if self.branch == _MAIN else f"branch {self.branch!r} of {table}"

    def _fill(self, filled: FilledColumns) -> None:
        before = [] if self.filled is None else self.filled.names
        chosen = [name for name in self.files.partition_by if name not in before]
        if twice := [name for name in filled.names if name in chosen]:
            raise ConfigurationError(f"leave partition_column {twice[0]!r} out of partition_by")
        self.files, self.filled = copy.copy(self.files), filled
        self.files.partition_by = (*filled.names, *chosen)

    def validate(self, type_info: TypeInformation | None) -> None:
        columns = {} if type_info is None else columns_of(type_info)
        for name in self.files.partition_by:
            if name not in columns and _TRANSFORM.fullmatch(name):
                raise ConfigurationError(
                    f"the sink of {self.what} cannot partition by {name}: it writes files by the values of columns "
                    "only. Add a column with the values with map(), and partition by that"
                )
        super().validate(type_info)

    def row_type(self, type_info: TypeInformation) -> TypeInformation:
        columns = {name: widened(kind) for name, kind in columns_of(type_info).items()}
        columns |= {} if self.filled is None else dict.fromkeys(self.filled.names, Types.STRING())
        if not isinstance(type_info, (RowTypeInfo, TupleTypeInfo)) and self.filled is None:
            return columns["value"]
        return Types.ROW_NAMED(list(columns), list(columns.values()))

    def kinds(self) -> set[str]:
        return {"iceberg"}

    def folders(self) -> list[str]:
        return [self.location.url]

    def uri(self) -> str:
        return self.location.url if self.branch == _MAIN else f"{self.location.url}#{quote(self.branch, safe='')}"


def widened(type_info: TypeInformation) -> TypeInformation:
    """Returns the type as Iceberg has it: its smallest whole number has 32 bits."""
    if type_info in (Types.BYTE(), Types.SHORT()):
        return Types.INT()
    if isinstance(type_info, ListTypeInfo):
        return Types.LIST(widened(type_info.elem_type))
    if isinstance(type_info, MapTypeInfo):
        return Types.MAP(widened(type_info.key_type), widened(type_info.value_type))
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        columns = columns_of(type_info)
        return Types.ROW_NAMED(list(columns), [widened(kind) for kind in columns.values()])
    return type_info
