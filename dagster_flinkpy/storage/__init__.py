"""Floor 2: object stores with conditional writes, and the lease built on them."""

from dagster_flinkpy.storage.location import StorageLocation, warn_if_relative
from dagster_flinkpy.storage.object_store import (
    ObjectInfo,
    ObjectStore,
    UploadedPart,
    UploadInfo,
    check_relative,
)

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "StorageLocation",
    "UploadInfo",
    "UploadedPart",
    "check_relative",
    "warn_if_relative",
]
