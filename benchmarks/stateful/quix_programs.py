"""The programs of the stateful suite in Quix Streams. Its own Python runs it.

There is no broker: librdkafka's mock cluster, in this process, keeps the topics. It does not answer the requests of an
admin client, so Quix Streams is told about the topics. It keeps only 5 MB of each partition, so runs are short. The
topics are filled before the clock starts. State is in RocksDB, without changelog topics. Differences of semantics:

- There are no timers. ``fraud`` gives its state a time to live, and times to live are of event time.
- A session closes two gaps after its last event, so those that are open at the end are not written.
- There is no broadcast: ``enrichment`` is a function with a dict, and has no state.
"""

import json
import os
import sys
import tempfile
import time
import uuid
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import quixstreams.dataframe.windows.aggregations as agg
from confluent_kafka import Producer
from processes import cpu_seconds
from quixstreams import Application
from quixstreams.models.topics import TopicAdmin, TopicConfig, TopicManager
from rules import ALPHA, GAP, LARGE, PARTITIONS, SMALL, SUSPICIOUS, TOP, TTL, WITHIN

_FEATURES = [f"f{i}" for i in range(20)]
_MOCK_PARTITIONS = 4


class MockAdmin(TopicAdmin):
    """Knows the topics of the mock cluster."""

    def inspect_topics(self, topic_names, timeout=30):
        settings = {"retention.ms": "-1", "retention.bytes": "-1"}
        return {name: TopicConfig(_MOCK_PARTITIONS, 1, settings) for name in topic_names}


def rows(folder, table, part):
    """Returns the rows of a partition as dicts, in order."""
    files = sorted(str(file) for file in Path(folder, table).glob(f"*-{part}.parquet"))
    return pq.ParquetDataset(files).read().to_pylist()


def deduplicate(streams, _):
    def first(event, state):
        if state.exists("seen"):
            return False
        state.set("seen", True, ttl=timedelta(milliseconds=TTL))
        return True

    return streams[0].filter(first, stateful=True).apply(lambda event: list(event.values()))


def top_n(streams, _):
    def rank(event, state):
        best, amount = state.get("best", []), event["amount"]
        if len(best) == TOP and amount <= best[-1]:
            return []
        above = sum(other >= amount for other in best)
        state.set("best", [*best[:above], amount, *best[above : TOP - 1]])
        return [[event["user"], above + 1, amount, event["time"]]]

    return streams[0].apply(rank, stateful=True, expand=True)


def sessions(streams, _):
    windows = streams[0].session_window(GAP).agg(user=agg.First("user"), events=agg.Count(), revenue=agg.Sum("amount"))
    # Timestamps are one millisecond later than times, and ends are exclusive.
    return windows.final(closing_strategy="partition").apply(
        lambda each: [each["user"], each["start"] - 1, each["end"] - 2 + GAP, each["events"], each["revenue"]]
    )


def fraud(streams, _):
    def alert(event, state):
        small, output = state.get("small"), []
        if small is not None:
            if event["amount"] > LARGE and event["time"] <= small + SUSPICIOUS:
                output = [[event["user"], small, event["time"], event["amount"]]]
            state.delete("small")
        if event["amount"] < SMALL:
            state.set("small", event["time"], ttl=timedelta(milliseconds=SUSPICIOUS + 1))
        return output

    return streams[0].apply(alert, stateful=True, expand=True)


def interval_join(streams, _):
    def paid(order, payment):
        return [order["id"], order["user"], order["amount"], order["time"], payment["time"]]

    orders, payments = streams
    return orders.join_interval(payments, on_merge=paid, grace_ms=2 * WITHIN, forward_ms=WITHIN)


def enrichment(streams, folder):
    products = {row["product"]: row for row in rows(folder, "products", 0)}

    def enrich(event):
        product = products[event["product"]]
        return [event["id"], event["user"], event["time"], product["category"], event["amount"] * product["rate"]]

    return streams[0].apply(enrich)


def features(streams, _):
    def update(row, state):
        means, values = state.get("means"), [row[name] for name in _FEATURES]
        if means is not None:
            values = [mean + ALPHA * (new - mean) for mean, new in zip(means, values, strict=True)]
        state.set("means", values)
        return [row["user"], row["time"], *values]

    return streams[0].apply(update, stateful=True)


PROGRAMS = {
    "deduplicate": (["events"], "id", deduplicate),
    "top_n": (["events"], "user", top_n),
    "sessions": (["events"], "user", sessions),
    "fraud": (["events"], "user", fraud),
    "interval_join": (["events", "payments"], "id", interval_join),
    "enrichment": (["events"], "user", enrichment),
    "features": (["measurements"], "user", features),
}


def produce(brokers, folder, table, topic, key):
    """Fills a topic, and returns the number of its records. Their timestamps begin at 1: Kafka takes 0 for none."""
    producer = Producer({"bootstrap.servers": brokers, "log_level": 2, "linger.ms": 50})
    count = 0
    for part in range(PARTITIONS):
        for row in rows(folder, table, part):
            value, timestamp = json.dumps(row).encode(), row["time"] + 1
            producer.produce(topic, value, key=str(row[key]).encode(), partition=part, timestamp=timestamp)
            count += 1
            producer.poll(0)
    assert producer.flush(60) == 0
    return count


def run(order, brokers, folder, output=None):
    """Returns the seconds and CPU seconds of a run, with the start and end of the application."""
    tables, key, program = PROGRAMS[order["program"]]
    group = uuid.uuid4().hex
    left = sum(produce(brokers, folder, table, f"{table}-{group}", key) for table in tables)

    def processed(*_):
        nonlocal left
        left -= 1
        if left == 0:
            application.stop()

    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as state, open(output or os.devnull, "w") as lines:
        application = Application(
            broker_address=brokers,
            consumer_group=group,
            topic_manager=TopicManager(MockAdmin(brokers), group, auto_create_topics=False),
            on_message_processed=processed,
            state_dir=state,
            loglevel=None,
            **order["settings"],
        )
        streams = [
            application.dataframe(application.topic(f"{table}-{group}", value_deserializer="json")) for table in tables
        ]
        written = program(streams, folder)
        if output is not None:
            written.update(lambda row: lines.write(json.dumps(row) + "\n"))
        started, before = time.perf_counter(), cpu_seconds()
        application.run()
        return time.perf_counter() - started, cpu_seconds() - before


def main():
    order = json.loads(sys.argv[1])
    cluster = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 2})
    brokers = ",".join(f"{each.host}:{each.port}" for each in cluster.list_topics(timeout=10).brokers.values())
    small, *others = order["inputs"]
    runs = [run(order, brokers, small, order["output"]), *(run(order, brokers, folder) for folder in others)]
    print(json.dumps(runs), flush=True)


if __name__ == "__main__":
    main()
