"""Topics of Kafka as a sink. These are declarations; the registry names the code that writes."""

from __future__ import annotations

import copy
from typing import Any

from dagster_flinkpy.common.arguments import check_argument, check_installed, check_name
from dagster_flinkpy.common.serialization import SerializationSchema
from dagster_flinkpy.common.typeinfo import (
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    DeliveryGuarantee,
    Sink,
    SinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.kafka_source import check_property
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

__all__ = [
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "TransactionalKafkaSink",
    "field_type",
]


class KafkaRecordSerializationSchema:
    """The topic, the key and the value that a record becomes. Build it with `builder`.

    Args:
        topic: The topic.
        value: The schema of values, or None for JSON objects of rows.
        value_field: The field that is the value, or None for the whole record.
        key: The schema of keys, or None for no keys.
        key_field: The field that is the key, or None for the whole record.
    """

    def __init__(
        self,
        topic: str,
        value: SerializationSchema | None = None,
        value_field: str | None = None,
        key: SerializationSchema | None = None,
        key_field: str | None = None,
    ) -> None:
        self.topic = topic
        self.value, self.value_field = value, value_field
        self.key, self.key_field = key, key_field

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """Returns a builder of a schema."""
        return KafkaRecordSerializationSchemaBuilder()

    def check(self, type_info: TypeInformation) -> None:
        """Checks that records of a type can be written.

        Raises:
            ConfigurationError: They cannot; the message says what to do.
        """
        for what, schema, field in (("value", self.value, self.value_field), ("key", self.key, self.key_field)):
            if schema is not None:
                kind = field_type(type_info, field)
                try:
                    schema.check_type(kind)
                except ConfigurationError as error:
                    raise ConfigurationError(f"the {what} of topic {self.topic!r}: {error}") from None
            elif what == "value":
                if not isinstance(type_info, RowTypeInfo):
                    raise ConfigurationError(
                        f"values of topic {self.topic!r} are JSON objects, but records are {type_info}: use "
                        "Types.ROW_NAMED(...), or set_value_serialization_schema()"
                    )
                call_registered("check_json_type", "record", type_info)


def field_type(type_info: TypeInformation, field: str | None) -> TypeInformation:
    """Returns the type of a field of records, or of the whole record if the field is None.

    Raises:
        ConfigurationError: The records have no such field.
    """
    if field is None:
        return type_info
    if not isinstance(type_info, (RowTypeInfo, TupleTypeInfo)) or field not in type_info.field_names:
        raise ConfigurationError(f"the records of a KafkaSink have no field {field!r}: they are {type_info}")
    found: TypeInformation = type_info.field_types[list(type_info.field_names).index(field)]
    return found


class KafkaRecordSerializationSchemaBuilder:
    """Builds a `KafkaRecordSerializationSchema`."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._value: tuple[SerializationSchema | None, str | None] = None, None
        self._key: tuple[SerializationSchema, str | None] | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        """Sets the topic.

        Args:
            topic: Its name. It must exist.
        """
        check_name("set_topic()", topic)
        self._topic = topic
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema, field: str | None = None
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Sets how records become values. Default: rows become JSON objects; Flink has no default.

        Args:
            value_serialization_schema: The schema, such as ``SimpleStringSchema()``.
            field: The field of rows or tuples that is the value. Default: the whole record, as in Flink.
        """
        wanted = "a SerializationSchema"
        check_argument("set_value_serialization_schema()", value_serialization_schema, SerializationSchema, wanted)
        self._value = value_serialization_schema, field
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema, field: str | None = None
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Sets how records become keys. Default: they have none.

        Records with the same key go to the same partition, which Java's producers choose, too (``murmur2``).

        Args:
            key_serialization_schema: The schema, such as ``SimpleStringSchema()``.
            field: The field of rows or tuples that is the key. Default: the whole record, as in Flink.
        """
        wanted = "a SerializationSchema"
        check_argument("set_key_serialization_schema()", key_serialization_schema, SerializationSchema, wanted)
        self._key = key_serialization_schema, field
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """Returns the schema.

        Raises:
            ConfigurationError: There is no topic.
        """
        if self._topic is None:
            raise ConfigurationError("KafkaRecordSerializationSchema needs set_topic()")
        return KafkaRecordSerializationSchema(self._topic, *self._value, *(self._key or (None, None)))


class KafkaSink(Sink):
    """Writes records to a topic of Kafka (Flink: ``KafkaSink``). Needs ``pip install 'dagster-flinkpy[kafka]'``.

    Exactly once: subtasks stage their records on the store. When the checkpoint is complete, the driver writes all of
    them in one transaction, which also commits a mark of the checkpoint as an offset of the sink's own consumer group.
    So a checkpoint that is committed again adds nothing, and no transaction is open while an epoch runs.

    Build it with `builder`.
    """

    def __init__(
        self, bootstrap_servers: str, schema: KafkaRecordSerializationSchema, properties: dict[str, str]
    ) -> None:
        self.bootstrap_servers, self.schema = bootstrap_servers, schema
        self.properties = properties
        """Settings of the client, by their names in librdkafka."""
        self.staging: Any = None
        """The folder for staged records, a ``StorageLocation``."""
        self.transactional_id_prefix = "flinkpy"

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """Returns a builder of a sink."""
        return KafkaSinkBuilder()

    def validate(self, type_info: TypeInformation | None) -> None:
        self.schema.check(Types.PICKLED_BYTE_ARRAY() if type_info is None else type_info)

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> SinkWriter:
        return call_registered("kafka_direct_writer", self, context, type_info)

    def folders(self) -> list[str]:
        return [] if self.staging is None else [getattr(self.staging, "url", self.staging)]

    def kinds(self) -> set[str]:
        return {"kafka"}

    def uri(self) -> str:
        return f"kafka://{self.bootstrap_servers.split(',')[0]}/{self.schema.topic}"


class TransactionalKafkaSink(KafkaSink, TwoPhaseCommittingSink):
    """A `KafkaSink` with `DeliveryGuarantee.EXACTLY_ONCE`."""

    owner: str | None = None
    """The asset whose transactions it writes, if any."""
    run_key: str | None = None
    """The same for all tries of a run of the owner, which writes once."""

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        return call_registered("kafka_staging_writer", self, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        name = "kafka_committer" if self.owner is None else "kafka_appending_committer"
        return call_registered(name, self, context)

    @property
    def replaces_whole_partitions(self) -> bool:
        return False

    def for_owner(self, owner: str) -> TransactionalKafkaSink:
        """Returns the sink with which an owner, such as an asset, writes in transactions. They add and never replace.

        Args:
            owner: The owner.
        """
        sink = copy.copy(self)
        sink.owner = owner
        return sink


class KafkaSinkBuilder:
    """Builds a `KafkaSink`."""

    def __init__(self) -> None:
        self._servers: str | None = None
        self._schema: KafkaRecordSerializationSchema | None = None
        self._guarantee = DeliveryGuarantee.EXACTLY_ONCE
        self._staging: Any = None
        self._prefix: str | None = None
        self._properties: dict[str, str] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        """Sets the brokers to ask first.

        Args:
            bootstrap_servers: ``host:port``, separated by commas.
        """
        check_name("set_bootstrap_servers()", bootstrap_servers)
        self._servers = bootstrap_servers
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> KafkaSinkBuilder:
        """Sets the topic, and how records become keys and values.

        Args:
            record_serializer: From ``KafkaRecordSerializationSchema.builder()``.
        """
        wanted = "a KafkaRecordSerializationSchema"
        check_argument("set_record_serializer()", record_serializer, KafkaRecordSerializationSchema, wanted)
        self._schema = record_serializer
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        """Sets how often records arrive.

        Args:
            delivery_guarantee: Default: ``EXACTLY_ONCE``; in Flink it is ``NONE``. With the other two, subtasks write
                at once, and wait for Kafka at the barrier; ``NONE`` is the same as ``AT_LEAST_ONCE``.
        """
        wanted = "a DeliveryGuarantee"
        check_argument("set_delivery_guarantee()", delivery_guarantee, DeliveryGuarantee, wanted)
        self._guarantee = delivery_guarantee
        return self

    def set_staging(self, folder: Any) -> KafkaSinkBuilder:
        """Sets the folder for the records of incomplete checkpoints. Required for ``EXACTLY_ONCE``; Flink has none.

        Args:
            folder: A path, ``s3://bucket/prefix``, or a ``StorageLocation``.
        """
        self._staging = folder
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """Sets how the transactional id and the group of the sink begin; job id and uid follow.

        Two deployments with the same job ids need different prefixes if they share a Kafka cluster.

        Args:
            transactional_id_prefix: The beginning. Default: ``flinkpy``.
        """
        check_name("set_transactional_id_prefix()", transactional_id_prefix)
        self._prefix = transactional_id_prefix
        return self

    def set_property(self, key: str, value: str) -> KafkaSinkBuilder:
        """Sets a property of the client, by its name in librdkafka, such as ``compression.type``.

        Args:
            key: The name.
            value: The value.
        """
        self._properties[key] = check_property(key, value)
        return self

    def build(self) -> KafkaSink:
        """Returns the sink.

        Raises:
            ConfigurationError: Something is missing, or confluent-kafka is not installed.
        """
        check_installed("KafkaSink", "confluent-kafka", "kafka")
        if self._servers is None or self._schema is None:
            raise ConfigurationError("KafkaSink needs set_bootstrap_servers() and set_record_serializer()")
        exactly_once = self._guarantee is DeliveryGuarantee.EXACTLY_ONCE
        if exactly_once and self._staging is None:
            raise ConfigurationError(
                "KafkaSink writes exactly once, so it needs set_staging(folder), a folder for the records of "
                "incomplete checkpoints. Or set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE)."
            )
        if not exactly_once and (self._staging is not None or self._prefix is not None):
            raise ConfigurationError(
                f"a KafkaSink with {self._guarantee} stages nothing and has no transactions: leave out set_staging() "
                "and set_transactional_id_prefix()"
            )
        sink = (TransactionalKafkaSink if exactly_once else KafkaSink)(
            self._servers, self._schema, dict(self._properties)
        )
        sink.transactional_id_prefix = self._prefix or sink.transactional_id_prefix
        if self._staging is not None:
            sink.staging = call_registered("staging_location", "set_staging()", self._staging)
        return sink
