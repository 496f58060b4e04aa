"""The programs of the stateful suite in PyFlink, with the functions that ours have. PyFlink's own Python runs it.

The JVM reads the input, from CSV files, one for each subtask, and emits watermarks. PyFlink has no interval join in the
DataStream API, so it is a function here, too.
"""

import json
import os
import sys
import time

import functions
from processes import cpu_seconds
from pyflink.common import Configuration, Time, Types
from pyflink.datastream import MapFunction, StreamExecutionEnvironment
from pyflink.datastream.window import EventTimeSessionWindows
from pyflink.table import StreamTableEnvironment
from rules import GAP

_TABLES = {
    "events": ["id", "user", "product", "amount", "time"],
    "payments": ["id", "user", "time"],
    "products": ["product", "category", "rate"],
    "measurements": ["user", "time", *(f"f{i}" for i in range(20))],
}


def _by(name):
    return lambda value: value[name]


class Input:
    def __init__(self, env, folder):
        self._tables, self._folder = StreamTableEnvironment.create(env), folder

    def stream(self, name, rowtime=False):
        """Returns the stream of a table. Only with ``rowtime``, which adds a column, records have timestamps."""
        columns = [f"`{c}` {'DOUBLE' if c.startswith('f') else 'BIGINT'}" for c in _TABLES[name]]
        if "time" in _TABLES[name]:
            columns += ["ts AS TO_TIMESTAMP_LTZ(`time`, 3)", "WATERMARK FOR ts AS ts - INTERVAL '0.001' SECOND"]
        self._tables.execute_sql(
            f"CREATE TEMPORARY TABLE `{name}` ({', '.join(columns)}) WITH "
            f"('connector' = 'filesystem', 'path' = 'file://{self._folder}/csv/{name}', 'format' = 'csv')"
        )
        wanted = [f"`{c}`" for c in _TABLES[name]] + ["ts"] * rowtime
        return self._tables.to_data_stream(self._tables.sql_query(f"SELECT {', '.join(wanted)} FROM `{name}`"))

    def keyed(self, name, key, rowtime=False):
        return self.stream(name, rowtime).key_by(_by(_TABLES[name].index(key)), Types.LONG())


def deduplicate(tables):
    return tables.keyed("events", "id").process(functions.Deduplicate(), functions.FIRST)


def top_n(tables):
    return tables.keyed("events", "user").process(functions.TopN(), functions.BEST)


def sessions(tables):
    windows = tables.keyed("events", "user", rowtime=True).window(
        EventTimeSessionWindows.with_gap(Time.milliseconds(GAP))
    )
    pair = Types.TUPLE([Types.LONG()] * 2)
    return windows.aggregate(functions.SessionTotals(), functions.Session(), pair, functions.SESSION)


def fraud(tables):
    return tables.keyed("events", "user").process(functions.Fraud(), functions.ALERT)


def interval_join(tables):
    both = tables.keyed("events", "id").connect(tables.keyed("payments", "id"))
    return both.process(functions.IntervalJoin(), functions.PAID)


def enrichment(tables):
    products = tables.stream("products").broadcast(functions.PRODUCTS)
    return tables.keyed("events", "user").connect(products).process(functions.Enrich(), functions.ENRICHED)


def features(tables):
    return tables.keyed("measurements", "user").process(functions.RunningFeatures(), functions.MEANS)


class Lines(MapFunction):
    """Appends JSON to a file. Collecting the rows instead takes minutes."""

    def __init__(self, file):
        self._name = file

    def open(self, runtime_context):
        self._file = open(self._name, "a", buffering=1)  # noqa: SIM115

    def map(self, value):
        self._file.write(json.dumps(list(value)) + "\n")
        return 0

    def close(self):
        self._file.close()


def run(order, folder, output=None):
    """Returns the seconds and CPU seconds of a run, including the start and end of the job."""
    configuration = Configuration()
    for name, value in order["settings"].items():
        configuration.set_string(name, value)
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    stream = globals()[order["program"]](Input(env, folder))
    if output is not None:
        stream.map(Lines(output), Types.INT())
    started, before = time.perf_counter(), cpu_seconds()
    env.execute()
    return time.perf_counter() - started, cpu_seconds() - before


def main():
    order = json.loads(sys.argv[1])
    small, *others = order["inputs"]
    runs = [run(order, small, order["output"]), *(run(order, folder) for folder in others)]
    print(json.dumps(runs), flush=True)
    os._exit(0)  # ending the JVM would take a while


if __name__ == "__main__":
    main()
