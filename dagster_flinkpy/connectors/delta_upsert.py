"""The committer of a Delta Lake sink with a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from dagster_flinkpy.connectors.delta_table import DIGEST, DeltaCommitter
from dagster_flinkpy.connectors.keyed_rows import last_of_each
from dagster_flinkpy.connectors.parquet_table import table_schema
from dagster_flinkpy.connectors.staged_rows import RowFile, StagedRows
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import SinkCommitError, StorageError

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.delta_sink import DeltaSink

__all__ = ["DeltaUpsertCommitter"]


class DeltaUpsertCommitter(DeltaCommitter):
    """Merges the staged rows of a checkpoint into the table, in one version of its log.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    def __init__(self, sink: DeltaSink, context: CommitterInitContext) -> None:
        super().__init__(sink, context)
        self._rows = StagedRows(sink.staged.location, context)

    def _complete(self, requests: Sequence[CommitRequest]) -> bool:
        return True

    def _add(self, table: DeltaTable, requests: Sequence[CommitRequest], digest: str) -> None:
        if self._context.type_info is None:
            raise SinkCommitError(f"the type of the records of sink {self._context.uid!r} is unknown")
        files, key, checkpoint_id = [RowFile.of(r) for r in requests], self._sink.key, requests[0].checkpoint_id
        rows = last_of_each(self._rows.read(files, table_schema(self._context.type_info), checkpoint_id), key)
        names = [f"`{name.replace('`', '``')}`" for name in rows.schema.names]
        values = {name: f"new.{name}" for name in names}
        keys = [f"`{name.replace('`', '``')}`" for name in key]
        # Without retries it writes the version after that of `table`, or none.
        properties = CommitProperties(
            custom_metadata={DIGEST: digest},
            max_commit_retries=0,
            app_transactions=[Transaction(self._app_id, checkpoint_id)],
        )
        merger = table.merge(
            rows,
            " AND ".join(f"old.{name} = new.{name}" for name in keys),
            source_alias="new",
            target_alias="old",
            commit_properties=properties,
        )
        merger.when_matched_update(values).when_not_matched_insert(values).execute()

    def _clean_up(self, requests: Sequence[CommitRequest]) -> None:
        self._rows.delete([RowFile.of(request) for request in requests])

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return len(self._rows.lingering(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        try:
            self._table()
        except (DeltaError, OSError) as error:
            raise StorageError(f"cannot open Delta table {self._sink.location.url}: {error}") from error
        return self._rows.delete_lingering(keep)
