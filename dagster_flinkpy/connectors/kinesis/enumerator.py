"""Plans which records of Kinesis an epoch reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.connectors.kinesis.client import KinesisStream, Position, Shard, arrival_ms
from dagster_flinkpy.connectors.kinesis.source import KinesisSource
from dagster_flinkpy.connectors.sources.split_enumerators import OpenEnumerator, OpenRanges
from dagster_flinkpy.datastream.connectors.base import Json, SourceLag, SourceSplit, position_field
from dagster_flinkpy.errors import InputChangedError, InputExpiredError
from dagster_flinkpy.json_records import Count

__all__ = ["KinesisEnumerator"]

_log = logging.getLogger(__name__)


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
