"""Topics of Kafka as a source. These are declarations; the registry names the code that reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arguments import check_argument, check_installed, check_name, check_number
from dagster_flinkpy.common.serialization import ByteArraySchema, DeserializationSchema
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordDeserializationSchema",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "check_property",
]

_OWN_PROPERTIES = {
    "bootstrap.servers": "set_bootstrap_servers()",
    "group.id": "set_group_id()",
    "client.id": "set_client_id_prefix()",
    "transactional.id": "set_transactional_id_prefix()",
}
_FIXED_PROPERTIES = ("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "enable.idempotence")
_DISCOVERY_MS = 300_000


def check_property(key: Any, value: Any) -> str:
    """Checks a setting of a Kafka client, and returns its value as text.

    Raises:
        ConfigurationError: The connector sets it itself, or it is not text.
    """
    check_name("set_property() as key", key)
    if key in _OWN_PROPERTIES:
        raise ConfigurationError(f"set {key} with {_OWN_PROPERTIES[key]} instead of set_property()")
    if key in _FIXED_PROPERTIES:
        raise ConfigurationError(f"{key} cannot be set: exactly-once depends on the connector's value")
    if key.endswith((".serializer", ".deserializer")):
        raise ConfigurationError(f"{key} names a Java class: give the builder a schema of Python instead")
    check_argument("set_property()", value, (str, int, float), "text or a number")
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, order=True)
class KafkaTopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int


class KafkaOffsetResetStrategy(Enum):
    """Where to start if a group has no committed offset."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2
    """It is an error."""


@dataclass(frozen=True)
class KafkaOffsetsInitializer:
    """Where partitions begin, or where they end. Use the factory methods."""

    kind: str
    timestamp_ms: int = 0
    given: Mapping[KafkaTopicPartition, int] = field(default_factory=dict)
    reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """The oldest record that there is."""
        return KafkaOffsetsInitializer("earliest")

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """The end, as it is when the first epoch is planned."""
        return KafkaOffsetsInitializer("latest")

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """The first record with this timestamp or a later one; the end if there is none.

        Args:
            timestamp: Milliseconds since 1970.
        """
        check_number("KafkaOffsetsInitializer.timestamp()", timestamp, "milliseconds")
        return KafkaOffsetsInitializer("timestamp", timestamp_ms=timestamp)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """The offsets that the group has committed. The source needs ``set_group_id()``.

        Args:
            offset_reset_strategy: What to do with a partition of which the group has committed none.
        """
        return KafkaOffsetsInitializer("committed", reset=offset_reset_strategy)

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """Given offsets.

        Args:
            offsets: The offset of each partition.
            offset_reset_strategy: What to do with a partition that is not among them.
        """
        wanted = "a dict of offsets by KafkaTopicPartition"
        check_argument("KafkaOffsetsInitializer.offsets()", offsets, Mapping, wanted)
        return KafkaOffsetsInitializer("offsets", given=dict(offsets), reset=offset_reset_strategy)


class KafkaRecordDeserializationSchema:
    """What becomes of a record of Kafka. Use the factory methods.

    Args:
        key: The schema of keys, or None if only values are wanted.
        value: The schema of values.
    """

    def __init__(self, key: DeserializationSchema | None, value: DeserializationSchema) -> None:
        for schema in (value, *([] if key is None else [key])):
            check_argument("KafkaSource", schema, DeserializationSchema, "a DeserializationSchema")
        self.key, self.value = key, value

    @staticmethod
    def value_only(value: DeserializationSchema) -> KafkaRecordDeserializationSchema:
        """Makes each value a record. Records without a value (tombstones) are skipped.

        Args:
            value: The schema of values.
        """
        return KafkaRecordDeserializationSchema(None, value)

    @staticmethod
    def columns(
        value: DeserializationSchema, key: DeserializationSchema | None = None
    ) -> KafkaRecordDeserializationSchema:
        """Makes rows of ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value`` and ``headers``.

        ``timestamp`` is in milliseconds since 1970, or null. ``headers`` is a list of rows of ``key`` and ``value``.

        Args:
            value: The schema of values.
            key: The schema of keys. Default: bytes.
        """
        return KafkaRecordDeserializationSchema(ByteArraySchema() if key is None else key, value)

    @property
    def produced_type(self) -> TypeInformation:
        """The type of the records."""
        if self.key is None:
            return self.value.get_produced_type()
        binary = Types.PRIMITIVE_ARRAY(Types.BYTE())
        fields: dict[str, TypeInformation] = {
            "topic": Types.STRING(),
            "partition": Types.INT(),
            "offset": Types.LONG(),
            "timestamp": Types.LONG(),
            "key": self.key.get_produced_type(),
            "value": self.value.get_produced_type(),
            "headers": Types.LIST(Types.ROW_NAMED(["key", "value"], [Types.STRING(), binary])),
        }
        return Types.ROW_NAMED(list(fields), list(fields.values()))


