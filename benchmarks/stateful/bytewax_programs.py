"""The programs of the stateful suite in Bytewax. Its own Python runs it.

The input is in memory before the clock starts: batches of pairs of key and row, with keys as strings, which Bytewax
needs. There is no recovery store. Differences of semantics:

- Timers are of system time. ``fraud`` and ``interval_join`` compare the times of records, and forget nothing.
- There is no broadcast: ``enrichment`` is a ``map`` over a dict that each worker has, which is what its docs advise for
  data that does not change. It has no state.
"""

import json
import os
import socket
import sys
import time
from collections import namedtuple
from datetime import datetime, timedelta, timezone

import bytewax.operators as op
import bytewax.operators.windowing as windowing
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main, run_main
from processes import cpu_seconds
from rules import ALPHA, GAP, LARGE, PARTITIONS, SMALL, SUSPICIOUS, TOP, TTL, WITHIN

ROWS = {
    "events": namedtuple("events", "id user product amount time"),
    "payments": namedtuple("payments", "id user time"),
    "products": namedtuple("products", "product category rate"),
    "measurements": namedtuple("measurements", ["user", "time", *(f"f{i}" for i in range(20))]),
}
globals().update(ROWS)  # pickle looks for the types here when rows go to another process


def rows(folder, table, part):
    """Returns the rows of a partition as named tuples, in order."""
    names = sorted(name for name in os.listdir(f"{folder}/{table}") if name.endswith(f"-{part}.parquet"))
    data = pq.ParquetDataset([f"{folder}/{table}/{name}" for name in names]).read()
    return list(map(ROWS[table]._make, zip(*(column.to_pylist() for column in data.columns), strict=True)))


class Batches(FixedPartitionedSource):
    """Gives what is in memory, in batches."""

    def __init__(self, parts, size):
        self._parts, self._size = parts, size

    def list_parts(self):
        return list(self._parts)

    def build_part(self, step_id, for_part, resume_state):
        return _Part(self._parts[for_part], self._size)


class _Part(StatefulSourcePartition):
    def __init__(self, items, size):
        self._items, self._size, self._next = items, size, 0

    def next_batch(self):
        start = self._next
        if start >= len(self._items):
            raise StopIteration
        self._next += self._size
        return self._items[start : self._next]

    def snapshot(self):
        return self._next


class Output(DynamicSink):
    """Appends JSON to a file, or discards the rows if there is none."""

    def __init__(self, file):
        self._file = file

    def build(self, step_id, worker_index, worker_count):
        return _Lines(self._file)


class _Lines(StatelessSinkPartition):
    def __init__(self, file):
        self._file = file

    def write_batch(self, items):
        if self._file is not None:
            with open(self._file, "a") as lines:
                lines.write("".join(json.dumps(item) + "\n" for item in items))


class _Logic(StatefulBatchLogic):
    """Keeps one value per key."""

    def __init__(self, state=None):
        self.state = state

    def on_batch(self, values):
        return [row for value in values for row in self.on_row(value)], False

    def snapshot(self):
        return self.state


class Deduplicate(_Logic):
    """The state is the time of system at which the id is forgotten."""

    def on_batch(self, values):
        if self.state is None:
            self.state = datetime.now(timezone.utc) + timedelta(milliseconds=TTL)
            return [tuple(values[0])], False
        return (), False

    def notify_at(self):
        return self.state

    def on_notify(self):
        return (), True


class TopN(_Logic):
    def on_row(self, value):
        best, amount = self.state or [], value.amount
        if len(best) < TOP or amount > best[-1]:
            rank = sum(other >= amount for other in best)
            self.state = [*best[:rank], amount, *best[rank : TOP - 1]]
            yield value.user, rank + 1, amount, value.time


class Fraud(_Logic):
    def on_row(self, value):
        small, self.state = self.state, None
        if small is not None and value.amount > LARGE and value.time <= small + SUSPICIOUS:
            yield value.user, small, value.time, value.amount
        if value.amount < SMALL:
            self.state = value.time


