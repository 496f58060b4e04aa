"""The lines of a benchmark."""

from __future__ import annotations

import operator
from typing import Any

_HOLDS = {">=": operator.ge, "<=": operator.le}


def line(
    metric: str, value: float, unit: str, *, peer: str = "", bar: str = "", settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One result.

    Args:
        metric: Its name.
        value: What was measured.
        unit: Of the value; ``ratio`` has none.
        peer: What it is compared with.
        bar: What it must reach, e.g. ``>= 0.6``; empty: nothing.
        settings: Of both sides.
    """
    holds = None
    if bar:
        sign, _, limit = bar.partition(" ")
        holds = bool(_HOLDS[sign](value, float(limit)))
    return {
        "metric": metric,
        "value": round(value, 4),
        "unit": unit,
        "peer": peer,
        "bar": bar,
        "holds": holds,
        "settings": settings or {},
    }
