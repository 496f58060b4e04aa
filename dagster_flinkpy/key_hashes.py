"""Hashes keys and assigns them to key groups, exactly as Flink does.

A key's group is ``murmur(java_hash_code(key)) % max_parallelism``. Each hash is implemented twice, for one Python key
(`java_hash_code`) and for an Arrow column of keys (`java_hash_codes`). Both return the same numbers. Python and Arrow
types stand for these Java types:

============== ======================================= ==========================
Java           Python                                  Arrow
============== ======================================= ==========================
Boolean        bool, numpy.bool_                       bool
Byte, Short    numpy.int8, numpy.int16                 int8, int16
Integer        numpy.int32                             int32
Long           int (within 64 bits), numpy.int64       int64
Float          numpy.float32                           float
Double         float, numpy.float64                    double
String         str                                     string, large_string
BigDecimal     decimal.Decimal, unless NaN or infinite (not as an Arrow column)
sql.Date       datetime.date                           date32
sql.Time       datetime.time without zone              time64[us]
sql.Timestamp  datetime.datetime without zone          timestamp[us]
Tuple2, ...    tuple                                   struct (``struct_as="tuple"``)
Row            dagster_flinkpy.common.types.Row        struct (``struct_as="row"`` or ``"named_row"``)
null           None, as a field                        null, as a field
byte[]         bytes, as a field of a Row              binary, large_binary, as a field of a row
============== ======================================= ==========================

Dates and times hash by their milliseconds since 1970, as in a JVM whose time zone is UTC. Unlike Java's, Python's
calendar is Gregorian before 1582 as well.

Source: Flink's ``KeyGroupRangeAssignment``, ``MathUtils.murmurHash``, ``Tuple2``, ``RowUtils``.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.errors import UnsupportedKeyTypeError
from dagster_flinkpy.key_groups import check_parallelism, check_parallelisms

__all__ = [
    "StructAs",
    "assign_to_key_group",
    "java_hash_code",
    "java_hash_codes",
    "key_groups",
    "key_groups_of_hashes",
    "murmur_hash",
    "operator_indexes",
    "row_hash_code",
]

StructAs = Literal["tuple", "row", "named_row"]
"""The Java class that the structs of an Arrow column stand for."""

_HashArray = npt.NDArray[np.uint32]

_DAY = 86_400_000
_1970 = datetime.datetime(1970, 1, 1)


# --- one key ----------------------------------------------------------------------------------------------------------


def assign_to_key_group(key: object, max_parallelism: int) -> int:
    """Returns the key group of one key.

    >>> assign_to_key_group("N14228", 128)
    38

    Raises:
        ParallelismError: ``max_parallelism`` is not within 1 to 32768.
        UnsupportedKeyTypeError: The key, or a field of it, has no stable hash.
    """
    check_parallelism("max_parallelism", max_parallelism)
    return murmur_hash(java_hash_code(key)) % max_parallelism


def murmur_hash(code: int) -> int:
    """Spreads a hash code over 0 to 2**31 - 1, as ``MathUtils.murmurHash`` does."""
    return int(_murmur(np.array([code & 0xFFFFFFFF], dtype=np.uint32))[0])


@singledispatch
def java_hash_code(key: object) -> int:
    """Returns ``hashCode()`` of the matching Java object, as a signed 32-bit number.

    A subclass hashes like its base: a NamedTuple like a tuple, an IntEnum like an int. Other types take part by
    defining a method ``__java_hash_code__``, as Row does.

    >>> java_hash_code("abc")
    96354

    Raises:
        UnsupportedKeyTypeError: The type has no stable hash. The message names a field inside a tuple or Row.
    """
    own: Callable[[object], int] | None = getattr(type(key), "__java_hash_code__", None)
    if own is not None:
        return own(key)
    if key is None:
        reason = "a key must not be None"
    elif isinstance(key, bytes):
        reason = "bytes are a byte[], which Java hashes by identity; use a str, or a Row with a bytes field"
    else:
        reason = (
            f"{type(key).__qualname__} is not a key type; use bool, int, float, str, Decimal, date, time, datetime, "
            "or a tuple or Row of these"
        )
    raise UnsupportedKeyTypeError(reason)


@java_hash_code.register(bool)
@java_hash_code.register(np.bool_)
def _boolean_hash_code(key: bool | np.bool_) -> int:
    return 1231 if key else 1237


@java_hash_code.register(np.int8)
@java_hash_code.register(np.int16)
@java_hash_code.register(np.int32)
def _integer_hash_code(key: np.int8 | np.int16 | np.int32) -> int:
    return int(key)


@java_hash_code.register(int)
@java_hash_code.register(np.int64)
def _long_hash_code(key: int | np.int64) -> int:
    value = int(key)
    if not -(1 << 63) <= value < 1 << 63:
        raise UnsupportedKeyTypeError(f"int {value} does not fit a Java Long (64 bits); use a str")
    return _signed(value ^ (value >> 32))


@java_hash_code.register
def _double_hash_code(key: float) -> int:
    # All NaNs are one key, whatever their bits; 0.0 and -0.0 are two.
    (bits,) = struct.unpack("<q", struct.pack("<d", math.nan if key != key else key))
    return _signed(bits ^ (bits >> 32))


@java_hash_code.register
def _float_hash_code(key: np.float32) -> int:
    return int(np.float32(math.nan if np.isnan(key) else key).view(np.int32))


@java_hash_code.register
def _string_hash_code(key: str) -> int:
    # Java uses UTF-16 code units; a Python str may contain lone surrogates, like a Java String.
    return _signed(_fold(np.frombuffer(key.encode("utf-16-le", "surrogatepass"), dtype="<u2").tolist(), 0))


@java_hash_code.register
def _decimal_hash_code(key: decimal.Decimal) -> int:
    # BigDecimal.hashCode: equal numbers of different scale differ. The unscaled value is hashed by 32-bit words.
    sign, digits, exponent = key.as_tuple()
    if not isinstance(exponent, int):
        raise UnsupportedKeyTypeError(f"Decimal {key} is not a key, because Java has no such BigDecimal; use a str")
    unscaled = int("".join(map(str, digits)))
    words = unscaled.to_bytes((unscaled.bit_length() + 31) // 32 * 4, "big")
    hashed = _fold(np.frombuffer(words, dtype=">u4").tolist(), 0)
    return _signed(31 * (-hashed if sign else hashed) - exponent)


@java_hash_code.register
def _date_hash_code(key: datetime.date) -> int:
    return _long_hash_code((key.toordinal() - _1970.toordinal()) * _DAY)


@java_hash_code.register
def _timestamp_hash_code(key: datetime.datetime) -> int:
    if key.tzinfo is not None:
        raise UnsupportedKeyTypeError("a datetime with a time zone is not a key type; use one in UTC without zone")
    return _long_hash_code((key - _1970) // datetime.timedelta(milliseconds=1))


@java_hash_code.register
def _time_hash_code(key: datetime.time) -> int:
    if key.tzinfo is not None:
        raise UnsupportedKeyTypeError("a time with a time zone is not a key type; use one in UTC without zone")
    return _timestamp_hash_code(datetime.datetime.combine(_1970, key))


@java_hash_code.register(tuple)
def _tuple_hash_code(key: tuple[object, ...]) -> int:
    return _signed(_fold((_field_hash(index, field) for index, field in enumerate(key)), 0))


def row_hash_code(kind: int, values: Sequence[object], names: Sequence[str] | None = None) -> int:
    """Returns Java's ``Row.hashCode()``.

    The order of the fields matters for a row without names, but not for a row with names.

    Args:
        kind: The byte of the RowKind: 0 to 3.
        values: The fields, which may be None or bytes.
        names: The field names, or None for a row without names.

    Raises:
        UnsupportedKeyTypeError: A field has no stable hash.
    """
    if names is None:
        fields = _fold((_row_field_hash(index, value) for index, value in enumerate(values)), 1)
    else:
        fields = 1 + sum(
            (31 + java_hash_code(name)) ^ _signed(_row_field_hash(name, value))
            for name, value in zip(names, values, strict=False)
        )
    return _signed(31 * kind + fields)


def _field_hash(name: str | int, value: object) -> int:
    if value is None:
        return 0
    try:
        return java_hash_code(value)
    except UnsupportedKeyTypeError as error:
        raise UnsupportedKeyTypeError(f"key field {name!r}: {error}") from None


def _row_field_hash(name: str | int, value: object) -> int:
    # RowUtils hashes a field as an array with one element, which adds 31 to all fields except null.
    if value is None:
        return 0
    if isinstance(value, bytes):
        return 31 + _fold(np.frombuffer(value, dtype=np.int8).tolist(), 1)
    return 31 + _field_hash(name, value)


def _fold(hashes: Iterator[int] | list[int], start: int) -> int:
    """Combines hashes like Java's collections, modulo 2**32."""
    result = start
    for code in hashes:
        result = (31 * result + code) & 0xFFFFFFFF
    return result


