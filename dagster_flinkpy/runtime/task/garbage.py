"""How often Python looks for cycles of objects while a task runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collect_rarely", "collecting_rarely"]


def collect_rarely() -> None:
    """Makes the garbage collector run rarely in this process.

    Records are many small objects without cycles. With the default threshold of 700 they are scanned over and over.
    """
    gc.set_threshold(200_000, 20, 100)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """As :func:`collect_rarely`, until the end of a ``with`` block."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)
