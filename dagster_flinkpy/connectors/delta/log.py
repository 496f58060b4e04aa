"""The log of a Delta Lake table, for the source."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from dagster_flinkpy.connectors.columns.column_casts import moment_of
from dagster_flinkpy.connectors.commit.staged_files import partition_text
from dagster_flinkpy.connectors.delta.source import DeltaSource
from dagster_flinkpy.connectors.delta.table import check_log, entry_name, read_entry, storage_options, table_url
from dagster_flinkpy.connectors.lake.table_source import TableLog, window_at
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import (
    ConfigurationError,
    InputChangedError,
    ObjectNotFoundError,
    SourceReadError,
    StorageError,
)

__all__ = ["DeltaLog"]

_KNOWN = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
"""Reader features that a table may have. Deletion vectors and mapped columns are refused where they are in use."""


class DeltaLog(TableLog):
    """Reads the versions of a table."""

    def __init__(self, source: DeltaSource) -> None:
        self._source, self._store = source, source.location.open()

    def latest(self) -> int:
        return int(self._open().version())

    def after(self, version: int) -> int | None:
        with self._reading():
            if self._store.head(entry_name(version + 1)) is None:
                latest = self.latest()
                if latest > version and self._store.head(entry_name(version + 1)) is None:
                    raise self._cleaned_up(version + 1)
                return None if latest <= version else version + 1
            return version + 1

    def _cleaned_up(self, version: int) -> InputChangedError:
        return InputChangedError(
            f"version {version} of Delta table {self._store.url} was not read, and is no longer in the log: it was "
            "cleaned up. Raise delta.logRetentionDuration, and start from empty state to read the table as it is now"
        )

    def count_after(self, version: int) -> int:
        return max(self.latest() - version, 0)

    def mark(self, version: int) -> str | None:
        with self._reading():
            try:
                return hashlib.sha256(self._store.get(entry_name(version))[0]).hexdigest()
            except ObjectNotFoundError:  # the log was cleaned up
                return None

    def check_history(self, version: int, mark: str) -> None:
        found = self.mark(version)
        if found == mark or (found is None and self.latest() >= version):
            return
        raise InputChangedError(
            f"version {version} of Delta table {self._store.url} is not the one that the source has read: the table "
            "was dropped and made anew, or restored from a backup. Put it back as it was, or start from empty state to "
            "read it as it is now"
        )

    def all_files(self, version: int) -> list[Json]:
        with self._reading():
            table = self._open(version)
            self._check_readable(table)
            if pa.table(table.deletion_vectors()).num_rows:
                raise self._vectors(version)
            found = pa.table(table.get_add_actions()).to_pylist()
        for file in found:  # as it is in the log
            file["partitionValues"] = {n: _text(value) for n, value in (file.get("partition") or {}).items()}
            file["size"] = file["size_bytes"]
        files = self._files(found)
        return [self._change(file, version, "+I") for file in files] if self._source.change_feed else files

    def added_files(self, version: int) -> list[Json]:
        with self._reading():
            actions = read_entry(f"Delta table {self._store.url}", self._store, entry_name(version))
        if self._source.change_feed:
            return self._changes(actions, version)
        # RESTORE of an empty table only adds files, but those were there before.
        restores = any(each.get("operation") == "RESTORE" for each in _of_kind("commitInfo", actions))
        if restores or _of_kind("remove", actions):
            if self._source.skip_changes:
                return []
            raise InputChangedError(
                f"version {version} of Delta table {self._store.url} deletes or changes rows, but the source reads "
                "what is added. Give it skip_changes=True to leave out such versions, or start from empty state to "
                "read the table as it is now"
            )
        added = _of_kind("add", actions)
        if any(add.get("deletionVector") for add in added):
            raise self._vectors(version)
        return self._files(added)

    def _files(self, actions: Iterable[Json]) -> list[Json]:
        """Returns the files that actions of the log are about."""
        return sorted(map(self._file, actions), key=lambda file: str(file["path"]))

    def _file(self, action: Json) -> Json:
        path, column = action["path"], self._source.partition_column
        values = {name: text or None for name, text in (action.get("partitionValues") or {}).items()}  # "" is null
        file = {"path": self._relative(path), "size": action.get("size") or self._size(path), "values": values}
        if column not in values:
            return file
        if (value := values[column]) is not None and self._by_moments:
            return {**file, **window_at(moment_of(value))}
        return {**file, "window": value}

    @cached_property
    def _by_moments(self) -> bool:
        column = self._source.partition_column
        return column is not None and bool(pa.types.is_timestamp(self.schema().field(column).type))

    def _changes(self, actions: list[Json], version: int) -> list[Json]:
        """Returns what a version has changed: first files whose rows are deleted, then those whose rows are added.

        Files of changes say it row by row. If there are none, files that were removed and added say it.
        """
        if any(each.get("deletionVector") for a in actions for each in (a.get("add"), a.get("remove")) if each):
            raise self._vectors(version)
        if feed := [action["cdc"] for action in actions if "cdc" in action]:
            return [self._change(file, version, kinds) for kinds in ("-", "+") for file in self._files(feed)]
        removed, partitioned = _of_kind("remove", actions), self._open().metadata().partition_columns
        if partitioned and any(not remove.get("partitionValues") for remove in removed):
            raise InputChangedError(
                f"version {version} of Delta table {self._store.url} removes files without their partition values, so "
                "the rows that are gone cannot be read: enable delta.enableChangeDataFeed, and start from empty state"
            )
        changed = (("-D", removed), ("+I", _of_kind("add", actions)))
        return [self._change(file, version, kind) for kind, each in changed for file in self._files(each)]

    def _change(self, file: Json, version: int, kind: str) -> Json:
        """Returns a file of changes: of one kind, or with the rows that are deleted (``-``) or added (``+``)."""
        return {**file, "id": f"{version}{kind} {file['path']}", "kind": kind, "version": version}

    def _size(self, path: str) -> int:
        info = self._store.head(self._relative(path))
        if info is None:
            raise InputChangedError(
                f"{path} of Delta table {self._store.url}, whose rows were deleted, is gone: VACUUM has removed it "
                "before the source has read it. Raise delta.deletedFileRetentionDuration, and start from empty state"
            )
        return info.size

    def schema(self) -> pa.Schema:
        with self._reading():
            table = self._open()
            self._check_readable(table)
            return pa.schema(table.schema().to_arrow())

    def _check_readable(self, table: DeltaTable) -> None:
        what = f"Delta table {self._store.url}"
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise InputChangedError(f"{what} maps columns, which the source cannot read: write it to one that does not")
        if unknown := sorted(set(table.protocol().reader_features or ()) - _KNOWN):
            raise InputChangedError(
                f"{what} has the feature {unknown[0]!r}, which the source cannot read: ALTER TABLE ... DROP FEATURE "
                f"{unknown[0]!r}"
            )

    def _open(self, version: int | None = None) -> DeltaTable:
        url, there = table_url(self._source.location), self._source.location.url
        with self._reading():
            try:
                return DeltaTable(url, version=version, storage_options=storage_options(self._source.location))
            except TableNotFoundError as error:
                if version is not None and DeltaTable.is_deltatable(url, storage_options(self._source.location)):
                    raise self._cleaned_up(version) from error
                raise InputChangedError(f"Delta table {there} does not exist: put it back, or create it") from error
            except DeltaError:
                check_log(f"Delta table {there}", self._store)
                raise

    def _relative(self, path: str) -> str:
        if "://" in path:
            raise InputChangedError(f"Delta table {self._store.url} has the file {path}, which is not in its folder")
        return unquote(path)

    def _vectors(self, version: int) -> InputChangedError:
        return InputChangedError(
            f"version {version} of Delta table {self._store.url} has deletion vectors, which the source cannot read: "
            "REORG TABLE ... APPLY (PURGE) removes them"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except ConfigurationError as error:
            raise InputChangedError(f"cannot read Delta table {self._store.url}: {error}") from error
        except (DeltaError, OSError, StorageError) as error:
            raise SourceReadError(f"cannot read Delta table {self._store.url}: {error}") from error


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else partition_text(value)


def _of_kind(kind: str, actions: list[Json]) -> list[Json]:
    """Returns the actions of a kind, without those that change no data, as those of ``OPTIMIZE``."""
    return [each[kind] for each in actions if kind in each and each[kind].get("dataChange", True)]
