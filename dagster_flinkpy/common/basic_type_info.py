"""Types of values without parts: basic types, and pickled bytes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.type_information import Json, TypeInformation
from dagster_flinkpy.errors import TypeMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

    from dagster_flinkpy.common.basic_columns import BasicColumn

__all__ = ["BASIC_TYPES", "BasicTypeInfo", "PickledBytesTypeInfo"]

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
    "BIG_DEC": "decimal128(38, 18)",
    "SQL_DATE": "date32[day]",
    "SQL_TIME": "time64[us]",
    "SQL_TIMESTAMP": "timestamp[us]",
    "BYTES": "binary",
    "BIG_INT": "decimal256(76, 0)",
    "INSTANT": "timestamp[us, tz=UTC]",
}
"""The name of the Arrow type of each basic type."""


class BasicTypeInfo(TypeInformation):
    """A type with one Arrow column and plain Python values.

    Args:
        name: One of ``BASIC_TYPES``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def _column(self) -> BasicColumn:
        from dagster_flinkpy.common.basic_columns import basic_column

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
        return {"type": self.name}

    def __repr__(self) -> str:
        return f"Types.{self.name}()"


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
        except (pickle.PicklingError, TypeError, AttributeError):
            pickled = [_dumps_with_class(value) for value in values]
        return pa.array(pickled, type=pa.binary())

    def from_arrow(self, column: pa.Array) -> list[Any]:
        return [pickle.loads(v) for v in column.to_pylist()]

    def to_json(self) -> Json:
        return {"type": "PICKLED_BYTE_ARRAY"}

    def __repr__(self) -> str:
        return "Types.PICKLED_BYTE_ARRAY()"


def _dumps_with_class(value: Any) -> bytes:
    """Pickles a value together with its class, if the module of the class is not installed on the workers."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, protocol=5)
    except Exception as e:
        raise TypeMismatchError(f"{value!r} cannot be pickled: {e}") from e
    return data
