"""What is asked of Kinesis: what an epoch reads, and the records of a shard from a position on, or of a range."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.columns.record_formats import Decoder, decoded, record_decoder
from dagster_flinkpy.connectors.kinesis.source import KinesisSource
from dagster_flinkpy.connectors.sources.split_enumerators import OpenEnumerator, OpenRanges
from dagster_flinkpy.datastream.connectors.base import Json, SourceLag, SourceSplit, position_field
from dagster_flinkpy.errors import InputChangedError, InputExpiredError, SourceReadError
from dagster_flinkpy.json_records import Count, JsonRecord

__all__ = ["KinesisEnumerator", "KinesisStream", "Page", "Position", "Shard", "arrival_ms", "open_client", "read_shard"]

_PAGE_RECORDS = 10_000
_PAUSE_SECONDS = 0.2
"""A shard answers five requests a second."""
_AGGREGATED = b"\xf3\x89\x9a\xc2"
"""How records of the Kinesis Producer Library begin that hold several others. They end with an MD5."""
_log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class _Progress(Position):
    """How far a shard is planned."""

    known_ms: Count = field(kw_only=True)
    """All records that had arrived by then are planned."""
    begins: str | None = None
    """The sequence number with which the shard begins; None in positions of earlier releases."""
    done: bool = False
    """Whether there is nothing more to plan: the shard is closed, or the input ends here."""


class KinesisEnumerator(OpenEnumerator[OpenRanges]):
    """Assigns ranges of records: those that the driver has found.

    State: how far each shard is planned, when a bounded input ends, and the ranges that are not read yet.
    """

    def __init__(
        self, source: KinesisSource, restored: Json | None, *, now: Callable[[], int] = current_millis
    ) -> None:
        super().__init__(source.limits, OpenRanges(_shard_of))
        self._source, self._now = source, now
        self._stream = KinesisStream(source)
        self._shards: dict[str, _Progress] = {}
        self._began_ms: int | None = None
        """When the first epoch was planned, as the server knows it if its clock is ahead: it stamps the records."""
        self._behind_ms: int | None = None
        if restored is not None:
            shards = position_field(restored, "shards", dict)
            self._shards = {name: _Progress.from_json(each) for name, each in shards.items()}
            if restored.get("began_ms") is not None:
                self._began_ms = position_field(restored, "began_ms", int)
            self._restore_open(restored)

    def has_input(self, parallelism: int) -> bool | None:
        if self._began_ms is None or self._source.bounded is not False:
            return None
        if self._open:
            return True
        shards = self._stream.shards()
        # A position is good for as long as the stream keeps records, so an epoch has to renew it in time.
        old = self._now() - self._stream.retention_ms() // 2
        if shards.keys() - self._shards.keys() or any(each.known_ms < old for each in self._shards.values()):
            return True
        due = [name for name, shard in sorted(shards.items()) if self._is_due(shard, shards)]
        return any(self._has_records(name) for name in due)

    def _has_records(self, name: str) -> bool:
        for page in self._stream.pages(name, self._shards[name]):
            if page.records or page.closed:
                return True
            if page.behind_ms == 0:
                break
        return False

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if self._open or not self._ended:
            self._assign()
        return self._open.shares(parallelism, lambda name: int(name.rpartition("-")[2]))

    def _assign(self) -> None:
        began, shards = self._began_ms is None, self._stream.shards()
        now = self._now()
        if self._began_ms is None:
            self._began_ms = max(now, self._stream.told_ms)
        self._check_open(shards)
        self._forget(shards)
        self._check_same(shards)
        for name in sorted(shards.keys() - self._shards.keys()):
            # Shards that are made later are read from their beginning.
            since_ms = self._first(now) if began else None
            self._shards[name] = _Progress(None, since_ms, known_ms=self._now(), begins=shards[name].begins)
        waiting = [name for name, shard in sorted(shards.items()) if self._is_due(shard, shards)]
        self._behind_ms = 0
        self._check_retention(waiting)
        for name in waiting:
            self._shards[name] = self._plan(name, self._shards[name], len(waiting))
        bounded = self._source.bounded is not False
        self._ended = bounded and all(progress.done for progress in self._shards.values())

    def _first(self, now: int) -> int | None:
        starting = self._source.starting
        if isinstance(starting, datetime):
            return int(starting.timestamp() * 1000)
        return now if starting == "latest" else None

    def _check_open(self, shards: dict[str, Shard]) -> None:
        """Looks for the rest of ranges that a checkpoint has cut, if their first records may be gone."""
        horizon = self._now() - self._stream.retention_ms() if self._open else 0
        for name, split in sorted(self._open.items()):
            if name in shards and split.properties.get("arrived_ms", 0) >= horizon:  # earlier releases did not keep it
                continue
            there, arrived_ms = self._count(name, split) if name in shards else (0, 0)
            gone = int(split.properties["records"]) - there
            if gone > split.offset:
                self._expired(f"shard {name} no longer has the rest of what a checkpoint has read in part")
            if there > 0:  # readers count from the oldest record
                left = replace(split, properties={**split.properties, "records": there, "arrived_ms": arrived_ms})
                self._open[name] = left.advanced(max(split.offset - gone, 0), finished=False)
            else:
                del self._open[name]

    def _count(self, name: str, split: SourceSplit) -> tuple[int, int]:
        """Returns how many records of a range are still there, and when the first of them arrived."""
        count, last, arrived_ms = 0, int(split.properties["last"]), 0
        for page in self._stream.pages(name, Position.from_json(split.properties)):
            arrived_ms = arrived_ms or next(map(arrival_ms, page.records), 0)
            numbers = [int(record["SequenceNumber"]) for record in page.records]
            count += sum(number <= last for number in numbers)
            if page.closed or page.behind_ms == 0 or any(number >= last for number in numbers):
                break
        return count, arrived_ms

    def _forget(self, shards: dict[str, Shard]) -> None:
        """Forgets shards that no longer exist. They should have been read to their ends."""
        for name in sorted(self._shards.keys() - shards.keys() - self._open.keys()):
            if not self._shards[name].done:
                self._expired(f"shard {name} no longer exists, and was not read to its end")
            del self._shards[name]

    def _check_same(self, shards: dict[str, Shard]) -> None:
        """Checks that shards are those that were read."""
        for name in sorted(self._shards.keys() & shards.keys()):
            progress, shard = self._shards[name], shards[name]
            if progress.begins is None:
                self._shards[name] = replace(progress, begins=shard.begins)
            elif progress.begins != shard.begins:
                raise InputChangedError(
                    f"shard {name} of Kinesis stream {self._source.stream!r} begins with record {shard.begins}, but "
                    f"the one that was read with {progress.begins}: the stream was made anew. To read it from its "
                    "beginning, give the source another uid, or start from empty state."
                )

    def _is_due(self, shard: Shard, shards: dict[str, Shard]) -> bool:
        """Returns whether a shard is to be planned: its parents come first."""
        progress = self._shards[shard.name]
        if progress.done or shard.name in self._open:
            return False
        parents = [name for name in shard.parents if name in shards]
        return all(self._shards[name].done and name not in self._open for name in parents)

    def _check_retention(self, names: list[str]) -> None:
        """Makes sure that the retention of no record has passed, or that the source goes on without it."""
        old = [name for name in names if (self._shards[name].after, self._shards[name].since_ms) != (None, None)]
        if old:
            horizon = self._now() - self._stream.retention_ms()
            for name in old:
                progress = self._shards[name]
                if progress.known_ms < horizon:
                    known = datetime.fromtimestamp(progress.known_ms / 1000, timezone.utc)
                    self._expired(
                        f"shard {name} is read up to what arrived before {known:%Y-%m-%d %H:%M:%S} UTC; records after "
                        "that may be gone, because the stream does not keep them for so long"
                    )
                    # Kinesis takes the oldest record if that time is before it.
                    self._shards[name] = replace(progress, after=None, since_ms=progress.known_ms + 1)

    def _expired(self, what: str) -> None:
        if self._source.after_expiry == "fail":
            raise InputExpiredError(
                f"Kinesis stream {self._source.stream!r}: {what}. To continue without them, "
                "after_expiry='trim_horizon'; or start from empty state."
            )
        _log.warning("Kinesis stream %r: %s. It is read from its oldest record on.", self._source.stream, what)

    def _plan(self, name: str, progress: _Progress, shares: int) -> _Progress:
        """Reads a shard up to its end, or to a limit, and assigns what it has found."""
        limits, now = self._source.limits, self._now()
        most_records = None if limits.records is None else max(limits.records // shares, 1)
        most_bytes = None if limits.bytes is None else limits.bytes // shares
        stop = self._began_ms if self._source.bounded is not False else None
        count = size = 0
        first, last, done, known, behind = None, None, False, progress.known_ms, 0
        for page in self._stream.pages(name, progress):
            full = False
            for record in page.records:
                arrived = arrival_ms(record)
                done = stop is not None and arrived > stop
                full = (count == most_records) or (
                    most_bytes is not None and count > 0 and size + len(record["Data"]) > most_bytes
                )
                if done or full:
                    break
                first, last, known = arrived if first is None else first, record["SequenceNumber"], arrived
                count, size = count + 1, size + len(record["Data"])
            if full:
                behind = max(now - known, 0)
                break
            if done or page.closed or page.behind_ms == 0:
                done = done or page.closed or stop is not None
                known = now
                break
        self._behind_ms = max(self._behind_ms or 0, behind)
        if last is None:
            return replace(progress, known_ms=known, done=done)
        begins = {"after": progress.after, "since_ms": progress.since_ms, "arrived_ms": first}
        self._open[name] = SourceSplit(f"{name}@{last}", {**begins, "shard": name, "last": last, "records": count})
        return replace(progress, after=last, since_ms=None, known_ms=known, done=done)

    def lag(self) -> SourceLag | None:
        return None if self._behind_ms is None else SourceLag(milliseconds=self._behind_ms)

    def snapshot_state(self) -> Json:
        return {
            "shards": {name: each.to_json() for name, each in sorted(self._shards.items())},
            "began_ms": self._began_ms,
            **super().snapshot_state(),
        }


def _shard_of(split: SourceSplit) -> str:
    position_field(split.properties, "last", str)
    position_field(split.properties, "records", int)
    return position_field(split.properties, "shard", str)
