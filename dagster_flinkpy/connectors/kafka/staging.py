"""How records wait for their transaction: as Parquet files of keys and values."""

from __future__ import annotations

from typing import Any

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.storage import StorageLocation

__all__ = ["STAGED_RECORD", "staging_location"]

_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
STAGED_RECORD = Types.ROW_NAMED(["key", "value"], [_BYTES, _BYTES])
"""A staged record."""


def staging_location(call: str, folder: Any) -> StorageLocation:
    """Returns the location of a folder."""
    check_argument(call, folder, (str, StorageLocation), "a folder: a path, s3://..., or a StorageLocation")
    return StorageLocation(folder) if isinstance(folder, str) else folder
