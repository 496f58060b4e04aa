"""Numbers, and tuples and rows of numbers, outside of Python's objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import BasicTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.common.types import row_class, rows_of
from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["NumberValues", "Numbers"]

Numbers = list[npt.NDArray[Any]]
"""int64 or float64, one a field: the values of that field."""

_INT, _FLOAT = (int, np.dtype(np.int64)), (float, np.dtype(np.float64))
_KINDS = {"BYTE": _INT, "SHORT": _INT, "INT": _INT, "LONG": _INT, "DOUBLE": _FLOAT}
"""The class of the values of a basic type that come back as they were, and what keeps them."""


class NumberValues:
    """Values of one type by place, eight bytes for each number. New places have None.

    Args:
        kind: A type that :meth:`fits`.
    """

    def __init__(self, kind: TypeInformation) -> None:
        fields = _fields(kind)
        self._kind: Any = kind
        self._fields = [_KINDS[field.name] for field in fields]
        # int64: a row for each place, which has a 1 in front if there is a value. So a value is in one line of the
        # processor's cache.
        self._words = np.zeros((1, 1 + len(fields)), dtype=np.int64)
        self._class: type | None = None
        self._names: tuple[str, ...] = ()
        self._getters: list[Callable[[Any], Any]] = [itemgetter(i) for i in range(len(fields))]
        if isinstance(kind, TupleTypeInfo):
            self._class = tuple
        elif isinstance(kind, RowTypeInfo):
            self._names, self._class = kind.field_names, row_class(kind.field_names, len(fields))
            self._getters = [attrgetter(slot) for slot in row_class(None, len(fields))._slots]

    @staticmethod
    def fits(kind: TypeInformation) -> bool:
        """Returns whether values of a type may be numbers, or tuples or rows of numbers."""
        fields = _fields(kind)
        return bool(fields) and all(isinstance(field, BasicTypeInfo) and field.name in _KINDS for field in fields)

    def grow(self, places: int) -> None:
        """Makes room for at least so many places."""
        if places > len(self._words):
            words = np.zeros((max(places, 2 * len(self._words), 1024), self._words.shape[1]), dtype=np.int64)
            words[: len(self._words)] = self._words
            self._words = words

    def get(self, places: npt.NDArray[np.int64]) -> list[Any]:
        """Returns the values at some places, each of them a new object."""
        words = self._words.take(places, axis=0)  # which is faster than an index
        columns = [words[:, i].view(dtype).tolist() for i, (_, dtype) in enumerate(self._fields, start=1)]
        values: list[Any]
        if self._class is None:
            (values,) = columns
        else:
            made: Any = rows_of(self._names, columns, len(places)) if self._names else zip(*columns, strict=True)
            values = list(made)
        for i in np.flatnonzero(words[:, 0] == 0).tolist():
            values[i] = None
        return values

    def column(self, places: npt.NDArray[np.int64]) -> pa.Array[Any] | None:
        """Returns the values at some places as a column, null where there is none; None if one is out of range."""
        words = self._words.take(places, axis=0)
        columns = [words[:, i].view(dtype) for i, (_, dtype) in enumerate(self._fields, start=1)]
        try:
            column = self._kind.to_arrow(columns[0]) if self._class is None else self._kind.of_columns(columns)
        except TypeMismatchError:  # whoever makes a column of the objects raises it
            return None
        return pc.if_else(pa.array(words[:, 0] != 0), column, pa.scalar(None, column.type))

    def put(self, places: npt.NDArray[np.int64], values: Sequence[Any]) -> bool:
        """Sets the values at some places; returns False, and does nothing, if one would not come back as it is.

        Args:
            places: The places; if one repeats, its last value counts.
            values: A value for each; None does not fit.
        """
        columns = [values]
        if self._class is not None:
            if set(map(type, values)) - {self._class}:
                return False
            if self._class is tuple and set(map(len, values)) - {len(self._fields)}:
                return False
            columns = [list(map(get, values)) for get in self._getters]
        numbers = self.numbers(columns)
        if numbers is not None:
            self.put_numbers(places, numbers)
        return numbers is not None

    def numbers(self, columns: Sequence[Sequence[Any]]) -> Numbers | None:
        """Returns columns, one a field, as arrays; None if a value would not come back as it is."""
        if any(set(map(type, column)) - {kind} for column, (kind, _) in zip(columns, self._fields, strict=True)):
            return None
        try:
            return [np.fromiter(c, dtype, len(c)) for c, (_, dtype) in zip(columns, self._fields, strict=True)]
        except OverflowError:
            return None

    def put_numbers(self, places: npt.NDArray[np.int64], numbers: Numbers) -> None:
        """Sets the values at some places to those whose fields are :meth:`numbers`."""
        self._words[places, 0] = 1
        for i, column in enumerate(numbers, start=1):
            self._words[places, i] = column.view(np.int64)

    def copy(self, places: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> None:
        """Sets the values at some places to those at others."""
        self._words[places] = self._words.take(others, axis=0)

    def drop(self, places: npt.NDArray[np.int64]) -> None:
        """Forgets the values at some places."""
        self._words[places, 0] = 0

    def has(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns at which places there is a value."""
        held: npt.NDArray[np.bool_] = self._words[places, 0] != 0
        return held

    def keep(self, places: npt.NDArray[np.int64]) -> None:
        """Forgets all places but some distinct ones, which are numbered anew in this order."""
        self._words = self._words.take(places, axis=0)  # which is faster than an index


def _fields(kind: TypeInformation) -> Sequence[Any]:
    return kind.field_types if isinstance(kind, (TupleTypeInfo, RowTypeInfo)) else (kind,)
