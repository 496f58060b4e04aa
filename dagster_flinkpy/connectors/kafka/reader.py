"""Reads ranges of offsets of Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, TopicPartition

from dagster_flinkpy.connectors.columns.record_formats import Decoder, decoded, record_decoder
from dagster_flinkpy.connectors.kafka.client import consumer_of, shown
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.kafka_source import KafkaSource, KafkaTopicPartition
from dagster_flinkpy.errors import InputExpiredError, SourceReadError

__all__ = ["bytes_per_offset", "messages_of", "read_partition"]

_IDLE: WeakKeyDictionary[KafkaSource, Any] = WeakKeyDictionary()
"""A consumer that has read a range of the source to its end. It reads the next one: with new connections for each of
hundreds of partitions, an epoch takes seconds, however few its records are."""
_MOST_IDLE = 4
"""A task that ends leaves its source to Python's collector, which takes its time; each consumer has four threads."""
_POLL_SECONDS = 0.1
"""A poll ends when it has what it asked for. It takes this long only at gaps and while brokers are slow."""
_SILENT_SECONDS = 120.0
_SAMPLE = 100
_TRANSIENT = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
)


def read_partition(source: KafkaSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int, pa.Array]]:
    """Yields the records of a range of offsets, batch by batch, with the next offset and the times of the records."""
    each = KafkaTopicPartition(split.properties["topic"], split.properties["partition"])
    columns = _Columns(source, each)
    idle = _IDLE.pop(source, None)
    consumer = consumer_of(source, "reader") if idle is None else idle
    with ExitStack() as stack:
        stack.callback(consumer.close)
        for messages in messages_of(consumer, each, split.offset, split.properties["end"], source.batch_rows):
            column, times = columns.of(messages)
            if len(column):
                yield column, messages[-1].offset() + 1, times
        if source not in _IDLE:
            stack.pop_all()
            consumer.unassign()  # otherwise it fetches what comes next
            _IDLE[source] = consumer
        for known in _IDLE.keyrefs()[:-_MOST_IDLE]:  # the first is the one that nobody has used for longest
            other = known()
            if other is not None and (unused := _IDLE.pop(other, None)) is not None:
                unused.close()


def messages_of(consumer: Any, each: KafkaTopicPartition, start: int, end: int, most: int) -> Iterator[list[Any]]:
    """Yields the messages of a range of offsets.

    Offsets may be missing: those of transaction markers and aborted records, and what compaction has removed. So the
    range is read when a message behind it comes, or the end of the partition.

    Raises:
        InputExpiredError: The range begins before the oldest record.
    """
    consumer.assign([TopicPartition(each.topic, each.partition, start)])
    position, heard = start, time.monotonic()
    while position < end:
        polled = consumer.consume(min(most, end - position), timeout=_POLL_SECONDS)
        messages = [message for message in polled if message.error() is None]
        for failed in polled if len(messages) < len(polled) else ():
            error = failed.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                _check(error, each, position)
            elif error is not None and failed.offset() >= end:
                position = end
        while messages and messages[-1].offset() >= end:
            messages.pop()
            position = end
        if messages:
            heard = time.monotonic()
            position = max(position, messages[-1].offset() + 1)
            yield messages
        elif time.monotonic() - heard > _SILENT_SECONDS:
            raise SourceReadError(
                f"Kafka has sent nothing of partition {shown(each)} from offset {position} on for "
                f"{_SILENT_SECONDS:.0f} s, but there were records up to {end - 1}"
            )


def _check(error: Any, each: KafkaTopicPartition, position: int) -> None:
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise InputExpiredError(
            f"partition {shown(each)} no longer has offset {position}: its retention has passed since the epoch was "
            f"planned, or it was made anew ({error.str()})"
        )
    if error.code() not in _TRANSIENT:
        raise SourceReadError(f"partition {shown(each)} cannot be read from offset {position}: {error.str()}")


def bytes_per_offset(source: KafkaSource, each: KafkaTopicPartition, start: int, count: int) -> float:
    """Returns how many bytes the keys and values of a range have for each offset, judging by its first records."""
    end = start + min(count, _SAMPLE)
    with closing(consumer_of(source, "enumerator")) as consumer:
        size = sum(
            len(message.key() or b"") + len(message.value() or b"")
            for messages in messages_of(consumer, each, start, end, _SAMPLE)
            for message in messages
        )
    return size / (end - start)


class _Columns:
    """Makes columns of messages."""

    def __init__(self, source: KafkaSource, each: KafkaTopicPartition) -> None:
        assert source.schema is not None
        self._each = each
        self._value = record_decoder(source.schema.value)
        self._key = None if source.schema.key is None else record_decoder(source.schema.key)
        self._type = source.produced_type

    def of(self, messages: list[Any]) -> tuple[pa.Array, pa.Array]:
        """Returns the records, and their times."""
        times = pa.array(
            [None if (stamp := m.timestamp())[0] == TIMESTAMP_NOT_AVAILABLE else stamp[1] for m in messages], pa.int64()
        )
        values = self._decoded("value", self._value, messages, [message.value() for message in messages])
        if self._key is None:
            if values.null_count:
                there = values.is_valid()
                values, times = values.filter(there), times.filter(there)
            return values, times
        count = len(messages)
        columns = [
            pa.repeat(pa.scalar(self._each.topic, pa.string()), count),
            pa.repeat(pa.scalar(self._each.partition, pa.int32()), count),
            pa.array([message.offset() for message in messages], pa.int64()),
            times,
            self._decoded("key", self._key, messages, [message.key() for message in messages]),
            values,
            _headers([message.headers() for message in messages], self._type.arrow_type.field("headers").type),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self._type.arrow_type)), times

    def _decoded(self, what: str, decoder: Decoder, messages: list[Any], values: list[bytes | None]) -> pa.Array:
        place = f"of partition {shown(self._each)}"
        return decoded(decoder, values, lambda i: f"the {what} of the record at offset {messages[i].offset()} {place}")


def _headers(headers: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if not any(headers):
        return pc.cast(pa.array([[]] * len(headers), pa.list_(pa.null())), arrow_type)
    return pa.array([[{"key": key, "value": value} for key, value in each or ()] for each in headers], arrow_type)
