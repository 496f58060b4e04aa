"""Assigns timestamps and generates watermarks, at a source or further downstream."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import struct_field
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, TimestampAssigner, WatermarkStrategy
from dagster_flinkpy.datastream.operator_specs import TimestampsSpec
from dagster_flinkpy.errors import TypeMismatchError, shorten
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS, last_taken
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["EventTime", "TimestampsOperator", "UnitCheck"]

_log = logging.getLogger(__name__)

_INT64 = np.iinfo(np.int64)
_SHOWN = 100

_UNITS = (("seconds", 10**9, 1000), ("microseconds", 10**15, 1e-3), ("nanoseconds", 10**18, 1e-6))
"""Other units than milliseconds, the number that the year 2001 has in each, and the milliseconds that one is."""
_YEARS = 4.1
"""Up to which multiple of that number a time is ordinary: that of the year 2099."""


class UnitCheck:
    """Warns once if event times look like another unit than milliseconds.

    Such times may be right, as in a test or a simulation, so it is no error. If the watermark at which it starts looks
    like another unit, too, an earlier epoch has warned.
    """

    def __init__(self, uid: str, watermark: int) -> None:
        self._uid = uid
        self._done = _unit_of(watermark) is not None

    def check(self, time: int) -> None:
        """Checks an event time."""
        found = None if self._done else _unit_of(time)
        if found is None:
            return
        unit, millis = found
        self._done = True
        _log.warning(
            "Operator %r: the event time %s is %s, because event times are milliseconds since 1970. As %s it would be "
            "%s. If that is meant, convert it in a TimestampAssigner, or with map() before.",
            self._uid,
            f"{time:,}",
            np.datetime64(time, "ms"),
            unit,
            np.datetime64(int(time * millis), "ms"),
        )


def _unit_of(time: int) -> tuple[str, float] | None:
    """Returns the unit in which a time is an ordinary one, if that is not milliseconds, and its milliseconds."""
    return next(((unit, millis) for unit, least, millis in _UNITS if least <= time <= _YEARS * least), None)


class EventTime:
    """Timestamps and watermarks of one stream (Flink: ``TimestampsAndWatermarksOperator``)."""

    def __init__(
        self, strategy: WatermarkStrategy, operator: StreamOperator, watermark: int, unit: UnitCheck | None = None
    ) -> None:
        self.unit = unit or UnitCheck(operator.context.vertex.uid, watermark)
        self._assigner = strategy.timestamp_assigner
        bound = strategy.max_out_of_orderness
        self._bound = None if bound is None else bound.millis
        self._operator = operator
        self.watermark = watermark

    def assign(self, batch: StreamBatch) -> None:
        """Assigns the timestamps of a batch and advances the watermark."""
        if self._assigner is not None:
            batch.timestamps = self._timestamps(batch)
        if (self._bound is not None or self._assigner is not None) and len(batch):
            newest = int(batch.timestamps.max())
            self.unit.check(newest)
            if self._bound is not None and newest != NO_TIMESTAMP:
                self.watermark = max(self.watermark, newest - self._bound - 1)

    def _timestamps(self, batch: StreamBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        if isinstance(self._assigner, TimestampAssigner):
            extract = self._assigner.extract_timestamp
            rows = range(len(batch))
            taken = iter(rows)
            records = zip(taken, batch.lent(extract), batch.timestamps.tolist(), strict=True)
            try:
                times = [extract(v, t) for _, v, t in records]
            except USER_EXCEPTIONS as e:
                value = batch.value_at(last_taken(rows, taken))
                raise self._operator.user_error(e, "extract_timestamp()", value=value) from e
            return self._to_millis(times, batch)
        column = struct_field(batch.column, batch.column.type.get_field_index(self._assigner))
        if pa.types.is_timestamp(column.type):
            column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms"))
        filled: np.ndarray[Any, Any] = pc.fill_null(column.cast(pa.int64()), NO_TIMESTAMP).to_numpy()
        return filled

    def _to_millis(self, times: list[Any], batch: StreamBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Converts what `extract_timestamp` returned. numpy alone would parse text, and cut off fractions."""
        if not set(map(type, times)) <= {int}:
            wrong = next((i for i, time in enumerate(times) if not _is_whole(time)), None)
            if wrong is not None:
                raise self._no_time(times[wrong], batch.value_at(wrong))
        try:
            return np.fromiter(map(int, times), dtype=np.int64, count=len(times))
        except OverflowError:
            wrong = next(i for i, time in enumerate(times) if not _INT64.min <= time <= _INT64.max)
            raise self._no_time(times[wrong], batch.value_at(wrong)) from None

    def _no_time(self, time: Any, value: Any) -> TypeMismatchError:
        return TypeMismatchError(
            f"operator {self._operator.context.vertex.uid!r}: extract_timestamp() returned "
            f"{shorten(repr(time), _SHOWN)} for {shorten(repr(value), _SHOWN)}; it must return an int of 64 bits, the "
            "milliseconds since 1970"
        )


def _is_whole(time: Any) -> bool:
    if isinstance(time, (float, np.floating)):
        return bool(np.isfinite(time)) and time == int(time)
    return isinstance(time, (int, np.integer)) and not isinstance(time, (bool, np.timedelta64))


class TimestampsOperator(StreamOperator):
    """Assigns event time in the middle of a stream. Of the upstream watermarks, it forwards only the last one."""

    def __init__(self, context: OperatorContext, spec: TimestampsSpec) -> None:
        super().__init__(context)
        self._time = EventTime(spec.watermark_strategy, self, context.watermark)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        batch = batch.copy()  # other operators may read the batch with its old timestamps
        self._time.assign(batch)
        self.context.emit(None, batch)

    def on_watermark(self, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            self._time.watermark = watermark

    @property
    def own_watermark(self) -> int | None:
        return self._time.watermark
