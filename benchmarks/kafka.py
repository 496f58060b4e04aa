"""How fast a topic is read in one process, compared with a loop over a bare confluent-kafka consumer.

Both read the same records from librdkafka's mock cluster, which another process runs.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.report import line
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.serialization import ByteArraySchema, DeserializationSchema, SimpleStringSchema
from dagster_flinkpy.datastream.connectors.kafka import KafkaSource
from dagster_flinkpy.datastream.formats.json import JsonRowDeserializationSchema

RECORDS, PARTITIONS, ROUNDS, TOPIC = 400_000, 4, 3, "events"
EVENT = Types.ROW_NAMED(["key", "value", "time"], [Types.STRING(), Types.DOUBLE(), Types.LONG()])


def run(peers: tuple[str, ...] = (), records: int = RECORDS) -> list[dict[str, Any]]:
    """Returns the best of three rounds of each."""
    with _cluster(records) as brokers:
        together = _best(lambda: _consume(brokers, range(PARTITIONS), records))
        in_turn = _best(lambda: [_consume(brokers, [n], records // PARTITIONS) for n in range(PARTITIONS)])
        bare = min(together, in_turn)
        settings = {"records": records, "partitions": PARTITIONS, "batch": 8192}
        lines = [line("kafka.consumer_records_per_s", records / bare, "records/s", settings=settings)]
        schemas: dict[str, tuple[DeserializationSchema, str]] = {
            "bytes": (ByteArraySchema(), ">= 0.5"),
            "text": (SimpleStringSchema(), ">= 0.5"),
            "json": (JsonRowDeserializationSchema(EVENT), ""),
        }
        for name, (schema, bar) in schemas.items():
            ours = _best(lambda schema=schema: _read(brokers, schema, records))  # type: ignore[misc]
            peer = "a loop over Consumer.consume(8192) and value(), over all partitions at once or in turn: the faster"
            lines += [
                line(f"kafka.{name}_vs_consumer", bare / ours, "ratio of rate", peer=peer, bar=bar, settings=settings),
                line(f"kafka.{name}_records_per_s", records / ours, "records/s", settings=settings),
            ]
        return lines


def _serve(connection: Connection, records: int) -> None:
    cluster = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 2})
    found = cluster.list_topics(timeout=10).brokers.values()
    brokers = ",".join(f"{each.host}:{each.port}" for each in found)
    # Compressed, because the mock cluster keeps 5 MB of a partition.
    producer = Producer({"bootstrap.servers": brokers, "compression.type": "lz4", "linger.ms": 100, "log_level": 2})
    for number in range(records):
        value = f'{{"key": "k{number % 1000}", "value": {number % 97}.5, "time": {number}}}'
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    connection.send(brokers)
    connection.recv()


@contextmanager
def _cluster(records: int) -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, records), daemon=True)
    process.start()
    yield ours.recv()
    ours.send("stop")
    process.join(10)


def _consume(brokers: str, partitions: Sequence[int], records: int) -> None:
    settings = {"bootstrap.servers": brokers, "group.id": "bench", "enable.auto.commit": False, "log_level": 2}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
    found = 0
    while found < records:
        found += len([message.value() for message in consumer.consume(min(8192, records - found), timeout=1)])
    consumer.close()


def _read(brokers: str, schema: DeserializationSchema, records: int) -> None:
    builder = KafkaSource.builder().set_bootstrap_servers(brokers).set_topics(TOPIC)
    source = builder.set_value_only_deserializer(schema).build()
    (splits,) = source.create_enumerator(None).plan_epoch(1)
    found = sum(len(column) for split in splits for column, *_ in source.read(split))
    assert found == records, found


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