class IntervalJoin(_Logic):
    def on_row(self, value):
        if self.state is None:
            self.state = [], []
        orders, payments = self.state
        if hasattr(value, "amount"):
            orders.append(value)
            pairs = [(value, paid) for paid in payments]
        else:
            payments.append(value.time)
            pairs = [(order, value.time) for order in orders]
        for order, paid in pairs:
            if order.time <= paid <= order.time + WITHIN:
                yield order.id, order.user, order.amount, order.time, paid


class Features(_Logic):
    def on_row(self, value):
        user, at, *values = value
        if self.state is not None:
            values = [mean + ALPHA * (new - mean) for mean, new in zip(self.state, values, strict=True)]
        self.state = values
        yield user, at, *values


def _stateful(logic):
    return lambda stream, _: op.key_rm("rows", op.stateful_batch("state", stream, logic))


def sessions(stream, _):
    clock = windowing.EventClock(
        ts_getter=lambda row: datetime.fromtimestamp(row.time / 1000, timezone.utc),
        wait_for_system_duration=timedelta(minutes=1),
    )
    windower = windowing.SessionWindower(gap=timedelta(milliseconds=GAP))

    def fold(total, row):
        events, revenue, first, _ = total
        return events + 1, revenue + row.amount, row.time if first is None else first, row.time

    def merge(one, other):
        return one[0] + other[0], one[1] + other[1], min(one[2], other[2]), max(one[3], other[3])

    windows = windowing.fold_window(
        "sessions", stream, clock, windower, lambda: (0, 0, None, None), fold, merge, ordered=False
    )
    return op.map(
        "rows", windows.down, lambda each: (int(each[0]), each[1][1][2], each[1][1][3] + GAP, *each[1][1][:2])
    )


def enrichment(stream, folder):
    products = {row.product: row for row in rows(folder, "products", 0)}

    def enrich(event):
        product = products[event.product]
        return event.id, event.user, event.time, product.category, event.amount * product.rate

    return op.map("enrich", stream, enrich)


PROGRAMS = {
    "deduplicate": (["events"], "id", _stateful(Deduplicate)),
    "top_n": (["events"], "user", _stateful(TopN)),
    "sessions": (["events"], "user", sessions),
    "fraud": (["events"], "user", _stateful(Fraud)),
    "interval_join": (["events", "payments"], "id", _stateful(IntervalJoin)),
    "enrichment": (["events"], None, enrichment),
    "features": (["measurements"], "user", _stateful(Features)),
}


def run(order, folder, output=None):
    """Returns the seconds and CPU seconds of a run, with the start and end of its workers."""
    tables, key, program = PROGRAMS[order["program"]]
    flow = Dataflow(order["program"])
    streams = []
    for table in tables:
        parts = {}
        for part in range(PARTITIONS):
            read = rows(folder, table, part)
            parts[str(part)] = [(str(getattr(row, key)), row) for row in read] if key else read
        streams.append(op.input(table, flow, Batches(parts, order["settings"]["batch size"])))
    stream = streams[0] if len(streams) == 1 else op.merge("merge", *streams)
    op.output("output", program(stream, folder), Output(output))
    started, before = time.perf_counter(), cpu_seconds()
    _run(flow, order["settings"]["processes"])
    return time.perf_counter() - started, cpu_seconds() - before


def _run(flow, processes):
    if processes == 1:
        run_main(flow, epoch_interval=timedelta(seconds=10))
        return
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            cluster_main(flow, addresses, number, epoch_interval=timedelta(seconds=10))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0, "a process of Bytewax failed"


def main():
    order = json.loads(sys.argv[1])
    small, *others = order["inputs"]
    print(json.dumps([run(order, small, order["output"]), *(run(order, folder) for folder in others)]), flush=True)


if __name__ == "__main__":
    main()
