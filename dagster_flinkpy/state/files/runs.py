"""The runs of one table: lookup, appending a delta, and size-tiered compaction section by section."""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import type_from_json
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.files.cache import MIN_TIME, Run, RunCache, TimedRun, make_time_order, take_all
from dagster_flinkpy.state.files.compaction import SECTION_ROWS, Delta, SectionRows, joined, plan_merges, sections_of
from dagster_flinkpy.state.files.operator_state import INLINE_BELOW
from dagster_flinkpy.state.files.run_file import clip_rows, encode_run, inline, upload_run
from dagster_flinkpy.state.files.transfers import Uploads
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, span_of
from dagster_flinkpy.state.layout import (
    APPEND,
    SortKeys,
    TableLayout,
    are_among,
    equal_rows,
    expired_rows,
    key_groups_of,
    merge_runs,
    sorted_rows,
)
from dagster_flinkpy.state.schema_evolution import can_evolve
from dagster_flinkpy.storage import ObjectStore

__all__ = ["PART_BYTES", "Found", "RunFiles", "Runs", "divide", "in_layout"]

PART_BYTES = 1 << 26
"""How many bytes a part has at most where nothing else is set."""


def divide(runs: Sequence[Run], span: range, most_bytes: int) -> Iterator[tuple[range, list[Run]]]:
    """Divides the rows of runs by sort key. All rows with the same identity are in one part.

    A part ends where a key group does, unless it has only one. It has at most ``SECTION_ROWS`` rows, unless a single
    sort key has more.

    Args:
        runs: The runs.
        span: The sort keys to divide. It begins and ends where key groups do.
        most_bytes: How many bytes a part may have.

    Yields:
        The sort keys of each part that has rows, in ascending order, and its rows of each run.
    """
    runs = [run.within(span) for run in runs]
    rows = sum(map(len, runs))
    if not rows:
        return
    parts = math.ceil(max(rows / SECTION_ROWS, sum(run.nbytes for run in runs) / most_bytes))
    cut = _cut(runs, span, rows * (parts // 2) // parts) if parts > 1 else None
    if cut is None:
        yield span, runs
        return
    for half in (range(span.start, cut), range(cut, span.stop)):
        yield from divide(runs, half, most_bytes)


def _cut(runs: Sequence[Run], span: range, wanted: int) -> int | None:
    """Returns a sort key below which there are about as many rows as wanted, but not all; None if there is none."""

    def below(sort_key: int) -> int:
        return sum(run.below(sort_key) for run in runs)

    spans = [run.span for run in runs if len(run)]
    first, stop = min(each.start for each in spans), max(each.stop for each in spans)
    # The cut is above the first row, and not above the last.
    cut = first + 1 + bisect_left(range(first + 1, stop - 1), wanted, key=below)
    lowest, highest = (span.start >> 32) + 1, (span.stop - 1) >> 32  # the key groups that are not the first
    if lowest > highest:
        return cut if cut < stop else None
    group = (cut - 1) >> 32
    starts = (min(max(each, lowest), highest) << 32 for each in (group, group + 1))
    return min(starts, key=lambda each: abs(below(each) - wanted))


Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass
class WrittenRuns:
    """Counts the runs written so far, including those of compaction."""

    bytes: int = 0
    rows: int = 0


@dataclass
class RunFiles:
    """Keeps the runs of a subtask, and counts what was written."""

    store: ObjectStore
    cache: RunCache
    key_groups: KeyGroupRange
    """The key groups of the subtask."""
    now: Callable[[], int] = current_millis
    """Processing time in milliseconds, for state with a time to live."""
    written_by: str = ""
    """Part of the names of the files."""
    inline_below: int = INLINE_BELOW
    """Runs with fewer bytes are part of the metadata."""
    phase: int | None = None
    """Whose turn it is to merge early; see :func:`~dagster_flinkpy.state.files.compaction.has_turn`."""
    part_bytes: int = PART_BYTES
    """How many bytes a merge reads at once."""
    one_run: bool = False
    """Whether all runs are merged whenever one is written."""
    _uploads: Uploads = field(default_factory=Uploads, init=False)
    _copied: dict[str, RunHandle] = field(default_factory=dict, init=False)
    """Files that may have local copies, by checksum: those that the last snapshot names, and those written since."""
    written: WrittenRuns = field(default_factory=WrittenRuns, init=False)

    def write(self, layout: TableLayout, table: pa.Table, span: range) -> tuple[RunHandle, Run]:
        """Writes a sorted, non-empty table. A small one becomes part of the metadata, a large one a file.

        The upload runs in the background; see :meth:`uploads`.

        Args:
            layout: The layout of the table.
            table: The rows.
            span: The sort keys that the run is for: of some key groups, or some of one key group.

        Raises:
            StorageError: The local cache could not be written.
        """
        groups = KeyGroupRange(span.start >> 32, span.stop - 1 >> 32)
        data, handle = encode_run(layout, table, groups, self.written_by)
        if span != span_of(groups):
            start = span_of(groups).start
            handle = replace(handle, hashes=(span.start - start, span.stop - 1 - start))
        self.written.bytes += handle.bytes
        self.written.rows += handle.rows
        if handle.bytes < self.inline_below:
            return inline(handle, data), Run.of(table)
        self._uploads.submit(handle.path, lambda: upload_run(self.store, handle, data))
        self._copied[handle.sha256] = handle
        return handle, self.cache.put(handle, table)

    def keep_copies(self, snapshot: KeyedSnapshot) -> None:
        """Deletes the local copies of files that the snapshot before has named, or that were written since, but not it.

        If its checkpoint fails, they are read from the store again.
        """
        named = {run.sha256: run for table in snapshot.tables for run in table.runs if run.data is None}
        for checksum in self._copied.keys() - named.keys():
            self.cache.drop(self._copied[checksum])
        self._copied = named

    def uploads(self, named: Collection[str]) -> Sequence[Future[None]]:
        """Returns what must be done so that everything that was written is in the store.

        The futures raise a StorageError if a file could not be uploaded. Uploads that have failed before begin again.

        Args:
            named: The files that a snapshot names. Others need not be uploaded.
        """
        self._uploads.retry(named)
        return self._uploads.pending


@dataclass(frozen=True)
class Found:
    """The rows that a lookup has found, those of the oldest run first."""

    runs: Sequence[tuple[Run, Indices]]
    """Each run in which there are any, with their rows."""
    wanted: Indices
    """For each found row, the index of the identity that was looked for; may repeat."""

    def __len__(self) -> int:
        return len(self.wanted)

    def take(self, name: str) -> pa.Array[Any]:
        """Returns a column of the rows; there must be any."""
        return take_all(self.runs, name)

    def deleted(self) -> Mask:
        """Returns which of the rows are tombstones."""
        return self.take("deleted").to_numpy(zero_copy_only=False) if len(self) else np.zeros(0, dtype=np.bool_)

    def appends(self) -> Mask:
        """Returns which of the rows only append to older ones."""
        parts = [
            run.take(APPEND, rows).to_numpy(zero_copy_only=False)
            if APPEND in run.schema.names
            else np.zeros(len(rows), dtype=np.bool_)
            for run, rows in self.runs
        ]
        return np.concatenate([np.zeros(0, dtype=np.bool_), *parts])

    def filter(self, kept: Mask) -> Found:
        """Returns some of the rows.

        Args:
            kept: Which, one a row.
        """
        if kept.all():
            return self
        ends = np.cumsum([len(rows) for _, rows in self.runs])
        parts = zip(self.runs, np.split(kept, ends[:-1]), strict=True)
        left = [(run, rows[own]) for (run, rows), own in parts if own.any()]
        return Found(left, self.wanted[kept])


class Runs:
    """The runs of a table, opened when they are first needed, and a delta that is still to be written.

    Args:
        layout: The layout of the table.
        handles: The handles of the runs, oldest first.
        files: Where the runs are kept.
        exact: Whether each tombstone that is added hides a row. Default: unknown, so it is looked for.
    """

    def __init__(
        self, layout: TableLayout, handles: Sequence[RunHandle], files: RunFiles, *, exact: bool = False
    ) -> None:
        self.layout = layout
        self._exact = exact
        self._files = files
        self._runs: list[tuple[RunHandle, Run | None]] = [(handle, None) for handle in handles]
        self._added: Run | None = None

    def __len__(self) -> int:
        return len(self._runs) + (self._added is not None)

    @property
    def handles(self) -> tuple[RunHandle, ...]:
        """The handles of the runs that are written, oldest first."""
        return tuple(handle for handle, _ in self._runs)

    def beside(self, files: RunFiles) -> Runs:
        """Returns the same runs, which another thread may settle."""
        runs = copy.copy(self)
        runs._files, runs._runs = files, [*self._runs]
        return runs

    def newest_first(self) -> Iterator[Run]:
        """Opens and yields the runs that are written.

        Raises:
            CorruptStateError: A run is missing, damaged, or of another table.
        """
        return map(self._open, reversed(range(len(self._runs))))

    def _open(self, index: int) -> Run:
        if self._added is not None and index == len(self._runs):
            return self._added
        handle, run = self._runs[index]
        if run is None:
            run = self._files.cache.open(handle, self._files.store)
            run = in_layout(run, handle, self.layout, self._files.store)
            self._runs[index] = (handle, run)
        return run

    def by_time(self) -> list[TimedRun]:
        """Returns the runs of timers, newest first.

        Raises:
            CorruptStateError: A run is missing, damaged, or of another table.
        """
        order, added = self._files.cache.time_order, self._added
        if added is not None and added.time_order is None:
            added.time_order = make_time_order(added)
        newest = [] if added is None or added.time_order is None else [TimedRun(added, added.time_order, MIN_TIME)]
        return newest + [
            TimedRun(run, order(handle, run), MIN_TIME if handle.fired_before is None else handle.fired_before)
            for handle, run in zip(reversed(self.handles), self.newest_first(), strict=True)
        ]

    def fired(self, before: int) -> None:
        """Records that all timers of all runs before a time, in milliseconds, have fired or were deleted."""
        self._settle_rest()
        if before > MIN_TIME:
            self._runs = [(handle.fired(before), run) for handle, run in self._runs]

    def find(self, identity: pa.Table) -> Found:
        """Finds rows.

        Args:
            identity: The column ``sort_key`` and the identity columns that are known, at least ``key``.
        """
        columns = {name: one_chunk(identity.column(name)) for name in identity.column_names}
        alike = self._find_alike(columns.pop("sort_key").to_numpy())
        if not len(alike):
            return alike
        # Different keys may have one sort key.
        taken = pa.array(alike.wanted)
        return alike.filter(
            equal_rows([alike.take(name) for name in columns], [c.take(taken) for c in columns.values()])
        )

    def _find_alike(self, sort_keys: SortKeys) -> Found:
        """Finds the rows with these sort keys. For one that is given n times, each row is found n times."""
        order = np.argsort(sort_keys)  # So neighbours in a run are looked up one after the other.
        ordered = sort_keys[order]
        runs, wanted = list[tuple[Run, Indices]](), list[Indices]()
        spans = [*(handle.span for handle in self.handles), *([] if self._added is None else [self._added.span])]
        bounds = np.array([(span.start, span.stop) for span in spans], dtype=np.uint64)
        for i, (start, stop) in enumerate(np.searchsorted(ordered, bounds).tolist()):
            if start == stop:
                continue
            run = self._open(i)  # Only now: one without such keys is not opened.
            found, rows = run.find(ordered[start:stop])
            if len(found):
                runs.append((run, rows))
                wanted.append(order[found + start])
        return Found(runs, np.concatenate([np.zeros(0, dtype=np.int64), *wanted]))

    def add(self, delta: pa.Table | None) -> None:
        """Adds a delta, which is found at once, and which :meth:`settle` writes.

        Args:
            delta: As for :meth:`append`.
        """
        self._settle_rest()
        if delta is not None:
            self._added = Run.of(sorted_rows(self.layout, delta))

    def settle(self) -> None:
        """Writes what was added, merged with older runs where there are too many. If it cannot, nothing changes.

        Raises:
            StorageError: A run could not be read, or the local cache could not be written.
        """
        added, before, self._added = self._added, [*self._runs], None
        try:
            self.append(None if added is None else added.table())
        except BaseException:
            self._added, self._runs = added, before
            raise

    def _settle_rest(self) -> None:
        """Writes what was added to a snapshot that could not write it."""
        if self._added is not None:
            self.settle()

    def append(self, delta: pa.Table | None) -> None:
        """Adds a delta as the newest run, merged with older ones where there are too many.

        Args:
            delta: Rows with ``local_schema`` or ``append_schema``, one per identity, in any order. None for no change.
        """
        if delta is not None:
            delta = delta if self._exact else self._without_idle_tombstones(delta)
            if not self._runs and APPEND in delta.column_names:
                delta = delta.drop_columns(APPEND)  # There is nothing to append to.
            delta = self._with_inline(sorted_rows(self.layout, delta)) if len(delta) else None
        own = self._files.key_groups
        sections = sections_of(self.handles, own, None if delta is None else _rows_per_key_group(delta, own))
        merged = self._to_merge_now(sections, delta)
        written = [run for section, first in merged.items() for run in self._merge(section, first, delta)]
        if delta is not None:
            rest = [_rows_of(delta, section) for section in sections if section not in merged]
            rows = pa.concat_tables([delta.schema.empty_table(), *rest]).combine_chunks() if merged else delta
            parts = divide([Run.of(rows)], span_of(own), self._files.part_bytes)
            written += self._write((span, run.table()) for span, [run] in parts)
        self._runs = [*self._runs_without(merged), *written]

    def _to_merge_now(self, sections: Sequence[KeyGroupRange], delta: pa.Table | None) -> dict[KeyGroupRange, int]:
        """Returns the index of the first run to merge with all newer ones, of each section that is merged, in order."""
        of_sections, found = [], []
        for section in sections:
            clips = {i: clip for i, handle in enumerate(self.handles) if (clip := handle.clip(section))}
            rows = None if delta is None else _rows_of(delta, section)
            added = None if rows is None or not len(rows) else _described(rows)
            is_list = self.layout.kind == "LIST"
            runs = joined([*clips.values()])
            found.append(SectionRows.of(runs, added, is_list=is_list))
            of_sections.append(([*clips], runs))
        if self._files.one_run:
            merges = {i: 0 for i, each in enumerate(found) if len(each.sizes) > 1}
        else:
            merges = plan_merges(found, self._files.phase, 0 if delta is None else len(delta))
        merged = ((sections[i], *of_sections[i], first) for i, first in sorted(merges.items()))
        return {section: files[sum(map(len, runs[:first]))] for section, files, runs, first in merged}

    def _merge(self, section: KeyGroupRange, first: int, delta: pa.Table | None) -> list[tuple[RunHandle, Run]]:
        """Writes the rows of a section from a run on, and those of the delta, part by part.

        Returns:
            The new runs.
        """
        there = [i for i, handle in enumerate(self.handles) if handle.clip(section)]
        older, now = there[0] < first, self._files.now()
        added = [] if delta is None else [Run.of(delta)]
        newest = [self._open(i) for i in reversed(there) if i >= first]

        def merged(runs: list[Run]) -> pa.Table:
            return merge_runs(self.layout, [run.table() for run in runs], drop_deleted=not older, now=now)

        parts = divide([*added, *newest], span_of(section), self._files.part_bytes)
        return self._write((span, merged(runs)) for span, runs in parts)

    def _runs_without(self, merged: Mapping[KeyGroupRange, int]) -> Iterator[tuple[RunHandle, Run | None]]:
        """Yields the runs, oldest first, without the key groups in which they have been merged."""
        for i, (handle, run) in enumerate(self._runs):
            own = handle.key_groups
            gone = [section for section, first in merged.items() if first <= i and section.intersection(own)]
            if not gone:
                yield handle, run
                continue
            ends = [own.start - 1, *(section.end for section in gone)]
            starts = [*(section.start for section in gone), own.end + 1]
            for end, start in zip(ends, starts, strict=True):
                left = handle.clip(KeyGroupRange(end + 1, start - 1)) if end + 1 < start else None
                if left is not None:
                    yield left, None if run is None else run.within(left.span)

    def _write(self, parts: Iterable[tuple[range, pa.Table]]) -> list[tuple[RunHandle, Run]]:
        """Writes sorted rows with the sort keys that they may have, each part as a run."""
        return [self._files.write(self.layout, rows, span) for span, rows in parts if len(rows)]

    def parts(self) -> Iterator[list[pa.Table]]:
        """Yields all rows in parts, newest run first. All rows of a key are in one part."""
        for section in sections_of(self.handles, self._files.key_groups, None):
            yield from self._parts_of(section)

    def _parts_of(self, section: KeyGroupRange) -> Iterator[list[pa.Table]]:
        span = span_of(section)
        runs = [own for run in self.newest_first() if len(own := run.within(span))]
        for _, part in divide(runs, span, self._files.part_bytes):
            yield [run.table() for run in part]

    def drop_expired(self) -> None:
        """Rewrites the sections that have a row that has expired."""
        now = self._files.now()
        for section in sections_of(self.handles, self._files.key_groups, None):
            if any(expired_rows(table, now).any() for tables in self._parts_of(section) for table in tables):
                written = self._merge(section, 0, None)
                self._runs = [*self._runs_without({section: 0}), *written]

    def _with_inline(self, delta: pa.Table) -> pa.Table:
        """Adds the newest runs to a delta if they are in the metadata and add up, so that they become a file."""
        first, size = len(self._runs), 0
        for handle in reversed(self.handles):
            if handle.data is None:
                break
            first, size = first - 1, size + handle.bytes
        if size < self._files.inline_below or first == len(self._runs):
            return delta
        newest = [run.table() for run in islice(self.newest_first(), len(self) - first)]
        del self._runs[first:]
        return merge_runs(self.layout, [delta, *newest], drop_deleted=not first, now=self._files.now())

    def _without_idle_tombstones(self, delta: pa.Table) -> pa.Table:
        """Leaves out tombstones that hide nothing, because the rows were added and deleted since the last snapshot."""
        deleted = delta.column("deleted").to_numpy()
        tombstones = np.flatnonzero(deleted)
        if not len(tombstones):
            return delta
        kept = ~deleted
        identity = delta.select(["sort_key", *self.layout.identity]).take(pa.array(tombstones))
        kept[tombstones] = self._are_stored(identity)
        return delta.filter(pa.array(kept))

    def _are_stored(self, identity: pa.Table) -> Mask:
        """Returns which identities there are rows of."""
        # sort_keys: uint64, one an identity.
        sort_keys = identity.column("sort_key").to_numpy()
        distinct = np.unique(sort_keys)
        alike = self._find_alike(distinct)
        columns = [one_chunk(identity.column(name)) for name in self.layout.identity]
        found = [alike.take(name) for name in self.layout.identity] if len(alike) else [c[:0] for c in columns]
        return are_among(sort_keys, columns, distinct[alike.wanted], found)


def _rows_of(rows: pa.Table, key_groups: KeyGroupRange) -> pa.Table:
    """Returns the rows of some key groups, of sorted ones."""
    start, stop = clip_rows(rows.column("sort_key").to_numpy(), span_of(key_groups))
    return rows.slice(start, stop - start)


def _rows_per_key_group(rows: pa.Table, key_groups: KeyGroupRange) -> Indices:
    groups = key_groups_of(rows.column("sort_key").to_numpy()).astype(np.int64) - key_groups.start
    return np.bincount(groups, minlength=key_groups.end + 1 - key_groups.start)


def _described(rows: pa.Table) -> Delta:
    def count(name: str) -> int:
        return int(np.count_nonzero(rows.column(name).to_numpy())) if name in rows.column_names else 0

    return Delta(len(rows), rows.nbytes, appends=count(APPEND), tombstones=count("deleted"))


def in_layout(run: Run, handle: RunHandle, layout: TableLayout, store: ObjectStore) -> Run:
    """Returns a run with values of the table's type, whatever type they were written with.

    Args:
        run: The run as it is stored.
        handle: Its handle.
        layout: The layout of the table.
        store: The store that it is from, for the message.

    Raises:
        CorruptStateError: The run is of another table. The message names the file.
    """
    types = tuple(map(type_from_json, handle.value_types))
    stored = replace(layout, value_type=types[0]) if types else layout
    known = stored.append_schema if layout.kind == "LIST" and APPEND in run.schema.names else stored.local_schema
    if not run.schema.equals(known):
        raise CorruptStateError(
            f"state file {store.url}/{handle.path} does not belong to state {layout.name!r}: its columns are "
            f"{run.schema}, not {known}"
        )
    if layout.value_type is None or not types:
        return run
    types = (*types, layout.value_type)
    if not all(can_evolve(before, after) for before, after in pairwise(types)):
        raise CorruptStateError(
            f"the handle of {store.url}/{handle.path} names types that cannot have followed each other"
        )
    return run.evolved(types)
