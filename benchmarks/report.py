"""The output lines of a benchmark."""

from __future__ import annotations

import operator
from typing import Any

_HOLDS = {">=": operator.ge, "<=": operator.le}


def line(
    metric: str, value: float, unit: str, *, peer: str = "", bar: str = "", settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the line of one result.

    Args:
        metric: Name of the metric.
        value: The measured value.
        unit: Unit of the value, such as ``ratio of time``.
        peer: What it is compared with.
        bar: What the value must reach, such as ``>= 0.6``, or an empty string.
        settings: The settings of both sides.
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
