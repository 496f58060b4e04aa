"""What a checkpoint records about state: runs and key groups of keyed state, partitions of operator state.

The classes are plain data, which is stored as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.errors import CorruptMetadataError, StateSchemaError
from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.storage import check_relative

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "EVENT_TIMERS",
    "PROCESSING_TIMERS",
    "ROLLING",
    "TIMERS",
    "DistributionMode",
    "Json",
    "KeyedSnapshot",
    "OperatorStateHandle",
    "RunHandle",
    "StateKind",
    "TableId",
    "TableSnapshot",
    "count_key_groups",
    "describe_schema",
    "span_of",
]

Json = dict[str, Any]
TableId = tuple[bool, str]
"""Whether it is timers, and the name of the state or the timers."""
StateKind = Literal["VALUE", "LIST", "MAP", "REDUCING", "AGGREGATING", "TIMER"]

_Bytes = bytes  # RunHandle has a field of this name.
_SHA256 = re.compile(r"[0-9a-f]{64}")
EVENT_TIMERS, PROCESSING_TIMERS = "_timers/event_time", "_timers/processing_time"
TIMERS = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}
ROLLING = "_op_state"
"""The state of ``sum()``, ``min()``, ``max()``, ``reduce()`` and other running aggregations."""


def span_of(key_groups: KeyGroupRange) -> range:
    """Returns the sort keys in some key groups: each has 2^32 of them, one for each hash."""
    return range(key_groups.start << 32, key_groups.end + 1 << 32)


@dataclass(frozen=True, kw_only=True)
class RunHandle(JsonRecord, omit_defaults=True, error=CorruptMetadataError):
    """One immutable, sorted run file, or the part of it that lies in some key groups (Flink: ``KeyGroupsStateHandle``).

    Raises:
        PathEscapesPrefixError: ``path`` could lead outside the job's prefix.
        CorruptMetadataError: A checksum is malformed, or a number is impossible.
    """

    path: str = ""
    """Relative to the job's prefix: ``shared/<written by>-<sha256>.parquet``; empty for a run in ``data``."""
    sha256: str
    """The SHA-256 of the whole file, in hex."""
    bytes: int = 0
    """Size of the whole file."""
    rows: int
    """Number of rows in ``key_groups``, tombstones included."""
    key_groups: KeyGroupRange
    """The key groups of this handle. Rows of other key groups do not belong to it."""
    rows_per_key_group: tuple[int, ...]
    """For the whole file: the first key group, then the number of rows in it and in each following one. A number -n
    stands for n empty key groups."""
    footer_bytes: int = 0
    """Size of the Parquet footer at the end of the file; 0 for a run in ``data``."""
    footer_sha256: str = ""
    """The SHA-256 of the footer, which lists a checksum per row group, so that parts of the file can be checked."""
    value_types: tuple[Json, ...] = field(default=(), hash=False)
    """If the declared type of the values has changed since the run was written: the type it was written with and the
    types between that and the table's, oldest first."""
    tombstones: int = 0
    """Number of tombstones in the whole file. A tombstone is a row that only hides older ones."""
    appends: int = 0
    """For list state, the number of rows in the whole file that only append to the elements of older rows."""
    hashes: tuple[int, int] | None = None
    """The first and the last hash, as unsigned numbers, that a row may have. None for all: only a key group that is too
    large for one file is divided, among files that follow each other."""
    fired_before: int | None = None
    """For timers: all timers before this time, in milliseconds, have fired or were deleted."""
    data: _Bytes | None = None
    """The file itself, if it is small enough to be part of the metadata (Flink: ``ByteStreamStateHandle``)."""
    extra: Any = field(default_factory=dict, hash=False)
    """Fields that this release does not know."""

    def __post_init__(self) -> None:
        checksums, sizes = [self.sha256], True
        if self.data is None:
            check_relative(self.path)
            checksums.append(self.footer_sha256)
            sizes = 0 < self.footer_bytes <= self.bytes
        else:
            object.__setattr__(self, "bytes", len(self.data))
        if not all(map(_SHA256.fullmatch, checksums)):
            raise CorruptMetadataError(f"the handle of {self.path} has no SHA-256 checksum")
        if not sizes or min(self.rows, self.tombstones, self.appends) < 0 or not self.rows_per_key_group:
            raise CorruptMetadataError(f"the handle of {self.path} has impossible sizes")
        if self.hashes is not None:
            one, (first, last) = self.key_groups.number_of_key_groups == 1, self.hashes
            if not one or not 0 <= first <= last < 1 << 32:
                raise CorruptMetadataError(f"the handle of {self.path} has impossible hashes")

    @property
    def span(self) -> range:
        """The sort keys that a row may have."""
        span = span_of(self.key_groups)
        return span if self.hashes is None else range(span.start + self.hashes[0], span.start + self.hashes[1] + 1)

    @cached_property
    def file_rows(self) -> int:
        """Rows of the whole file."""
        return sum(count for count in self.rows_per_key_group[1:] if count > 0)

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the file belong to this handle."""
        return self.rows == self.file_rows

    def clip(self, key_groups: KeyGroupRange) -> RunHandle | None:
        """Returns the handle of the rows that also lie in ``key_groups``, or None if there are none."""
        both = self.key_groups.intersection(key_groups)
        if both == self.key_groups:
            return self if self.rows else None
        rows = 0 if both is None else sum(rows for _, rows in self.rows_by_key_group(both))
        return replace(self, key_groups=both, rows=rows) if both is not None and rows else None

    def fired(self, before: int) -> RunHandle:
        """Returns the handle, marked that all timers before a time have fired or were deleted."""
        known = self.fired_before
        return self if known is not None and known >= before else replace(self, fired_before=before)

    def share(self, of_file: int) -> int:
        """Returns how much of something in the whole file belongs to this handle, if it is spread evenly."""
        return of_file * self.rows // max(self.file_rows, 1)

    def rows_by_key_group(self, key_groups: KeyGroupRange | None = None) -> Iterator[tuple[int, int]]:
        """Yields key groups and their number of rows, tombstones included.

        Args:
            key_groups: The key groups to count. Default: those of this handle.
        """
        group = self.rows_per_key_group[0]
        for count in self.rows_per_key_group[1:]:
            if count < 0:
                group -= count
                continue
            if group in (key_groups or self.key_groups):
                yield group, count
            group += 1

    def to_json(self) -> Json:
        data = super().to_json()
        if self.data is not None:
            del data["bytes"]  # it follows from the data
        return data


@dataclass(frozen=True)
class TableSnapshot(JsonRecord, omit_defaults=True, error=CorruptMetadataError):
    """One named state, or one timer queue, of one subtask."""

    name: str
    kind: StateKind
    key: Json
    """Type information as JSON (``TypeInformation.to_json``); so are the next three."""
    namespace: Json | None
    """None for state without a namespace."""
    map_key: Json | None
    """None for state other than MAP."""
    value: Json | None
    """None for timers. For MAP, the type of an entry's value; for LIST, the type of the list."""
    runs: tuple[RunHandle, ...]
    """The runs, oldest first. A row of a later run replaces the row of an earlier one, or adds to its list."""
    ttl: bool = False
    """Whether there is a column ``expires_at`` with milliseconds since 1970. For LIST it has a list of them, one per
    element."""
    extra: Any = field(default_factory=dict, hash=False)
    """Fields that this release does not know."""

    @property
    def identity(self) -> TableId:
        """What no other table of the subtask has: a state and timers may have one name."""
        return self.kind == "TIMER", self.name

    @property
    def rows(self) -> int:
        """Number of rows of all runs, which is an upper bound of the live entries."""
        return sum(run.rows for run in self.runs)

    @property
    def bytes(self) -> int:
        """Size of all runs in the store. A part of a run counts by its share of rows."""
        return sum(run.share(run.bytes) for run in self.runs)

    @property
    def schema(self) -> Json:
        """The kind and the types, as they appear in error messages and in the files."""
        return {
            "kind": self.kind,
            "key": self.key,
            "namespace": self.namespace,
            "map_key": self.map_key,
            "value": self.value,
            **({"ttl": True} if self.ttl else {}),
        }

    def with_value_type(self, value_type: Json) -> TableSnapshot:
        """Returns the state with another type of values. The runs do not change, and record their own type."""
        before = self.value
        assert before is not None
        runs = tuple(replace(run, value_types=(*run.value_types, before)) for run in self.runs)
        return replace(self, value=value_type, runs=runs)


