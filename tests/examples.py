"""The number of examples of property tests: few in `make test`, many in `make soak`."""

from __future__ import annotations

import os

__all__ = ["examples"]

_SHARE = float(os.environ.get("SOAK", "0.1"))
_FEWEST = 4


def examples(count: int) -> int:
    """Returns how many examples a test runs.

    Args:
        count: The usual number. The environment variable ``SOAK`` multiplies it; without it, one in ten is run.
    """
    return max(min(count, _FEWEST), round(count * _SHARE))
