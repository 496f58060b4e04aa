"""The program of the latency benchmark in PyFlink. PyFlink's own Python runs it, without our library.

Run ``python flink_latency.py ORDER`` with a JSON object. Each subtask writes when records were emitted and when they
came, in seconds since 1970, into a file of ``folder``.
"""

import json
import os
import sys
import time
import uuid

from pyflink.common import Configuration, Types
from pyflink.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment

ROW = Types.ROW_NAMED(["k", "at"], [Types.LONG(), Types.LONG()])


class Count(KeyedProcessFunction):
    """Counts by key, and passes the record on."""

    def open(self, runtime_context: RuntimeContext):
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self._count.update((self._count.value() or 0) + 1)
        yield value


class Note(MapFunction):
    """Notes when each record has come."""

    def __init__(self, folder):
        self._folder = folder

    def open(self, runtime_context: RuntimeContext):
        self._file = open(os.path.join(self._folder, uuid.uuid4().hex), "a")  # noqa: SIM115

    def map(self, value):
        self._file.write(f"{value[1] / 1000} {time.time()}\n")
        return value

    def close(self):
        self._file.close()


def main():
    order = json.loads(sys.argv[1])
    configuration = Configuration()
    for name, value in order["configuration"].items():
        configuration.set_string(name, value)
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(order["parallelism"])
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        "CREATE TEMPORARY TABLE numbers (n BIGINT) WITH ('connector' = 'datagen', "
        f"'rows-per-second' = '{order['rate']}', 'fields.n.kind' = 'sequence', 'fields.n.start' = '0', "
        f"'fields.n.end' = '{order['rate'] * order['seconds'] - 1}')"
    )
    at = "EXTRACT(EPOCH FROM CURRENT_TIMESTAMP) * 1000 + EXTRACT(MILLISECOND FROM CURRENT_TIMESTAMP)"
    rows = tables.to_data_stream(tables.sql_query(f"SELECT MOD(n, {order['keys']}) AS k, {at} AS ms FROM numbers"))
    counted = rows.key_by(lambda row: row[0], Types.LONG()).process(Count(), ROW)
    counted.map(Note(order["folder"]), ROW)
    env.execute()
    print("[]", flush=True)
    os._exit(0)  # ending the JVM would take a while


if __name__ == "__main__":
    main()
