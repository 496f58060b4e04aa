"""When a job that runs on looks for input: an epoch begins only when there is some."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.runtime.master.region_execution import RegionExecution

__all__ = ["InputWatch"]


class InputWatch:
    """Looks for input of all regions that read any from outside the job. The master's thread calls it.

    Args:
        readers: These regions.
        now: Tells milliseconds since 1970.
    """

    def __init__(self, readers: Sequence[RegionExecution], now: Callable[[], int]) -> None:
        self._readers, self._now = tuple(readers), now
        self._looking = 0
        self._found = False
        self._due_ms = 0

    @property
    def looking(self) -> bool:
        """Whether it looks at the moment."""
        return self._looking > 0

    @property
    def due_ms(self) -> int | None:
        """When to look, in milliseconds since 1970; None as long as one of the regions is busy."""
        return self._due_ms if not self.looking and all(region.idle for region in self._readers) else None

    def look(self) -> None:
        """Looks for input, if it is time."""
        if self.due_ms is not None and self.due_ms <= self._now():
            self._looking, self._found = len(self._readers), False
            for region in self._readers:
                region.look()

    def on_looked(self, region: RegionExecution, *, found: bool) -> bool:
        """Takes the answer of a region. Returns whether all have answered, and an epoch must read what was found."""
        region.on_looked(found=found)
        self._looking -= 1
        self._found |= found
        if not self._looking and not self._found:
            waits = min(each.planner.splits.discovery_interval for each in self._readers)
            self._due_ms = self._now() + to_millis(waits)
        return not self._looking and self._found