def _signed(code: int) -> int:
    return ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000


# --- columns of keys --------------------------------------------------------------------------------------------------

# How many elements are processed at a time: the temporaries of about thirty numpy calls stay in the processor's cache.
_BLOCK = 1 << 14
# How many bytes of text are: several rows share the cost of a numpy call.
_TEXT_BLOCK = 1 << 16


def key_groups(
    column: pa.Array[Any] | pa.ChunkedArray[Any], max_parallelism: int, *, struct_as: StructAs = "tuple"
) -> npt.NDArray[np.uint16]:
    """Returns the key group of each key of an Arrow column; see `java_hash_codes` for the supported types.

    Raises:
        ParallelismError: ``max_parallelism`` is not within 1 to 32768.
        UnsupportedKeyTypeError: A key is null, or the column or a field of it has no stable hash.
    """
    check_parallelism("max_parallelism", max_parallelism)
    return key_groups_of_hashes(java_hash_codes(column, struct_as=struct_as), max_parallelism)


def key_groups_of_hashes(hashes: npt.NDArray[np.int32], max_parallelism: int) -> npt.NDArray[np.uint16]:
    """Returns the key group of each hash code that `java_hash_codes` returned.

    Raises:
        ParallelismError: ``max_parallelism`` is not within 1 to 32768.
    """
    check_parallelism("max_parallelism", max_parallelism)
    codes = np.ascontiguousarray(hashes, dtype=np.int32).view(np.uint32)
    groups = np.empty(len(codes), dtype=np.uint16)
    divisor = np.uint32(max_parallelism)
    for start in range(0, len(codes), _BLOCK):
        block = _murmur(codes[start : start + _BLOCK])
        # numpy divides by a scalar with SIMD, but computes remainders one by one.
        groups[start : start + _BLOCK] = block - block // divisor * divisor
    return groups


