"""The first of two phases of an aggregation: a sender combines its records per key (Flink: ``MiniBatchLocalGroupAgg``).

An aggregation over windows gives one result per key and window, so it makes no difference whether the operator gets the
records or accumulators of several of them. Nor does it in batch mode, or in mini-batches, with one result per key and
epoch. Otherwise a running aggregation gives a result per record, so its records are sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.operator_specs import OperatorSpec, ReduceSpec, RollingAggregateSpec, WindowSpec
from dagster_flinkpy.runtime.operators.batch_fold import ColumnFold
from dagster_flinkpy.runtime.operators.folds import fold_of
from dagster_flinkpy.runtime.operators.operator_factory import window_fold_of
from dagster_flinkpy.runtime.operators.windows.column_windowers import is_aligned
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, KeyColumn, StreamBatch
from dagster_flinkpy.state.columns import firsts_of
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import distinct_rows

__all__ = ["LocalAggregate", "local_aggregate_of"]

Ints = npt.NDArray[np.int64]

ROWS, BYTES = 1 << 18, 16 << 20
"""What a sender holds before it combines. It goes on holding what is left of it, if that is at most half."""
TRIED, WORTH = 4096, 0.7
"""If combining this many rows or more leaves more than this share, it does not pay."""


def local_aggregate_of(spec: OperatorSpec, operator: str = "") -> LocalAggregate | None:
    """Returns the first phase of an operator whose results do not show how its records were combined, or None."""
    if isinstance(spec, WindowSpec):
        fold = window_fold_of(spec, operator)
    elif isinstance(spec, ReduceSpec) and (spec.final_only or spec.mini_batch):
        fold = fold_of(spec.function, spec.type_info, spec.type_info)
    elif isinstance(spec, RollingAggregateSpec) and spec.mini_batch:
        fold = fold_of(spec.aggregate, spec.record_type, spec.aggregate.accumulator_type, operator)
    else:
        return None
    if fold is None or not fold.combines:
        return None
    if isinstance(spec, WindowSpec) and not is_aligned(spec):
        assigner: Any = spec.assigner
        return LocalAggregate(fold, None, assigner.session_gap) if assigner.is_event_time() else None
    if not isinstance(spec, WindowSpec) or not spec.assigner.is_event_time():
        # In processing time, a record is in the windows of the time at which the operator gets it.
        return LocalAggregate(fold, None, by_clock=isinstance(spec, WindowSpec))
    assigner = spec.assigner
    slide = getattr(assigner, "slide", assigner.size)
    # Windows end where others begin, so a slice of time is in all of a window or in nothing of it.
    return LocalAggregate(fold, (slide, assigner.offset)) if assigner.size % slide == 0 else None


class _Rows(NamedTuple):
    """Accumulators of records, or of several of them."""

    keys: pa.Array[Any]
    values: pa.Array[Any]
    times: Ints
    lasts: Ints
    """The times of the last record; the same as ``times`` if only sessions ask for it."""


class LocalAggregate:
    """Holds records of one sender, and combines those of a key and slice of time, or of a key and session.

    What it returns depends only on what it is given, in order: neither on the clock nor on how Spark cuts its input. So
    a task that runs again sends the same, also if it sums floating-point numbers.

    Args:
        fold: The aggregation.
        slices: Length and offset of the slices, in milliseconds. Records of a slice are in the same windows. None if
            the times of records do not matter before the end of all input.
        gap: The gap of sessions, in milliseconds. Default: they are other windows.
        by_clock: Whether the operator may have results before the next watermark or barrier. Default: it has none.
    """

    def __init__(
        self, fold: ColumnFold, slices: tuple[int, int] | None, gap: int | None = None, *, by_clock: bool = False
    ) -> None:
        self._fold, self._slices, self._gap, self.by_clock = fold, slices, gap, by_clock
        self._records: list[_Rows] = []
        """Records that are still to be combined."""
        self._combined: list[_Rows] = []
        """Earlier ones."""
        self._key_type: TypeInformation | None = None
        self._rows = self._bytes = 0
        self._producer = ""
        self.closes = MAX_WATERMARK
        """The watermark before which everything that is held must leave."""
        self.pays = True
        """Whether combining has left few enough rows."""

    def takes(self, batch: StreamBatch) -> bool:
        """Returns whether a batch can be combined: its records have event time and a number in each field."""
        timed = self._slices is not None or self._gap is not None
        if timed and bool((batch.timestamps == NO_TIMESTAMP).any()):
            return False
        column = batch.column
        return not column.null_count and not any(
            field is not None and column.field(field).null_count for field in self._fold.numbers
        )

    def over(self, times: Ints, watermark: int) -> bool:
        """Returns whether a record is in a slice that is over at a watermark, or not in time for all its sessions."""
        first = int(times.min())
        return (first if self._gap is not None else self._last(first)) <= watermark

    def _last(self, time: int) -> int:
        """Returns the last millisecond of the slice of a time, or of the earliest session that would still join it."""
        if self._gap is not None:
            return time - 1
        if self._slices is None:
            return MAX_WATERMARK
        length, offset = self._slices
        return time - (time - offset) % length + length - 1

    def add(self, key_type: TypeInformation, keys: pa.Array[Any], batch: StreamBatch) -> list[StreamBatch]:
        """Takes records, and returns what there is no room for."""
        sent = self.take() if self._key_type not in (None, key_type) else []
        self._key_type, self._producer = key_type, batch.producer
        self._hold(self._records, _Rows(keys, self._fold.lift(batch.column), batch.timestamps, batch.timestamps))
        self.closes = min(self.closes, self._last(int(batch.timestamps.min())))
        if self._rows >= ROWS or self._bytes >= BYTES:
            self._combine()
            if not self.pays or self._rows > ROWS // 2 or self._bytes > BYTES // 2:
                sent += self._release()
        return sent

    def take(self) -> list[StreamBatch]:
        """Returns everything that is held, combined."""
        self._combine()
        return self._release() if self._rows else []

    def _hold(self, where: list[_Rows], rows: _Rows) -> None:
        where.append(rows)
        self._rows += len(rows.times)
        self._bytes += rows.keys.nbytes + rows.values.nbytes + rows.times.nbytes

    def _combine(self) -> None:
        if not self._records:
            return
        before = self._rows
        held = [*self._combined, self._merged(_joined(self._records))]
        if len(held) > 1:
            held = [self._merged(_joined(held))]
        self._records, self._combined, self._rows, self._bytes = [], [], 0, 0
        self._hold(self._combined, held[0])
        if before >= TRIED and self._rows > WORTH * before:
            self.pays = False

    def _merged(self, rows: _Rows) -> _Rows:
        """Returns one row for each key and slice.

        If a sum may be out of range, it returns all rows. The operator finds out which record was one too many.
        """
        keys: Any = rows.keys
        times, lasts = rows.times, rows.lasts
        if self._slices is not None:
            length, offset = self._slices
            columns = [
                *(keys.flatten() if pa.types.is_struct(keys.type) else [keys]),
                pa.array((times - offset) // length),
            ]
            keys = pa.StructArray.from_arrays(columns, names=list(map(str, range(len(columns)))))
        first, groups = distinct_rows(keys)
        if self._gap is None:
            times, lasts = times[first], lasts[first]
        else:
            first, groups, times, lasts = _runs(first, groups, times, lasts, self._gap)
        combined = self._fold.combine(rows.values, groups, first)
        return rows if combined is None else _Rows(rows.keys.take(pa.array(first)), combined, times, lasts)

    def _release(self) -> list[StreamBatch]:
        assert self._key_type is not None
        batches, per_key = [], self._slices is None and self._gap is None
        for keys, accumulators, times, lasts in self._combined:
            held = KeyColumn(self._key_type, keys, hash_keys(self._key_type, keys), seldom_repeat=per_key)
            kind = self._fold.state_type
            if self._gap is not None:
                kind = Types.TUPLE([kind, Types.LONG()])
                accumulators = pa.StructArray.from_arrays([accumulators, pa.array(lasts)], fields=list(kind.arrow_type))
            batches.append(
                StreamBatch(kind, times, column=accumulators, keys=held, producer=self._producer, combined=True)
            )
        self._combined, self._rows, self._bytes, self.closes = [], 0, 0, MAX_WATERMARK
        return batches


def _joined(rows: list[_Rows]) -> _Rows:
    if len(rows) == 1:
        return rows[0]
    keys, values, times, lasts = zip(*rows, strict=True)
    return _Rows(pa.concat_arrays(keys), pa.concat_arrays(values), np.concatenate(times), np.concatenate(lasts))


def _runs(first: Ints, codes: Ints, starts: Ints, lasts: Ints, gap: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Finds runs of rows that are in one session, whatever other rows may come.

    Returns the first row of each run, the number of the run of each row, and the first and last time of each run.
    """
    # first: the first row of each code. codes: one a row, from 0. starts, lasts: times of its first and last record.
    # offsets: int64, by row: where the times of its code begin, so that codes do not overlap. order, reach, at, begins:
    # one a row, by code and start. opens, stops: positions of the first and last row of each run, ascending.
    base = int(starts.min())
    span = int(lasts.max()) - base + 1
    if span <= gap:
        begun, ended = starts[first], lasts[first]
        np.minimum.at(begun, codes, starts)
        np.maximum.at(ended, codes, lasts)
        return first, codes, begun, ended
    if len(first) * span >= 2**62:
        rows = np.arange(len(codes))
        return rows, rows, starts, lasts
    offsets = codes * span - base
    order = np.argsort(offsets + starts)
    offsets, codes = offsets[order], codes[order]
    reach = np.maximum.accumulate(offsets + lasts[order])  # A code has only greater numbers than the one before it.
    at = offsets + starts[order]
    begins = np.ones(len(codes), dtype=np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (at[1:] > reach[:-1] + gap)
    opens = np.flatnonzero(begins)
    runs = np.empty(len(codes), dtype=np.int64)
    runs[order] = np.cumsum(begins) - 1
    stops = np.append(opens[1:], len(codes)) - 1
    return firsts_of(runs), runs, (at - offsets)[opens], (reach - offsets)[stops]