class KafkaSource(Source):
    """Reads records of Kafka (Flink: ``KafkaSource``). Needs ``pip install 'dagster-flinkpy[kafka]'``.

    A partition is a split, and its position is the next offset. Before each epoch the driver notes where partitions
    end, and tasks read exactly up to there: a repeated epoch reads the same records. Only committed records are read.

    The timestamp of a record is its event time, unless the watermark strategy has an assigner. Build it with
    `builder`.
    """

    splits_side_by_side = True
    resumes_splits = counts_records = True

    def __init__(self) -> None:
        self.bootstrap_servers = ""
        self.topics: tuple[str, ...] = ()
        self.topic_pattern: str | None = None
        self.partitions: tuple[KafkaTopicPartition, ...] = ()
        self.group_id: str | None = None
        self.client_id_prefix: str | None = None
        self.starting = KafkaOffsetsInitializer.earliest()
        self.stopping: KafkaOffsetsInitializer | None = None
        self.schema: KafkaRecordDeserializationSchema | None = None
        self.properties: dict[str, str] = {}
        """Settings of the client, by their names in librdkafka."""
        self.commits_offsets = True
        """Whether the group gets the positions of completed checkpoints."""
        self.reset: str | None = None
        """What happens to a position that is gone: ``earliest``, ``latest``, or None for an error."""
        self.partition_discovery: timedelta | None = timedelta(milliseconds=_DISCOVERY_MS)
        """How often to look for new partitions."""
        self.limits = EpochLimits()
        self.batch_rows = 8192

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        """Returns a builder of a source."""
        return KafkaSourceBuilder()

    def uris(self) -> list[str]:
        topics = self.topics or dict.fromkeys(each.topic for each in self.partitions)
        return [f"kafka://{self.bootstrap_servers.split(',')[0]}/{topic}" for topic in topics]

    @property
    def bounded(self) -> bool:
        """Whether it ends at some offsets."""
        return self.stopping is not None

    @property
    def produced_type(self) -> TypeInformation:
        assert self.schema is not None
        return self.schema.produced_type

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return call_registered("kafka_enumerator", self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int, pa.Array]]:
        return call_registered("kafka_reader", self, split)

    def kinds(self) -> set[str]:
        return {"kafka"}


