"""Spark's own stateful streaming, on the session of our jobs: RocksDB with changelog checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import state_programs as programs

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""The settings. In addition, there are as many shuffle partitions as subtasks, because the session has one per core."""

_SCHEMA = "key long, value long"


def transform_with_state(spark: Any, folder: str, batches: int, per_batch: int, keys: int) -> float:
    """Returns events per second of a sum in a ``ValueState``, without the first micro-batch."""
    return _rate(spark, folder, batches, per_batch, keys, 1, _transformed)


def group_by_sum(spark: Any, folder: str, batches: int, per_batch: int, keys: int) -> float:
    """Returns events per second of ``groupBy().sum()``, which runs in the JVM. The first third of the micro-batches is
    left out, until the JVM is warm."""
    return _rate(spark, folder, batches, per_batch, keys, batches // 3, _summed)


def _transformed(events: Any) -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    rare = programs.RARE

    class Sum(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._sum = handle.getValueState("sum", "sum long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            # One lookup and one update for all rows of a key, as in Spark's documentation.
            total = self._sum.get()[0] if self._sum.exists() else 0
            last = None
            for last in rows:
                total += last.value
            self._sum.update((total,))
            if total % rare == 0 and last is not None:
                yield Row(key=last.key, value=last.value)

        def close(self) -> None:
            pass

    return events.groupBy("key").transformWithState(
        statefulProcessor=Sum(), outputStructType=_SCHEMA, outputMode="Update", timeMode="None"
    )


def _summed(events: Any) -> Any:
    return events.groupBy("key").sum("value")


def _rate(spark: Any, folder: str, batches: int, per_batch: int, keys: int, left_out: int, query: Any) -> float:
    for i in range(batches):
        events = programs.events(i * per_batch, (i + 1) * per_batch, keys)
        pq.write_table(pa.Table.from_struct_array(events), f"{folder}/events-{i:03}.parquet")
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).parquet(folder)
    running = (
        query(stream)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    seconds = [p["durationMs"]["triggerExecution"] / 1000 for p in running.recentProgress]
    assert len(seconds) == batches, running.exception()
    return (batches - left_out) * per_batch / sum(seconds[left_out:])
