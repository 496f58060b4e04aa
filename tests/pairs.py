"""Few combinations of arguments, where all would repeat each other."""

from __future__ import annotations

import os
from itertools import combinations, product
from typing import Any

__all__ = ["pairs"]


def pairs(*values: Any) -> list[tuple[Any, ...]]:
    """Returns combinations in which each two values of different arguments meet; all if ``SOAK`` is set.

    Args:
        values: The values of each argument.
    """
    cases = list(product(*(range(len(each)) for each in values)))
    if "SOAK" in os.environ:
        return list(product(*values))
    met = {case: set(combinations(enumerate(case), 2)) for case in cases}
    left, found = set().union(*met.values()), []
    while left:
        best = max(cases, key=lambda case: len(met[case] & left))
        left -= met[best]
        found.append(tuple(of[i] for of, i in zip(values, best, strict=True)))
    return found
