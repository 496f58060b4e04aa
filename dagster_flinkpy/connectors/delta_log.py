"""The log of a Delta Lake table, for the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.arrow_types import row_type_of
from dagster_flinkpy.connectors.delta_table import storage_options
from dagster_flinkpy.connectors.table_source import TableLog
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import SourceReadError, StorageError

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.delta_source import DeltaSource

__all__ = ["DeltaLog"]


class DeltaLog(TableLog):
    """Reads the versions of a table.

    Args:
        source: The source.
    """

    def __init__(self, source: DeltaSource) -> None:
        self._source, self._store = source, source.location.open()

    def latest(self) -> int:
        return int(self._open().version())

    def after(self, version: int) -> int | None:
        with self._reading():
            if self._store.head(_entry(version + 1)) is None:
                latest = self.latest()
                if latest > version and self._store.head(_entry(version + 1)) is None:
                    raise SourceReadError(
                        f"version {version + 1} of Delta table {self._store.url} was not read, and is no longer in the "
                        f"log, whose latest is {latest}: it was cleaned up. Raise delta.logRetentionDuration, and "
                        "start from empty state to read the table as it is now"
                    )
                return None if latest <= version else version + 1
            return version + 1

    def count_after(self, version: int) -> int:
        return max(self.latest() - version, 0)

    def all_files(self, version: int) -> list[Json]:
        with self._reading():
            table = self._open(version)
            if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
                raise SourceReadError(f"Delta table {self._store.url} maps columns, which the source cannot read")
            if pa.table(table.deletion_vectors()).num_rows:
                raise self._vectors(version)
            found = pa.table(table.get_add_actions()).to_pylist()
        files = [
            {
                "path": self._relative(file["path"]),
                "size": file["size_bytes"],
                "values": {k: None if v is None else _text(v) for k, v in (file.get("partition") or {}).items()},
            }
            for file in found
        ]
        return sorted(files, key=lambda file: str(file["path"]))

    def added_files(self, version: int) -> list[Json]:
        with self._reading():
            lines = self._store.get(_entry(version))[0].decode().splitlines()
        actions = [json.loads(line) for line in lines if line.strip()]
        if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            if self._source.skip_changes:
                return []
            raise SourceReadError(
                f"version {version} of Delta table {self._store.url} deletes or changes rows, but the source reads "
                "what is added. Give it skip_changes=True to leave out such versions, or start from empty state to "
                "read the table as it is now"
            )
        added = [a["add"] for a in actions if "add" in a and a["add"].get("dataChange", True)]
        if any(add.get("deletionVector") for add in added):
            raise self._vectors(version)
        files = [
            {"path": self._relative(add["path"]), "size": add["size"], "values": add.get("partitionValues") or {}}
            for add in added
        ]
        return sorted(files, key=lambda file: str(file["path"]))

    def row_type(self) -> RowTypeInfo:
        with self._reading():
            return row_type_of(pa.schema(self._open().schema().to_arrow()))

    def _open(self, version: int | None = None) -> DeltaTable:
        url = self._source.location.url
        with self._reading():
            return DeltaTable(url, version=version, storage_options=storage_options(self._source.location))

    def _relative(self, path: str) -> str:
        if "://" in path:
            raise SourceReadError(f"Delta table {self._store.url} has the file {path}, which is not in its folder")
        return unquote(path)

    def _vectors(self, version: int) -> SourceReadError:
        return SourceReadError(
            f"version {version} of Delta table {self._store.url} has deletion vectors, which the source cannot read: "
            "REORG TABLE ... APPLY (PURGE) removes them"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError, StorageError) as error:
            raise SourceReadError(f"cannot read the log of Delta table {self._store.url}: {error}") from error


def _entry(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
