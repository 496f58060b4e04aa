"""Plans which offsets of Kafka an epoch reads."""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import msgspec
from confluent_kafka import KafkaException

from dagster_flinkpy.connectors.kafka.client import BEGINNING, END, PartitionLookup, shown
from dagster_flinkpy.connectors.kafka.reader import bytes_per_offset
from dagster_flinkpy.connectors.sources.split_enumerators import OpenEnumerator, OpenRanges
from dagster_flinkpy.datastream.connectors.base import Json, SourceLag, SourceSplit, position_field
from dagster_flinkpy.datastream.connectors.kafka_source import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaTopicPartition,
)
from dagster_flinkpy.errors import InputExpiredError, SourceReadError

__all__ = ["KafkaEnumerator", "share"]

_log = logging.getLogger(__name__)
_Offsets = dict[KafkaTopicPartition, int]
_RESET = "set_property('auto.offset.reset', 'earliest') or 'latest'; or start from empty state."


class KafkaEnumerator(OpenEnumerator[OpenRanges]):
    """Assigns ranges of offsets. They are fixed when they are assigned.

    State: the next offset of each partition, the offsets at which partitions end if the input ends, the ranges that are
    not read to their end, whether the input has ended, the pattern of the topics, and the ids of the cluster and of the
    topics, as far as brokers tell them: offsets in a topic that was made anew are those of other records.
    """

    def __init__(
        self, source: KafkaSource, restored: Json | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(source.limits, OpenRanges(_partition))
        self._source, self._clock = source, clock
        self._lookup = PartitionLookup(source)
        self._lookup_written = PartitionLookup(source, "read_uncommitted")
        self._next: _Offsets | None = None
        """None until the first epoch is planned."""
        self._stops: _Offsets = {}
        self._looked: float | None = None
        self._left: int | None = None
        """Offsets that the last plan did not assign."""
        self._snapshots: dict[int, _Offsets] = {}
        self._by_pattern = source.topic_pattern is not None
        self._pattern = source.topic_pattern
        """The pattern by which the topics were found; earlier releases have not stored it."""
        self._cluster: str | None = None
        self._ids: dict[str, str] = {}
        """By topic. Earlier releases have stored none."""
        self._gone: set[str] = set()
        """Topics of the pattern that no broker shows now. Their positions stay: they may be back."""
        if restored is not None:
            self._restore(restored)

    def _restore(self, restored: Json) -> None:
        if restored.get("next") is not None:
            self._next = _from_json(position_field(restored, "next", list))
        self._stops = _from_json(position_field(restored, "stops", list))
        self._pattern = restored.get("pattern", self._pattern)
        if restored.get("ids") is not None:
            self._ids = msgspec.convert(restored["ids"], dict[str, str])
            self._cluster = restored.get("cluster")
        self._gone = set(msgspec.convert(restored.get("gone", []), list[str]))
        self._restore_open(restored)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if self._open or not self._ended:
            self._assign()
        # As in Flink (KafkaSourceEnumerator), the partitions of a topic are dealt out from a subtask on.
        return self._open.shares(parallelism, lambda each: zlib.crc32(each.topic.encode()) + each.partition)

    def _assign(self) -> None:
        positions = self._discover()
        there = [each for each in positions if each.topic not in self._gone]
        for each in self._open.keys() - there:
            rest = self._open.pop(each)
            if each in positions:  # its topic may be back
                positions[each] = rest.offset
        beginnings, ends = self._lookup.offsets(there, BEGINNING), self._lookup.offsets(there, END)
        # With another isolation.level, an earlier program has read the records of a transaction that is still open.
        beyond = [each for each in there if positions[each] > ends[each]]
        written = ends | self._lookup_written.offsets(beyond, END)
        backlog = {}
        for each in there:
            if (split := self._open.get(each)) is not None:
                begin, end = split.offset, int(split.properties["end"])
                known = begin if begin < beginnings[each] else end
                found = self._existing(each, known, beginnings[each], written[each])
                if found == known:
                    continue
                del self._open[each]  # the source says where to go on
                positions[each] = found
            end = min(ends[each], self._stops.get(each, ends[each]))
            positions[each] = self._existing(each, positions[each], beginnings[each], written[each])
            if positions[each] < end:
                backlog[each] = end - positions[each]
        taken = self._limited(backlog, positions)
        for each, count in taken.items():
            start = positions[each]
            properties = {"topic": each.topic, "partition": each.partition, "end": start + count}
            self._open[each] = SourceSplit(f"{shown(each)}@{start}", properties, start)
            positions[each] = start + count
        self._left = sum(backlog.values()) - sum(taken.values())
        if left := self._left:
            self._progress(f"Kafka: {left:,} offsets of {len(backlog)} partitions are left for later epochs")
        bounded = self._source.stopping is not None
        self._ended = bounded and all(positions[each] >= stop for each, stop in self._stops.items())

    def _discover(self) -> _Offsets:
        """Returns the position of each partition. New ones are looked for from time to time."""
        source, now = self._source, self._clock()
        if self._next is None:
            found = self._lookup.partitions()
            self._next = self._initial(source.starting, found)
            self._check_ids(self._next)
            self._looked = now
        if source.stopping is not None:
            if self._looked is None:
                self._change_topics(self._next)
                self._check_ids(self._next)
                self._looked = now
            if not self._stops:
                self._stops = self._initial(source.stopping, set(self._next))
            return self._next
        self._stops = {}
        interval = source.partition_discovery
        if self._looked is None or (interval is not None and now - self._looked >= interval.total_seconds()):
            gone, self._gone = self._gone, self._look(self._next)
            self._check_ids(self._next, back=gone - self._gone)
            self._looked = now
        return self._next

    def _look(self, positions: _Offsets) -> set[str]:
        """Adds new partitions, and returns the topics that no broker shows any more."""
        found, gone = self._lookup.partitions(), set[str]()
        topics, pattern = {each.topic for each in found}, self._source.topic_pattern
        if new := sorted(found - positions.keys()):
            positions.update(self._lookup.offsets(new, BEGINNING))
            self._progress(f"Kafka: found {', '.join(map(shown, new[:3]))}{' and more' if len(new) > 3 else ''}")
        for each in sorted(positions.keys() - found):
            if each.topic in self._source.topics:
                raise SourceReadError(
                    f"partition {shown(each)} no longer exists. If the topic was made anew, give the source another "
                    "uid, or start from empty state."
                )
            if each.topic not in topics and pattern is not None and re.fullmatch(pattern, each.topic):
                gone.add(each.topic)
                continue
            _log.warning("%s is no longer read: it was deleted, or the source has other topics now", shown(each))
            del positions[each]
        for topic in sorted(gone - self._gone):
            _log.warning("topic %s is not read: it was deleted, or brokers do not let this client see it", topic)
        return gone

    def _check_ids(self, positions: _Offsets, back: Collection[str] = ()) -> None:
        """Checks that the topics are those in which the positions are. One that is back may be a new one."""
        topics = sorted({each.topic for each in positions} - self._gone)
        cluster, ids = self._lookup.identities(topics) if topics else (self._cluster, {})
        for topic in topics:
            if self._ids.get(topic, ids.get(topic)) == ids.get(topic, self._ids.get(topic)):
                continue
            if cluster != self._cluster:  # a mirror has the offsets of what it mirrors, or nobody can tell
                _log.warning(
                    "topic %s is one of cluster %s now, no longer of %s: the source goes on from the offsets that it "
                    "has read there",
                    topic,
                    cluster,
                    self._cluster,
                )
            elif topic in back:
                self._begin_anew([each for each in positions if each.topic == topic], positions, BEGINNING)
            elif self._source.reset is None:
                raise InputExpiredError(
                    f"topic {topic!r} was deleted and made anew since the source has read it, so there are other "
                    f"records at its offsets. To read the new ones, {_RESET}"
                )
            else:
                where = BEGINNING if self._source.reset == "earliest" else END
                self._begin_anew([each for each in positions if each.topic == topic], positions, where)
        self._cluster = cluster
        known = self._ids | ids
        self._ids = {topic: known[topic] for topic in (*topics, *sorted(self._gone)) if topic in known}

    def _begin_anew(self, partitions: Sequence[KafkaTopicPartition], positions: _Offsets, where: int) -> None:
        """Goes on in a topic that was made anew."""
        begin = self._lookup.offsets(partitions, where)
        for each in partitions:
            positions[each] = begin[each]
            self._open.pop(each, None)
            _log.warning("partition %s continues at offset %d: its topic was made anew", shown(each), begin[each])

    def _change_topics(self, positions: _Offsets) -> None:
        """Follows a program that names other topics or partitions than before. Else a bounded input has no new ones."""
        source = self._source
        if self._by_pattern and self._pattern == source.topic_pattern:
            return
        self._pattern = source.topic_pattern
        found, topics = self._lookup.partitions(), {each.topic for each in positions}
        named = {each.topic for each in found} if self._by_pattern else source.topics
        for each in sorted(positions):
            if each.topic not in named and each not in source.partitions:
                _log.warning("%s is no longer read: the source has other topics now", shown(each))
                del positions[each]
                self._stops.pop(each, None)
        if new := {each for each in found - positions.keys() if source.partitions or each.topic not in topics}:
            self._progress(f"Kafka: the source also reads {', '.join(map(shown, sorted(new)[:3]))} now")
            positions.update(self._initial(source.starting, new))
            if self._stops and source.stopping is not None:
                self._stops.update(self._initial(source.stopping, new))

    def _initial(self, where: KafkaOffsetsInitializer, partitions: set[KafkaTopicPartition]) -> _Offsets:
        whens = {"earliest": BEGINNING, "latest": END, "timestamp": where.timestamp_ms}
        if where.kind in whens:
            return self._lookup.offsets(partitions, whens[where.kind])
        committed = where.kind == "committed"
        known = self._lookup.committed(partitions) if committed else dict(where.given)
        found = {each: known[each] for each in partitions if each in known}
        if missing := sorted(partitions - found.keys()):
            if where.reset is KafkaOffsetResetStrategy.NONE:
                why = f"group {self._source.group_id!r} has committed none" if committed else "none was given"
                raise SourceReadError(
                    f"there is no offset for partition {shown(missing[0])}: {why}. Give the initializer a "
                    "KafkaOffsetResetStrategy to begin at the earliest or latest record instead."
                )
            earliest = where.reset is KafkaOffsetResetStrategy.EARLIEST
            found |= self._lookup.offsets(missing, BEGINNING if earliest else END)
        return found

    def _existing(self, each: KafkaTopicPartition, position: int, beginning: int, end: int) -> int:
        """Returns a position that exists."""
        if beginning <= position <= end:
            return position
        if position < beginning:
            what = f"the records from {position} up to {beginning - 1} are gone, because their retention has passed"
        else:
            what = f"it ends at {end} already, so it was truncated, or deleted and made anew"
        if self._source.reset is None:
            raise InputExpiredError(
                f"partition {shown(each)} has to be read from offset {position}, but {what}. To continue without them, "
                f"{_RESET}"
            )
        to = beginning if self._source.reset == "earliest" else end
        _log.warning("partition %s continues at offset %d instead of %d: %s", shown(each), to, position, what)
        return to

    def _limited(self, backlog: _Offsets, positions: _Offsets) -> _Offsets:
        """Returns how many offsets of each partition to read."""
        most_records, most_bytes = self._limits.records, self._limits.bytes
        taken = backlog if most_records is None else share(most_records, backlog)
        if most_bytes is None or not taken:
            return taken
        sizes = {each: max(bytes_per_offset(self._source, each, positions[each], n), 1) for each, n in taken.items()}
        shares = share(most_bytes, {each: int(count * sizes[each]) + 1 for each, count in taken.items()})
        return {each: min(max(int(size / sizes[each]), 1), taken[each]) for each, size in shares.items()}

    def unread(self) -> Sequence[str]:
        source, known = self._source, self._next
        if known is None:
            return super().unread()
        topics = {each.topic for each in known}
        new = [shown(each) for each in sorted(source.partitions) if each not in known]
        named = source.topics
        if self._by_pattern and self._pattern != source.topic_pattern:
            named = tuple(sorted({each.topic for each in self._lookup.partitions()}))
        return [*super().unread(), *(each for each in named if each not in topics), *new]

    def lag(self) -> SourceLag | None:
        return None if self._left is None else SourceLag(records=self._left)

    def snapshot_state(self) -> Json:
        return {
            "next": None if self._next is None else _to_json(self._next),
            "stops": _to_json(self._stops),
            "pattern": self._pattern,
            "cluster": self._cluster,
            "ids": self._ids,
            **({"gone": sorted(self._gone)} if self._gone else {}),
            **super().snapshot_state(),
        }

    def on_snapshot(self, checkpoint_id: int) -> None:
        if self._source.group_id is not None and self._source.commits_offsets and self._next:
            read = {each: split.offset for each, split in self._open.items()}
            self._snapshots[checkpoint_id] = {**self._next, **read}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        done = [each for each in self._snapshots if each <= checkpoint_id]
        if done:
            offsets = self._snapshots[max(done)]
            self._snapshots = {n: each for n, each in self._snapshots.items() if n > checkpoint_id}
            with suppress(KafkaException):  # only monitoring needs them; the next checkpoint commits newer ones
                self._lookup.commit(offsets)


def share(limit: int, wanted: Mapping[KafkaTopicPartition, int]) -> _Offsets:
    """Divides a limit: those that want little get it, and the others share what is left. Each gets 1 if it can."""
    shares, left = {}, limit
    for index, (each, amount) in enumerate(sorted(wanted.items(), key=lambda item: (item[1], item[0]))):
        shares[each] = min(amount, max(left // (len(wanted) - index), 1 if left else 0))
        left -= shares[each]
    return {each: amount for each, amount in shares.items() if amount}


def _partition(split: SourceSplit) -> KafkaTopicPartition:
    for name in ("partition", "end"):
        position_field(split.properties, name, int)
    return KafkaTopicPartition(position_field(split.properties, "topic", str), split.properties["partition"])


def _to_json(offsets: _Offsets) -> list[list[str | int]]:
    return [[each.topic, each.partition, offset] for each, offset in sorted(offsets.items())]


def _from_json(data: list[Json]) -> _Offsets:
    found = msgspec.convert(data, list[tuple[str, int, int]])
    return {KafkaTopicPartition(topic, partition): offset for topic, partition, offset in found}
