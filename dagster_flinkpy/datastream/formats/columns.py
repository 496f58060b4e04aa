"""Which declared columns a text format can be read into."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.composite_type_info import parts_of
from dagster_flinkpy.common.decimals import check_has_scale
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

__all__ = ["check_columns"]

_BINARY = Types.PRIMITIVE_ARRAY(Types.BYTE())


def check_columns(where: str, row_type: RowTypeInfo, *, nested: bool) -> None:
    """Checks that text can be read into columns.

    Args:
        where: The format, for messages.
        row_type: The columns.
        nested: Whether the format has rows and lists.

    Raises:
        ConfigurationError: It is not a row type, or there is no way to read a column. The message says what to do.
    """
    check_argument(f"row_type of {where}", row_type, RowTypeInfo, "Types.ROW_NAMED([...], [...])")
    check_has_scale(row_type, f"row_type of {where}")
    if not row_type.field_names:
        raise ConfigurationError(f"row_type of {where} has no columns")
    for name, type_info in _parts(row_type):
        if isinstance(type_info, MapTypeInfo) and nested:
            advice = "declare a row with the fields that are needed"
        elif (
            isinstance(type_info, (MapTypeInfo, PickledBytesTypeInfo))
            or type_info == _BINARY
            or (isinstance(type_info, (ListTypeInfo, RowTypeInfo, TupleTypeInfo)) and not nested)
        ):
            advice = "declare text, and map() it"
        else:
            continue
        raise ConfigurationError(f"{where} cannot read column {name!r} as {type_info}: {advice}")


def _parts(type_info: TypeInformation, prefix: str = "") -> Iterator[tuple[str, TypeInformation]]:
    for name, each in parts_of(type_info, prefix).items():
        yield name, each
        yield from _parts(each, name)
