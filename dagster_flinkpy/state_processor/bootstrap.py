"""Turns data frames into the rows of a keyed state (Flink: ``StateBootstrapTransformation``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.datastream.state import ListStateDescriptor, StateDescriptor
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import TableLayout, check_key_like, make_sort_keys, sort_identities, unplaced_rows
from dagster_flinkpy.state.views import layout_of

__all__ = ["Columns", "bootstrap_table", "keyed_rows", "to_arrow_table"]

Columns = str | Sequence[str]
"""The name of a column, or several names: the fields of a row or tuple, in the order of its type."""

_KEY_TYPES: dict[pa.DataType, Callable[[], TypeInformation]] = {
    pa.bool_(): Types.BOOLEAN,
    pa.int8(): Types.BYTE,
    pa.int16(): Types.SHORT,
    pa.int32(): Types.INT,
    pa.int64(): Types.LONG,
    pa.float32(): Types.FLOAT,
    pa.float64(): Types.DOUBLE,
    pa.string(): Types.STRING,
    pa.large_string(): Types.STRING,
    pa.string_view(): Types.STRING,
}


def to_arrow_table(data: Any) -> pa.Table:
    """Converts an Arrow table, a pandas, Polars or Spark DataFrame, a dict of columns or a stored state to Arrow."""
    if isinstance(data, pa.Table):
        return data
    for method in ("to_arrow", "toArrow"):  # Polars and stored state; Spark
        if hasattr(type(data), method):  # not on the instance: a Spark DataFrame has any name, as a column
            return getattr(data, method)()
    return pa.table(data)


def bootstrap_table(
    descriptor: StateDescriptor,
    data: pa.Table,
    *,
    key: Columns,
    value: Columns,
    map_key: Columns | None,
    key_type: TypeInformation | None,
    now: int,
) -> tuple[TableLayout, pa.Table]:
    """Builds the rows of a keyed state, all in key group 0. :func:`in_key_groups` assigns their key groups.

    Args:
        descriptor: Descriptor of the state.
        data: One row per key; for list state one per element, for map state one per entry.
        key: Columns of the key.
        value: Columns of the value.
        map_key: Columns of the map key, for map state only.
        key_type: Type of the key. Default: the type of the column, or a tuple if there are several.
        now: When state with a time to live counts as written, in milliseconds since 1970 (UTC).

    Raises:
        ConfigurationError: A column is missing, or a key is null or occurs twice.
        TypeMismatchError: A value of a column is not of the declared type.
        UnsupportedKeyTypeError: The type is not allowed for a key or map key.
    """
    what = f"state {descriptor.name!r}"
    key_type = key_type or _key_type_of(data, key, what)
    check_key_like(key_type, f"the key of {what}")
    layout = layout_of(descriptor, key_type)
    columns = {"key": _column(data, key, key_type, f"{what}: the key")}
    keys: Any = columns["key"]
    for part in (keys, *(keys.flatten() if pa.types.is_struct(keys.type) else ())):
        if part.null_count:
            raise ConfigurationError(f"{what}: {part.null_count} rows have a null in their key")
    if layout.map_key_type is not None and map_key is not None:
        check_key_like(layout.map_key_type, f"the map key of {what}")
        columns["map_key"] = _column(data, map_key, layout.map_key_type, f"{what}: the map key")
    elif map_key is not None or layout.kind == "MAP":
        raise ConfigurationError(f"{what}: map state needs map_key, and no other state takes it")
    element_type = descriptor.elem_type_info if isinstance(descriptor, ListStateDescriptor) else layout.value_type
    assert element_type is not None
    columns["value"] = _column(data, value, element_type, f"{what}: the value")
    config = descriptor.ttl_config
    return layout, keyed_rows(layout, columns, 0 if config is None else now + config.ttl_millis)


def keyed_rows(layout: TableLayout, columns: dict[str, pa.Array[Any]], expires: int = 0) -> pa.Table:
    """Builds the rows of a keyed state or of timers, all in key group 0.

    Args:
        layout: The state.
        columns: ``key``, and ``value``, ``map_key`` or ``time``, of these types; of list state one row per element, in
            order.
        expires: With a time to live, when all values expire, in milliseconds since 1970 (UTC). A column ``expires_at``
            says it of each. Default: not used.

    Raises:
        ConfigurationError: A key occurs twice.
    """
    if layout.kind in ("VALUE", "REDUCING", "AGGREGATING"):  # here, null means no value
        present = columns["value"].is_valid()
        columns = {name: column.filter(present) for name, column in columns.items()}
    hashes = hash_keys(layout.key_type, columns["key"])
    sort_keys = make_sort_keys(np.zeros(len(hashes), dtype=np.uint16), hashes)
    identity = [columns[name] for name in layout.identity]
    order, starts = sort_identities(sort_keys, identity)
    first = np.flatnonzero(starts)
    columns = {name: column.take(pa.array(order)) for name, column in columns.items()}
    columns.setdefault("expires_at", pa.array(np.full(len(order), expires, dtype=np.int64)))
    if layout.kind == "LIST":
        offsets = pa.array(np.append(first, len(order)).astype(np.int32))
        listed = layout.local_schema.field("value").type
        columns["value"] = pa.ListArray.from_arrays(offsets, columns["value"], type=listed)
        columns["expires_at"] = pa.ListArray.from_arrays(offsets, columns["expires_at"])
        columns["key"] = columns["key"].take(pa.array(first))
    elif len(first) < len(order):
        again = int(np.setdiff1d(np.arange(len(order)), first)[0])
        shown = {name: columns[name][again].as_py() for name in layout.identity}
        raise ConfigurationError(f"state {layout.name!r}: several rows have {shown}, but a key has only one value")
    return unplaced_rows(layout, columns, hashes[order][first])


def _key_type_of(data: pa.Table, key: Columns, what: str) -> TypeInformation:
    names = [key] if isinstance(key, str) else list(key)
    kinds = []
    for name in names:
        kind = _KEY_TYPES.get(_named(data, name, what).type)
        if kind is None:
            raise TypeMismatchError(f"{what}: the key column {name!r} is {data.column(name).type}; pass key_type")
        kinds.append(kind())
    return kinds[0] if isinstance(key, str) else Types.TUPLE(kinds)


def _column(data: pa.Table, names: Columns, kind: TypeInformation, what: str) -> pa.Array[Any]:
    """Builds a column of a type from one column, or from one column per field."""
    if isinstance(names, str):
        return fit_column(one_chunk(_named(data, names, what)), kind, f"{what}, column {names!r}")
    if not isinstance(kind, (RowTypeInfo, TupleTypeInfo)):
        raise ConfigurationError(f"{what} is {kind!r}: pass one column, not {list(names)}")
    if len(names) != len(kind.field_types):
        raise ConfigurationError(
            f"{what} has the fields {list(kind.field_names)}, but was given the columns {list(names)}"
        )
    children = [_column(data, name, field, what) for name, field in zip(names, kind.field_types, strict=True)]
    return pa.StructArray.from_arrays(children, fields=list(kind.arrow_type))


def _named(data: pa.Table, name: str, what: str) -> pa.ChunkedArray[Any]:
    if name not in data.column_names:
        raise ConfigurationError(f"{what}: there is no column {name!r}; the columns are {data.column_names}")
    return data.column(name)
