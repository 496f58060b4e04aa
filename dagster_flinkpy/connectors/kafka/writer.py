"""The writers of the Kafka sink: to staged files, or straight to the topic."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException, Producer

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.columns.record_formats import record_encoder
from dagster_flinkpy.connectors.commit.staged_rows import StagedRowsWriter
from dagster_flinkpy.connectors.commit.table_sink import StagedParquet
from dagster_flinkpy.connectors.kafka.client import new_client
from dagster_flinkpy.datastream.connectors.base import Json, SinkWriter, WriterInitContext
from dagster_flinkpy.datastream.connectors.kafka_sink import KafkaSink, TransactionalKafkaSink, field_type
from dagster_flinkpy.datastream.formats.json import JsonRowSerializationSchema
from dagster_flinkpy.errors import SinkCommitError, TypeMismatchError

__all__ = ["STAGED_RECORD", "DirectWriter", "KafkaStagingWriter", "produce_all", "producer_settings"]

STAGED_RECORD = Types.ROW_NAMED(["key", "value"], [Types.PRIMITIVE_ARRAY(Types.BYTE())] * 2)
"""How records wait for their transaction: in Parquet files of keys and values."""
_MAX_BYTES = "message.max.bytes"
_DEFAULT_MAX_BYTES = 1_000_000
_DEFAULTS = {
    "partitioner": "murmur2_random",  # as Java's producers
    "transaction.timeout.ms": "300000",
}
_POLL_RECORDS = 10_000
_FLUSH_SECONDS = 30.0


def producer_settings(sink: KafkaSink, name: str) -> dict[str, str]:
    """Returns the settings of a producer that writes each record once and in order, whatever is sent again."""
    fixed = {"bootstrap.servers": sink.bootstrap_servers, "client.id": name, "enable.idempotence": "true"}
    return {**_DEFAULTS, **sink.properties, **fixed}


class _Records:
    """Makes keys and values of records."""

    def __init__(self, sink: KafkaSink, type_info: TypeInformation) -> None:
        schema = sink.schema
        self._topic, self._columns = schema.topic, list(columns_of(type_info))
        self._most_bytes = int(sink.properties.get(_MAX_BYTES, _DEFAULT_MAX_BYTES))
        value = schema.value
        if value is None:
            assert isinstance(type_info, RowTypeInfo)
            value = JsonRowSerializationSchema(type_info)
        self._encoders = [
            None if each is None else (record_encoder(each, field_type(type_info, field)), field)
            for each, field in ((schema.key, schema.key_field), (value, schema.value_field))
        ]

    def of(self, column: pa.Array) -> pa.Array:
        """Returns structs of key and value."""
        key, value = (
            pa.nulls(len(column), pa.binary())
            if each is None
            else each[0](column if each[1] is None else column.flatten()[self._columns.index(each[1])])
            for each in self._encoders
        )
        sizes = pc.add(pc.fill_null(pc.binary_length(key), 0), pc.fill_null(pc.binary_length(value), 0))
        largest = pc.max(sizes).as_py() or 0
        if largest > self._most_bytes:
            raise TypeMismatchError(
                f"a record for topic {self._topic!r} has {largest} bytes, but {_MAX_BYTES} is {self._most_bytes}: "
                f"filter() or split such records, or raise it with set_property({_MAX_BYTES!r}, ...), and "
                "max.message.bytes of the topic"
            )
        return pa.StructArray.from_arrays([key, value], fields=list(STAGED_RECORD.arrow_type))


def produce_all(producer: Any, topic: str, records: pa.Array, on_delivery: Any) -> None:
    """Hands records, structs of key and value, to a producer. ``on_delivery`` gets error or None, and message."""
    keys, values = (each.to_pylist() for each in records.flatten())
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=on_delivery)
                break
            except BufferError:  # its queue is full
                producer.poll(1)
        if number % _POLL_RECORDS == 0:
            producer.poll(0)


class KafkaStagingWriter(StagedRowsWriter):
    """Stages the keys and values of one epoch of one subtask."""

    def __init__(self, sink: TransactionalKafkaSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        super().__init__(StagedParquet(sink.staging), context, STAGED_RECORD)
        self._records, self._run_key = _Records(sink, type_info), sink.run_key

    def write(self, column: pa.Array) -> None:
        super().write(self._records.of(column))

    def prepare_commit(self) -> list[Json]:
        prepared = super().prepare_commit()
        return prepared if self._run_key is None else [{**each, "run_key": self._run_key} for each in prepared]


class DirectWriter(SinkWriter):
    """Writes one epoch of one subtask to the topic, at least once."""

    def __init__(self, sink: KafkaSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        self._records, self._topic = _Records(sink, type_info), sink.schema.topic
        self._uid = context.uid
        name = f"flinkpy-{context.job_id}-{context.uid}-{context.subtask}"
        self._producer = new_client(Producer, producer_settings(sink, name), "KafkaSink")
        self._error: Any = None

    def _delivered(self, error: Any, message: Any) -> None:
        self._error = self._error or error

    def write(self, column: pa.Array) -> None:
        try:
            produce_all(self._producer, self._topic, self._records.of(column), self._delivered)
        except KafkaException as error:
            self._error = self._error or error.args[0]
        self._check()

    def flush(self) -> None:
        while self._producer.flush(_FLUSH_SECONDS) and self._error is None:
            pass  # librdkafka gives up after delivery.timeout.ms
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise SinkCommitError(f"sink {self._uid!r} cannot write to topic {self._topic!r}: {self._error.str()}")

    def abort(self) -> None:
        self._producer.purge()
        self._producer.flush(1)
