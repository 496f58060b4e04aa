"""The enumerators of `from_spark` and `transform_spark`, which run DataFrames and store their rows as segments.

A DataFrame cannot be read from a position. So it runs when an epoch is planned, and its rows are kept until the
checkpoint of that epoch is complete, so that retried tasks read the same rows. If the epoch fails, the DataFrame runs
again, and its rows are stored again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    position_field,
)
from dagster_flinkpy.datastream.connectors.spark import PartitionedSparkSource, SparkSource, SparkTransform
from dagster_flinkpy.errors import ConfigurationError, StorageError, StoreUnreachableError
from dagster_flinkpy.runtime.blocking.blocking_edge import BlockingEdgeEnumerator, EdgeOutput
from dagster_flinkpy.runtime.blocking.dataframe_segments import (
    PartsTarget,
    read_on_driver,
    read_parts,
    write_on_driver,
    write_parts,
)
from dagster_flinkpy.runtime.blocking.dataframe_types import frame_of, frame_schema, select_columns, user_frames
from dagster_flinkpy.runtime.blocking.segments import deal_out
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkSourceEnumerator", "SparkTransformEnumerator"]


class _Parts:
    """The parts that one attempt writes for one operator."""

    def __init__(self, location: Any, uid: str, context: SplitEnumeratorContext) -> None:
        assert isinstance(location, StorageLocation), "the job attempt sets the location of segments"
        self._location, self._uid = location.child(uid), uid
        self._all = f"parts/{context.job_id}/"
        self._prefix = f"{self._all}{context.fencing_token:010d}."
        self._on_driver = False
        """Whether executors have no way to the store."""

    def discard_lingering(self) -> None:
        """Deletes the parts of earlier attempts, which are dead or fenced."""
        self._delete(self._all, before=self._prefix)

    def write(self, make: Callable[[bool], DataFrame], type_info: RowTypeInfo, *, rowtime: bool) -> list[Json]:
        """Runs a DataFrame and stores its rows as segments.

        Args:
            make: Returns the DataFrame. Takes whether the driver has to read what it needs of the store.
            type_info: Type of its rows.
            rowtime: Whether it may have event time.
        """
        target = PartsTarget(self._location, f"{self._prefix}{uuid.uuid4().hex}/", self._uid, type_info)
        if not self._on_driver:
            try:
                with user_frames(self._uid):
                    return write_parts(select_columns(make(False), type_info, self._uid, rowtime=rowtime), target)
            except StoreUnreachableError:
                self._on_driver = True
        with user_frames(self._uid):
            return write_on_driver(select_columns(make(True), type_info, self._uid, rowtime=rowtime), target)

    def discard(self) -> None:
        """Deletes the parts of this attempt."""
        self._delete(self._prefix)

    def _delete(self, prefix: str, before: str | None = None) -> None:
        store = self._location.open()
        with suppress(StorageError):  # the next attempt deletes what remains
            keys = [info.key for info in store.list(prefix)]
            store.delete_many([key for key in keys if before is None or key < before])


class SparkSourceEnumerator(SplitEnumerator):
    """Assigns all rows of a DataFrame in one epoch: the first epoch of the job, or the first one of each run.

    Partition k of Spark goes to subtask ``k % parallelism``. The state records whether the rows have been read, by
    which run, and whether the input has ended with them.
    """

    def __init__(self, source: SparkSource, restored: Json | None) -> None:
        self._source = source
        self._read = self._read_once = self._ended = False
        self._run: str | None = None
        if restored is not None:
            self._read_once = position_field(restored, "read", bool)
            # Earlier releases have no such field, and ended the input when the rows were read.
            self._ended = restored.get("ended", self._read_once) is True
            self._run = restored.get("run")

    def start(self, context: SplitEnumeratorContext) -> None:
        self._context = context
        self._parts = _Parts(self._source.location, self._source.uid, context)
        self._parts.discard_lingering()
        # Another try of the run that has read the rows must not read them again, also after one that reads nothing.
        self._read = self._ended or (self._read_once and self._run is not None and self._run == context.run_id)

    def has_input(self, parallelism: int) -> bool:
        return not self._ended  # each run reads the DataFrame

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        source = self._source
        if self._read:
            return [[] for _ in range(parallelism)]
        if isinstance(source, PartitionedSparkSource):
            raise ConfigurationError(
                f"operator {source.uid!r}: the function of from_spark() has a second parameter, which takes a time "
                "partition, but the job has no partitions: give flink_assets() a partitions_def, or give the function "
                "only one parameter"
            )
        assert source.df_factory is not None
        factory, type_info = source.df_factory, cast(RowTypeInfo, source.type_info)
        with self._context.spark() as spark:
            segments = self._parts.write(lambda _: frame_of(factory, spark, source.uid), type_info, rowtime=False)
        self._read, self._read_once, self._run = True, True, self._context.run_id
        self._ended = source.bounded is not False
        return [[split] for split in deal_out("rows", segments, None, parallelism)]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._parts.discard()

    @property
    def exhausted(self) -> bool:
        return self._ended

    def unread(self) -> Sequence[str]:
        return ["the DataFrame, which each run should read"] if self._source.bounded is False else []

    def snapshot_state(self) -> Json:
        return {"read": self._read_once, "ended": self._ended, "run": self._run}


class SparkTransformEnumerator(BlockingEdgeEnumerator):
    """Applies a function to what the region before has written in an epoch, and assigns the resulting rows."""

    def __init__(self, source: SparkTransform, restored: Json | None) -> None:
        super().__init__(source, restored)
        self._transform = source

    def start(self, context: SplitEnumeratorContext) -> None:
        self._context = context
        self._parts = _Parts(self._transform.location, self._transform.uid, context)
        self._parts.discard_lingering()

    def _segments(self, output: EdgeOutput) -> Sequence[Json]:
        written = output.segments
        if not written:
            return []
        source = self._transform
        function, input_type = source.function, source.input_type
        assert function is not None
        assert input_type is not None

        def make(on_driver: bool) -> DataFrame:
            read = read_on_driver if on_driver else read_parts
            rows = read(spark, source.location, source.sink_uid, written, frame_schema(input_type, source.uid))
            return frame_of(function, rows, source.uid)

        with self._context.spark() as spark:
            return self._parts.write(make, cast(RowTypeInfo, source.type_info), rowtime=True)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._parts.discard()
