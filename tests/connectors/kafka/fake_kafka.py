"""A cluster of Kafka with transactions, in memory: what librdkafka's mock cluster does not have.

It follows KIP-98: `init_transactions` fences older producers with the transactional id and aborts their transaction;
records and offsets of a transaction appear together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

TOPIC = "topic"


class _Offset(SimpleNamespace):
    error = None


@dataclass
class FakeCluster:
    """The state of the brokers."""

    records: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    offsets: dict[str, tuple[int, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    open: dict[str, FakeProducer] = field(default_factory=dict)
    topics: set[str] = field(default_factory=lambda: {TOPIC})
    transactions: int = 0

    def client(self, kind: Any, settings: Any, where: str) -> Any:
        """Stands in for `new_client`."""
        return FakeProducer(self, settings) if kind is Producer else FakeConsumer(self, settings)


class FakeProducer:
    def __init__(self, cluster: FakeCluster, settings: dict[str, str]) -> None:
        assert settings["enable.idempotence"] == "true"
        self._cluster, self._id = cluster, settings["transactional.id"]
        self._epoch = -1
        self._records: list[tuple[bytes | None, bytes | None]] = []
        self._offsets: dict[str, tuple[int, str]] = {}

    def _check(self, *, is_open: bool) -> None:
        if self._cluster.epochs[self._id] != self._epoch:
            raise KafkaException(KafkaError(KafkaError._FENCED, fatal=True))
        if (self._cluster.open.get(self._id) is self) != is_open:
            raise KafkaException(KafkaError(KafkaError._STATE))

    def init_transactions(self, timeout: float) -> None:
        self._epoch = self._cluster.epochs[self._id] = self._cluster.epochs.get(self._id, -1) + 1
        self._cluster.open.pop(self._id, None)

    def begin_transaction(self) -> None:
        self._check(is_open=False)
        self._cluster.open[self._id] = self
        self._records, self._offsets = [], {}

    def produce(self, topic: str, value: Any, key: Any, on_delivery: Any) -> None:
        self._check(is_open=True)
        self._records.append((key, value))
        on_delivery(None, None)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        return 0

    def send_offsets_to_transaction(self, offsets: Any, group: str, timeout: float) -> None:
        self._check(is_open=True)
        (offset,) = offsets
        assert (offset.topic, offset.partition) == (TOPIC, 0)
        assert len(offset.metadata) <= 4096
        self._offsets[group] = (offset.offset, offset.metadata)

    def commit_transaction(self, timeout: float) -> None:
        self._check(is_open=True)
        del self._cluster.open[self._id]
        self._cluster.records += self._records
        self._cluster.offsets |= self._offsets
        self._cluster.transactions += 1

    def abort_transaction(self, timeout: float) -> None:
        self._check(is_open=True)
        del self._cluster.open[self._id]


class FakeConsumer:
    def __init__(self, cluster: FakeCluster, settings: dict[str, str]) -> None:
        assert settings["isolation.level"] == "read_committed"
        self._cluster, self._group = cluster, settings["group.id"]

    def committed(self, partitions: Any, timeout: float) -> list[Any]:
        offset, metadata = self._cluster.offsets.get(self._group, (-1001, None))
        return [_Offset(offset=offset, metadata=metadata)]

    def consumer_group_metadata(self) -> str:
        return self._group

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={name: SimpleNamespace(partitions={0: None}) for name in self._cluster.topics})
