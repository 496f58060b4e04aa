"""What a program was given, as it was then: PyFlink pickles functions when they are given to a stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dagster_flinkpy import code_pickling
from dagster_flinkpy.datastream.functions import Function

__all__ = ["Given"]

T = TypeVar("T")


@dataclass
class Given(Generic[T]):
    """A value with user code, which keeps the variables that the code reads as they were.

    So functions that are made in a loop have each its own value of the loop's variable, as in PyFlink. Code whose
    variables have not changed stays the same object, and one that cannot be pickled or unpickled, too: a program in
    one process may share it with its functions.
    """

    value: T
    has_code: bool = field(default=True, compare=False)
    """Whether there may be user code in it. What has none is not pickled, which spares an import."""
    _pickled: tuple[bytes, frozenset[str]] | None = field(init=False, repr=False, compare=False)
    _make: Callable[[], T] | None = field(init=False, repr=False, compare=False, default=None)
    """Makes it anew beside its classes, as long as these have not changed."""

    def __post_init__(self) -> None:
        self._pickled = _pickled(self.value) if self.has_code else None
        if self._pickled is not None and self._pickled[1]:
            with suppress(Exception):
                self._make = code_pickling.maker(self.value, Function)(self.value)

    def as_given(self) -> T:
        """Returns the value as it was when the program was given it."""
        if self._pickled is not None and self._pickled != (now := _pickled(self.value)):
            (data, classes), make = self._pickled, self._make
            with suppress(Exception):  # as from a session of Spark Connect that has ended
                same = make is not None and now is not None and now[1] == classes
                self.value = make() if make is not None and same else code_pickling.loads_as_it_was(data)
            self._pickled = self._make = None
        return self.value


def _pickled(value: Any) -> tuple[bytes, frozenset[str]] | None:
    with suppress(Exception):  # of whatever the code refers to
        return code_pickling.dumps_with_classes(value)
    return None
