"""The number of examples of property tests: few in CI, more in `make soak`."""

from __future__ import annotations

import os

__all__ = ["examples"]


def examples(count: int) -> int:
    """Returns the count times the environment variable ``SOAK``, which is 1 by default."""
    return count * int(os.environ.get("SOAK", "1"))
