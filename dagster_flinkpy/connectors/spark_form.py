"""The enumerators of `from_spark` and `transform_spark`: they run DataFrames, whose rows are then read as segments.

A DataFrame cannot be read again from a position. So it is run when an epoch is planned, and its rows are kept as parts
until that epoch's checkpoint is complete: tasks that are tried again find the same rows. If the epoch fails, all of it
is done again, with parts of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.exchange import ExchangeEnumerator, deal_out
from dagster_flinkpy.connectors.spark_parts import PartsTarget, read_parts, write_parts
from dagster_flinkpy.connectors.spark_types import frame_of, frame_schema, select_columns, user_frames
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.spark import SparkSource, SparkTransform
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkSourceEnumerator", "SparkTransformEnumerator"]


class _Parts:
    """The parts that one attempt writes for one operator."""

    def __init__(self, location: Any, uid: str, context: SplitEnumeratorContext) -> None:
        assert isinstance(location, StorageLocation), "the job attempt sets where segments are"
        self._location, self._uid = location.child(uid), uid
        self._all = f"parts/{context.job_id}/"
        self._prefix = f"{self._all}{context.attempt:010d}."

    def discard_lingering(self) -> None:
        """Deletes what attempts before this one have left: they have died, or are fenced."""
        self._delete(self._all, before=self._prefix)

    def write(self, frame: DataFrame, type_info: RowTypeInfo, *, rowtime: bool) -> list[Json]:
        """Runs a DataFrame; gives its rows as segments."""
        prefix = f"{self._prefix}{uuid.uuid4().hex}/"
        selected = select_columns(frame, type_info, self._uid, rowtime=rowtime)
        return write_parts(selected, PartsTarget(self._location, prefix, self._uid, type_info))

    def discard(self) -> None:
        """Deletes what this attempt has written."""
        self._delete(self._prefix)

    def _delete(self, prefix: str, before: str | None = None) -> None:
        store = self._location.open()
        with suppress(StorageError):  # what stays is deleted when the next attempt starts
            keys = [info.key for info in store.list(prefix)]
            store.delete_many([key for key in keys if before is None or key < before])


class SparkSourceEnumerator(SplitEnumerator):
    """Deals out the rows of a DataFrame, all of them in the first epoch. State: whether they are read.

    Partition k goes to subtask ``k % parallelism``.

    Args:
        source: What to read.
        restored: State of an earlier one.
    """

    def __init__(self, source: SparkSource, restored: Json | None) -> None:
        self._source = source
        self._read: bool = (restored or {}).get("read", False)

    def start(self, context: SplitEnumeratorContext) -> None:
        self._context = context
        self._parts = _Parts(self._source.location, self._source.uid, context)
        self._parts.discard_lingering()

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if self._read:
            return [[] for _ in range(parallelism)]
        source = self._source
        assert source.df_factory is not None
        with self._context.spark() as spark, user_frames(source.uid):
            frame = frame_of(source.df_factory, spark, source.uid)
            segments = self._parts.write(frame, cast(RowTypeInfo, source.type_info), rowtime=False)
        self._read = True
        return [[split] for split in deal_out("rows", segments, None, parallelism)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._parts.discard()

    @property
    def exhausted(self) -> bool:
        return self._read

    def snapshot_state(self) -> Json:
        return {"read": self._read}


class SparkTransformEnumerator(ExchangeEnumerator):
    """Deals out what a function makes of each checkpoint that has completed upstream. State: the last one.

    Args:
        source: What to read, and the function.
        restored: State of an earlier one.
    """

    def __init__(self, source: SparkTransform, restored: Json | None) -> None:
        super().__init__(source, restored)
        self._transform = source

    def start(self, context: SplitEnumeratorContext) -> None:
        self._context = context
        self._parts = _Parts(self._transform.location, self._transform.uid, context)
        self._parts.discard_lingering()

    def _segments(self, marker: Json) -> list[Json]:
        written = super()._segments(marker)
        if not written:
            return []
        source = self._transform
        assert source.function is not None
        assert source.input_type is not None
        with self._context.spark() as spark, user_frames(source.uid):
            schema = frame_schema(source.input_type, source.uid)
            rows = read_parts(spark, source.location.child(source.sink_uid), written, schema)
            frame = frame_of(source.function, rows, source.uid)
            return self._parts.write(frame, cast(RowTypeInfo, source.type_info), rowtime=True)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._parts.discard()
