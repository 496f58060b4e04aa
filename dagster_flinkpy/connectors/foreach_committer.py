"""Calls the function of a `ForeachEpoch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster_flinkpy.connectors.commit.staged_rows import RowFile, StagedRows, digest_of
from dagster_flinkpy.connectors.files.parquet_table import ParquetTable, table_schema
from dagster_flinkpy.connectors.foreach_epoch import Epoch
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext
from dagster_flinkpy.errors import CommittableLostError, SinkCommitError

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.foreach_epoch import ForeachEpoch

__all__ = ["ForeachCommitter"]


class ForeachCommitter(Committer):
    """Gives the rows of a completed checkpoint to the function.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    def __init__(self, sink: ForeachEpoch, context: CommitterInitContext) -> None:
        self._sink, self._context = sink, context
        self._rows = StagedRows(sink.staging, context)
        self._done: tuple[int, list[RowFile]] | None = None

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        checkpoint_id = requests[0].checkpoint_id
        try:
            files = [RowFile.of(request) for request in requests]
            self._delete_before(checkpoint_id)
            for partition in dict.fromkeys(file.partition for file in files):
                self._call([file for file in files if file.partition == partition], checkpoint_id)
        except CommittableLostError as error:
            for request in requests:
                request.signal_failed_with_known_reason(error)
        except SinkCommitError as error:
            for request in requests:
                request.signal_failed_with_unknown_reason(error)
        except Exception as error:  # of the function, or of the store
            for request in requests:
                request.retry_later(error)
        else:
            self._done = checkpoint_id, files

    def _delete_before(self, checkpoint_id: int) -> None:
        """Deletes the rows of the checkpoint before. That it was committed is recorded by now."""
        if self._done is not None and self._done[0] < checkpoint_id:
            self._rows.delete(self._done[1])
            self._done = None

    def _call(self, files: list[RowFile], checkpoint_id: int) -> None:
        context, type_info = self._context, self._context.type_info
        if type_info is None:
            raise SinkCommitError(f"the type of the records of sink {context.uid!r} is unknown")
        identity = f"{context.job_id}.{context.uid}.{checkpoint_id}-{digest_of(files)[:16]}"
        epoch = Epoch(identity, context.job_id, context.uid, checkpoint_id, files[0].partition)
        schema = table_schema(type_info)
        if self._sink.frame == "arrow":
            self._sink.function(self._rows.read(files, schema, checkpoint_id), epoch)
            return
        if context.spark is None:
            raise SinkCommitError(f"sink {context.uid!r} has frame='spark', but this process has no Spark session")
        self._rows.require(files, checkpoint_id)
        staged = [(file.key, file.bytes) for file in files if file.key]
        with context.spark() as session:
            self._sink.function(ParquetTable(self._sink.staging, schema).to_spark(session, staged), epoch)

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Does nothing: the function has replaced it."""
        return 0

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return len(self._rows.lingering(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._rows.delete_lingering(keep)
