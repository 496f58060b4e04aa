"""Reads data files of Delta Lake and Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.columns.column_casts import cast_column, from_text, moment_of, row_type_of
from dagster_flinkpy.connectors.lake.table_source import TableSource
from dagster_flinkpy.connectors.sources.input_files import open_parquet, reading, rows_from
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.errors import InputChangedError, ObjectNotFoundError

__all__ = ["count_rows", "read_table_file", "table_row_type"]

_FIELD_ID = b"PARQUET:field_id"
_CHANGE = "_change_type"
"""The column in which a file of changes of Delta Lake says what happened to a row."""
_KINDS = {"-": {"delete": "-D", "update_preimage": "-U"}, "+": {"insert": "+I", "update_postimage": "+U"}}


def read_table_file(source: TableSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads a data file from the split's offset to its stop."""
    is_change = split.properties.get("kind") in _KINDS
    for column, position in source.resumed(split, partial(_rows, source)):
        yield column.filter(column.field("row_kind").is_valid()) if is_change else column, position


def _rows(source: TableSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads a data file from the split's offset to its end.

    A column has the name that it has in the table, or, if both have ids, the id. A column that the file does not have
    has the file's partition value, or is null.
    """
    with _opened(source, split) as file:
        _check_fields(file.schema_arrow, split)
        columns = _columns(file.schema_arrow, split)
        there = [columns[name] for name in source.table_type.field_names if name in columns]
        there += [_CHANGE] if split.properties.get("kind") in _KINDS else []
        for rows, position in rows_from(file, range(file.num_row_groups), there, source.batch_rows, split.offset):
            yield _struct(source, split, rows, columns), position


def table_row_type(source: TableSource) -> RowTypeInfo:
    """Returns the columns that a source's table has now."""
    return row_type_of(source.log().schema())


def count_rows(source: TableSource, split: SourceSplit) -> int:
    """Returns the number of rows of a data file. Only its footer is read."""
    with _opened(source, split) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _opened(source: TableSource, split: SourceSplit) -> Iterator[pq.ParquetFile]:
    """Opens a data file, and turns errors with it into SourceReadErrors that name it."""
    store, path = source.location.open(), split.properties["path"]
    with reading(f"{store.url}/{path}"):
        try:
            with open_parquet(store, path, split.properties["size"]) as file:
                yield file
        except ObjectNotFoundError as error:
            raise InputChangedError(
                "it is gone, and its rows were not read yet: VACUUM, or the expiry of snapshots, has deleted it, or "
                "the table was moved. Put it back and run again. If it cannot be put back, start from empty state to "
                "read the table as it is now, and let files be kept for longer"
            ) from error


def _columns(schema: pa.Schema, split: SourceSplit) -> dict[str, str]:
    """Returns the names of columns in the file, by their names in the table."""
    ids = {(field.metadata or {}).get(_FIELD_ID): field.name for field in schema}
    ids.pop(None, None)
    if not ids or "ids" not in split.properties:
        former = split.properties.get("names", {})
        own = {name: name for name in schema.names if name not in former}
        return own | {name: there for name, names in former.items() for there in names if there in schema.names}
    named = {name: ids.get(str(number).encode()) for name, number in split.properties["ids"].items()}
    return {name: found for name, found in named.items() if found is not None}


def _check_fields(schema: pa.Schema, split: SourceSplit) -> None:
    """Checks that the fields in columns have the names that they have in the table: they are found by these only."""
    changed = split.properties.get("changed", {})
    for name, field_id in _fields_in(list(schema), "") if changed else ():
        if name in changed and (field_id is None or field_id != changed[name]):
            raise InputChangedError(
                f"it has the field {name!r}, which was renamed, or dropped and added again, in the table. Rename "
                "it back, or rewrite the files of the table"
            )


def _fields_in(fields: list[pa.Field], prefix: str) -> Iterator[tuple[str, int | None]]:
    """Yields full names and ids of fields, as Iceberg names them."""
    for field in fields:
        name, field_id = f"{prefix}{field.name}", (field.metadata or {}).get(_FIELD_ID)
        yield name, None if field_id is None else int(field_id)
        yield from _fields_in(_children(field.type), f"{name}.")


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field.with_name("element")]
    return [kind.key_field.with_name("key"), kind.item_field.with_name("value")] if pa.types.is_map(kind) else []


def _struct(source: TableSource, split: SourceSplit, rows: pa.RecordBatch, columns: dict[str, str]) -> pa.Array:
    constants, arrays = split.properties.get("values", {}), []
    for field in source.table_type.arrow_type:
        if field.name in columns:
            arrays.append(cast_column(field.name, rows.column(columns[field.name]), field.type, fills=True))
        else:
            value = constants.get(field.name)
            constant = pa.array([bytes.fromhex(value["hex"]) if isinstance(value, dict) else value])
            if pa.types.is_string(constant.type) and pa.types.is_timestamp(field.type):
                # Delta Lake has the same moment with and without a time zone, and the type is known to be the table's.
                constant = pa.array([moment_of(constant[0].as_py())], pa.timestamp("us", "UTC"))
            elif pa.types.is_string(constant.type):
                constant = from_text(field.name, constant, field.type)
            arrays.append(pa.repeat(constant.cast(field.type)[0], rows.num_rows))
    kind, version = split.properties.get("kind"), split.properties.get("version")
    if kind is not None:
        changes = rows.column(_CHANGE).to_pylist() if kind in _KINDS else []
        kinds = [_KINDS[kind].get(each) for each in changes] or [kind] * rows.num_rows
        arrays += [pa.array(kinds, pa.string()), pa.repeat(version, rows.num_rows)]
    return pa.StructArray.from_arrays(arrays, fields=list(source.produced_type.arrow_type))
