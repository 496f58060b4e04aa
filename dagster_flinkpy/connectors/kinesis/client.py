"""What is asked of Kinesis, and reading a shard from a position on, or a range of it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import pyarrow as pa

from dagster_flinkpy.connectors.columns.record_formats import Decoder, decoded, record_decoder
from dagster_flinkpy.connectors.kinesis.source import KinesisSource
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.errors import InputExpiredError, SourceReadError
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["KinesisStream", "Page", "Position", "Shard", "arrival_ms", "open_client", "read_shard"]

_PAGE_RECORDS = 10_000
_PAUSE_SECONDS = 0.2
"""A shard answers five requests a second."""


@dataclass(frozen=True)
class Position(JsonRecord):
    """Where reading of a shard goes on: after a record, at a time, or else at its oldest record."""

    after: str | None = None
    """A sequence number."""
    since_ms: Count | None = None
    """Milliseconds since 1970."""


@dataclass(frozen=True)
class Shard:
    """A shard of the stream."""

    name: str
    parents: tuple[str, ...]
    begins: str
    """The sequence number with which it begins. A stream that is made anew has shards of the same names."""


@dataclass(frozen=True)
class Page:
    """Some records of a shard."""

    records: list[Any]
    """As boto3 has them."""
    behind_ms: int
    """How much newer the newest record of the shard is. 0: these are the last ones."""
    closed: bool
    """Whether the shard has ended with them, because it was split or merged."""


def open_client(source: KinesisSource) -> Any:
    """Returns a client, which tries again what is throttled."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 10})
    session = boto3.Session()  # the default session has the keys for good that a file had at first
    return session.client("kinesis", region_name=source.region, endpoint_url=source.endpoint_url, config=config)


class KinesisStream:
    """A stream. The client is made with the first question."""

    def __init__(self, source: KinesisSource) -> None:
        self._source = source
        self._client: Any = None
        self.told_ms = 0
        """The time of the server when it was last asked for shards, rounded up; 0 if it has not told it."""
        self._name = {"StreamARN" if source.stream.startswith("arn:") else "StreamName": source.stream}

    @contextmanager
    def _asking(self, what: str) -> Iterator[Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if self._client is None:
                self._client = open_client(self._source)
            yield self._client
        except (BotoCoreError, ClientError) as error:
            raise SourceReadError(f"cannot read {what} of Kinesis stream {self._source.stream!r}: {error}") from error

    def shards(self) -> dict[str, Shard]:
        """Returns the shards that have records, and those that may get some."""
        found, request = {}, dict(self._name)
        with self._asking("the list of shards") as client:
            while True:
                answer = client.list_shards(**request)
                for each in answer["Shards"]:
                    parents = (each.get("ParentShardId"), each.get("AdjacentParentShardId"))
                    begins = each["SequenceNumberRange"]["StartingSequenceNumber"]
                    found[each["ShardId"]] = Shard(each["ShardId"], tuple(filter(None, parents)), begins)
                if not answer.get("NextToken"):
                    self.told_ms = _told_ms(answer)
                    return found
                request = {"NextToken": answer["NextToken"]}

    def retention_ms(self) -> int:
        with self._asking("the retention") as client:
            hours: int = client.describe_stream_summary(**self._name)["StreamDescriptionSummary"][
                "RetentionPeriodHours"
            ]
        return hours * 3_600_000

    def pages(self, shard: str, position: Position) -> Iterator[Page]:
        """Yields the records of a shard from a position on, without end while the shard is open."""
        iterator = self._iterator(shard, position)
        while True:
            try:
                with self._asking(f"shard {shard}") as client:
                    answer = client.get_records(ShardIterator=iterator, Limit=_PAGE_RECORDS)
            except SourceReadError as error:
                if _code_of(error) != "ExpiredIteratorException":
                    raise
                iterator = self._iterator(shard, position)  # the consumer of the pages took more than five minutes
                continue
            records = answer["Records"]
            if records:
                position = Position(after=records[-1]["SequenceNumber"])
            iterator = answer.get("NextShardIterator")
            yield Page(records, answer.get("MillisBehindLatest") or 0, iterator is None)
            if iterator is None:
                return
            if not records:
                time.sleep(_PAUSE_SECONDS)

    def _iterator(self, shard: str, position: Position) -> Any:
        where: dict[str, Any] = {"ShardIteratorType": "TRIM_HORIZON"}
        if position.after is not None:
            where = {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": position.after}
        elif position.since_ms is not None:
            at = datetime.fromtimestamp(position.since_ms / 1000, timezone.utc)
            where = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at}
        with self._asking(f"shard {shard}") as client:
            return client.get_shard_iterator(**self._name, ShardId=shard, **where)["ShardIterator"]


def _told_ms(answer: Any) -> int:
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return 0 if date is None else round(parsedate_to_datetime(date).timestamp() * 1000) + 999


def _code_of(error: SourceReadError) -> str | None:
    """Returns the code that Kinesis gave an error, or None if it has not answered."""
    from botocore.exceptions import ClientError

    cause = error.__cause__
    return str(cause.response["Error"]["Code"]) if isinstance(cause, ClientError) else None


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
