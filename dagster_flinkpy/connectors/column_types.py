"""The columns of records, and what JSON can contain. Declarations need this module, so it does not import PyArrow."""

from __future__ import annotations

from dagster_flinkpy.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["check_json_type", "columns_of", "is_binary", "is_nested"]


def columns_of(type_info: TypeInformation) -> dict[str, TypeInformation]:
    """Returns the columns of records: the fields of rows and tuples, or else ``value``."""
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return dict(zip(type_info.field_names, type_info.field_types, strict=True))
    return {"value": type_info}


def is_nested(type_info: TypeInformation) -> bool:
    """Returns whether values of a type have parts."""
    return isinstance(type_info, (ListTypeInfo, MapTypeInfo, RowTypeInfo, TupleTypeInfo))


def is_binary(type_info: TypeInformation) -> bool:
    """Returns whether values of a type are bytes."""
    return isinstance(type_info, PickledBytesTypeInfo) or type_info == Types.PRIMITIVE_ARRAY(Types.BYTE())


def check_json_type(name: str, type_info: TypeInformation) -> None:
    """Checks that JSON can contain values of a type.

    Args:
        name: The column, for messages.
        type_info: The type.

    Raises:
        ConfigurationError: It cannot. The message says what to do.
    """
    if is_binary(type_info):
        raise ConfigurationError(f"{name!r} is binary, which JSON cannot contain: map() it to text")
    if isinstance(type_info, ListTypeInfo):
        check_json_type(f"{name}[]", type_info.elem_type)
    elif isinstance(type_info, MapTypeInfo):
        if is_nested(type_info.key_type):
            raise ConfigurationError(f"the keys of map {name!r} are {type_info.key_type}, but keys in JSON are text")
        check_json_type(f"{name}.key", type_info.key_type)
        check_json_type(f"{name}.value", type_info.value_type)
    elif isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        for field, kind in columns_of(type_info).items():
            check_json_type(f"{name}.{field}", kind)
