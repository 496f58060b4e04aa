"""The keys that an epoch has touched, and the conversion of keys to dict keys."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import DecimalTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.key_hashes import StructAs, java_hash_code, java_hash_codes
from dagster_flinkpy.state.columns import grown
from dagster_flinkpy.state.index import IntIndex, RowIndex, has_words
from dagster_flinkpy.state.layout import SortKeys

__all__ = ["KeyCodec", "KeySeats", "TouchedKeys", "hash_keys"]

Convert = Callable[[Any], Any]

_BIG_DEC = Types.BIG_DEC()
_FLOATS = {pa.float32(): struct.Struct(">f"), pa.float64(): struct.Struct(">d")}


class KeyCodec:
    """Converts keys (and namespaces and map keys) to dict keys that are equal if the keys are equal in Java.

    Values of most types are their own dict keys. Floating point numbers are distinguished by their bits (there is one
    NaN, and -0.0 is not 0.0), and ``Types.BIG_DEC()`` by its text (1.10 is not 1.1). Rows become tuples.

    Args:
        kind: A basic type, or a tuple or Row of them.
    """

    def __init__(self, kind: TypeInformation) -> None:
        self.encode: Convert | None = _encoder(kind)
        """Converts a key to a dict key; None if the key itself is the dict key."""
        self.decode: Convert | None = _decoder(kind)
        """Converts a dict key to a key; None if ``encode`` is None."""

    def encode_all(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Returns the dict keys of many keys."""
        return keys if self.encode is None else [self.encode(key) for key in keys]

    def decode_all(self, encoded: Sequence[Any]) -> Sequence[Any]:
        """Returns the keys of many dict keys."""
        return encoded if self.decode is None else [self.decode(key) for key in encoded]

    def rank(self, encoded: Any) -> Any:
        """Returns a value that orders dict keys even if fields are None."""
        if isinstance(encoded, tuple):
            return 1, tuple(map(self.rank, encoded))
        return (0,) if encoded is None else (1, encoded)


def _encode_decimal(value: Any) -> Any:
    return None if value is None else str(value)


def _in_order(value: Any, names: tuple[str, ...]) -> Iterable[Any]:
    """Returns the fields of a row in the order of its type: by name, if it has these names."""
    if isinstance(value, Mapping):
        return [value[name] for name in names]
    if isinstance(value, Row):
        with suppress(ValueError):
            return value.get_fields_by_names(names)
    fields: Iterable[Any] = value
    return fields


def _encoder(kind: TypeInformation) -> Convert | None:
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)):
        encoders = [_encoder(field) for field in kind.field_types]
        names = kind.field_names
        if isinstance(kind, TupleTypeInfo) and not any(encoders):
            return None

        def encode(value: Any) -> Any:
            if value is None:
                return None
            fields = value if isinstance(kind, TupleTypeInfo) else _in_order(value, names)
            return tuple(
                field if encoder is None else encoder(field) for encoder, field in zip(encoders, fields, strict=True)
            )

        return encode
    if kind == _BIG_DEC:
        return _encode_decimal
    number = _FLOATS.get(kind.arrow_type)
    if number is None:
        return None
    return lambda value: None if value is None else number.pack(math.nan if value != value else value)


def _decoder(kind: TypeInformation) -> Convert | None:
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)):
        if _encoder(kind) is None:
            return None
        decoders = [_decoder(field) for field in kind.field_types]
        names = kind.field_names if isinstance(kind, RowTypeInfo) else None

        def decode(value: Any) -> Any:
            if value is None:
                return None
            fields = [
                field if decoder is None else decoder(field) for decoder, field in zip(decoders, value, strict=True)
            ]
            if names is None:
                return tuple(fields)
            row = Row(*fields)
            row.set_field_names(names)
            return row

        return decode
    if kind == _BIG_DEC:
        return lambda value: None if value is None else Decimal(value)
    number = _FLOATS.get(kind.arrow_type)
    return None if number is None else lambda value: None if value is None else number.unpack(value)[0]


def hash_keys(key_type: TypeInformation, column: pa.Array[Any]) -> npt.NDArray[np.int32]:
    """Returns the Java hash codes of a column of keys. A Row with field names hashes like ``Row.withNames``."""
    struct_as: StructAs = "tuple"
    if isinstance(key_type, RowTypeInfo):
        struct_as = "named_row" if key_type.named else "row"
    return java_hash_codes(_with_decimal_hashes(key_type, column), struct_as=struct_as)


def _with_decimal_hashes(kind: TypeInformation, column: pa.Array[Any]) -> pa.Array[Any]:
    """Returns keys with decimals replaced by their hashes, because an ``int`` hashes to itself."""
    if isinstance(kind, (RowTypeInfo, TupleTypeInfo)) and isinstance(column, pa.StructArray):
        fields = column.flatten()
        hashed = list(map(_with_decimal_hashes, kind.field_types, fields))
        if all(before is after for before, after in zip(fields, hashed, strict=True)):
            return column
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(hashed, names=list(kind.field_names), mask=mask)
    if kind != _BIG_DEC and not isinstance(kind, DecimalTypeInfo):
        return column
    encoded = column.dictionary_encode()
    distinct = kind.from_arrow(encoded.dictionary)
    return pa.array(list(map(java_hash_code, distinct)), type=pa.int32()).take(encoded.indices)


