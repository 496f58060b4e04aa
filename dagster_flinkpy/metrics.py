"""Metrics of user functions (``pyflink.metrics``): ``runtime_context.get_metrics_group().counter("name")``.

Their values are part of the acknowledgement of each subtask, so they are there for completed checkpoints only. Each
epoch starts with new ones: they say what happened since the barrier before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]


class Metric(ABC):
    """Base of the metrics."""

    @abstractmethod
    def values(self) -> dict[str, int | float]:
        """What to report, by suffix of the metric's name; the suffix may be empty."""


class Counter(Metric):
    """Counts up and down."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Counts up."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Counts down."""
        self.inc(-n)

    def get_count(self) -> int:
        """The count."""
        return self._count

    def values(self) -> dict[str, int | float]:
        return {"": self._count}


class Meter(Metric):
    """Counts events; an epoch's duration makes a rate of it."""

    def __init__(self) -> None:
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Counts events."""
        self._count += value

    def get_count(self) -> int:
        """Events so far."""
        return self._count

    def values(self) -> dict[str, int | float]:
        return {"": self._count}


class Distribution(Metric):
    """Sum, count, least and greatest of whole numbers."""

    def __init__(self) -> None:
        self._sum, self._count = 0, 0
        self._min: int | None = None
        self._max: int | None = None

    def update(self, value: int) -> None:
        """Takes a number."""
        self._sum += value
        self._count += 1
        self._min = value if self._min is None else min(self._min, value)
        self._max = value if self._max is None else max(self._max, value)

    def values(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {".count": self._count, ".sum": self._sum}
        if self._min is not None and self._max is not None:
            found |= {".min": self._min, ".max": self._max}
        return found


class _Gauge(Metric):
    def __init__(self, obj: Callable[[], int]) -> None:
        self._obj = obj

    def values(self) -> dict[str, int | float]:
        return {"": self._obj()}


class MetricGroup:
    """Metrics under a common name.

    Args:
        path: The names of the groups around it.
    """

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path
        self._metrics: dict[str, Metric] = {}
        self._groups: dict[str, MetricGroup] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """The group of this name inside this one; with ``extra`` the group of that name inside it."""
        group = self._groups.setdefault(name, MetricGroup((*self._path, name)))
        return group if extra is None else group.add_group(extra)

    def counter(self, name: str) -> Counter:
        """A new counter."""
        counter = Counter()
        self._metrics[name] = counter
        return counter

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """A number that is asked for at the barrier."""
        self._metrics[name] = _Gauge(obj)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """A new meter.

        Args:
            name: Its name.
            time_span_in_seconds: Without effect: the events of an epoch are counted.
        """
        meter = Meter()
        self._metrics[name] = meter
        return meter

    def distribution(self, name: str) -> Distribution:
        """A new distribution."""
        distribution = Distribution()
        self._metrics[name] = distribution
        return distribution

    def values(self) -> dict[str, int | float]:
        """All values by name: ``group.name``."""
        found = {
            ".".join((*self._path, name)) + suffix: value
            for name, metric in self._metrics.items()
            for suffix, value in metric.values().items()
        }
        for group in self._groups.values():
            found |= group.values()
        return found
