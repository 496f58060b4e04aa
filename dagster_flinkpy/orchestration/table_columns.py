"""The columns of a table, as Dagster shows them."""

from __future__ import annotations

from dagster import TableColumn

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of

__all__ = ["table_columns"]


def table_columns(type_info: TypeInformation) -> list[TableColumn]:
    """Returns the columns of records, or none if they have no declared type."""
    if isinstance(type_info, PickledBytesTypeInfo):
        return []
    return [TableColumn(name, kind.arrow_name) for name, kind in columns_of(type_info).items()]
