"""A processing-time clock that a test sets."""

from __future__ import annotations

import uuid
from typing import Any
from weakref import WeakValueDictionary

from dagster_flinkpy.common.clock import Clock

__all__ = ["ManualClock"]

_clocks: WeakValueDictionary[str, ManualClock] = WeakValueDictionary()


def _clock(name: str) -> ManualClock:
    return _clocks[name]


class ManualClock(Clock):
    """A clock that stands still until it is set. Tasks unpickle their job, but get this same clock.

    Args:
        time: Milliseconds since 1970. Default: 0.
    """

    def __init__(self, time: int = 0) -> None:
        self.time = time
        self._name = uuid.uuid4().hex
        _clocks[self._name] = self

    def now(self) -> int:
        return self.time

    def __reduce__(self) -> Any:
        return _clock, (self._name,)
