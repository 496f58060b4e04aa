"""What the enumerators of declared sources have in common: the splits that are open, and how much an epoch reads."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import Any, Generic, TypeVar

from dagster_flinkpy.datastream.connectors.base import (
    Json,
    SourceLag,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    position_field,
)
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits

__all__ = [
    "SPLITS_PER_SUBTASK",
    "EndingEnumerator",
    "OpenEnumerator",
    "OpenRanges",
    "OpenSplits",
    "Quantity",
    "ResumedRows",
    "RowMeter",
    "SplitMeter",
]

SPLITS_PER_SUBTASK = 4
"""How many splits a file or a table has at most per subtask. Each is listed in the checkpoint of its epoch."""
_STOP = "stop"


@dataclass(frozen=True)
class Quantity:
    """Records and bytes; what is not known is None."""

    records: int | None = None
    bytes: int | None = None

    def minus(self, other: Quantity) -> Quantity:
        """Returns the difference, not below 0. What one of them does not know stays as it is."""
        return Quantity(_less(self.records, other.records), _less(self.bytes, other.bytes))

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left of one of them."""
        return self.records == 0 or self.bytes == 0


def _less(one: int | None, other: int | None) -> int | None:
    return one if one is None or other is None else max(one - other, 0)


class SplitMeter(ABC):
    """Measures splits, so that an epoch can stop amid one."""

    @abstractmethod
    def amount(self, split: SourceSplit) -> Quantity:
        """Returns what is left of a split, as far as that is known without reading it."""

    @abstractmethod
    def advance(self, split: SourceSplit, offset: int, most: Quantity, least: int) -> tuple[int | None, Quantity]:
        """Finds where to stop, so that at most so much is read.

        Args:
            split: The split.
            offset: Where reading begins.
            most: The most to read. None is no limit.
            least: The number of records, 0 or 1, that are read even if they are larger.

        Returns:
            The offset to stop at, or None for the end of the split, and how much that is.
        """


