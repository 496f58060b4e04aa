"""The committer of a Delta Lake sink with a key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from dagster_flinkpy.connectors.commit.checkpoint_committer import StagedCheckpoint
from dagster_flinkpy.connectors.delta.committer import DeltaCommitter
from dagster_flinkpy.connectors.delta.rules import Change
from dagster_flinkpy.connectors.delta.table import DIGEST
from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["DeltaUpsertCommitter"]


class DeltaUpsertCommitter(DeltaCommitter):
    """Merges the staged rows of a checkpoint into the table."""

    change: ClassVar[Change] = "merge"

    def _change(self, table: DeltaTable, checkpoint: StagedCheckpoint) -> Any:
        return self._last_rows(checkpoint, lambda found, _: self._table.check_columns(table, Schema.from_arrow(found)))

    def _add(self, table: DeltaTable, change: Any, checkpoint: StagedCheckpoint) -> None:
        # delta-rs writes the files, and names them. So the sink does not have all files that it has added.
        transactions = {self._table.app_id: checkpoint.checkpoint_id, **self._grown(table, 1, checkpoint.checkpoint_id)}
        properties = self._properties(transactions, {DIGEST: checkpoint.digest})
        try:
            _merge(table, change, self._key, properties)
        except CommitFailedError:
            raise
        except DeltaError as error:
            self._check_files()
            if _breaks_a_rule(table, change, self._key):
                raise ConfigurationError(f"a constraint of {self._what} refuses its rows: {error}") from error
            raise

    def _check_files(self) -> None:
        """Checks that the files of the table are there, because their rows are merged.

        Raises:
            ConfigurationError: One is not.
        """
        table, there = self._table.open(create=False), {info.key for info in self._store.list()}
        for file in pa.table(table.get_add_actions()).column("path").to_pylist():
            if "://" not in file and unquote(file) not in there:
                raise ConfigurationError(
                    f"{unquote(file)} of {self._what} is missing: put it back, or RESTORE the table, or run FSCK "
                    "REPAIR TABLE, which gives up its rows"
                )


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