@dataclass(frozen=True)
class KeySeats:
    """Consecutive keys of the overlay."""

    first: int
    """The seat of the first key."""
    column: pa.Array[Any]
    sort_keys: SortKeys


class TouchedKeys:
    """The distinct keys in the overlay. Each has a seat: a small number that stands for it in all tables."""

    key_type: TypeInformation
    """Set by :meth:`bind`."""
    codec: KeyCodec
    """The codec of the key type."""

    def __init__(self) -> None:
        self.seat: Any = None
        """The seat of the current key, or None. Set it to make another key the current one."""
        self.cleared = 0
        """How many times it was cleared: since then, seats stand for other keys."""
        self._seats: dict[Hashable, int] = {}
        self._encoded: list[Any] = []  # Dict keys, by seat; those of the last seats are made only when requested.
        self._sort_keys: SortKeys = np.zeros(0, dtype=np.uint64)  # By seat; there may be room for more.
        self._size = 0
        self._parts: list[KeySeats] = []
        self._index: IntIndex | RowIndex | None = None
        """Numbers the seats that `find` has seen; None if it needs their dict keys, as those of long texts."""
        self._indexed = 0  # Seats that it has seen.

    def __len__(self) -> int:
        return self._size

    @property
    def sort_keys(self) -> SortKeys:
        """The sort key of each seat."""
        return self._sort_keys[: self._size]

    @property
    def seats(self) -> dict[Hashable, int]:
        """The seat of each dict key."""
        self._name_seats()
        named, known = len(self._seats), len(self._encoded)
        if named < known:
            self._seats.update(zip(self._encoded[named:], range(named, known), strict=True))
        return self._seats

    def encoded(self, seat: int) -> Any:
        """Returns the dict key of a seat."""
        if seat >= len(self._encoded):
            self._name_seats()
        return self._encoded[seat]

    def current_key(self) -> Any:
        """Returns the current key, or None."""
        seat = self.seat
        if seat is None:
            return None
        encoded, decode = self.encoded(seat), self.codec.decode
        return encoded if decode is None else decode(encoded)

    def bind(self, key_type: TypeInformation) -> None:
        """Sets the type of the keys."""
        self.key_type = key_type
        self._make_index()
        self.codec = KeyCodec(key_type)

    def append(self, column: pa.Array[Any], sort_keys: SortKeys) -> KeySeats:
        """Gives the next seats to distinct keys that have no seat."""
        added = KeySeats(self._size, column, sort_keys)
        first, self._size = self._size, self._size + len(sort_keys)
        self._sort_keys = grown(self._sort_keys, self._size, 0)
        self._sort_keys[first : self._size] = sort_keys
        self._parts.append(added)
        return added

    def find(self, column: pa.Array[Any]) -> npt.NDArray[np.int64]:
        """Returns the seat of each key, or -1 if it has none.

        Args:
            column: The keys; may repeat.
        """
        if not self._size:
            return np.full(len(column), -1)
        # Distinct keys are numbered in the order of their seats, so the number is the seat.
        since, self._indexed = self._indexed, self._size
        if isinstance(self._index, IntIndex):
            for part in self._since(since):
                self._index.add_new(_integers(part))
            return self._index.find(_integers(column))
        if self._index is not None and all(map(self._index.add, self._since(since))):
            return self._index.find(column)
        self._index, seats = None, self.seats
        return np.array([seats.get(key, -1) for key in self._encode(column)], dtype=np.int64)

    def _since(self, seat: int) -> list[pa.Array[Any]]:
        """Returns the keys of all seats from this one on. It does not copy those before, as `all` may."""
        parts = []
        for part in reversed(self._parts):
            if part.first + len(part.column) <= seat:
                break
            parts.append(part.column.slice(max(seat - part.first, 0)))
        return parts[::-1]

    def _encode(self, column: pa.Array[Any]) -> Sequence[Any]:
        """Returns the dict keys of a column of keys."""
        return self.codec.encode_all(self.key_type.from_arrow(column))

    def all(self) -> KeySeats | None:
        """Returns all keys, if any."""
        if not self._parts:
            return None
        if len(self._parts) > 1:
            column = pa.concat_arrays([part.column for part in self._parts])
            self._parts = [KeySeats(0, column, self.sort_keys)]
        return self._parts[0]

    def _name_seats(self) -> None:
        for column in self._since(len(self._encoded)):
            self._encoded.extend(self._encode(column))

    def column(self, seats: npt.NDArray[np.int64]) -> pa.Array[Any]:
        """Returns the keys of seats."""
        known = self.all()
        assert known is not None
        return known.column.take(pa.array(seats))

    def set_current(self, key: Any) -> bool:
        """Makes a key the current one; returns False if it has no seat."""
        self.seat = self.seats.get(key if self.codec.encode is None else self.codec.encode(key))
        return self.seat is not None

    def clear(self) -> None:
        """Forgets all keys."""
        self.cleared += 1
        self._seats.clear()
        self._sort_keys, self._size = np.zeros(0, dtype=np.uint64), 0
        self._parts.clear()
        self._encoded.clear()
        self._make_index()
        self.seat = None

    def _make_index(self) -> None:
        kind = self.key_type.arrow_type
        self._index = IntIndex() if pa.types.is_integer(kind) else RowIndex() if has_words(kind) else None
        self._indexed = 0


def _integers(column: pa.Array[Any]) -> npt.NDArray[np.int64]:
    integers: npt.NDArray[np.int64] = column.to_numpy().astype(np.int64, copy=False)
    return integers
