"""Types of values without parts: basic types, and pickled bytes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dagster_flinkpy import code_pickling
from dagster_flinkpy.common.type_information import Json, TypeInformation
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, shorten

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_flinkpy.common.arrow_columns import BasicColumn

__all__ = [
    "BASIC_TYPES",
    "BIG_DEC_JSON",
    "BasicTypeInfo",
    "DecimalTypeInfo",
    "PickledBytesTypeInfo",
    "StoredBigDecTypeInfo",
]

_SHOWN = 200
_WITH_CLASS = 150
"""A value that is pickled with its class takes more bytes: the names alone that make it."""

BASIC_TYPES = {
    "STRING": "string",
    "BOOLEAN": "bool",
    "BYTE": "int8",
    "SHORT": "int16",
    "INT": "int32",
    "LONG": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "CHAR": "string",
    "BIG_DEC": "string",
    "SQL_DATE": "date32[day]",
    "SQL_TIME": "time64[us]",
    "SQL_TIMESTAMP": "timestamp[us]",
    "BYTES": "binary",
    "BIG_INT": "decimal256(76, 0)",
    "INSTANT": "timestamp[us, tz=UTC]",
}
"""The name of the Arrow type of each basic type."""

MAX_DECIMAL_PRECISION = 76
"""Digits of the widest decimal column of Arrow and Parquet."""

BIG_DEC_JSON = "BIG_DEC_TEXT"
"""What stored types call ``Types.BIG_DEC()``. Earlier releases wrote ``BIG_DEC``, which is decimal128(38, 18)."""


class BasicTypeInfo(TypeInformation):
    """A type with one Arrow column and plain Python values.

    Args:
        name: One of ``BASIC_TYPES``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def _column(self) -> BasicColumn:
        from dagster_flinkpy.common.arrow_columns import basic_column

        return basic_column(self.name)

    @property
    def arrow_type(self) -> pa.DataType:
        return self._column.arrow_type

    @property
    def arrow_name(self) -> str:
        return BASIC_TYPES[self.name]

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        return self._column.to_arrow(values)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return self._column.from_arrow(column)

    def to_json(self) -> Json:
        return {"type": BIG_DEC_JSON if self.name == "BIG_DEC" else self.name}

    def __repr__(self) -> str:
        return "Types.PRIMITIVE_ARRAY(Types.BYTE())" if self.name == "BYTES" else f"Types.{self.name}()"


class DecimalTypeInfo(BasicTypeInfo):
    """A ``decimal.Decimal`` with a fixed number of digits after the point.

    Args:
        precision: The number of digits, 1 to 76. Spark has 38 at most.
        scale: How many of them are after the point.

    Raises:
        ConfigurationError: A number is out of range.
    """

    def __init__(self, precision: int, scale: int) -> None:
        if type(precision) is not int or not 1 <= precision <= MAX_DECIMAL_PRECISION:
            raise ConfigurationError(f"precision={precision!r} must be a whole number, 1 to {MAX_DECIMAL_PRECISION}")
        if type(scale) is not int or not 0 <= scale <= precision:
            raise ConfigurationError(f"scale={scale!r} must be a whole number from 0 to the precision, {precision}")
        super().__init__(f"DECIMAL({precision}, {scale})")
        self.precision = precision
        self.scale = scale

    @property
    def _column(self) -> BasicColumn:
        from dagster_flinkpy.common.arrow_columns import decimal_column

        return decimal_column(self.precision, self.scale)

    @property
    def arrow_name(self) -> str:
        return f"decimal{128 if self.precision <= 38 else 256}({self.precision}, {self.scale})"

    def to_json(self) -> Json:
        return {"type": "DECIMAL", "precision": self.precision, "scale": self.scale}

    def __repr__(self) -> str:
        return f"Types.{self.name}"


class StoredBigDecTypeInfo(DecimalTypeInfo):
    """``Types.BIG_DEC()`` as earlier releases stored it: 38 digits, 18 of them after the point, read without zeros."""

    def __init__(self) -> None:
        super().__init__(38, 18)

    def from_arrow(self, column: pa.Array) -> list[Any]:
        from dagster_flinkpy.common.arrow_columns import without_zeros

        return [None if v is None else without_zeros(v) for v in column.to_pylist()]

    def to_json(self) -> Json:
        return {"type": "BIG_DEC"}


class PickledBytesTypeInfo(TypeInformation):
    """Any Python value, pickled. Only Python can read it. State has this type only if the user declares it."""

    @property
    def arrow_type(self) -> pa.DataType:
        import pyarrow as pa

        return pa.binary()

    @property
    def arrow_name(self) -> str:
        return "binary"

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        try:
            pickled = [pickle.dumps(value, protocol=5) for value in values]
        except Exception:  # anything, because a value runs code of its class
            pickled = [_dumps_with_class(value) for value in values]
        return pa.array(pickled, type=pa.binary())

    def from_arrow(self, column: pa.Array) -> list[Any]:
        # None itself is pickled: null is what a row that is missing has here.
        try:
            return [None if v is None else _loaded(v) for v in column.to_pylist()]
        except Exception as e:  # anything, because a value runs code of its class
            raise TypeMismatchError(
                f"a pickled value cannot be read: {type(e).__name__}: {e}. If its class is not installed here, or has "
                "another name or module now, bring it back as it was; otherwise pickle has not written these bytes"
            ) from e

    def to_json(self) -> Json:
        return {"type": "PICKLED_BYTE_ARRAY"}

    def __repr__(self) -> str:
        return "Types.PICKLED_BYTE_ARRAY()"


def _loaded(pickled: bytes) -> Any:
    if len(pickled) < _WITH_CLASS or code_pickling.FILL not in pickled:
        with suppress(ImportError, AttributeError):  # its class came with the program
            return pickle.loads(pickled)
    return code_pickling.loads_with_classes(pickled)


def _dumps_with_class(value: Any) -> bytes:
    """Pickles a value together with its class, if the module of the class is not installed on the workers."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except Exception as e:
        shown = f"a value of {type(value).__name__}"
        with suppress(Exception):  # of a value that is nested too deep
            shown = shorten(repr(value), _SHOWN)
        raise TypeMismatchError(f"{shown} cannot be pickled: {type(e).__name__}: {e}") from e
    return data
