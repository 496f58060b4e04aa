"""Runs a query in Flink SQL. PyFlink's own Python runs it, without our library.

Run ``python flink_program.py ORDER`` with a JSON object. It prints a JSON list for each query: the rows of the result,
or the CPU seconds and seconds of a run for each folder. Events are uncompressed Arrow files, which cost least to read.
"""

import contextlib
import datetime
import decimal
import glob
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyflink
from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.table import StreamTableEnvironment
from pyflink.table.serializers import ArrowSerializer
from pyflink.table.types import create_arrow_schema

BATCH_ROWS = 10_000
"""Batches go to the subtasks in turn, so that all of them are at about the same time."""


def connector(scratch):
    """Compiles ``ArrowFiles.java``, and returns the URL of its archive."""
    home, java = Path(pyflink.__file__).parent, Path(__file__).with_name("ArrowFiles.java")
    classes, archive = scratch / "classes", scratch / "arrow-files.jar"
    javac = Path(os.environ["JAVA_HOME"], "bin", "javac")
    subprocess.run([javac, "-nowarn", "-cp", f"{home}/lib/*:{home}/opt/*", "-d", classes, java], check=True)
    with zipfile.ZipFile(archive, "w") as jar:
        for file in classes.iterdir():
            jar.write(file, file.name)
        jar.writestr("META-INF/services/org.apache.flink.table.factories.Factory", java.stem)
    return archive.as_uri()


def arrow_files(scratch, parallelism, folder, table, columns):
    """Writes columns of a table as an Arrow stream for each subtask. Returns their folder and schema."""
    made = scratch / Path(folder).name / table
    files = sorted(glob.glob(f"{folder}/{table}/*.parquet"))
    schema = pa.schema([pq.read_schema(files[0]).field(column) for column in columns])
    if not made.exists():
        made.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_stream(made / str(i), schema)) for i in range(parallelism)]
            turns = itertools.cycle(writers)
            for file in files:
                for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, columns=columns):
                    next(turns).write_batch(batch.cast(schema))
    return made, schema


def create_table(tables, scratch, parallelism, folder, table, columns):
    made, schema = arrow_files(scratch, parallelism, folder, table, columns)
    fields = [f"`{f.name}` {'STRING' if f.type == pa.string() else 'BIGINT'}" for f in schema]
    fields += [
        "rt AS TO_TIMESTAMP_LTZ(date_time, 3)",
        "proc AS PROCTIME()",
        "WATERMARK FOR rt AS rt - INTERVAL '4' SECOND",
    ]
    tables.execute_sql(
        f"CREATE TEMPORARY TABLE `{table}` ({', '.join(fields)}) WITH ('connector' = 'arrow-files', 'path' = '{made}')"
    )


def environment(order, query, folder):
    configuration, scratch = Configuration(), Path(order["scratch"])
    for name, value in order["configuration"].items():
        configuration.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(order["parallelism"])
    tables = StreamTableEnvironment.create(env)
    tables.get_config().set_local_timezone("UTC")
    for table, columns in query["reads"].items():
        create_table(tables, scratch, order["parallelism"], folder, table, columns)
    return tables


def rows(order, query, folder):
    """Returns the result of a query, as Arrow batches: with ``collect()`` each row takes several calls of the JVM."""
    table = environment(order, query, folder).sql_query(query["sql"])
    batches = get_gateway().jvm.org.apache.flink.table.runtime.arrow.ArrowUtils.collectAsPandasDataFrame(
        table._j_table, BATCH_ROWS
    )
    schema = table.get_schema()
    arrow = create_arrow_schema(schema.get_field_names(), schema.get_field_data_types())
    serializer = ArrowSerializer(arrow, schema.to_row_data_type(), "UTC")
    read = serializer.load_from_iterator(batches) if batches.hasNext() else []
    return [[plain(value) for value in row.values()] for batch in read for row in batch.to_pylist()]


def plain(value):
    if isinstance(value, datetime.datetime):
        return round(value.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
    return str(value) if isinstance(value, decimal.Decimal) else value


def seconds(order, query, folder):
    """Returns the CPU seconds of the JVM and the seconds of a run, including the start and end of the job."""
    tables = environment(order, query, folder)
    schema = tables.sql_query(query["sql"]).get_schema()
    types = [kind.getLogicalType().asSerializableString() for kind in schema._j_table_schema.getFieldDataTypes()]
    columns = ", ".join(f"`{name}` {kind}" for name, kind in zip(schema.get_field_names(), types, strict=True))
    tables.execute_sql(f"CREATE TEMPORARY TABLE results ({columns}) WITH ('connector' = 'blackhole')")
    cpu, started = jvm_cpu_seconds(), time.perf_counter()
    tables.execute_sql(f"INSERT INTO results {query['sql']}").wait()
    return jvm_cpu_seconds() - cpu, time.perf_counter() - started


def jvm_cpu_seconds():
    pid = get_gateway().jvm.java.lang.ProcessHandle.current().pid()
    with open(f"/proc/{pid}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main():
    order = json.loads(sys.argv[1])
    os.environ["JVM_ARGS"] = order["configuration"].pop("JVM_ARGS")
    scratch, folders = Path(order["scratch"]), order["folders"]
    order["configuration"]["pipeline.jars"] = connector(scratch)
    for query in order["queries"]:
        done = [seconds(order, query, f) for f in folders] if order["measure"] else rows(order, query, *folders)
        print(json.dumps(done), flush=True)
        for folder in folders:
            shutil.rmtree(scratch / Path(folder).name, ignore_errors=True)
    os._exit(0)  # ending the JVM would take a while


if __name__ == "__main__":
    main()
