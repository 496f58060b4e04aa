"""Waiting for events in tests. How long something takes depends on what else the machine does, so nobody asks that."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LIMIT", "until"]

LIMIT = 240
"""Seconds after which what was waited for will never come: the test is to say so before pytest ends it (300)."""


def until(holds: Callable[[], object], what: str) -> None:
    """Waits for something that cannot be waited for otherwise, such as a file that another process writes.

    Args:
        holds: Returns whether it is so.
        what: For the message if it never is.

    Raises:
        TimeoutError: It was not so for four minutes.
    """
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {LIMIT} s")
        time.sleep(0.01)
