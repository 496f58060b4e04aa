"""The types of values (``pyflink.common.typeinfo``).

A `TypeInformation` converts whole columns in both directions, so the cost per value is that of Arrow or numpy, not
of a Python call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dagster_flinkpy.common.basic_type_info import (
    BASIC_TYPES,
    BIG_DEC_JSON,
    BasicTypeInfo,
    DecimalTypeInfo,
    PickledBytesTypeInfo,
    StoredBigDecTypeInfo,
)
from dagster_flinkpy.common.composite_type_info import ListTypeInfo, MapTypeInfo, RowTypeInfo, TupleTypeInfo
from dagster_flinkpy.common.type_information import Json, TypeInformation
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "BIG_DEC_JSON",
    "BasicTypeInfo",
    "DecimalTypeInfo",
    "ListTypeInfo",
    "MapTypeInfo",
    "PickledBytesTypeInfo",
    "RowTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
    "type_from_json",
]


class Types:
    """Factories of types, with the names of ``pyflink.common.Types``."""

    @staticmethod
    def STRING() -> TypeInformation:
        """``str``."""
        return BasicTypeInfo("STRING")

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """``bool``."""
        return BasicTypeInfo("BOOLEAN")

    @staticmethod
    def BYTE() -> TypeInformation:
        """``int`` of 8 bits."""
        return BasicTypeInfo("BYTE")

    @staticmethod
    def SHORT() -> TypeInformation:
        """``int`` of 16 bits."""
        return BasicTypeInfo("SHORT")

    @staticmethod
    def INT() -> TypeInformation:
        """``int`` of 32 bits."""
        return BasicTypeInfo("INT")

    @staticmethod
    def LONG() -> TypeInformation:
        """``int`` of 64 bits."""
        return BasicTypeInfo("LONG")

    @staticmethod
    def FLOAT() -> TypeInformation:
        """``float`` of 32 bits."""
        return BasicTypeInfo("FLOAT")

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """``float`` of 64 bits."""
        return BasicTypeInfo("DOUBLE")

    @staticmethod
    def CHAR() -> TypeInformation:
        """``str`` of one character."""
        return BasicTypeInfo("CHAR")

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """Any ``decimal.Decimal``, with the digits and the scale it has. Its column is text.

        As a key, ``1.10`` and ``1.1`` differ, as Java's ``BigDecimal`` objects do. A table needs :meth:`DECIMAL`.
        """
        return BasicTypeInfo("BIG_DEC")

    @staticmethod
    def DECIMAL(precision: int, scale: int) -> TypeInformation:
        """``decimal.Decimal`` in a column of a fixed scale, as tables have it: ``1.1`` is ``1.10`` in scale 2.

        A value with more digits is a `TypeMismatchError`. PyFlink has this type in its Table API only.

        Args:
            precision: The number of digits, 1 to 76. Spark has 38 at most.
            scale: How many of them are after the point.

        Raises:
            ConfigurationError: A number is out of range.
        """
        return DecimalTypeInfo(precision, scale)

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """``int`` of up to 76 digits."""
        return BasicTypeInfo("BIG_INT")

    @staticmethod
    def INSTANT() -> TypeInformation:
        """:class:`~dagster_flinkpy.common.time.Instant`, in microseconds."""
        return BasicTypeInfo("INSTANT")

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """``datetime.date``."""
        return BasicTypeInfo("SQL_DATE")

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """``datetime.time``, in microseconds."""
        return BasicTypeInfo("SQL_TIME")

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """``datetime.datetime`` without a zone, in microseconds."""
        return BasicTypeInfo("SQL_TIMESTAMP")

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Returns the type of a list of numbers, or of ``bytes`` for ``Types.BYTE()``."""
        if element_type == Types.BYTE():
            return BasicTypeInfo("BYTES")
        return ListTypeInfo(element_type, "PRIMITIVE_ARRAY")

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Returns the type of a list of basic values."""
        return ListTypeInfo(element_type, "BASIC_ARRAY")

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Returns the type of a list of values of any type."""
        return ListTypeInfo(element_type, "OBJECT_ARRAY")

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> TypeInformation:
        """Returns the type of a list."""
        return ListTypeInfo(element_type_info)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> TypeInformation:
        """Returns the type of a dict."""
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """Returns the type of a `Row` whose fields are named ``f0``, ``f1``, ..."""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """Returns the type of a `Row` with named fields."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TupleTypeInfo:
        """Returns the type of a tuple."""
        return TupleTypeInfo(field_types)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> PickledBytesTypeInfo:
        """Any Python value, pickled."""
        return PickledBytesTypeInfo()


def type_from_json(description: Json) -> TypeInformation:
    """Returns the type that `TypeInformation.to_json` described.

    Raises:
        ConfigurationError: The description names no known type, or lacks a part of it.
    """
    try:
        return _from_json(description)
    except (KeyError, TypeError, AttributeError) as e:
        raise ConfigurationError(f"not the description of a type ({e!r}): {description!r}") from e


def _from_json(description: Json) -> TypeInformation:
    name = description.get("type")
    if name in BASIC_TYPES and name != "BIG_DEC":
        return BasicTypeInfo(name)
    builders: dict[str, Callable[[], TypeInformation]] = {
        BIG_DEC_JSON: Types.BIG_DEC,
        "BIG_DEC": StoredBigDecTypeInfo,
        "DECIMAL": lambda: DecimalTypeInfo(description["precision"], description["scale"]),
        "PICKLED_BYTE_ARRAY": PickledBytesTypeInfo,
        "ROW": lambda: RowTypeInfo([type_from_json(f) for f in description["fields"]], description["names"]),
        "TUPLE": lambda: TupleTypeInfo([type_from_json(f) for f in description["fields"]]),
        "MAP": lambda: MapTypeInfo(type_from_json(description["key"]), type_from_json(description["value"])),
    }
    if name in ("LIST", "PRIMITIVE_ARRAY", "BASIC_ARRAY", "OBJECT_ARRAY"):
        return ListTypeInfo(type_from_json(description["element"]), name)
    if name not in builders:
        raise ConfigurationError(f"unknown type {name!r} in {description!r}")
    return builders[name]()
