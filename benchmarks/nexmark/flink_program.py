"""Runs a query in Flink SQL. PyFlink's own Python runs it, without our library.

Run ``python flink_program.py ORDER`` with a JSON object. It prints a JSON list for each query: the rows of the result,
or the CPU seconds and seconds of a run for each folder. Events are Arrow batches in the memory of the JVM, the fastest
source that comes with PyFlink.
"""

import datetime
import decimal
import glob
import json
import os
import sys
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq
from pyflink.common import Configuration, RowKind
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.java_gateway import get_gateway
from pyflink.table import DataTypes, Schema, StreamTableEnvironment
from pyflink.table.table_descriptor import TableDescriptor
from pyflink.table.types import _to_java_data_type
from pyflink.util.java_utils import load_java_class

BATCH_ROWS = 10_000


def arrow_descriptor(folder, table, columns):
    """Returns a table of Arrow batches."""
    read = [pq.read_table(file, columns=columns) for file in sorted(glob.glob(f"{folder}/{table}/*.parquet"))]
    rows = pa.concat_tables(read).combine_chunks()
    with tempfile.NamedTemporaryFile(delete=False) as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=BATCH_ROWS)
    types = [
        DataTypes.FIELD(f.name, DataTypes.STRING() if f.type == pa.string() else DataTypes.BIGINT())
        for f in rows.schema
    ]
    row_type = _to_java_data_type(DataTypes.ROW(types)).notNull()
    row_type = row_type.bridgedTo(load_java_class("org.apache.flink.table.data.RowData"))
    arrow = get_gateway().jvm.org.apache.flink.table.runtime.arrow.ArrowUtils
    made = arrow.createArrowTableSourceDesc(row_type, file.name)
    os.unlink(file.name)
    schema = Schema.new_builder()
    for field in types:
        schema = schema.column(field.name, field.data_type)
    schema = schema.column_by_expression("rt", "TO_TIMESTAMP_LTZ(date_time, 3)")
    schema = schema.column_by_expression("proc", "PROCTIME()")
    schema = schema.watermark("rt", "rt - INTERVAL '4' SECOND").build()
    return TableDescriptor(made.toBuilder().schema(schema._j_schema).build())


def environment(order, query, folder):
    configuration = Configuration()
    for name, value in order["configuration"].items():
        configuration.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(order["parallelism"])
    tables = StreamTableEnvironment.create(env)
    tables.get_config().set_local_timezone("UTC")
    for table, columns in query["reads"].items():
        tables.create_temporary_table(table, arrow_descriptor(folder, table, columns))
    return tables


def rows(order, query, folder):
    """Returns the result of a query."""
    found = {}
    with environment(order, query, folder).execute_sql(query["sql"]).collect() as results:
        for result in results:
            row = tuple(map(plain, result))
            adds = result.get_row_kind() in (RowKind.INSERT, RowKind.UPDATE_AFTER)
            found[row] = found.get(row, 0) + (1 if adds else -1)
    return [row for row, number in found.items() for _ in range(number)]


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
    for query in order["queries"]:
        folders = order["folders"]
        done = [seconds(order, query, f) for f in folders] if order["measure"] else rows(order, query, *folders)
        print(json.dumps(done), flush=True)
    os._exit(0)  # ending the JVM would take a while


if __name__ == "__main__":
    main()