def operator_indexes(
    key_groups: npt.NDArray[np.integer[Any]], max_parallelism: int, parallelism: int
) -> npt.NDArray[np.int32]:
    """Applies `compute_operator_index_for_key_group` to each element, without checking the elements.

    Raises:
        ParallelismError: An argument is out of range, or ``parallelism`` is above ``max_parallelism``.
    """
    check_parallelisms(max_parallelism, parallelism)
    indexes = key_groups.astype(np.int32)  # the product stays below 2**30
    indexes *= np.int32(parallelism)
    indexes //= np.int32(max_parallelism)
    return indexes


def java_hash_codes(
    column: pa.Array[Any] | pa.ChunkedArray[Any], *, struct_as: StructAs = "tuple"
) -> npt.NDArray[np.int32]:
    """Applies `java_hash_code` to each key of an Arrow column.

    Args:
        column: Signed integers, floats, booleans, strings, dates, times of day and timestamps (the latter two in
            microseconds, without zone), or structs of these.
        struct_as: What the structs of the column, at every depth, stand for.
            ``"tuple"``: a Python tuple of the fields, so a Flink TupleN.
            ``"row"``: a Row without field names. ``"named_row"``: a Row with the field names of the struct.
            An Arrow struct has no RowKind, so a row counts as INSERT; for another kind of the outermost row
            add ``31 * kind`` to its hash, modulo 2**32.

    Raises:
        UnsupportedKeyTypeError: A key is null, or the column or a field of it has no stable hash.
    """
    if column.null_count:
        raise UnsupportedKeyTypeError(f"{column.null_count} of {len(column)} keys are null; a key must not be null")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if not chunks:
        chunks = [pa.array([], type=column.type)]
    hashes = [_column_hashes(chunk, struct_as) for chunk in chunks]
    return (hashes[0] if len(hashes) == 1 else np.concatenate(hashes)).view(np.int32)


