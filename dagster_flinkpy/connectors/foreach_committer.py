"""Calls the function of a `ForeachEpoch`."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_flinkpy.connectors.commit.checkpoint_committer import CheckpointCommitter, StagedCheckpoint
from dagster_flinkpy.connectors.commit.staged_files import signal_failure
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, StagedRows, digest_of
from dagster_flinkpy.connectors.files.parquet_table import ParquetTable, table_schema
from dagster_flinkpy.connectors.foreach_epoch import Epoch, ForeachEpoch
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import SinkCommitError

__all__ = ["ForeachCommitter"]


class ForeachCommitter(CheckpointCommitter):
    """Gives the rows of a completed checkpoint to the function."""

    _never_replaces = "Only its function knows where they are"

    def __init__(self, sink: ForeachEpoch, context: CommitterInitContext) -> None:
        self._rows = StagedRows(sink.staging, context)
        super().__init__(context, self._rows, f"the function of sink {context.uid!r}")
        self._sink = sink
        self._done: StagedCheckpoint | None = None

    def _put(self, checkpoint: StagedCheckpoint) -> bool:
        self._delete_before(checkpoint.checkpoint_id)
        for files in checkpoint.by_partition.values():
            self._call(files, checkpoint.checkpoint_id)
        self._done = checkpoint
        return True

    def _signal(self, requests: Sequence[CommitRequest], error: Exception) -> None:
        if isinstance(error, SinkCommitError):
            super()._signal(requests, error)
        else:  # of the function, or of the store
            signal_failure(requests, error, retried=(Exception,))

    def _clean_up(self, checkpoint: StagedCheckpoint) -> None:
        """Does nothing: the rows are needed until it is recorded that they were committed."""

    def _delete_before(self, checkpoint_id: int) -> None:
        """Deletes the rows of the checkpoint before. That it was committed is recorded by now."""
        if self._done is not None and self._done.checkpoint_id < checkpoint_id:
            self._rows.delete(self._done.requests)
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
