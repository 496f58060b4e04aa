"""Topics of Kafka from which a job reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from dagster_flinkpy.common import Row
from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from dagster_flinkpy.errors import InputExpiredError, SourceReadError
from tests.connectors.kafka.fake_topics import FakePartition, FakeTopics
from tests.world.stage import EVENT, Act, Record, Source, Undo, nothing

__all__ = ["SYSTEMS"]

_TOPIC = "events"


def _parsed(text: str) -> Row:
    key, time, value = text.split(",")
    return Row(key=key, time=int(time), value=int(value))


class KafkaRecords(Source):
    title = "Topic of Kafka as a source"

    def begin(self) -> None:
        self.cluster, self.stack = FakeTopics({_TOPIC: [FakePartition(), FakePartition()]}), ExitStack()
        self.stack.enter_context(self.cluster.serving())

    def close(self) -> None:
        self.stack.close()

    @property
    def partitions(self) -> list[FakePartition]:
        """The partitions of the topic; none if it is deleted."""
        return self.cluster.topics.get(_TOPIC, [])

    def put(self, records: Sequence[Record]) -> None:
        for number, record in enumerate(records if self.partitions else ()):
            self.partitions[number % len(self.partitions)].append(",".join(map(str, record)).encode())

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        builder = KafkaSource.builder().set_bootstrap_servers("broker:9092").set_topics(_TOPIC)
        builder.set_starting_offsets(KafkaOffsetsInitializer.earliest())
        builder.set_property("partition.discovery.interval.ms", "1")
        source = builder.set_value_only_deserializer(SimpleStringSchema()).build()
        source.batch_rows = 2
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka").uid("kafka")
        return lines.map(_parsed, EVENT).uid("parse")

    def read(self, partition: FakePartition) -> int:
        """Returns the first offset whose record the job has not written."""
        unread = (o for o, text in sorted(partition.records.items()) if text and _value(text) not in self.visible)
        return next(unread, partition.end)


def _value(text: bytes) -> int:
    return int(text.decode().rpartition(",")[2])


# --- what others do ---------------------------------------------------------------------------------------------------


def adds_partition(system: KafkaRecords) -> Undo | None:
    system.partitions.append(FakePartition())
    return nothing


def writes_without_value(system: KafkaRecords) -> Undo | None:
    for partition in system.partitions:
        partition.append(None)
    return nothing


def expires_read(system: KafkaRecords) -> Undo | None:
    for partition in system.partitions:
        partition.expire(system.read(partition))
    return nothing


def expires_unread(system: KafkaRecords) -> Undo | None:
    if all(system.read(each) == each.end for each in system.partitions):
        return None
    for partition in system.partitions:
        partition.expire(partition.end)
    return nothing


def compacts(system: KafkaRecords) -> Undo | None:
    for partition in system.partitions:
        for offset in list(partition.records)[:-1]:
            text = partition.records.pop(offset)
            if text and _value(text) not in system.visible:
                # It may be read already, or it is gone, as whoever compacts a log wants it.
                system.gone.add(_value(text))
    return nothing


def deletes(system: KafkaRecords) -> Undo | None:
    del system.cluster.topics[_TOPIC]
    return nothing


def makes_anew(system: KafkaRecords) -> Undo | None:
    if not system.visible:
        return None
    system.cluster.make_anew(_TOPIC, [FakePartition(), FakePartition()])
    return nothing


def makes_anew_with_more(system: KafkaRecords) -> Undo | None:
    if not system.visible:
        return None
    partitions = [FakePartition(end=each.end + 1) for each in system.partitions]
    system.cluster.make_anew(_TOPIC, partitions)
    return nothing


def truncates(system: KafkaRecords) -> Undo | None:
    if not system.visible:
        return None
    for partition in system.partitions:
        partition.truncate(partition.first)
    return nothing


def _sets(name: str) -> Callable[[KafkaRecords], Undo]:
    def act(system: KafkaRecords) -> Undo:
        setattr(system.cluster, name, True)
        return lambda failed: setattr(system.cluster, name, False)

    return act


_ERROR = (SourceReadError,)
KafkaRecords.acts = (
    Act("adds a partition", adds_partition),
    Act("writes records without a value", writes_without_value),
    Act("lets records expire that were read", expires_read),
    Act("compacts the log", compacts),
    Act("forbids the topic for a while", _sets("forbidden"), _ERROR),
    Act("stops the brokers for a while", _sets("down"), _ERROR),
    Act("lets records expire that were not read", expires_unread, (InputExpiredError,), ends=True),
    Act("deletes the topic", deletes, _ERROR, ends=True),
    Act("deletes the topic, and makes it anew, empty", makes_anew, _ERROR, ends=True),
    Act("deletes the topic, and makes it anew with more records", makes_anew_with_more, _ERROR, ends=True),
    Act("truncates the log, as an unclean election of a leader does", truncates, _ERROR, ends=True),
)

SYSTEMS = (KafkaRecords,)
