"""Topics of Kafka in memory, for consumers: others can do to them what librdkafka's mock cluster does not let them do.

A consumer answers as librdkafka does with ``auto.offset.reset=error`` and ``enable.partition.eof=true``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, TopicCollection, Uuid
from confluent_kafka.admin import AdminClient

from dagster_flinkpy.connectors.kafka.client import BEGINNING, END

__all__ = ["FakePartition", "FakeTopics"]


class _Message:
    def __init__(self, offset: int, value: bytes | None = None, error: KafkaError | None = None) -> None:
        self._offset, self._value, self._error = offset, value, error

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, self._offset


@dataclass
class FakePartition:
    """The log of a partition."""

    records: dict[int, bytes | None] = field(default_factory=dict)
    """By offset. Compaction leaves gaps."""
    first: int = 0
    end: int = 0

    def append(self, value: bytes | None) -> None:
        """Appends a record."""
        self.records[self.end] = value
        self.end += 1

    def expire(self, first: int) -> None:
        """Deletes the records before an offset, as retention does."""
        self.first = first
        self.records = {offset: value for offset, value in self.records.items() if offset >= first}

    def truncate(self, end: int) -> None:
        """Loses the records from an offset on, as an unclean election of a leader does."""
        self.end = end
        self.records = {offset: value for offset, value in self.records.items() if offset < end}


@dataclass
class FakeTopics:
    """The topics of a cluster, by name."""

    topics: dict[str, list[FakePartition]] = field(default_factory=dict)
    down: bool = False
    """Whether no broker answers."""
    forbidden: bool = False
    """Whether consumers may not read."""
    cluster_id: str = "cluster"
    tells_ids: bool = True
    has_controller: bool = True
    describes: bool = True
    made: dict[str, int] = field(default_factory=dict)
    """How often a topic was made anew."""

    def topic_id(self, name: str) -> Uuid:
        return Uuid(1, self.made.get(name, 0)) if self.tells_ids else Uuid(0, 0)

    def make_anew(self, name: str, partitions: list[FakePartition]) -> None:
        """Deletes a topic, and makes it again."""
        self.topics[name], self.made[name] = partitions, self.made.get(name, 0) + 1

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Lets the sources of this process read these topics."""

        def client(kind: Any, settings: dict[str, str], where: str) -> Any:
            if kind is AdminClient:
                return _Admin(self)
            assert kind is Consumer
            assert settings["auto.offset.reset"] == "error"
            assert settings["enable.partition.eof"] == "true"
            return _Consumer(self)

        silent = mock.patch("dagster_flinkpy.connectors.kafka.reader._SILENT_SECONDS", 0.0)
        with mock.patch("dagster_flinkpy.connectors.kafka.client.new_client", client), silent:
            yield


@dataclass
class _Consumer:
    cluster: FakeTopics
    _at: tuple[str, int] = ("", 0)
    _position: int = 0
    _stopped: bool = False

    def _ask(self) -> None:
        if self.cluster.down:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def list_topics(self, topic: str | None = None, *, timeout: float) -> Any:
        self._ask()
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED) if self.cluster.forbidden else None
        return SimpleNamespace(
            topics={
                name: SimpleNamespace(error=error, partitions=dict.fromkeys(range(len(partitions))))
                for name, partitions in self.cluster.topics.items()
                if topic in (None, name)
            },
            brokers={1: None},
            controller_id=int(self.cluster.has_controller),
            cluster_id=self.cluster.cluster_id,
        )

    def offsets_for_times(self, asked: Sequence[Any], timeout: float) -> list[Any]:
        self._ask()
        return [SimpleNamespace(topic=a.topic, partition=a.partition, **self._offset(a)) for a in asked]

    def _offset(self, asked: Any) -> dict[str, Any]:
        assert asked.offset in (BEGINNING, END)
        log = self._log(asked.topic, asked.partition)
        if isinstance(log, KafkaError):
            return {"offset": asked.offset, "error": log}
        return {"offset": log.first if asked.offset == BEGINNING else log.end, "error": None}

    def _log(self, topic: str, number: int) -> FakePartition | KafkaError:
        if self.cluster.forbidden:
            return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        partitions = self.cluster.topics.get(topic, ())
        return partitions[number] if number < len(partitions) else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)

    def assign(self, partitions: Sequence[Any]) -> None:
        (each,) = partitions
        self._at, self._position = (each.topic, each.partition), each.offset

    def unassign(self) -> None:
        pass

    def consume(self, most: int, timeout: float) -> list[_Message]:
        if self._stopped or self.cluster.down:
            return []
        log = self._log(*self._at)
        if not isinstance(log, KafkaError) and not log.first <= self._position <= log.end:
            log = KafkaError(KafkaError._AUTO_OFFSET_RESET)
        if isinstance(log, KafkaError):
            self._stopped = True
            return [_Message(self._position, error=log)]
        found = [_Message(o, v) for o, v in sorted(log.records.items()) if o >= self._position][:most]
        if not found:
            self._position = log.end
            return [_Message(log.end, error=KafkaError(KafkaError._PARTITION_EOF))]
        self._position = found[-1].offset() + 1
        return found

    def poll(self, timeout: float) -> None:
        return None

    def commit(self, offsets: Any, asynchronous: bool) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class _Admin:
    cluster: FakeTopics

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        return {name: self._described(name) for name in topics.topic_names}

    def _described(self, name: str) -> Future[Any]:
        answer = Future[Any]()
        if not self.cluster.describes:
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        elif name in self.cluster.topics:
            answer.set_result(SimpleNamespace(topic_id=self.cluster.topic_id(name)))
        else:
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return answer
