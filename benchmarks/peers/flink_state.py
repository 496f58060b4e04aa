"""The programs of the state benchmark in PyFlink and Flink SQL. PyFlink's own Python runs it, without our library.

Run ``python flink_state.py ORDER`` with a JSON object. Flink SQL runs once per number of ``events``, in one JVM, and
prints the seconds of each run as JSON. PyFlink runs once. Each subtask records its progress in a file of ``folder``.
"""

import json
import os
import sys
import time
import uuid

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.table import StreamTableEnvironment


class Sum(KeyedProcessFunction):
    """The same function as ours, which also writes a line with time and number of events now and then."""

    def __init__(self, rare, folder, note_each):
        self._rare, self._folder, self._note_each = rare, folder, note_each

    def open(self, runtime_context: RuntimeContext):
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self._events = 0
        self._notes = os.path.join(self._folder, uuid.uuid4().hex)

    def process_element(self, value, ctx):
        total = (self._sum.value() or 0) + value[1]
        self._sum.update(total)
        self._events += 1
        if self._events % self._note_each == 0:
            with open(self._notes, "a") as notes:
                notes.write(f"{time.time()} {self._events}\n")
        if total % self._rare == 0:
            yield value


def run(order, events):
    """Returns the seconds of a run, including the start and end of the job."""
    configuration = Configuration()
    for name, value in order["configuration"].items():
        configuration.set_string(name, value)
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(order["parallelism"])
    tables = StreamTableEnvironment.create(env)
    numbers = env.from_source(NumberSequenceSource(0, events - 1), WatermarkStrategy.no_watermarks(), "numbers")
    tables.create_temporary_view("numbers", tables.from_data_stream(numbers).alias("i"))
    query = f"SELECT MOD(i * {order['spread']}, {order['keys']}) AS k, MOD(i, {order['values']}) AS v FROM numbers"
    started = time.perf_counter()
    if order["program"] == "sql":
        tables.execute_sql("CREATE TEMPORARY TABLE sums (k BIGINT, s BIGINT) WITH ('connector' = 'blackhole')")
        tables.execute_sql(f"INSERT INTO sums SELECT k, SUM(v) FROM ({query}) GROUP BY k").wait()
    else:
        stream = tables.to_data_stream(tables.sql_query(query))
        row = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
        summed = Sum(order["rare"], order["folder"], order["note_each"])
        stream.key_by(lambda row: row[0], Types.LONG()).process(summed, row)
        env.execute()
    return time.perf_counter() - started


def main():
    order = json.loads(sys.argv[1])
    print(json.dumps([run(order, events) for events in order["events"]]), flush=True)
    os._exit(0)  # ending the JVM would take a while


if __name__ == "__main__":
    main()
