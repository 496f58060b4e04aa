"""Kafka, Kinesis and Python data sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar
from unittest import mock

from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from dagster_flinkpy.common import Row
from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import KinesisSource, PythonDataSource
from dagster_flinkpy.connectors.kinesis.client import KinesisEnumerator
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink
from dagster_flinkpy.datastream.formats.json import JsonRowSerializationSchema
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    InputChangedError,
    InputExpiredError,
    SinkCommitError,
    SourceReadError,
)
from tests.connectors.kafka.fake_kafka import TOPIC, FakeCluster, FakeProducer
from tests.connectors.kinesis.test_source import FakeKinesis, client_error
from tests.world.stage import EVENT, Act, Record, Sink, Source, Undo, nothing

__all__ = ["SYSTEMS"]


def _parsed(text: str) -> Row:
    key, time, value = text.split(",")
    return Row(key=key, time=int(time), value=int(value))


# --- Kafka ------------------------------------------------------------------------------------------------------------


class KafkaTopic(Sink):
    title = "Topic of Kafka as a sink"

    def begin(self) -> None:
        self.cluster, self.stack = FakeCluster(), ExitStack()
        client = "dagster_flinkpy.connectors.kafka.committer.new_client"
        self.stack.enter_context(mock.patch(client, self.cluster.client))

    def close(self) -> None:
        self.stack.close()

    def sink(self) -> TwoPhaseCommittingSink:
        values = JsonRowSerializationSchema.builder().with_type_info(EVENT).build()
        schema = KafkaRecordSerializationSchema.builder().set_topic(TOPIC).set_value_serialization_schema(values)
        builder = KafkaSink.builder().set_bootstrap_servers("broker:9092").set_record_serializer(schema.build())
        return builder.set_staging(str(self.folder)).build()

    hooks = (
        ("tests.connectors.kafka.fake_kafka:FakeProducer", "begin_transaction", True),
        ("tests.connectors.kafka.fake_kafka:FakeProducer", "commit_transaction", False),
        ("tests.connectors.kafka.fake_kafka:FakeProducer", "commit_transaction", True),
    )

    def rows(self) -> Sequence[Record]:
        values = [json.loads(value) for _, value in self.cluster.records if value is not None]
        return [(row["key"], row["time"], row["value"]) for row in values]


def deletes_topic(system: KafkaTopic) -> Undo | None:
    system.cluster.topics.clear()
    return lambda failed: system.cluster.topics.add(TOPIC)


def fences(system: KafkaTopic) -> Undo | None:
    for name in system.cluster.epochs:
        system.cluster.epochs[name] += 1
        system.cluster.open.pop(name, None)
    return nothing


def writes(system: KafkaTopic) -> Undo | None:
    system.may.add(3000)
    if 3000 not in system.values():
        system.cluster.records.append((None, json.dumps({"key": "k0", "time": 0, "value": 3000}).encode()))
    return nothing


def forbids(system: KafkaTopic) -> Undo | None:
    def refuse(*_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    patch = mock.patch.object(FakeProducer, "produce", refuse)
    patch.start()
    return lambda failed: patch.stop()


def forgets_group(system: KafkaTopic) -> Undo | None:
    kept = dict(system.cluster.offsets)
    if not kept:
        return None
    system.cluster.offsets.clear()
    return lambda failed: system.cluster.offsets.update(kept) if failed else None


KafkaTopic.acts = (
    Act("deletes the topic for a while", deletes_topic, (ConfigurationError,)),
    Act("takes over the transactional id", fences),
    Act("writes records of their own", writes),
    Act("forbids the topic for a while", forbids, (SinkCommitError,)),
    Act(
        "deletes the consumer group of the sink",
        forgets_group,
        (CommittableLostError,),
        at=("before pre-commit", "before HEAD", "before commit", "between runs"),
    ),
)


# --- Kinesis ----------------------------------------------------------------------------------------------------------


class KinesisStream(Source):
    title = "Stream of Kinesis as a source"

    def begin(self) -> None:
        self.fake, self.stack = FakeKinesis(), ExitStack()
        self.stack.enter_context(
            mock.patch("dagster_flinkpy.connectors.kinesis.client.open_client", lambda source: self.fake)
        )
        defaults = KinesisEnumerator.__init__.__kwdefaults__
        self.stack.enter_context(mock.patch.dict(defaults, now=lambda: self.fake.now))

    def close(self) -> None:
        self.stack.close()

    def put(self, records: Sequence[Record]) -> None:
        open_ = _open_shards(self)
        for number, record in enumerate(() if self.fake.deleted else records):
            self.fake.put(",".join(map(str, record)), shard=open_[number % len(open_)])

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = KinesisSource("stream", SimpleStringSchema(), bounded=False)
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "kinesis").uid("kinesis")
        return lines.map(_parsed, EVENT).uid("parse")


def _open_shards(system: KinesisStream) -> list[int]:
    return [int(name.removeprefix("shardId-")) for name, shard in system.fake.shards.items() if not shard.closed]


def splits(system: KinesisStream) -> Undo | None:
    system.fake.split(_open_shards(system)[0], into=2)
    return nothing


def merges(system: KinesisStream) -> Undo | None:
    shards = _open_shards(system)
    if len(shards) < 2:
        system.fake.split(shards[0], into=2)
        shards = _open_shards(system)
    system.fake.split(*shards[:2], into=1)
    return nothing


def expires_read(system: KinesisStream) -> Undo | None:
    for shard in system.fake.shards.values():
        shard.records = [each for each in shard.records if _value(each) not in system.visible]
    return nothing


def expires_unread(system: KinesisStream) -> Undo | None:
    unread = {_value(each) for shard in system.fake.shards.values() for each in shard.records} - set(system.visible)
    if not unread:
        return None
    system.fake.pass_hours(25)
    return nothing


def _value(record: tuple[int, int, bytes]) -> int:
    return int(record[2].decode().rpartition(",")[2])


def deletes(system: KinesisStream) -> Undo | None:
    system.fake.deleted = True
    return nothing


def makes_anew(system: KinesisStream) -> Undo | None:
    if not system.visible:
        return None
    system.fake.make_anew(len(system.fake.shards) + 1)
    return nothing


def throttles(system: KinesisStream) -> Undo | None:
    refused = client_error("ProvisionedThroughputExceededException", "Rate exceeded", "GetRecords")
    system.fake.refused = refused
    return lambda failed: setattr(system.fake, "refused", None)


_GONE = (SourceReadError,)
KinesisStream.acts = (
    Act("splits a shard", splits),
    Act("merges shards", merges),
    Act("lets records expire that were read", expires_read),
    Act("takes permissions or throughput away for a while", throttles, _GONE),
    Act("lets records expire that were not read", expires_unread, (InputExpiredError,), ends=True),
    Act("deletes the stream", deletes, _GONE, ends=True),
    Act("deletes the stream, and makes it anew with more shards", makes_anew, _GONE, ends=True),
)


# --- Python data sources ----------------------------------------------------------------------------------------------


class _Part(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class _Lines(DataSourceStreamReader):
    """The lines of a file. An offset is a number of lines."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _lines(self) -> list[str]:
        with open(self.path) as file:
            return file.read().splitlines()

    def initialOffset(self) -> dict[str, int]:
        return {"next": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"next": len(self._lines())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Part(start["next"], end["next"])]

    def read(self, partition: Any) -> Iterator[tuple[str]]:
        return iter([(line,) for line in self._lines()[partition.start : partition.end]])


