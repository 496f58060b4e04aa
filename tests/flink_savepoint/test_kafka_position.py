"""The position of a Kafka source of Flink. The bytes are made by hand: the connector's jar is not in any package."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from dagster_flinkpy.common.serialization import SimpleStringSchema
from dagster_flinkpy.datastream.connectors.kafka_source import KafkaOffsetsInitializer, KafkaSource
from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.state_processor.flink_sources import position_of

NO_STOP = -(1 << 63)
EARLIEST = -2


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def body(topic: str, partition: int, offset: int, stop: int = NO_STOP) -> bytes:
    return utf(topic) + struct.pack(">iqq", partition, offset, stop)


def versioned(version: int, data: bytes) -> bytes:
    return struct.pack(">ii", version, len(data)) + data


def coordinator(version: int, partitions: Sequence[tuple[str, int]]) -> bytes:
    """The state of the enumerator in a version, with partitions that readers have."""
    data = struct.pack(">i", len(partitions)) + (struct.pack(">i", 0) if version == 3 else b"")
    for topic, partition in partitions:
        split = body(topic, partition, EARLIEST)
        data += struct.pack(">i", len(split)) + split if version == 3 else utf(topic) + struct.pack(">i", partition)
        data += struct.pack(">i", 1) if version > 1 else b""
    return struct.pack(">i", 1) + versioned(version, data + (b"\1" if version > 1 else b""))


def source(*, bounded: bool = False) -> KafkaSource:
    builder = KafkaSource.builder().set_bootstrap_servers("none:1").set_topics("orders")
    builder = builder.set_value_only_deserializer(SimpleStringSchema())
    return (builder.set_bounded(KafkaOffsetsInitializer.latest()) if bounded else builder).build()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_partition_goes_on_at_the_next_offset(version: int) -> None:
    splits = [versioned(0, body("orders", number, 40 + number)) for number in (1, 0)]
    found = position_of(source(), coordinator(version, [("orders", 0), ("orders", 1)]), splits, "operator 'orders'")
    assert found == {"next": [["orders", 0, 40], ["orders", 1, 41]], "stops": [], "open": [], "ended": False}
    source().create_enumerator(found)


def test_a_source_that_ends_ends_where_it_would_have_in_flink() -> None:
    splits = [versioned(0, body("orders", 0, 7, stop=90))]
    found = position_of(source(bounded=True), coordinator(3, [("orders", 0)]), splits, "operator 'orders'")
    assert found["stops"] == [["orders", 0, 90]]
    with pytest.raises(UnsupportedSavepointError, match="ends in Flink, but the program's source does not"):
        position_of(source(), coordinator(3, [("orders", 0)]), splits, "operator 'orders'")


@pytest.mark.parametrize("splits", [[], [versioned(0, body("orders", 0, EARLIEST))]])
def test_a_partition_that_is_not_read_yet_is_an_error_that_names_it(splits: list[bytes]) -> None:
    with pytest.raises(UnsupportedSavepointError, match="not being read: orders-0"):
        position_of(source(), coordinator(3, [("orders", 0)]), splits, "operator 'orders'")


def test_an_unknown_version_and_damaged_bytes_are_errors() -> None:
    with pytest.raises(UnsupportedSavepointError, match="it has version 4; known is 1 and 2 and 3"):
        position_of(source(), coordinator(4, [])[:8] + bytes(4), [], "operator 'orders'")
    whole = coordinator(3, [("orders", 0)])
    for end in range(len(whole)):
        with pytest.raises((CorruptStateError, UnsupportedSavepointError)):
            position_of(source(), whole[:end], [], "operator 'orders'")
