"""Loads pickles that hold data only. No class is imported and nothing of the pickle is called, but a few constructors.

In thread mode PyFlink pickles every row, so its savepoints are full of pickles. Whoever wrote one could otherwise run
code here.
"""

from __future__ import annotations

import collections
import datetime
import io
import pickle
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.types import Row, RowKind
from dagster_flinkpy.errors import UnsupportedSavepointError

__all__ = ["load_data"]


def _row(names: Sequence[str] | None, values: Sequence[Any], kind: Any) -> Row:
    """Stands for PyFlink's ``_create_row``."""
    row = Row(*values)
    if names:
        row.set_field_names(list(names))
    row.set_row_kind(RowKind(kind))
    return row


def _member(kind: Any, name: str) -> RowKind:
    """Stands for ``getattr``, with which Python 3.11.0 to 3.11.3 pickle a member of an enum."""
    if kind is not RowKind:
        raise UnsupportedSavepointError(f"a pickle holds an attribute of {kind!r}, and only plain data is read")
    return RowKind[name]


_CONSTRUCTORS: dict[tuple[str, str], Callable[..., Any]] = {
    ("pyflink.common.types", "_create_row"): _row,
    ("pyflink.common.types", "RowKind"): RowKind,
    ("pyflink.common.time", "Instant"): Instant,
    ("datetime", "date"): datetime.date,
    ("datetime", "time"): datetime.time,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): Decimal,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "getattr"): _member,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
}
_REFUSED = (
    *(pickle.BUILD, pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.PERSID, pickle.BINPERSID),
    *(pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.BYTEARRAY8, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)


def load_data(pickled: bytes) -> Any:
    """Returns the value of a pickle of plain values, containers, rows, dates, times and decimals.

    Raises:
        UnsupportedSavepointError: The pickle holds something else. The message names it.
        ValueError: It is damaged.
    """
    try:
        return _DataUnpickler(io.BytesIO(pickled)).load()
    except (UnsupportedSavepointError, ValueError):
        raise
    except Exception as error:  # a damaged pickle may do anything to the stack
        raise ValueError(f"this is not a pickle: {error!r}") from None


def _refuse(unpickler: Any) -> None:
    raise UnsupportedSavepointError("a pickle holds an object of a class, and only plain data is read")


class _DataUnpickler(pickle._Unpickler):  # in Python: the one in C trusts the sizes in a pickle
    def find_class(self, module: str, name: str) -> Any:
        found = _CONSTRUCTORS.get(("builtins" if module == "__builtin__" else module, name))  # as in Python 2
        if found is None:
            raise UnsupportedSavepointError(
                f"a pickle holds a {module}.{name}, and only plain values, rows, dates, times and decimals are read"
            )
        return found

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **{code[0]: _refuse for code in _REFUSED},
    }
