"""Finds the type information for the columns of an Arrow schema, such as that of a Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["first_wrong", "row_type_of", "type_info_of"]

_SIMPLE: dict[pa.DataType, TypeInformation] = {
    pa.bool_(): Types.BOOLEAN(),
    pa.int8(): Types.BYTE(),
    pa.int16(): Types.SHORT(),
    pa.int32(): Types.INT(),
    pa.int64(): Types.LONG(),
    pa.uint8(): Types.SHORT(),
    pa.uint16(): Types.INT(),
    pa.uint32(): Types.LONG(),
    pa.float16(): Types.FLOAT(),
    pa.float32(): Types.FLOAT(),
    pa.float64(): Types.DOUBLE(),
    pa.string(): Types.STRING(),
    pa.large_string(): Types.STRING(),
    pa.string_view(): Types.STRING(),
    pa.binary(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.large_binary(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.binary_view(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.date32(): Types.SQL_DATE(),
    pa.date64(): Types.SQL_DATE(),
}


def first_wrong(column: pa.Array, convert: Callable[[pa.Array], object]) -> Any:
    """Returns the first value of a column that cannot be converted."""
    for i, value in enumerate(column):
        try:
            convert(column.slice(i, 1))
        except pa.ArrowException:
            return value.as_py()
    return None


def row_type_of(schema: pa.Schema) -> RowTypeInfo:
    """Returns the row type for the columns of a schema. Unsigned integers become the next wider type."""
    return Types.ROW_NAMED(schema.names, [type_info_of(field.type, field.name) for field in schema])


def type_info_of(arrow_type: pa.DataType, name: str, *, instants: bool = False) -> TypeInformation:
    """Returns the type information for values of an Arrow type.

    With ``instants``, a timestamp with a zone becomes an ``Instant``, otherwise a ``datetime`` in UTC.
    """
    if arrow_type in _SIMPLE:
        return _SIMPLE[arrow_type]
    if isinstance(arrow_type, pa.UuidType):
        return Types.STRING()
    if getattr(arrow_type, "extension_name", None) == "arrow.json":
        return type_info_of(arrow_type.storage_type, name)
    if pa.types.is_fixed_size_binary(arrow_type):
        return Types.PRIMITIVE_ARRAY(Types.BYTE())
    if pa.types.is_dictionary(arrow_type):
        return type_info_of(arrow_type.value_type, name, instants=instants)
    if pa.types.is_timestamp(arrow_type):
        return Types.INSTANT() if instants and arrow_type.tz is not None else Types.SQL_TIMESTAMP()
    if pa.types.is_time(arrow_type):
        return Types.SQL_TIME()
    if pa.types.is_decimal(arrow_type):
        scale = max(arrow_type.scale, 0)
        return Types.DECIMAL(arrow_type.precision - arrow_type.scale + scale, scale)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type) or pa.types.is_fixed_size_list(arrow_type):
        return Types.LIST(type_info_of(arrow_type.value_type, f"{name}[]", instants=instants))
    if pa.types.is_map(arrow_type):
        return Types.MAP(
            type_info_of(arrow_type.key_type, f"{name}.key", instants=instants),
            type_info_of(arrow_type.item_type, f"{name}.value", instants=instants),
        )
    if pa.types.is_struct(arrow_type):
        fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        types = [type_info_of(f.type, f"{name}.{f.name}", instants=instants) for f in fields]
        return Types.ROW_NAMED([f.name for f in fields], types)
    raise ConfigurationError(
        f"column {name!r} has type {arrow_type}, which no Types.* corresponds to; leave it out of row_type"
    )
