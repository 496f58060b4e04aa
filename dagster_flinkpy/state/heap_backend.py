"""Keyed state that is kept entirely in memory (Flink: ``HashMapStateBackend``, ``HeapKeyedStateBackend``)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.key_groups import KeyGroupRange
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.cache import Run, RunCache, make_time_order
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle
from dagster_flinkpy.state.layout import TableLayout, merge_runs
from dagster_flinkpy.state.operator_state import INLINE_BELOW
from dagster_flinkpy.state.runs import Openers, RunFiles, Runs, openers_of
from dagster_flinkpy.state.time_order import MIN_TIME, TimedRun
from dagster_flinkpy.storage import ObjectStore

__all__ = ["HeapKeyedStateBackend"]


class _HeapRuns(Runs):
    """A single run in memory, which a snapshot writes completely."""

    def __init__(self, layout: TableLayout, handles: Sequence[RunHandle], files: RunFiles) -> None:
        super().__init__(layout, handles, files)
        self._rows: pa.Table | None = None  # None until it is needed.
        self._saved = len(handles) <= 1

    def __len__(self) -> int:
        return int(len(self._all()) > 0)

    def newest_first(self) -> Iterator[Run]:
        rows = self._all()
        if len(rows):
            yield Run.of(rows, self._files.key_groups)

    def _openers(self) -> Openers:
        return openers_of(self.newest_first())

    def by_time(self) -> list[TimedRun]:
        return [TimedRun(run, make_time_order(run), MIN_TIME) for run in self.newest_first()]

    def append(self, delta: pa.Table | None) -> None:
        if delta is not None and len(delta):
            self._rows = merge_runs(self.layout, [delta, self._all()], drop_deleted=True, now=self._files.now())
            self._saved = False

    def drop_expired(self) -> None:
        before = self._all()
        self._rows = merge_runs(self.layout, [before], drop_deleted=True, now=self._files.now())
        self._saved = self._saved and len(self._rows) == len(before)

    def save(self) -> None:
        if not self._saved:
            rows = self._all()
            self._replace([*self._write(self._files.key_groups, rows)] if len(rows) else [])
            self._saved = True

    def _all(self) -> pa.Table:
        if self._rows is None:
            tables = [run.table() for run in super().newest_first()]
            self._rows = merge_runs(self.layout, [*tables, self.layout.local_schema.empty_table()], drop_deleted=True)
        return self._rows


class HeapKeyedStateBackend(ColumnarKeyedStateBackend):
    """The keyed state of one subtask in memory, without runs, deltas and merging; a snapshot writes whole states.

    A snapshot has one run per state, like a canonical savepoint. So each backend can restore snapshots of the other.

    Args:
        operator: The uid of the operator, for messages.
        key_groups: The key groups of the subtask.
        max_parallelism: The max parallelism of the operator.
        store: The object store, rooted at the job's prefix.
        cache: The cache of local copies of runs.
        restored: The snapshot to start from, or None.
        now: Returns processing time in milliseconds, for state with a time to live. Default: the machine's clock.
        written_by: Part of the names of its files; see `state_files.state_file`.
        inline_below: Runs with fewer bytes are part of the metadata. Default: 20,000.
    """

    def __init__(
        self,
        *,
        operator: str,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        store: ObjectStore,
        cache: RunCache,
        restored: KeyedSnapshot | None,
        now: Callable[[], int] = current_millis,
        written_by: str = "",
        inline_below: int = INLINE_BELOW,
    ) -> None:
        super().__init__(
            operator=operator,
            key_groups=key_groups,
            max_parallelism=max_parallelism,
            store=store,
            cache=cache,
            restored=restored,
            now=now,
            overlay_rows=sys.maxsize,  # The overlay is never written out early.
            written_by=written_by,
            inline_below=inline_below,
        )
        self._files.make_runs = _HeapRuns
