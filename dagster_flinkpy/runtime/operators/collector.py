"""Gathers the output of user functions into batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from sys import getrefcount
from typing import Any

import numpy as np

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.errors import TypeMismatchError, shorten
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.copies import ALONE, copied, flat_rows, unchanging_types

__all__ = ["Collector"]

_SINGLE = (Row, str, bytes, dict)
"""Types whose values can be iterated but are one record each."""
_log = logging.getLogger(__name__)


class Collector:
    """Gathers the records that user functions yield and sends them in batches.

    Mutable values are copied, because a function may yield a value that it keeps in state and changes with the next
    record.

    Args:
        context: The context in which the operator runs.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        vertex = context.vertex
        self._types: dict[str | None, TypeInformation] = {None: vertex.output_type, **dict(vertex.side_outputs)}
        self._values: dict[str | None, list[Any]] = {tag: [] for tag in self._types}
        self._timestamps: dict[str | None, list[int]] = {tag: [] for tag in self._types}
        self._main, self._main_timestamps = self._values[None], self._timestamps[None]
        self._unread: set[str] = set()
        self._unchanging, self._flat = unchanging_types(vertex.output_type), flat_rows(vertex.output_type)

    def collect(self, results: Iterable[Any] | None, timestamp: int) -> None:
        """Takes records, or pairs of output tag and record for side outputs. All get the same timestamp."""
        if results is None:
            return
        try:
            if isinstance(results, _SINGLE):
                raise TypeError("a record, not several")
            each = iter(results)
        except TypeError:
            uid = self._context.vertex.uid
            raise TypeMismatchError(
                f"a function of operator {uid!r} returned {shorten(repr(results), 200)}, of type "
                f"{type(results).__name__}, instead of records: `yield` them, or return a list of them"
            ) from None
        for result in each:
            if type(result) is tuple and len(result) == 2 and isinstance(result[0], OutputTag):
                self.collect_side(result[0].tag_id, result[1], timestamp)
            else:
                kind = type(result)
                alone = kind in self._unchanging or (kind in self._flat and getrefcount(result) <= ALONE)
                self._main.append(result if alone else copied(result))
                self._main_timestamps.append(timestamp)

    def collect_each(self, results: Iterable[Any], timestamps: Iterable[int]) -> None:
        """Takes records, or pairs of output tag and record, each with its own timestamp; None is no record."""
        times = iter(timestamps)
        take, take_timestamp = self._main.append, self._main_timestamps.append
        for result in results:
            timestamp, kind = next(times), type(result)
            if kind is tuple and len(result) == 2 and isinstance(result[0], OutputTag):
                self.collect_side(result[0].tag_id, result[1], timestamp)
            elif result is not None:
                alone = kind in self._unchanging or (kind in self._flat and getrefcount(result) <= ALONE)
                take(result if alone else copied(result))
                take_timestamp(timestamp)

    def collect_side(self, tag: str, value: Any, timestamp: int) -> None:
        """Takes a record for a side output; drops it if nothing reads that output."""
        if tag in self._types:
            self._values[tag].append(copied(value))
            self._timestamps[tag].append(timestamp)
        elif tag not in self._unread:
            self._unread.add(tag)
            _log.warning(
                "Operator %r sends records to side output %r, which nothing reads, so they are dropped. Read it with "
                "get_side_output().",
                self._context.vertex.uid,
                tag,
            )

    def flush(self) -> None:
        """Sends all gathered records."""
        for tag, values in self._values.items():
            if values:
                timestamps = np.array(self._timestamps[tag], dtype=np.int64)
                batch = StreamBatch(
                    self._types[tag], timestamps, values=list(values), producer=self._context.vertex.uid
                )
                values.clear()
                self._timestamps[tag].clear()
                self._context.emit(tag, batch)