@dataclass(frozen=True)
class KeyedSnapshot(JsonRecord, error=CorruptMetadataError):
    """The keyed state of one subtask."""

    key_groups: KeyGroupRange
    tables: tuple[TableSnapshot, ...]
    extra: Any = field(default_factory=dict, hash=False)
    """Fields that this release does not know."""

    @property
    def rows(self) -> int:
        """Number of rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """Size of all tables in the store."""
        return sum(table.bytes for table in self.tables)

    def files(self) -> set[str]:
        """Returns the paths of all runs except those in the metadata."""
        return {run.path for table in self.tables for run in table.runs if run.data is None}

    def restrict(self, key_groups: KeyGroupRange) -> KeyedSnapshot | None:
        """Returns the state of some key groups, or None if there is no overlap (Flink: ``getIntersection``).

        Runs without a row in them are left out. A table without runs stays, because of its schema.
        """
        both = self.key_groups.intersection(key_groups)
        if both is None:
            return None
        tables = []
        for table in self.tables:
            clipped = (run.clip(both) for run in table.runs)
            tables.append(replace(table, runs=tuple(run for run in clipped if run is not None)))
        return KeyedSnapshot(both, tuple(tables))

    def parts(self, most_rows: int) -> Iterator[KeyedSnapshot]:
        """Divides the state by key groups, in order, until each part has at most so many rows, or a single key group.

        A key has all its states in one part.
        """
        first, last = self.key_groups.start, self.key_groups.end
        if self.rows <= most_rows or first == last:
            yield self
            return
        middle = (first + last) // 2
        for half in (KeyGroupRange(first, middle), KeyGroupRange(middle + 1, last)):
            part = self.restrict(half)
            assert part is not None, "it is a half of the key groups"
            yield from part.parts(most_rows)

    @staticmethod
    def concat(snapshots: Iterable[KeyedSnapshot], key_groups: KeyGroupRange) -> KeyedSnapshot:
        """Returns the state of one subtask, made from parts of several old ones that share no key group.

        Args:
            snapshots: The parts. Their runs keep their order.
            key_groups: The key groups of the new subtask.

        Raises:
            StateSchemaError: Two parts have different types for one state.
        """
        tables: dict[TableId, TableSnapshot] = {}
        for snapshot in snapshots:
            for table in snapshot.tables:
                known = tables.setdefault(table.identity, replace(table, runs=()))
                if known.schema != table.schema:
                    raise StateSchemaError(_two_schemas(known, table))
                tables[table.identity] = replace(known, runs=known.runs + table.runs)
        return KeyedSnapshot(key_groups, tuple(tables.values()))


class DistributionMode(str, Enum):
    """How operator state is distributed when the parallelism changes (Flink: ``OperatorStateHandle.Mode``)."""

    SPLIT_DISTRIBUTE = "SPLIT_DISTRIBUTE"
    """Each partition goes to one subtask."""
    UNION = "UNION"
    """All partitions go to every subtask."""
    BROADCAST = "BROADCAST"
    """The state is equal at all subtasks, so each one takes one copy."""


@dataclass(frozen=True)
class OperatorStateHandle(JsonRecord, omit_defaults=True):
    """One named operator state of one subtask."""

    name: str
    mode: DistributionMode
    partitions: tuple[Any, ...]
    """The elements of the list, which redistribution moves. See ``state.operator_state``."""
    types: Json = field(default_factory=dict)
    """Type information as JSON: for the ``value`` of an element, or the ``key`` and ``value`` of an entry."""
    inherited: bool = False
    """Whether it is a UNION state that has not changed since the restore, so that other subtasks may have the same one.
    Only acknowledgements say it."""
    extra: Any = field(default_factory=dict)
    """Fields that this release does not know."""


def _two_schemas(one: TableSnapshot, other: TableSnapshot) -> str:
    if one.key != other.key:
        what = f"keys of {describe_schema(one.key)} and of {describe_schema(other.key)}"
        advice = "Start from a checkpoint in which all keys have one type, and give key_by() that key_type"
    else:
        what = f"two schemas: {describe_schema(one.schema)} and {describe_schema(other.schema)}"
        advice = "Take another checkpoint first, after each subtask has got records and used the state"
    return (
        f"state {one.name!r} has in one checkpoint {what}. Its subtasks declared it differently, so it can only be "
        f"restored with its own parallelism. {advice}."
    )


def describe_schema(types: Json) -> str:
    """Describes a type, or the kind and types of a state, in the form in which they are declared."""
    from dagster_flinkpy.common.typeinfo import type_from_json

    if "kind" not in types:
        return str(type_from_json(types))
    value = "" if types["value"] is None else f" of {type_from_json(types['value'])}"
    map_key = "" if types["map_key"] is None else f" by {type_from_json(types['map_key'])}"
    namespace = "" if types["namespace"] is None else f" per {type_from_json(types['namespace'])}"
    return f"{types['kind']}{value}{map_key}{namespace}{' with a time to live' if types.get('ttl') else ''}"


def count_key_groups(key_groups: np.ndarray[Any, np.dtype[Any]]) -> tuple[int, ...]:
    """Counts the rows of each key group of a sorted, non-empty column, in the form of ``RunHandle``."""
    import numpy as np

    groups, counts = np.unique(key_groups, return_counts=True)
    encoded = [int(groups[0])]
    expected = encoded[0]
    for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
        if group > expected:
            encoded.append(expected - group)
        encoded.append(count)
        expected = group + 1
    return tuple(encoded)
