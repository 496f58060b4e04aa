"""The files that a source finds in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dagster_flinkpy.errors import (
    ConfigurationError,
    InputChangedError,
    InputTypeError,
    PathEscapesPrefixError,
    SourceReadError,
    StorageError,
    TypeMismatchError,
)
from dagster_flinkpy.storage import ObjectInfo, ObjectStore
from dagster_flinkpy.storage.object_store import check_relative

__all__ = ["input_files", "is_hidden", "reading"]


def is_hidden(key: str) -> bool:
    """Returns whether a source ignores a file: a part of its path begins with ``_`` or ``.``.

    As in Spark, a folder of the rows with a value in a column is no such part, even if the column is ``_day``.
    """
    *folders, name = key.split("/")
    return name.startswith((".", "_")) or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in folders
    )


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turns errors with a file into SourceReadErrors that name it."""
    import pyarrow as pa

    try:
        yield
    except TypeMismatchError as error:
        raise InputTypeError(f"cannot read {url}: {error}") from error
    except InputChangedError as error:
        raise InputChangedError(f"cannot read {url}: {error}") from error
    except (pa.ArrowException, OSError, ValueError, StorageError, SourceReadError, ConfigurationError) as error:
        raise SourceReadError(f"cannot read {url}: {error}") from error


def input_files(
    store: ObjectStore, selects: Callable[[str], bool] = lambda key: True, prefix: str = ""
) -> list[ObjectInfo]:
    """Lists the files of a source that are not hidden, sorted by name. Links in a local folder are followed.

    What cannot be read as a file, would be read twice, or has a name that cannot be part of a position is an error.
    """
    found = [
        info
        for info in store.list_input(lambda key: not is_hidden(key) and (key.endswith("/") or selects(key)), prefix)
        # S3 consoles make an empty object for a folder.
        if selects(info.key) and (info.size or info.key.rpartition("/")[2])
    ]
    for info in found:
        try:
            check_relative(info.key).encode()
        except (PathEscapesPrefixError, UnicodeEncodeError) as error:
            raise InputChangedError(
                f"the file {info.key!r} in {store.url} has a name that sources do not read: rename it to one of UTF-8 "
                "without line ends, other control characters, backslashes and empty parts, or move it away"
            ) from error
    return found
