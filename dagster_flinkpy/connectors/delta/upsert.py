"""The committer of a Delta Lake sink with a key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from dagster_flinkpy.connectors.commit.keyed_rows import last_of_each
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, StagedRows
from dagster_flinkpy.connectors.delta.committer import DIGEST, DeltaCommitter
from dagster_flinkpy.connectors.delta.rules import Change
from dagster_flinkpy.connectors.files.parquet_table import table_schema
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext, Json
from dagster_flinkpy.errors import ConfigurationError, SinkCommitError

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.delta.sink import DeltaSink

__all__ = ["DeltaUpsertCommitter"]


class DeltaUpsertCommitter(DeltaCommitter):
    """Merges the staged rows of a checkpoint into the table, in one version of its log.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    change: ClassVar[Change] = "merge"

    def __init__(self, sink: DeltaSink, context: CommitterInitContext) -> None:
        super().__init__(sink, context)
        self._rows, self._staging = StagedRows(sink.staged.location, context), sink.staged.location.open()

    def _complete(self, requests: Sequence[CommitRequest]) -> bool:
        return True

    def _add(self, table: DeltaTable, requests: Sequence[CommitRequest], digest: str) -> None:
        if self._context.type_info is None:
            raise SinkCommitError(f"the type of the records of sink {self._context.uid!r} is unknown")
        files, key, checkpoint_id = [RowFile.of(r) for r in requests], self._sink.key, requests[0].checkpoint_id
        columns = table_schema(self._context.type_info)
        staged = self._rows.read(
            files, columns, checkpoint_id, lambda found, _: self._check_columns(table, Schema.from_arrow(found))
        )
        rows = last_of_each(staged, key)
        # Without retries it writes the version after that of `table`, or none.
        properties = CommitProperties(
            custom_metadata={DIGEST: digest},
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, checkpoint_id)],
        )
        try:
            _merge(table, rows, key, properties)
        except CommitFailedError:
            raise
        except DeltaError as error:
            self._check_files()
            if _breaks_a_rule(table, rows, key):
                raise ConfigurationError(f"a constraint of {self._what} refuses its rows: {error}") from error
            raise

    def _check_files(self) -> None:
        """Checks that the files of the table are there, because their rows are merged.

        Raises:
            ConfigurationError: One is not.
        """
        table, there = self._table(create=False), {info.key for info in self._store.list()}
        for file in pa.table(table.get_add_actions()).column("path").to_pylist():
            if "://" not in file and unquote(file) not in there:
                raise ConfigurationError(
                    f"{unquote(file)} of {self._what} is missing: put it back, or RESTORE the table, or run FSCK "
                    "REPAIR TABLE, which gives up its rows"
                )

    def _check_staged(self, table: DeltaTable, requests: Sequence[CommitRequest]) -> None:
        """Does nothing: the rows are looked at when they are read."""

    def _clean_up(self, requests: Sequence[CommitRequest]) -> None:
        self._rows.delete([RowFile.of(request) for request in requests])

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return len(self._rows.lingering(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        self._check_at_start()
        return self._rows.delete_lingering(keep)


def _merge(table: DeltaTable, rows: pa.Table, key: Sequence[str], properties: CommitProperties | None = None) -> None:
    names = [f"`{name.replace('`', '``')}`" for name in rows.schema.names]
    values = {name: f"new.{name}" for name in names}
    keys = [f"`{name.replace('`', '``')}`" for name in key]
    merger = table.merge(
        rows,
        " AND ".join(f"old.{name} = new.{name}" for name in keys),
        source_alias="new",
        target_alias="old",
        commit_properties=properties,
    )
    merger.when_matched_update(values).when_not_matched_insert(values).execute()


def _breaks_a_rule(table: DeltaTable, rows: pa.Table, key: Sequence[str]) -> bool:
    """Returns whether an empty local table with the same rules refuses the rows, too: delta-rs has one error for all.

    Then trying again does not help.
    """
    protocol, metadata = table.protocol(), table.metadata()
    entries: list[Json] = [
        {
            "protocol": {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                **({} if protocol.reader_features is None else {"readerFeatures": protocol.reader_features}),
                **({} if protocol.writer_features is None else {"writerFeatures": protocol.writer_features}),
            }
        },
        {
            "metaData": {
                "id": metadata.id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": table.schema().to_json(),
                "partitionColumns": metadata.partition_columns,
                "configuration": metadata.configuration,
            }
        },
    ]
    with TemporaryDirectory(prefix="flinkpy-") as folder:
        log = Path(folder, "_delta_log")
        log.mkdir()
        (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, entries)))
        try:
            _merge(DeltaTable(folder), rows, key)
        except DeltaError:
            return True
    return False