class RowMeter(SplitMeter):
    """Measures splits whose offset is a number of rows of about the same size.

    ``measure`` returns how many rows a whole split has, and how many bytes they are.
    """

    def __init__(self, measure: Callable[[SourceSplit], tuple[int, int]]) -> None:
        self._measure = measure

    def amount(self, split: SourceSplit) -> Quantity:
        rows, size = self._measure(split)
        left = max(rows - split.offset, 0)
        return Quantity(left, size * left // max(rows, 1))

    def advance(self, split: SourceSplit, offset: int, most: Quantity, least: int) -> tuple[int | None, Quantity]:
        rows, size = self._measure(split)
        each = max(size, 1) / max(rows, 1)
        count = max(rows - offset, 0)
        if most.records is not None:
            count = min(count, most.records)
        if most.bytes is not None:
            count = min(count, max(int(most.bytes / each), least))
        stop = offset + count
        return None if stop >= rows else stop, Quantity(count, max(int(count * each), 1) if count else 0)


class OpenSplits:
    """The open splits in the order of their numbers. The number says which subtask reads a split, also later.

    A split that an epoch reads in part is given out with the property ``stop``. When that is read, it stays open from
    there on. Splits must have the ``properties``, of these types.
    """

    def __init__(self, limits: EpochLimits, meter: SplitMeter, **properties: type) -> None:
        self._limits, self._meter, self._properties = limits, meter, properties
        self._splits: dict[int, SourceSplit] = {}
        self._planned = 0
        """The number of splits ever opened, which is the number of the next one."""
        self._stops: dict[int, int | None] = {}
        """Where the last plan stops in the splits that it reads. None: at the end."""
        self.rest = False
        """Whether something is open that was not planned last, or was not read."""

    def __len__(self) -> int:
        return len(self._splits)

    def __iter__(self) -> Iterator[SourceSplit]:
        return iter(self._splits.values())

    def restore(self, position: Json) -> None:
        self._planned = position_field(position, "planned", int)
        for split in map(SourceSplit.from_json, position_field(position, "open", list)):
            for name, kind in self._properties.items():
                position_field(split.properties, name, kind)
            # Earlier releases did not number all splits.
            self._add(split, position_field({"number": self._planned, **split.properties}, "number", int))
        self.rest = bool(self._splits)

    def open(self, split_id: str, properties: Json, offset: int = 0) -> None:
        self._add(SourceSplit(split_id, properties, offset), self._planned)

    def _add(self, split: SourceSplit, number: int) -> None:
        self._splits[number] = SourceSplit(split.split_id, {**split.properties, "number": number}, split.offset)
        self._planned = max(self._planned, number + 1)

    def suffice(self) -> bool:
        """Returns whether an epoch can read no more than what is open. Without limits it always can."""
        left = Quantity(self._limits.records, self._limits.bytes)
        for split in self._splits.values() if self._limits else ():
            left = left.minus(self._meter.amount(split))
            if left.is_spent:
                return True
        return False

    def shares(self, parallelism: int) -> list[list[SourceSplit]]:
        """Returns what each subtask reads in the next epoch."""
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        stops = self._find_stops(parallelism) if self._limits else dict.fromkeys(self._splits)
        self._stops = stops
        for number, stop in sorted(stops.items()):
            split = self._splits[number]
            if stop is not None:
                split = SourceSplit(split.split_id, {**split.properties, _STOP: stop}, split.offset)
            shares[number % parallelism].append(split)
        self.rest = len(stops) < len(self._splits) or any(stop is not None for stop in stops.values())
        return shares

    def _find_stops(self, parallelism: int) -> dict[int, int | None]:
        """Returns where to stop in each split that is read: first an equal share for each subtask, then the rest."""
        limits = self._limits
        left = Quantity(limits.records, limits.bytes)
        equal = Quantity(*(None if n is None else -(-n // parallelism) for n in (limits.records, limits.bytes)))
        stops: dict[int, int | None] = {}
        some = False
        """Whether anything is read: an epoch reads at least one record, whatever its size."""
        for shares in [[equal] * parallelism, None] if parallelism > 1 else [None]:
            blocked: set[int] = set()
            """Subtasks whose next split waits until the one before is read to the end."""
            for number, split in sorted(self._splits.items()):
                subtask = number % parallelism
                if left.is_spent:
                    return stops
                if subtask in blocked or (number in stops and stops[number] is None):
                    continue
                most = left if shares is None else _least(left, shares[subtask])
                if most.is_spent:
                    blocked.add(subtask)
                    continue
                begin = stops.get(number) or split.offset
                stop, used = self._meter.advance(split, begin, most, least=0 if some else 1)
                if stop == begin:
                    blocked.add(subtask)
                    continue
                stops[number] = stop
                some = some or bool(used.records or used.bytes)
                left = left.minus(used)
                if shares is not None:
                    shares[subtask] = shares[subtask].minus(used)
                if stop is not None:
                    blocked.add(subtask)
        return stops

    def take_back(self, splits: Sequence[SourceSplit]) -> None:
        """Takes back what `shares` returned, with what was reached."""
        for split in splits:
            number = split.properties["number"]
            stop = split.properties.get(_STOP) if split.finished else split.offset
            if stop is None:
                self._splits.pop(number, None)
            else:
                self._splits[number] = SourceSplit(split.split_id, _without_stop(split), stop)
                self.rest = True

    def left(self) -> list[SourceSplit]:
        """Returns what stays open when all that was planned last is read."""
        left = []
        for number, split in sorted(self._splits.items()):
            stop = self._stops.get(number, split.offset)
            if stop is not None:
                left.append(SourceSplit(split.split_id, split.properties, stop))
        return left

    def lag(self, files: int, more: Sequence[int] = ()) -> SourceLag:
        """Returns what stays unread, in so many files that are open, and in those of some sizes that are not yet."""
        size = sum(self._meter.amount(split).bytes or 0 for split in self.left())
        return SourceLag(files=files + len(more), bytes=size + sum(more))

    def to_json(self) -> Json:
        """Returns the splits as parts of a position."""
        return {"planned": self._planned, "open": [split.to_json() for _, split in sorted(self._splits.items())]}


class OpenRanges(dict[Any, SourceSplit]):
    """The open range of each part of the input that has one, such as a partition. An epoch reads them all.

    ``part_of`` returns the part that a split belongs to, and raises a ValueError if a stored split is damaged.
    """

    def __init__(self, part_of: Callable[[SourceSplit], Any]) -> None:
        super().__init__()
        self._part_of = part_of
        self.rest = False
        """Whether something is open that was not planned last, or was not read."""

    def restore(self, position: Json) -> None:
        splits = map(SourceSplit.from_json, position_field(position, "open", list))
        self.update((self._part_of(split), split) for split in splits)
        self.rest = bool(self)

    def shares(self, parallelism: int, subtask_of: Callable[[Any], int]) -> list[list[SourceSplit]]:
        """Returns what each subtask reads in the next epoch. ``subtask_of`` a part is taken modulo the parallelism."""
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for part, split in sorted(self.items()):
            shares[subtask_of(part) % parallelism].append(split)
        self.rest = False
        return shares

    def take_back(self, splits: Sequence[SourceSplit]) -> None:
        """Takes back what `shares` returned, with what was reached."""
        for split in splits:
            if split.finished:
                self.pop(self._part_of(split), None)
            else:
                self[self._part_of(split)], self.rest = split, True

    def left(self) -> list[SourceSplit]:
        """Returns what is open."""
        return list(self.values())

    def to_json(self) -> Json:
        """Returns the ranges as a part of a position."""
        return {"open": [split.to_json() for split in self.values()]}


class ResumedRows:
    """Reads splits whose offset is a number of rows. What comes after the stop of one waits for the epoch after."""

    def __init__(self) -> None:
        self._rest: tuple[SourceSplit, Iterator[tuple[Any, int]]] | None = None

    def read(
        self, split: SourceSplit, read: Callable[[SourceSplit], Iterator[tuple[Any, int]]]
    ) -> Iterator[tuple[Any, int]]:
        """Yields columns of rows, with the offsets after them, up to the stop of a split.

        Args:
            split: The split.
            read: Yields the rows of a split from its offset to its end.
        """
        stop, rest, self._rest = split.properties.get(_STOP), self._rest, None
        whole = replace(split, properties=_without_stop(split))
        rows = rest[1] if rest is not None and rest[0] == whole else read(whole)
        for column, end in rows:
            if stop is not None and end >= stop:
                count = len(column) - (end - stop)
                after = rows if end == stop else chain([(column.slice(count), end)], rows)
                self._rest = whole.advanced(stop, finished=False), after
                yield column.slice(0, count), stop
                return
            yield column, end


def _without_stop(split: SourceSplit) -> Json:
    return {name: value for name, value in split.properties.items() if name != _STOP}


def _least(one: Quantity, other: Quantity) -> Quantity:
    return Quantity(_smaller(one.records, other.records), _smaller(one.bytes, other.bytes))


def _smaller(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


OpenT = TypeVar("OpenT", OpenSplits, OpenRanges)


class EndingEnumerator(SplitEnumerator):
    """Looks for input between two barriers, too, unless it limits what is read there.

    Args:
        limits: What is read at most between two barriers.
        interval: How long it rests between two barriers after it has found nothing, because a look costs much. Others
            read, and barriers pass, more often. Default: it looks whenever it is asked.
    """

    def __init__(self, limits: EpochLimits, interval: timedelta = timedelta(0)) -> None:
        self._limits, self._interval = limits, interval.total_seconds()
        self._rests_until = 0.0
        self._ended = False
        """Whether the input ends with what was found."""
        self._progress: Callable[[str], None] = lambda line: None

    def start(self, context: SplitEnumeratorContext) -> None:
        self._progress = context.progress

    def plan_part(self, parallelism: int) -> list[list[SourceSplit]]:
        if time.monotonic() < self._rests_until:
            return [[] for _ in range(parallelism)]
        planned = self.plan_epoch(parallelism)
        if not any(planned):
            self._rests_until = time.monotonic() + self._interval
        return planned

    @property
    def assigns_late(self) -> bool:
        return not self._limits

    @property
    def exhausted(self) -> bool:
        return self._ended


class OpenEnumerator(EndingEnumerator, Generic[OpenT]):
    """Plans splits again until they are read to their ends."""

    def __init__(self, limits: EpochLimits, open_splits: OpenT, interval: timedelta = timedelta(0)) -> None:
        super().__init__(limits, interval)
        self._open: OpenT = open_splits

    def _restore_open(self, position: Json) -> None:
        """Takes over what `snapshot_state` here has returned."""
        self._open.restore(position)
        self._ended = position_field(position, "ended", bool)

    def snapshot_state(self) -> Json:
        return {**self._open.to_json(), "ended": self._ended}

    def has_input(self, parallelism: int) -> bool | None:
        return self.plans_something(parallelism)

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        self._open.take_back(splits)

    @property
    def exhausted(self) -> bool:
        return self._ended and not self._open.rest

    def unread(self) -> Sequence[str]:
        return [f"the rest of {split.split_id}" for split in self._open.left()] if self._open.rest else []
