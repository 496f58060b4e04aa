"""How records wait for their transaction: as Parquet files of keys and values."""

from __future__ import annotations

from typing import Any, ClassVar

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.connectors.commit.table_sink import TableSink
from dagster_flinkpy.storage import StorageLocation

__all__ = ["STAGED_RECORD", "StagedRecords", "staging_location"]

_BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())
STAGED_RECORD = Types.ROW_NAMED(["key", "value"], [_BYTES, _BYTES])
"""A staged record."""


def staging_location(call: str, folder: Any) -> StorageLocation:
    """Returns the location of a folder.

    Raises:
        ConfigurationError: It is no folder.
    """
    check_argument(call, folder, (str, StorageLocation), "a folder: a path, s3://..., or a StorageLocation")
    return StorageLocation(folder) if isinstance(folder, str) else folder


class StagedRecords(TableSink):
    """The files of a folder.

    Args:
        location: The folder.
    """

    file_format: ClassVar[str] = "parquet"
    compressions: ClassVar[dict[str, str]] = {"zstd": ""}

    def __init__(self, location: StorageLocation) -> None:
        super().__init__(location, compression="zstd")

    def validate_column(self, name: str, type_info: TypeInformation) -> None:
        """Accepts the only two columns that there are."""
