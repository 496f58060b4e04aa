"""Topics of Kafka for tests."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.waiting import LIMIT

PARTITIONS = 4


class Topic:
    """A topic of its own with four partitions.

    Args:
        brokers: How to connect.
        name: Its name. Default: a new one.
    """

    def __init__(self, brokers: str, name: str = "") -> None:
        self.brokers, self.name = brokers, name or f"t{uuid.uuid4().hex[:10]}"
        self._producer = Producer({"bootstrap.servers": brokers, "log_level": 2})
        admin = AdminClient({"bootstrap.servers": brokers})
        admin.create_topics([NewTopic(self.name, PARTITIONS, 1, config={"retention.ms": "-1"})])[self.name].result()
        while len(self._producer.list_topics(self.name, timeout=LIMIT).topics[self.name].partitions) < PARTITIONS:
            pass

    def send(self, *values: Any, partition: int = 0, **options: Any) -> None:
        """Appends records to a partition. The timestamp is that of ``options``, or now."""
        for value in values:
            self._producer.produce(self.name, value, partition=partition, **options)
        assert self._producer.flush(LIMIT) == 0

    def received(self) -> list[Any]:
        """Returns all records, by partition."""
        return received(self.brokers, self.name)

    def values(self) -> list[bytes]:
        """Returns the values of all records, sorted."""
        return sorted(message.value() for message in self.received())


def received(brokers: str, topic: str) -> list[Any]:
    """Returns the records of a topic of `PARTITIONS` partitions, without those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    found, ended = [], set[int]()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(100, timeout=0.05):
            if message.error() is None:
                found.append(message)
            else:
                ended.add(message.partition())
    consumer.close()
    return sorted(found, key=lambda m: (m.partition(), m.offset()))


def committed(brokers: str, group: str, topic: str, partitions: Sequence[int]) -> list[int]:
    """Returns what a group has committed."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "log_level": 2})
    try:
        return [
            each.offset for each in consumer.committed([TopicPartition(topic, n) for n in partitions], timeout=LIMIT)
        ]
    finally:
        consumer.close()
