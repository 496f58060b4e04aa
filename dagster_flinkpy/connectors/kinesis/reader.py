"""Reads ranges of shards of Kinesis."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dagster_flinkpy.connectors.columns.record_formats import Decoder, decoded, record_decoder
from dagster_flinkpy.connectors.kinesis.client import KinesisStream, Position
from dagster_flinkpy.connectors.kinesis.source import KinesisSource
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.errors import InputExpiredError, SourceReadError

__all__ = ["arrival_ms", "read_shard"]

_AGGREGATED = b"\xf3\x89\x9a\xc2"
"""How records of the Kinesis Producer Library begin that hold several others. They end with an MD5."""


def arrival_ms(record: Any) -> int:
    """Returns when a record arrived, in milliseconds since 1970."""
    arrived: float = record["ApproximateArrivalTimestamp"].timestamp()
    return round(arrived * 1000)


def read_shard(source: KinesisSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int, pa.Array]]:
    """Yields the records of a range of a shard, with how many were read, and when they arrived."""
    shard, last = split.properties["shard"], split.properties["last"]
    decode, read = record_decoder(source.schema), 0
    for page in KinesisStream(source).pages(shard, Position.from_json(split.properties)):
        records = [record for record in page.records if int(record["SequenceNumber"]) <= int(last)]
        ended = bool(records) and records[-1]["SequenceNumber"] == last
        new = records[max(split.offset - read, 0) :]
        read += len(records)
        if new:
            column, times = _decoded(decode, new, shard), pa.array(map(arrival_ms, new), pa.int64())
            there = column.is_valid()
            yield column.filter(there), read, times.filter(there)
        if ended:
            break
        if len(records) < len(page.records) or page.closed or page.behind_ms == 0:
            raise InputExpiredError(
                f"shard {shard} of Kinesis stream {source.stream!r} no longer has record {last}: its retention has "
                "passed since the epoch was planned"
            )
    if read != split.properties["records"]:
        raise InputExpiredError(
            f"shard {shard} of Kinesis stream {source.stream!r} has {read} records up to {last}, but had "
            f"{split.properties['records']} when the epoch was planned: the retention of the others has passed"
        )


def _decoded(decode: Decoder, records: list[Any], shard: str) -> pa.Array:
    data = [record["Data"] for record in records]
    for i, each in enumerate(data):
        if each.startswith(_AGGREGATED) and hashlib.md5(each[4:-16], usedforsecurity=False).digest() == each[-16:]:
            raise SourceReadError(
                f"record {records[i]['SequenceNumber']} of shard {shard} holds several, which the Kinesis Producer "
                "Library has aggregated, and the source cannot take them apart: set AggregationEnabled = false in the "
                "producer. To leave out what is aggregated, start from empty state at a later time (starting)"
            )
    return decoded(decode, data, lambda i: f"record {records[i]['SequenceNumber']} of shard {shard}")
