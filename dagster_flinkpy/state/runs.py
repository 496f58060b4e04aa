"""The runs of one table: lookup, appending a delta, and size-tiered compaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import type_from_json
from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.cache import Run, RunCache
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.layout import APPEND, TableLayout, equal_rows, expired_rows, merge_runs, sorted_rows
from dagster_flinkpy.state.operator_state import INLINE_BELOW
from dagster_flinkpy.state.run_file import encode_run, inline, upload_run
from dagster_flinkpy.state.schema_evolution import can_evolve
from dagster_flinkpy.state.time_order import MIN_TIME, TimedRun
from dagster_flinkpy.state.transfers import Uploads
from dagster_flinkpy.storage import ObjectStore

__all__ = ["MAX_RUNS", "TURNS", "Match", "RunFiles", "Runs", "in_layout", "merge_from"]

MAX_RUNS = 8
"""The maximum number of runs of a table. If there are more, they are merged when the next delta is written."""
TURNS = 4
"""Each subtask has its turn to merge once in this many epochs, so that they do not all merge in the same epoch."""

Indices = npt.NDArray[np.int64]


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
    turn: bool = False
    """Whether this subtask should merge early, before it has to."""
    make_runs: Callable[[TableLayout, Sequence[RunHandle], RunFiles], Runs] = field(default_factory=lambda: Runs)
    """Creates the runs of a table."""
    _uploads: Uploads = field(default_factory=Uploads, init=False)
    written_bytes: int = field(default=0, init=False)
    """The number of bytes of all runs written so far, including those of compaction."""
    written_rows: int = field(default=0, init=False)
    """The number of rows of all runs written so far."""

    def write(self, layout: TableLayout, table: pa.Table) -> tuple[RunHandle, Run]:
        """Writes a sorted, non-empty table. A small one becomes part of the metadata, a large one a file.

        The upload runs in the background; see :meth:`uploads`.

        Raises:
            StorageError: The local cache could not be written.
        """
        data, handle = encode_run(layout, table, self.key_groups, self.written_by)
        self.written_bytes += handle.bytes
        self.written_rows += handle.rows
        if handle.bytes < self.inline_below:
            return inline(handle, data), Run.of(table, self.key_groups)
        self._uploads.submit(handle.path, lambda: upload_run(self.store, handle, data))
        return handle, self.cache.put(handle, table)

    def retry_uploads(self, named: Collection[str]) -> None:
        """Begins the uploads again that have failed, of the files that a snapshot names."""
        self._uploads.retry(named)

    def uploads(self) -> list[Future[None]]:
        """Returns what must be done so that everything that was written is in the store, and copied.

        The futures raise a StorageError if a file could not be uploaded, or a local copy could not be written.
        """
        return [*self._uploads.pending, *self.cache.pending]


@dataclass(frozen=True)
class Match:
    """The rows of one run that a lookup has found."""

    run: Run
    wanted: Indices
    """For each found row, the index of the identity that was looked for; may repeat."""
    rows: Indices
    """The found rows of the run."""

    def appends(self) -> npt.NDArray[np.bool_]:
        """Returns which of the rows only append to older ones."""
        if APPEND not in self.run.schema.names:
            return np.zeros(len(self.rows), dtype=np.bool_)
        mask: npt.NDArray[np.bool_] = self.run.take(APPEND, self.rows).to_numpy(zero_copy_only=False)
        return mask


class Runs:
    """The runs of a table, opened when they are first needed.

    Args:
        layout: The layout of the table.
        handles: The handles of the runs, oldest first.
        files: Where the runs are kept.
    """

    def __init__(self, layout: TableLayout, handles: Sequence[RunHandle], files: RunFiles) -> None:
        self.layout = layout
        self._files = files
        self._runs: list[tuple[RunHandle, Run | None]] = [(handle, None) for handle in handles]

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def handles(self) -> tuple[RunHandle, ...]:
        """The handles of the runs, oldest first."""
        return tuple(handle for handle, _ in self._runs)

    def newest_first(self) -> Iterator[Run]:
        """Opens and yields the runs.

        Raises:
            CorruptStateError: A run is missing, damaged, or of another table.
        """
        for i in reversed(range(len(self._runs))):
            handle, run = self._runs[i]
            if run is None:
                run = self._files.cache.open(handle, self._files.store)
                run = in_layout(run, handle, self.layout, self._files.store)
                self._runs[i] = (handle, run)
            yield run

    def by_time(self) -> list[TimedRun]:
        """Returns the runs of timers, newest first.

        Raises:
            CorruptStateError: A run is missing, damaged, or of another table.
        """
        order = self._files.cache.time_order
        return [
            TimedRun(run, order(handle, run), MIN_TIME if handle.fired_before is None else handle.fired_before)
            for handle, run in zip(reversed(self.handles), self.newest_first(), strict=True)
        ]

    def fired(self, before: int) -> None:
        """Records that all timers of all runs before a time, in milliseconds, have fired or were deleted."""
        if before > MIN_TIME:
            self._runs = [(handle.fired(before), run) for handle, run in self._runs]

    def find(self, identity: pa.Table, runs: int | None = None) -> Iterator[Match]:
        """Finds rows, newest run first.

        Args:
            identity: The column ``sort_key`` and the identity columns that are known, at least ``key``.
            runs: How many of the newest runs to search. Default: all.
        """
        columns = {name: identity.column(name).combine_chunks() for name in identity.column_names}
        sort_keys = columns.pop("sort_key").to_numpy()
        order = np.argsort(sort_keys)  # So neighbours in a run are looked up one after the other.
        for run in islice(self.newest_first(), runs):
            found, rows = run.find(sort_keys[order])
            if len(found):
                wanted = order[found]
                taken = pa.array(wanted)
                same = equal_rows(
                    [run.take(name, rows) for name in columns], [column.take(taken) for column in columns.values()]
                )
                yield Match(run, wanted[same], rows[same])

    def append(self, delta: pa.Table | None) -> None:
        """Adds a delta as the newest run, merged with older ones if there are too many.

        Args:
            delta: Rows with ``local_schema`` or ``append_schema``, one per identity, in any order. None for no change.
        """
        handles = self.handles
        sizes = [handle.rows for handle in handles]
        weights = [handle.bytes * handle.rows // max(handle.file_rows, 1) for handle in handles]
        appends = [0 if _is_base(handles, i) else _appends(handle) for i, handle in enumerate(handles)]
        tombstones = sum(min(handle.tombstones, handle.rows) for handle in handles)
        base_rows = sum(handle.rows for i, handle in enumerate(handles) if _is_base(handles, i))
        hidden: list[Match] = []
        if delta is not None:
            delta, hidden = self._without_idle_tombstones(delta)
            if not handles and APPEND in delta.column_names:
                delta = delta.drop_columns(APPEND)  # There is nothing to append to.
            sizes.append(len(delta))
            weights.append(delta.nbytes)
            added = APPEND in delta.column_names
            appends.append(int(np.count_nonzero(delta.column(APPEND).to_numpy())) if added else 0)
            tombstones += int(np.count_nonzero(delta.column("deleted").to_numpy()))
        if delta is None or not len(delta):
            count = len(handles)
            delta, sizes, weights, appends = None, sizes[:count], weights[:count], appends[:count]
        start = merge_from(
            sizes,
            base_rows,
            tombstones,
            added=_unhidden(sizes, appends),
            # The number of rows says little about the size of lists.
            weights=weights if self.layout.kind == "LIST" else None,
            turn=self._files.turn,
        )
        if delta is not None:
            start = min(start, self._first_inline())
        if start < len(sizes) - 1:
            tables = self._to_merge(delta, hidden, len(handles) - start)
            delta = merge_runs(self.layout, tables, drop_deleted=start == 0, now=self._files.now())
            del self._runs[start:]
        elif delta is not None:
            delta = sorted_rows(self.layout, delta)
        if delta is not None and len(delta):
            self._runs.append(self._files.write(self.layout, delta))

    def save(self) -> None:
        """Writes what :meth:`append` has not written yet; in this class that is nothing."""

    def drop_expired(self) -> None:
        """Rewrites the runs if a row in them has expired."""
        now = self._files.now()
        tables = [run.table() for run in self.newest_first()]
        if any(expired_rows(table, now).any() for table in tables):
            live = merge_runs(self.layout, tables, drop_deleted=True, now=now)
            self._runs = [self._files.write(self.layout, live)] if len(live) else []

    def _first_inline(self) -> int:
        """Returns the index to merge from, so that runs in the metadata do not accumulate but become a file."""
        first, size = len(self._runs), 0
        for handle in reversed(self.handles):
            if handle.data is None:
                break
            first, size = first - 1, size + handle.bytes
        return first if size >= self._files.inline_below else len(self._runs)

    def _without_idle_tombstones(self, delta: pa.Table) -> tuple[pa.Table, list[Match]]:
        """Leaves out tombstones that hide nothing, because the rows were added and deleted since the last snapshot.

        Returns:
            The remaining delta, and the rows that its tombstones hide.
        """
        deleted = delta.column("deleted").to_numpy()
        tombstones = np.flatnonzero(deleted)
        if not len(tombstones):
            return delta, []
        hidden = list(self.find(self._identity(delta, tombstones)))
        kept = ~deleted
        for match in hidden:
            kept[tombstones[match.wanted]] = True
        return delta.filter(pa.array(kept)), hidden

    def _to_merge(self, delta: pa.Table | None, hidden: list[Match], runs: int) -> list[pa.Table]:
        """Returns the delta and the newest runs, newest first.

        The rows that the delta hides are left out, so that fewer rows are compared.

        Args:
            delta: The changes, if any.
            hidden: The rows that its tombstones hide.
            runs: How many of the newest runs are merged.
        """
        newest = list(islice(self.newest_first(), runs))
        if delta is None:
            return [run.table() for run in newest]
        live = ~delta.column("deleted").to_numpy()
        if self.layout.kind != "LIST":  # in a LIST, a row may append to the rows that it would hide
            hidden = [*hidden, *self.find(self._identity(delta, np.flatnonzero(live)), runs)]
        # When all runs are merged, tombstones are no longer needed.
        tables = [delta if runs < len(self) or live.all() else delta.filter(pa.array(live))]
        for run in newest:
            kept = np.ones(len(run), dtype=np.bool_)
            for match in hidden:
                if match.run is run:
                    kept[match.rows] = False
            tables.append(run.table() if kept.all() else run.table().filter(pa.array(kept)))
        return tables

    def _identity(self, delta: pa.Table, rows: Indices) -> pa.Table:
        return delta.select(["sort_key", *self.layout.identity]).take(pa.array(rows))


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


def _is_base(handles: Sequence[RunHandle], index: int) -> bool:
    """Returns whether no older run has rows in the same key groups. After rescaling, several runs may be such bases."""
    clip = handles[index].key_groups
    return not any(clip.intersection(older.key_groups) for older in handles[:index])


def _appends(handle: RunHandle) -> int:
    """Returns how many rows of a handle append to older ones. It is a lower bound if the handle is a part of a file."""
    return max(0, handle.rows - (handle.file_rows - handle.appends))


def _unhidden(sizes: Sequence[int], appends: Sequence[int]) -> int:
    """Returns a lower bound of the live rows that append to older ones.

    A newer row hides such a row, unless it appends, too.

    Args:
        sizes: The number of rows of each run, oldest first.
        appends: How many of these rows append to older ones.
    """
    newer, live = 0, 0
    for size, added in zip(reversed(sizes), reversed(appends), strict=True):
        live += max(0, added - newer)
        newer += size - added
    return live


def merge_from(
    sizes: Sequence[int],
    base_rows: int,
    tombstones: int = 0,
    *,
    added: int = 0,
    weights: Sequence[int] | None = None,
    turn: bool = False,
) -> int:
    """Returns the index of the first run to merge with all newer runs. The index of the newest run means no merge.

    All runs are merged if there would be more than twice as many rows as live ones. A row of a delta replaces a row, is
    new, or is a tombstone that hides a row. So the number of live rows is at least that of the bases minus that of the
    tombstones. Rows that append to lists are counted separately. Otherwise, if there are more than ``MAX_RUNS``, the
    newest run is merged with all older runs that are not larger than the runs after them together. So the number of
    times that a row is rewritten is about the logarithm of the size.

    When it is its turn, a subtask merges at half of the runs and at three quarters of the rows. So under steady load,
    no subtask has to merge out of turn.

    Args:
        sizes: The number of rows of each run, oldest first.
        base_rows: The number of rows of the runs that have no older run below them.
        tombstones: The number of tombstones among all rows.
        added: The number of rows outside the bases that are live because they append to older ones.
        weights: The cost of writing each run, in any unit. Default: its number of rows.
        turn: Whether it is this subtask's turn. Default: False.
    """
    last = len(sizes) - 1
    room = base_rows + added - 2 * tombstones
    if base_rows and sum(sizes) - base_rows - added > (0.75 * room if turn else room):
        return 0
    runs = MAX_RUNS // 2 if turn else MAX_RUNS
    if len(sizes) <= runs:
        return last
    start = min(last - 1, runs - 1)
    costs = sizes if weights is None else weights
    while start > 0 and costs[start - 1] <= sum(costs[start:]):
        start -= 1
    return start
