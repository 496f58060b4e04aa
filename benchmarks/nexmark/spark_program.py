"""Runs a query in Spark Structured Streaming, in a session of its own, without our library.

Run ``python spark_program.py ORDER`` with a JSON object. It prints a JSON list for each query: the rows of the result,
or the CPU seconds and seconds of a run for each folder. A micro-batch has as many files of each table as the order
says, or all; another one without data closes windows.
"""

import datetime
import decimal
import json
import os
import re
import sys
import tempfile
import time

from pyspark.sql import SparkSession

FIELDS = {
    "person": "id long, name string, email_address string, credit_card string, city string, state string, "
    "date_time long, extra string",
    "auction": "id long, item_name string, description string, initial_bid long, reserve long, date_time long, "
    "expires long, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, date_time long, extra string",
}


def session(order):
    cores = str(order["parallelism"])
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.sql.shuffle.partitions", cores)
    builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
    for name, value in order["configuration"].items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def writer(spark, order, query, folder, checkpoint):
    """Returns the writer of the stream that a query gives."""
    for table, columns in query["reads"].items():
        reader = spark.readStream.schema(FIELDS[table])
        if order["files_per_batch"] is not None:
            reader = reader.option("maxFilesPerTrigger", order["files_per_batch"])
        events = reader.parquet(f"{folder}/{table}").select(columns)
        if re.search(r"\brt\b", query["sql"]):
            events = events.selectExpr("*", "timestamp_millis(date_time) AS rt").withWatermark("rt", "4 seconds")
        events.createOrReplaceTempView(table)
    mode = "append" if query["append"] else "update"
    stream = spark.sql(query["sql"]).writeStream.outputMode(mode).trigger(availableNow=True)
    return stream.option("checkpointLocation", checkpoint)


def rows(spark, order, query, folder):
    """Returns the result of a query."""
    found = []
    with tempfile.TemporaryDirectory(prefix="flinkpy-nexmark-") as checkpoint:
        stream = writer(spark, order, query, folder, checkpoint)
        stream.foreachBatch(lambda batch, _: found.extend(batch.collect())).start().awaitTermination()
    return [list(map(plain, row)) for row in found]


def plain(value):
    return str(value) if isinstance(value, decimal.Decimal | datetime.date) else value


def seconds(spark, order, query, folder):
    """Returns the CPU seconds of the JVM and the seconds of a run."""
    with tempfile.TemporaryDirectory(prefix="flinkpy-nexmark-") as checkpoint:
        stream = writer(spark, order, query, folder, checkpoint).format("noop")
        cpu, started = jvm_cpu_seconds(spark), time.perf_counter()
        stream.start().awaitTermination()
        return jvm_cpu_seconds(spark) - cpu, time.perf_counter() - started


def jvm_cpu_seconds(spark):
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    with open(f"/proc/{pid}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main():
    order = json.loads(sys.argv[1])
    spark = session(order)
    for query in order["queries"]:
        folders = order["folders"]
        run = seconds if order["measure"] else rows
        done = [run(spark, order, query, folder) for folder in folders]
        done = done if order["measure"] else done[0]
        print(json.dumps(done), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