class _LinesSource(DataSource):
    def schema(self) -> str:
        return "line string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Lines(self.options["path"])


class PythonLines(Source):
    title = "Python data source"
    patient: ClassVar[bool] = True

    @property
    def path(self) -> Any:
        return self.place.folder / "lines"

    def begin(self) -> None:
        self.path.touch()

    def put(self, records: Sequence[Record]) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{key},{time},{value}\n" for key, time, value in records)

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = PythonDataSource(_LinesSource({"path": str(self.path)})).continuous()
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
        return lines.map(lambda row: _parsed(row.line), EVENT).uid("parse")


def moves_lines(system: PythonLines) -> Undo | None:
    kept = system.place.folder / "kept-lines"
    system.path.rename(kept)
    return lambda failed: kept.rename(system.path) and None


def cuts_lines(system: PythonLines) -> Undo | None:
    content = system.path.read_text()
    if content.count("\n") < 6:
        return None
    system.path.write_text("".join(content.splitlines(keepends=True)[:3]))
    return lambda failed: system.path.write_text(content)


PythonLines.acts = (
    Act("takes what it reads away, and puts it back later", moves_lines, (SourceReadError,)),
    Act(
        "cuts what was read, and puts it back later",
        cuts_lines,
        (InputChangedError,),
        at=("before planning", "before pre-commit", "before HEAD", "after commit", "between runs"),
    ),
)

SYSTEMS = (KafkaTopic, KinesisStream, PythonLines)
