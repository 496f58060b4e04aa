"""The paths of the files of operator state, as named by the metadata.

A partition is the unit of redistribution. It is a JSON object: ``{"arrow": base64}`` contains a record batch, and
``{"file": sha256, "by": writer, "row": n}`` stands for a row of ``shared/<writer>-<sha256>.parquet``, or for all rows
if there is no ``row``. (Older metadata has no ``by``; the file is then ``shared/<sha256>.parquet``.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dagster_flinkpy.errors import CorruptMetadataError

__all__ = ["file_of", "files_of", "sha256_of", "state_file"]

Json = Any
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WRITER = re.compile(r"[0-9a-z-]{1,64}")


def state_file(sha256: str, written_by: str = "") -> str:
    """Returns the path of a state file, relative to the job's prefix.

    Args:
        sha256: The SHA-256 of its content.
        written_by: The execution attempt and the checkpoint. Two attempts never write files of the same name, so if an
            older attempt deletes files late, it cannot delete those of a newer one. Default: none, for a folder that is
            written only once.
    """
    return f"shared/{written_by}-{sha256}.parquet" if written_by else f"shared/{sha256}.parquet"


def file_of(partition: Json) -> str | None:
    """Returns the path of a partition's file, relative to the job's prefix, or None if it is in the metadata.

    Raises:
        CorruptMetadataError: The name of the file is malformed.
    """
    sha256 = partition.get("file") if isinstance(partition, dict) else None
    if sha256 is None:
        return None
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise CorruptMetadataError(f"operator state names a file by {sha256!r}, which is not a SHA-256 checksum")
    written_by = partition.get("by", "")
    if not isinstance(written_by, str) or (written_by and not _WRITER.fullmatch(written_by)):
        raise CorruptMetadataError(f"operator state names a file by {written_by!r}, which is not a valid writer")
    return state_file(sha256, written_by)


def sha256_of(path: str) -> str:
    """Returns the checksum in the path of a state file or of a segment of a blocking edge."""
    return path.removesuffix(".parquet").removesuffix(".arrow")[-64:]


def files_of(partitions: Iterable[Json]) -> set[str]:
    """Returns the paths of all files that some partitions are in."""
    return {path for partition in partitions if (path := file_of(partition)) is not None}
