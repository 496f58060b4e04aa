"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Verdict"]


class Verdict(str, Enum):
    """Whether jobs can run."""

    FINE = "fine"
    WARNING = "warning"
    """Jobs run, but something should be improved."""
    BROKEN = "broken"
    """Jobs cannot run."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    verdict: Verdict
    detail: str
    advice: str = ""
    """What to do; empty if everything is fine."""
