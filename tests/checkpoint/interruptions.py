"""Lets something happen amid the requests to a local store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dagster_flinkpy.storage.local import LocalObjectStore

__all__ = ["Died", "at_request", "dies"]

REQUESTS = ("get", "get_range", "head", "put", "delete", "delete_many", "list", "list_folders")


class Died(BaseException):
    """A process was killed. Nothing of what it would have done after this request happens."""


@contextmanager
def at_request(number: int, happens: Callable[[], None]) -> Iterator[None]:
    """Lets something happen before one of the requests to stores, once; what raises then, does so at all later ones."""
    count, raised, inside = 0, None, False

    def step() -> None:
        nonlocal count, raised
        count += 1
        if raised is None and count == number:
            patch.undo()
            try:
                happens()
            except Died as error:
                raised = error
            install()
        if raised is not None:
            raise raised

    def wrapped(name: str) -> Callable[..., Any]:
        real = getattr(LocalObjectStore, name)

        def request(self: LocalObjectStore, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:  # the store itself looks at the object, under a lock
                return real(self, *args, **kwargs)
            step()
            inside = True
            try:
                return real(self, *args, **kwargs)
            finally:
                inside = False

        return request

    def install() -> None:
        for name, request in requests.items():
            patch.setattr(LocalObjectStore, name, request)

    requests = {name: wrapped(name) for name in REQUESTS}
    with pytest.MonkeyPatch.context() as patch:
        install()
        yield


def dies() -> None:
    raise Died
