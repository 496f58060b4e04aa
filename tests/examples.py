"""How many examples a property test tries: few in CI, more in `make soak`."""

from __future__ import annotations

import os

__all__ = ["examples"]


def examples(count: int) -> int:
    """So many, times the environment variable ``SOAK`` (1 if it is not set)."""
    return count * int(os.environ.get("SOAK", "1"))
