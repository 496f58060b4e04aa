"""Prefixes whose files are read from other prefixes beside them, such as the state of a forked job.

``origins/{name}`` says that files of the prefix may be in another one, whose path below the same parent is the quoted
name. Nothing is written or deleted there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, unquote

from dagster_flinkpy.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from dagster_flinkpy.storage.object_store import ObjectStore

__all__ = ["ORIGINS_FOLDER", "READ_FROM_ORIGINS", "add_origins", "origins_of", "reads_origins"]

ORIGINS_FOLDER = "origins/"
READ_FROM_ORIGINS = ("shared/", "exchange/")
"""The folders whose files may be in another prefix. The name of such a file tells its content."""

P = ParamSpec("P")
T = TypeVar("T")


def add_origins(store: ObjectStore, paths: Iterable[str]) -> None:
    """Lets files of a prefix be read from others, too.

    Args:
        store: The store, rooted at the prefix.
        paths: The paths of the others, relative to the parent of the prefix.
    """
    for path in paths:
        store.put(ORIGINS_FOLDER + quote(path, safe=""), b"")


def origins_of(store: ObjectStore) -> list[str]:
    """Returns what :func:`add_origins` was given for a prefix.

    Args:
        store: The store, rooted at the prefix.
    """
    return [unquote(info.key.removeprefix(ORIGINS_FOLDER)) for info in store.list(ORIGINS_FOLDER)]


def reads_origins(
    read: Callable[Concatenate[Any, str, P], T],
) -> Callable[Concatenate[Any, str, P], T]:
    """Lets a method that reads an object look for it in the origins of the prefix if it is not there."""

    @wraps(read)
    def read_anywhere(store: Any, key: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(store, key, *args, **kwargs)
        except ObjectNotFoundError:
            if not key.startswith(READ_FROM_ORIGINS):
                raise
            for path in origins_of(store):
                try:
                    return read(store.beside(path), key, *args, **kwargs)
                except ObjectNotFoundError:
                    continue
            raise

    return read_anywhere
