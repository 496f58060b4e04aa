"""String keys that repeat within a buffer: they are sent, hashed and looked up once."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.runtime.shuffle.batch import KeyColumn
from dagster_flinkpy.runtime.shuffle.key_columns import key_of_fields
from dagster_flinkpy.state.keys import hash_keys

__all__ = ["KeyDictionary", "keys_of"]

ROWS = 512
"""A buffer with fewer rows is sent as it is."""
REPEATED = 4
"""How often keys must occur, on average."""
RESTS = 63
"""How many buffers are sent as they are after one whose keys did not repeat: finding that out takes time."""


class KeyDictionary:
    """Replaces the keys of buffers by a dictionary, and leaves out their hashes, if keys repeat enough.

    What it does depends only on the buffers so far, so a task that runs again sends the same.
    """

    def __init__(self) -> None:
        self._rests = 0

    def encode(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Returns what to send for the records of a keyed edge."""
        if records.num_rows < ROWS:
            return records
        metadata, values = records.schema.metadata, records.column("value")
        if not _is_text(metadata[b"key_type"]) or b"seldom_repeat" in metadata or values.null_count:
            return records
        names = records.schema.names
        field = None if "key" in names else json.loads(metadata[b"key_fields"])
        keys = records.column("key") if field is None else key_of_fields(values, field)
        if self._rests:
            self._rests -= 1
            return records
        encoded = keys.dictionary_encode()
        if len(encoded.dictionary) * REPEATED > len(encoded):
            self._rests = RESTS
            return records
        columns = {name: records.column(name) for name in names if name != "hash"}
        if field is None:
            columns["key"] = encoded
        else:
            columns["value"] = _with_field(values, field, encoded)
        return pa.RecordBatch.from_pydict(columns, metadata=metadata)


@lru_cache(maxsize=256)
def _is_text(key_type: bytes) -> bool:
    return bool(pa.types.is_string(type_from_json(json.loads(key_type)).arrow_type))


def keys_of(batch: pa.RecordBatch, key_type: TypeInformation) -> tuple[pa.Array[Any], KeyColumn]:
    """Returns the records of a buffer of a keyed edge, and their keys. The records have no dictionary."""
    values, names = batch.column("value"), batch.schema.names
    field = None if "key" in names else json.loads(batch.schema.metadata[b"key_fields"])
    column = batch.column("key") if field is None else key_of_fields(values, field)
    if not isinstance(column, pa.DictionaryArray):
        return values, KeyColumn(key_type, column, batch.column("hash").to_numpy())
    plain = column.dictionary_decode()
    if field is not None:
        values = _with_field(values, field, plain)
    hashes = hash_keys(key_type, column.dictionary)[column.indices.to_numpy()]
    return values, KeyColumn(key_type, plain, hashes, column)


def _with_field(values: Any, position: int, column: pa.Array[Any]) -> pa.Array[Any]:
    columns, fields = values.flatten(), list(values.type)
    columns[position], fields[position] = column, fields[position].with_type(column.type)
    return pa.StructArray.from_arrays(columns, fields=fields)