class KafkaSourceBuilder:
    """Builds a `KafkaSource`."""

    def __init__(self) -> None:
        self._source = KafkaSource()

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """Sets the brokers to ask first.

        Args:
            bootstrap_servers: ``host:port``, separated by commas.
        """
        check_name("set_bootstrap_servers()", bootstrap_servers)
        self._source.bootstrap_servers = bootstrap_servers
        return self

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """Reads all partitions of topics.

        Args:
            *topics: Their names.
        """
        for topic in topics:
            check_name("set_topics()", topic)
        self._source.topics = tuple(topics)
        return self

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """Reads all partitions of the topics whose whole name matches a pattern.

        Args:
            topic_pattern: A regular expression of Python.
        """
        check_name("set_topic_pattern()", topic_pattern)
        try:
            re.compile(topic_pattern)
        except re.error as error:
            raise ConfigurationError(f"set_topic_pattern(): {topic_pattern!r} is no pattern: {error}") from None
        self._source.topic_pattern = topic_pattern
        return self

    def set_partitions(self, partitions: set[KafkaTopicPartition]) -> KafkaSourceBuilder:
        """Reads some partitions.

        Args:
            partitions: The partitions.
        """
        self._source.partitions = tuple(sorted(partitions))
        return self

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """Sets the consumer group that gets the offsets of completed checkpoints, for monitoring. Default: none.

        Args:
            group_id: The group.
        """
        check_name("set_group_id()", group_id)
        self._source.group_id = group_id
        return self

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        """Sets the beginning of the client's name in the logs and metrics of brokers. Default: ``flinkpy``.

        Args:
            prefix: The beginning.
        """
        check_name("set_client_id_prefix()", prefix)
        self._source.client_id_prefix = prefix
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Sets where a job without a checkpoint begins. Partitions that are found later are read from their beginning.

        Args:
            starting_offsets_initializer: Where. Default: ``KafkaOffsetsInitializer.earliest()``.
        """
        self._source.starting = _initializer("set_starting_offsets()", starting_offsets_initializer)
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Ends the input at offsets, which are looked up when the first epoch is planned. Default: it does not end.

        Args:
            stopping_offsets_initializer: The first offsets that are not read.
        """
        self._source.stopping = _initializer("set_bounded()", stopping_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Does the same as `set_bounded`: there is one mode of execution.

        Args:
            stopping_offsets_initializer: The first offsets that are not read.
        """
        self._source.stopping = _initializer("set_unbounded()", stopping_offsets_initializer)
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> KafkaSourceBuilder:
        """Makes each value a record. Keys and headers are not read.

        Args:
            deserialization_schema: The schema of values, such as ``SimpleStringSchema()``.
        """
        return self.set_deserializer(KafkaRecordDeserializationSchema.value_only(deserialization_schema))

    def set_deserializer(self, record_deserializer: KafkaRecordDeserializationSchema) -> KafkaSourceBuilder:
        """Sets what becomes of a record.

        Args:
            record_deserializer: Such as ``KafkaRecordDeserializationSchema.columns(value=SimpleStringSchema())``.
        """
        wanted = "KafkaRecordDeserializationSchema.columns(...)"
        check_argument("set_deserializer()", record_deserializer, KafkaRecordDeserializationSchema, wanted)
        self._source.schema = record_deserializer
        return self

    def set_max_records_per_epoch(self, records: int) -> KafkaSourceBuilder:
        """Limits the offsets between two barriers, over all partitions. Default: no limit. Flink has no such setting.

        Args:
            records: The maximum number.
        """
        self._source.limits = EpochLimits.checked("KafkaSource", records, self._source.limits.bytes)
        return self

    def set_max_bytes_per_epoch(self, size: int) -> KafkaSourceBuilder:
        """Limits the bytes of keys and values between two barriers, roughly. Default: no limit.

        The driver reads some records of each partition, to estimate how many offsets the limit is.

        Args:
            size: The number of bytes.
        """
        self._source.limits = EpochLimits.checked("KafkaSource", self._source.limits.records, size)
        return self

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """Sets a property of the client, by its name in librdkafka, or one of these.

        - ``partition.discovery.interval.ms``: how often to look for new partitions. Default: 300000; 0 for never.
        - ``commit.offsets.on.checkpoint``: whether the group gets the offsets of completed checkpoints. Default: true.
        - ``auto.offset.reset``: ``earliest`` or ``latest``: where to continue if records that were not read are gone.
          Default: that is an error.

        Args:
            key: The name.
            value: The value.
        """
        text, source = check_property(key, value), self._source
        if key == "partition.discovery.interval.ms":
            if not re.fullmatch(r"-?\d+", text):
                raise ConfigurationError(f"{key} must be a number of milliseconds, not {text!r}")
            source.partition_discovery = timedelta(milliseconds=int(text)) if int(text) > 0 else None
        elif key == "commit.offsets.on.checkpoint":
            if text not in ("true", "false"):
                raise ConfigurationError(f"{key} must be true or false, not {text!r}")
            source.commits_offsets = text == "true"
        elif key == "auto.offset.reset":
            known = {"earliest": "earliest", "latest": "latest", "none": None, "error": None}
            if text not in known:
                raise ConfigurationError(f"{key} must be earliest, latest or none, not {text!r}")
            source.reset = known[text]
        else:
            source.properties[key] = text
        return self

    def set_properties(self, props: Mapping[str, str]) -> KafkaSourceBuilder:
        """Sets several properties, as `set_property` does.

        Args:
            props: Values by name.
        """
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        """Returns the source.

        Raises:
            ConfigurationError: Something is missing, or confluent-kafka is not installed.
        """
        source = self._source
        check_installed("KafkaSource", "confluent-kafka", "kafka")
        if not source.bootstrap_servers:
            raise ConfigurationError("KafkaSource needs set_bootstrap_servers()")
        if sum(map(bool, (source.topics, source.topic_pattern, source.partitions))) != 1:
            raise ConfigurationError("KafkaSource needs one of set_topics(), set_topic_pattern() and set_partitions()")
        if source.schema is None:
            raise ConfigurationError("KafkaSource needs set_value_only_deserializer() or set_deserializer()")
        kinds = [each.kind for each in (source.starting, source.stopping) if each is not None]
        if "committed" in kinds and source.group_id is None:
            raise ConfigurationError("KafkaOffsetsInitializer.committed_offsets() needs set_group_id()")
        if source.stopping is not None and source.stopping.kind == "earliest":
            raise ConfigurationError("a KafkaSource cannot end at its earliest offsets: it would read nothing")
        return source


def _initializer(call: str, value: KafkaOffsetsInitializer) -> KafkaOffsetsInitializer:
    check_argument(call, value, KafkaOffsetsInitializer, "a KafkaOffsetsInitializer, such as .latest()")
    return value
