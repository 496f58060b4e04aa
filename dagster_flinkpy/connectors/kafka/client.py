"""Clients of Kafka, and what is asked of brokers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from dagster_flinkpy.datastream.connectors.kafka_source import KafkaSource, KafkaTopicPartition
from dagster_flinkpy.errors import ConfigurationError, SourceReadError

__all__ = ["BEGINNING", "END", "NO_GROUP", "PartitionLookup", "consumer_of", "new_client", "shown"]

BEGINNING, END = -2, -1
"""What Kafka's ListOffsets takes instead of a timestamp."""
NO_GROUP = "flinkpy"
"""A consumer must have a group. This one never joins it, and never commits for it."""
_SECONDS, _SECONDS_FOR_IDS = 30.0, 10.0
_UNTOLD = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._TIMED_OUT,
)
"""Why the id of a topic is not known: whoever lets records be read need not answer that."""
_WARNINGS, _ERRORS = "4", "3"


def shown(each: KafkaTopicPartition) -> str:
    """Returns the name of a partition for messages, as brokers write it."""
    return f"{each.topic}-{each.partition}"


def new_client(kind: Any, settings: Mapping[str, str], where: str) -> Any:
    """Returns a client of librdkafka."""
    try:
        return kind({"log_level": _WARNINGS, **settings})
    except KafkaException as error:
        raise ConfigurationError(
            f"{where}: {error.args[0].str()}. Properties have the names and values of librdkafka."
        ) from error


def _settings(source: KafkaSource, role: str) -> dict[str, str]:
    client_id = f"{source.client_id_prefix or 'flinkpy'}-{role}"
    return {**source.properties, "bootstrap.servers": source.bootstrap_servers, "client.id": client_id}


def consumer_of(source: KafkaSource, role: str, isolation: str | None = None) -> Any:
    """Returns a consumer for a source, with errors instead of silent jumps.

    Args:
        source: The source.
        role: What the consumer does, for its client id.
        isolation: An ``isolation.level`` instead of that of the source.
    """
    fixed = {
        "group.id": source.group_id or NO_GROUP,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        **({} if isolation is None else {"isolation.level": isolation}),
    }
    settings = {"isolation.level": "read_committed", **_settings(source, role), **fixed}
    return new_client(Consumer, settings, "KafkaSource")


class PartitionLookup:
    """Asks brokers about partitions. The connection is made with the first question.

    Args:
        source: The source.
        isolation: An ``isolation.level`` instead of that of the source.
    """

    def __init__(self, source: KafkaSource, isolation: str | None = None) -> None:
        self._source, self._isolation = source, isolation

    @cached_property
    def consumer(self) -> Any:
        return consumer_of(self._source, "enumerator", self._isolation)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise SourceReadError(
                f"cannot read {what} from Kafka at {self._source.bootstrap_servers}: {error.args[0].str()}"
            ) from error

    def partitions(self) -> set[KafkaTopicPartition]:
        source = self._source
        with self._asking("the list of topics"):
            topics = self.consumer.list_topics(timeout=_SECONDS).topics
        pattern = source.topic_pattern
        if pattern is not None:
            wanted = [name for name in topics if re.fullmatch(pattern, name)]
        else:
            wanted = list(source.topics or dict.fromkeys(each.topic for each in source.partitions))
        found = set()
        for name in wanted:
            topic = topics.get(name)
            if topic is None or topic.error is not None or not topic.partitions:
                why = "does not exist" if topic is None or topic.error is None else topic.error.str()
                raise SourceReadError(
                    f"topic {name!r} at {source.bootstrap_servers} cannot be read: {why}. Create it first."
                )
            found |= {KafkaTopicPartition(name, number) for number in topic.partitions}
        if not source.partitions:
            return found
        if missing := [each for each in source.partitions if each not in found]:
            raise SourceReadError(f"partition {shown(missing[0])} at {source.bootstrap_servers} does not exist")
        return set(source.partitions)

    def identities(self, topics: Collection[str]) -> tuple[str | None, dict[str, str]]:
        """Returns the id of the cluster, and those that topics got when they were made.

        Brokers before 2.8, and some that only speak Kafka's protocol, do not tell them.
        """
        with self._asking("the ids of topics"):
            there = self.consumer.list_topics(next(iter(topics)), timeout=_SECONDS)
            if there.controller_id not in there.brokers:  # nobody would answer
                return there.cluster_id, {}
            # It warns of the settings that are those of consumers.
            settings = {"log_level": _ERRORS, **_settings(self._source, "enumerator")}
            admin = new_client(AdminClient, settings, "KafkaSource")
            asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_SECONDS_FOR_IDS)
            found = {name: _id_of(answer) for name, answer in asked.items()}
        return there.cluster_id, {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def offsets(self, partitions: Iterable[KafkaTopicPartition], when: int) -> dict[KafkaTopicPartition, int]:
        """Returns an offset of each partition: `BEGINNING`, `END`, or the first one of a timestamp or later.

        The end is behind the last record of which it is decided whether it is committed, unless ``isolation.level`` is
        ``read_uncommitted``.
        """
        asked = [TopicPartition(each.topic, each.partition, when) for each in partitions]
        if not asked:
            return {}
        self.consumer.poll(0)  # takes what librdkafka wants to report, which would pile up
        with self._asking("offsets"):
            answers = self.consumer.offsets_for_times(asked, timeout=_SECONDS)
        found = {}
        for answer in answers:
            each = KafkaTopicPartition(answer.topic, answer.partition)
            if answer.error is not None:
                raise SourceReadError(
                    f"Kafka at {self._source.bootstrap_servers} does not know the offsets of {shown(each)}: "
                    f"{answer.error.str()}"
                )
            found[each] = answer.offset
        late = [each for each, offset in found.items() if offset < 0 and when >= 0]  # no record is that new
        return found if not late else found | self.offsets(late, END)

    def committed(self, partitions: Iterable[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """Returns what the group has committed; partitions without are left out."""
        asked = [TopicPartition(each.topic, each.partition) for each in partitions]
        with self._asking(f"the committed offsets of group {self._source.group_id!r}"):
            answers = self.consumer.committed(asked, timeout=_SECONDS)
        return {KafkaTopicPartition(a.topic, a.partition): a.offset for a in answers if a.offset >= 0}

    def commit(self, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        """Commits offsets for the group, without waiting for it."""
        committed = [TopicPartition(each.topic, each.partition, offset) for each, offset in offsets.items()]
        self.consumer.commit(offsets=committed, asynchronous=True)


def _id_of(answer: Any) -> str | None:
    try:
        topic_id = answer.result().topic_id
    except KafkaException as error:
        if error.args[0].code() in _UNTOLD:
            return None
        raise
    known = topic_id.get_most_significant_bits() or topic_id.get_least_significant_bits()
    return str(topic_id) if known else None
