"""Processing time: the clock a task is given."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

__all__ = ["Clock", "SystemClock"]


class Clock(ABC):
    """Tells processing time. Travels with the epoch, so a test can give its own."""

    @abstractmethod
    def now(self) -> int:
        """Milliseconds since 1970."""


class SystemClock(Clock):
    """The clock of the machine."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000
