"""Keyed state that is kept entirely in memory (Flink: ``HashMapStateBackend``, ``HeapKeyedStateBackend``)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.files.cache import Run, make_time_order
from dagster_flinkpy.state.files.parts import divide
from dagster_flinkpy.state.files.runs import Openers, RunFiles, Runs, openers_of
from dagster_flinkpy.state.files.time_order import MIN_TIME, TimedRun
from dagster_flinkpy.state.handles import RunHandle, span_of
from dagster_flinkpy.state.layout import TableLayout, merge_runs

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
            yield Run.of(rows)

    def _openers(self) -> Openers:
        return openers_of(self.newest_first())

    def by_time(self) -> list[TimedRun]:
        return [TimedRun(run, make_time_order(run), MIN_TIME) for run in self.newest_first()]

    def add(self, delta: pa.Table | None) -> None:
        self.append(delta)

    def settle(self) -> None:
        """Does nothing: :meth:`save` writes the rows."""

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
            parts = divide([Run.of(rows)], span_of(self._files.key_groups), self._files.part_bytes)
            self._runs = [*self._write((span, run.table()) for span, [run] in parts)]
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
        options: The arguments of ``ColumnarKeyedStateBackend``, except ``overlay_rows`` and ``phase``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, overlay_rows=sys.maxsize)  # The overlay is never written out early.
        self._files.make_runs = _HeapRuns
