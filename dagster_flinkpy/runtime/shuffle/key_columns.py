"""Computes the keys of a batch as a column, and their Java hash codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.arrow_columns import struct_field
from dagster_flinkpy.common.key_types import infer_key_type
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.functions import KeySelector
from dagster_flinkpy.datastream.operator_specs import as_callable
from dagster_flinkpy.datastream.program.job_graph import StreamPartitioner
from dagster_flinkpy.datastream.streams.windowed_stream import NullByteKeySelector
from dagster_flinkpy.errors import TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.runtime.shuffle.batch import KeyColumn, StreamBatch
from dagster_flinkpy.state.keys import hash_keys

__all__ = ["field_positions", "key_column", "key_of_fields", "key_values"]


def key_column(partitioner: StreamPartitioner, batch: StreamBatch) -> KeyColumn:
    """Computes the keys of a batch and their hashes; raises like :func:`key_values`."""
    key_type, column = key_values(partitioner, batch)
    return KeyColumn(key_type, column, hash_keys(key_type, column))


def key_values(partitioner: StreamPartitioner, batch: StreamBatch) -> tuple[TypeInformation, pa.Array]:
    """Computes the keys of a batch, without their hashes.

    Raises:
        TypeMismatchError: A key is not of the declared type, or keys without a declared type have several types.
        UnsupportedKeyTypeError: A key is None or has no stable hash; the message names the field.
        UserFunctionError: The key selector raised.
    """
    selector = partitioner.selector
    if isinstance(selector, str):
        key_type = _field_type(batch, selector)
        column = key_of_fields(batch.column, field_positions(batch.type_info, selector))
    elif isinstance(selector, tuple):
        key_type = TupleTypeInfo([_field_type(batch, name) for name in selector])
        column = key_of_fields(batch.column, field_positions(batch.type_info, selector))
    elif isinstance(selector, NullByteKeySelector):
        key_type, column = Types.LONG(), pa.array(np.zeros(len(batch), dtype=np.int64))
    else:
        get_key = as_callable(selector, KeySelector, "get_key")
        keys = [get_key(v) for v in batch.lent(get_key)]
        key_type = partitioner.key_type or infer_key_type(keys[0])
        try:
            column = key_type.to_arrow(keys)
        except TypeMismatchError:
            if partitioner.key_type is None:
                _check_one_type(keys, key_type)
            raise
        _check_no_null("the key", column, batch)
        if partitioner.key_type is None and _is_mixed(keys):
            _check_one_type(keys, key_type)
    return key_type, column


def _is_mixed(keys: Sequence[Any]) -> bool:
    """Says whether keys have several classes. A column of floats takes an int, but the next batch may begin with it."""
    first, *others = set(map(type, keys))
    return bool(others) or (issubclass(first, (tuple, Row)) and any(map(_is_mixed, zip(*keys, strict=False))))


def _check_one_type(keys: Sequence[Any], key_type: TypeInformation) -> None:
    other = next(((key, kind) for key in keys[1:] if (kind := infer_key_type(key)) != key_type), None)
    if other is not None:
        raise TypeMismatchError(
            f"keys have two types: {keys[0]!r} is {key_type}, {other[0]!r} is {other[1]}; convert them to one type in "
            "the key selector"
        )


def _check_no_null(name: str, column: pa.Array, batch: StreamBatch) -> None:
    if column.null_count:
        i = pc.index(column.is_null(), True).as_py()
        raise UnsupportedKeyTypeError(f"{name} of record {batch.values[i]!r} is None; filter such records out first")
    if pa.types.is_struct(column.type):
        for i, child in enumerate(column.flatten()):
            _check_no_null(f"field {column.type[i].name!r} of the key", child, batch)


def _field_type(batch: StreamBatch, name: str) -> TypeInformation:
    """Returns the type of a key field, after checking that no record has null in it."""
    row_type = batch.type_info
    if not isinstance(row_type, RowTypeInfo) or name not in row_type.field_names:
        raise UnsupportedKeyTypeError(f"key_by({name!r}): the stream's type {row_type} has no field of this name")
    position = row_type.field_names.index(name)
    column = struct_field(batch.column, position)
    if column.null_count:
        raise UnsupportedKeyTypeError(
            f"key field {name!r} is null in {column.null_count} records; filter them out first"
        )
    return row_type.field_types[position]


def field_positions(record_type: TypeInformation, selector: str | Sequence[str]) -> int | list[int]:
    """Returns the positions of a selector's fields; PyArrow would interpret some field names as paths."""
    assert isinstance(record_type, RowTypeInfo)
    names = record_type.field_names
    return names.index(selector) if isinstance(selector, str) else [names.index(name) for name in selector]


def key_of_fields(values: pa.Array, positions: int | Sequence[int]) -> pa.Array:
    """Returns the column of one field, or a struct column of several fields."""
    if isinstance(positions, int):
        return struct_field(values, positions)
    columns = [struct_field(values, i) for i in positions]
    return pa.StructArray.from_arrays(columns, names=[f"f{i}" for i in range(len(columns))])