def _murmur(codes: _HashArray) -> _HashArray:
    code = codes * np.uint32(0xCC9E2D51)
    code = code << np.uint32(15) | code >> np.uint32(17)
    code *= np.uint32(0x1B873593)
    code = code << np.uint32(13) | code >> np.uint32(19)
    code *= np.uint32(5)
    code += np.uint32(0xE6546B64)
    code ^= np.uint32(4)
    code ^= code >> np.uint32(16)
    code *= np.uint32(0x85EBCA6B)
    code ^= code >> np.uint32(13)
    code *= np.uint32(0xC2B2AE35)
    code ^= code >> np.uint32(16)
    # The absolute value of the code as a signed number, or 0 for the minimum, which has no absolute value.
    absolute: _HashArray = np.minimum(code, np.negative(code)) & np.uint32(0x7FFFFFFF)
    return absolute


def _column_hashes(column: pa.Array[Any], struct_as: StructAs) -> _HashArray:
    """Returns the hash of each element, or 0 where it is null."""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.uint32)
    if isinstance(column, pa.StructArray):
        hashes = _struct_hashes(column, struct_as)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        hashes = _string_hashes(column)
    elif pa.types.is_boolean(kind):
        hashes = np.where(_values(column, False), np.uint32(1231), np.uint32(1237))
    elif kind in (pa.int8(), pa.int16(), pa.int32()):
        hashes = _values(column, 0).astype(np.int32).view(np.uint32)
    elif kind == pa.int64():
        hashes = _long_hashes(_values(column, 0))
    elif kind == pa.float64():
        hashes = _long_hashes(_canonical(_values(column, 0.0)).view(np.int64))
    elif kind == pa.float32():
        hashes = _canonical(_values(column, 0.0)).view(np.uint32).copy()
    elif kind == pa.date32():
        hashes = _long_hashes(_values(column.cast(pa.int32()), 0).astype(np.int64) * _DAY)
    elif kind in (pa.time64("us"), pa.timestamp("us")):
        hashes = _long_hashes(_values(column.cast(pa.int64()), 0) // 1000)
    else:
        raise UnsupportedKeyTypeError(
            f"Arrow type {kind} is not a key type; cast it to bool, int8 to int64, float, double, string, date32, "
            "time64[us], timestamp[us], or a struct of these"
        )
    if column.null_count:
        hashes[_is_null(column)] = 0
    return hashes


def _struct_hashes(column: pa.StructArray, struct_as: StructAs) -> _HashArray:
    result = np.full(len(column), 0 if struct_as == "tuple" else 1, dtype=np.uint32)
    # flatten() honours the slice and makes the fields of a null struct null.
    for field, values in zip(column.type, column.flatten(), strict=True):
        try:
            hashes = _column_hashes(values, struct_as) if struct_as == "tuple" else _row_field_hashes(values, struct_as)
        except UnsupportedKeyTypeError as error:
            raise UnsupportedKeyTypeError(f"key field {field.name!r}: {error}") from None
        if struct_as == "named_row":
            result += hashes ^ np.uint32((31 + java_hash_code(field.name)) & 0xFFFFFFFF)
        else:
            result = result * np.uint32(31) + hashes
    return result


def _row_field_hashes(column: pa.Array[Any], struct_as: StructAs) -> _HashArray:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hashes = _byte_array_hashes(column)
    else:
        hashes = _column_hashes(column, struct_as)
    hashes = hashes + np.uint32(31)
    if column.null_count:
        hashes[_is_null(column)] = 0
    return hashes


def _long_hashes(values: npt.NDArray[np.int64]) -> _HashArray:
    halves = values.view(np.uint32)
    return halves[0::2] ^ halves[1::2]


def _canonical(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the floats with one bit pattern for all NaNs."""
    nan = np.isnan(values)
    return np.where(nan, values.dtype.type(math.nan), values) if nan.any() else values


def _string_hashes(column: pa.Array[Any]) -> _HashArray:
    offsets, data = _offsets_and_data(column, "")
    hashes = np.empty(len(column), dtype=np.uint32)
    for rows in _row_blocks(offsets):
        bounds = offsets[rows.start : rows.stop + 1] - offsets[rows.start]
        units = data[offsets[rows.start] : offsets[rows.stop]]
        if len(units) and units.max() >= 0x80:
            hashes[rows] = _polynomials(*_utf16(bounds, units))
        else:
            hashes[rows] = _polynomials(bounds, units)
    return hashes


def _byte_array_hashes(column: pa.Array[Any]) -> _HashArray:
    """Computes Java's ``Arrays.hashCode(byte[])``: over signed bytes, starting from 1."""
    offsets, data = _offsets_and_data(column, b"")
    hashes = np.empty(len(column), dtype=np.uint32)
    for rows in _row_blocks(offsets):
        bounds = offsets[rows.start : rows.stop + 1] - offsets[rows.start]
        signed = data[offsets[rows.start] : offsets[rows.stop]].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[rows] = _polynomials(bounds, signed) + _powers(31, len(signed) + 1)[np.diff(bounds)]
    return hashes


def _utf16(bounds: npt.NDArray[Any], utf8: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint16]]:
    """Converts UTF-8 text and the bounds of its strings to UTF-16 code units."""
    # The first byte of a character counts as one unit. A character of four bytes has two: a surrogate pair.
    units_before = np.zeros(len(utf8) + 1, dtype=np.int64)
    np.cumsum(((utf8 & 0xC0) != 0x80).view(np.int8) + (utf8 >= 0xF0).view(np.int8), out=units_before[1:])
    units = np.frombuffer(utf8.tobytes().decode("utf-8").encode("utf-16-le"), dtype="<u2")
    return units_before[bounds], units


def _polynomials(bounds: npt.NDArray[Any], units: npt.NDArray[Any]) -> _HashArray:
    """Computes ``s[0] * 31**(n-1) + ... + s[n-1]`` for each run of units between two bounds, modulo 2**32."""
    starts, ends = bounds[:-1], bounds[1:]
    length = int(ends[0] - starts[0])
    if length and (ends - starts == length).all():  # as of many ids
        same: _HashArray = units.reshape(-1, length).astype(np.uint32) @ _powers(31, length)[::-1]
        return same
    # 31 has an inverse modulo 2**32. With weights 31**-(i+1), one running sum serves all runs, wherever they start.
    sums = np.zeros(len(units) + 1, dtype=np.uint32)
    np.cumsum(units * _powers(_INVERSE_OF_31, len(units) + 1)[1:], dtype=np.uint32, out=sums[1:])
    hashes: _HashArray = (sums[ends] - sums[starts]) * _powers(31, len(units) + 1)[ends]
    return hashes


def _row_blocks(offsets: npt.NDArray[Any]) -> Iterator[slice]:
    """Yields slices of whole rows with about `_TEXT_BLOCK` bytes; only a single longer row exceeds that."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        limit = offsets[start] + _TEXT_BLOCK
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield slice(start, stop)
        start = stop


def _make_powers(base: int, count: int) -> _HashArray:
    powers = np.full(count, base, dtype=np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)


_INVERSE_OF_31 = pow(31, -1, 1 << 32)
_POWER_TABLES = {base: _make_powers(base, _TEXT_BLOCK + 1) for base in (31, _INVERSE_OF_31)}


def _powers(base: int, count: int) -> _HashArray:
    table = _POWER_TABLES[base]
    return table[:count] if count <= len(table) else _make_powers(base, count)


def _values(column: pa.Array[Any], default: object) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = _filled(column, default).to_numpy(zero_copy_only=False)
    return values


def _offsets_and_data(column: pa.Array[Any], default: str | bytes) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    column = _filled(column, default)
    _, offsets, data = column.buffers()
    width = np.int64 if column.type in (pa.large_string(), pa.large_binary()) else np.int32
    if not len(column):  # an empty column may have no offsets at all
        return np.zeros(1, dtype=width), np.empty(0, dtype=np.uint8)
    ints = pa.int64() if width is np.int64 else pa.int32()
    bounds = pa.Array.from_buffers(ints, len(column) + 1, [None, offsets], offset=column.offset).to_numpy()
    size = data.size if data is not None else 0
    return bounds, pa.Array.from_buffers(pa.uint8(), size, [None, data]).to_numpy()


def _filled(column: pa.Array[Any], default: object) -> pa.Array[Any]:
    return column.fill_null(pa.scalar(default, column.type)) if column.null_count else column


def _is_null(column: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls
