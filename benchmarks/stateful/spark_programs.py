"""The programs of the stateful suite that are process functions, in Spark's ``transformWithState``.

A function gets the rows of a key and micro-batch together, in no order, so it sorts them. As in Spark's documentation,
it reads and writes state once for all of them. Timers fire after the rows of a micro-batch.
"""

import json
import os
import sys
import tempfile
import time
from operator import attrgetter

from processes import cpu_seconds
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from rules import ALPHA, LARGE, PARTITIONS, SMALL, SUSPICIOUS, TOP, TTL

_FEATURES = [f"f{i}" for i in range(20)]
_TABLES = {
    "events": "id long, user long, product long, amount long, time long",
    "measurements": ", ".join(["user long, time long", *(f"{name} double" for name in _FEATURES)]),
}


class _Processor(StatefulProcessor):
    """Keeps one value per key."""

    schema, ttl = "", None

    def init(self, handle):
        self._handle = handle
        self._state = handle.getValueState("state", self.schema, self.ttl)

    def handleInputRows(self, key, rows, timerValues):
        yield from self.on_rows(key[0], sorted(rows, key=attrgetter("time")), self._state.get())

    def close(self):
        pass


class Deduplicate(_Processor):
    schema, ttl = "seen boolean", TTL

    def on_rows(self, key, rows, seen):
        if seen is None:
            self._state.update((True,))
            yield rows[0]


class TopN(_Processor):
    schema = "best array<long>"

    def on_rows(self, user, rows, state):
        best = before = [] if state is None else list(state[0])
        for row in rows:
            amount = row.amount
            if len(best) < TOP or amount > best[-1]:
                rank = sum(other >= amount for other in best)
                best = [*best[:rank], amount, *best[rank : TOP - 1]]
                yield Row(user=user, rank=rank + 1, amount=amount, time=row.time)
        if best is not before:
            self._state.update((best,))


class Fraud(_Processor):
    schema = "small long"

    def on_rows(self, user, rows, state):
        stored = small = None if state is None else state[0]
        for row in rows:
            amount, at = row.amount, row.time
            if small is not None:
                if amount > LARGE and at <= small + SUSPICIOUS:  # the timer may be late
                    yield Row(user=user, small_time=small, time=at, amount=amount)
                small = None
            if amount < SMALL:
                small = at
        if small == stored:
            return
        if stored is not None:
            self._handle.deleteTimer(stored + SUSPICIOUS)
        if small is None:
            self._state.clear()
        else:
            self._handle.registerTimer(small + SUSPICIOUS)
            self._state.update((small,))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self._state.clear()
        return iter([])


class Features(_Processor):
    schema = "means array<double>"

    def on_rows(self, user, rows, state):
        means = None if state is None else state[0]
        for row in rows:
            values = [row[name] for name in _FEATURES]
            if means is not None:
                values = [mean + ALPHA * (new - mean) for mean, new in zip(means, values, strict=True)]
            means = values
            yield Row(user=user, time=row.time, **dict(zip(_FEATURES, means, strict=True)))
        self._state.update((means,))


PROGRAMS = {
    "deduplicate": ("events", "id", Deduplicate, _TABLES["events"], "ProcessingTime"),
    "top_n": ("events", "user", TopN, "user long, rank long, amount long, time long", "None"),
    "fraud": ("events", "user", Fraud, "user long, small_time long, time long, amount long", "EventTime"),
    "features": ("measurements", "user", Features, _TABLES["measurements"], "None"),
}


def run(spark, order, folder, output=None):
    """Returns the seconds and CPU seconds of a run."""
    table, key, processor, schema, time_mode = PROGRAMS[order["program"]]
    # As many events between two checkpoints as ours.
    stream = spark.readStream.schema(_TABLES[table]).option("maxFilesPerTrigger", 2 * PARTITIONS)
    rows = stream.parquet(f"{folder}/{table}")
    if time_mode == "EventTime":
        rows = rows.selectExpr("*", "timestamp_millis(time) AS ts").withWatermark("ts", "0 seconds")
    written = rows.groupBy(key).transformWithState(processor(), schema, "Append", time_mode).writeStream
    if output is None:
        written = written.format("noop")
    else:
        written = written.foreachBatch(lambda batch, _: _write(batch.collect(), output))
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as checkpoint:
        written = written.option("checkpointLocation", checkpoint).trigger(availableNow=True).outputMode("append")
        started, before = time.perf_counter(), cpu_seconds()
        written.start().awaitTermination()
        return time.perf_counter() - started, cpu_seconds() - before


def _write(rows, output):
    with open(output, "a") as lines:
        lines.writelines(json.dumps(list(row)) + "\n" for row in rows)


def main():
    order = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(f"local[{PARTITIONS}]")
    for name, value in order["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    small, *others = order["inputs"]
    runs = [run(spark, order, small, order["output"]), *(run(spark, order, folder) for folder in others)]
    print(json.dumps(runs), flush=True)
    os._exit(0)  # ending the JVM would take a while


if __name__ == "__main__":
    main()
