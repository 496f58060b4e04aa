"""Metrics of user functions (``pyflink.metrics``): ``runtime_context.get_metrics_group().counter("name")``.

Their values are part of each subtask's acknowledgement, so they exist for completed checkpoints only. They cover the
time since the previous barrier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from numbers import Integral, Real

from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["LATE_RECORDS_DROPPED", "Counter", "Distribution", "Meter", "Metric", "MetricGroup", "user_metrics"]

LATE_RECORDS_DROPPED = "late_records_dropped"
"""The metric of windows that counts records which came too late for any of them (Flink: ``numLateRecordsDropped``)."""

_MERGES: Mapping[str, Callable[[int | float, int | float], int | float]] = {
    "user": lambda a, b: a + b,
    "user_min": min,
    "user_max": max,
}
"""How the values of subtasks become one, by the first part of the name that they are stored under."""


class Metric(ABC):
    """Base class of the metrics."""

    @abstractmethod
    def values(self) -> dict[str, int | float]:
        """Returns what to report, by suffix of the metric's name; the suffix may be empty."""

    def scope(self, suffix: str) -> str:
        """Returns how the values of subtasks become one: ``user`` for their sum, ``user_min`` or ``user_max``."""
        return "user"

    def reset(self) -> None:  # noqa: B027
        """Begins a new epoch."""


class Counter(Metric):
    """A counter that goes up and down."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Increments the count."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Decrements the count."""
        self.inc(-n)

    def get_count(self) -> int:
        """Returns the count."""
        return self._count

    def values(self) -> dict[str, int | float]:
        return {"": self._count}

    def reset(self) -> None:
        self._count = 0


class Meter(Metric):
    """Counts events. Divided by the duration of the epoch, it is a rate."""

    def __init__(self) -> None:
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Counts events."""
        self._count += value

    def get_count(self) -> int:
        """Returns the number of events so far."""
        return self._count

    def values(self) -> dict[str, int | float]:
        return {"": self._count}

    def reset(self) -> None:
        self._count = 0


class Distribution(Metric):
    """The sum, count, minimum and maximum of integers."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._sum, self._count = 0, 0
        self._min: int | None = None
        self._max: int | None = None

    def update(self, value: int) -> None:
        """Adds a number."""
        self._sum += value
        self._count += 1
        self._min = value if self._min is None else min(self._min, value)
        self._max = value if self._max is None else max(self._max, value)

    def values(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {".count": self._count, ".sum": self._sum}
        if self._min is not None and self._max is not None:
            found |= {".min": self._min, ".max": self._max}
        return found

    def scope(self, suffix: str) -> str:
        return {".min": "user_min", ".max": "user_max"}.get(suffix, "user")


class _Gauge(Metric):
    def __init__(self, name: str, obj: Callable[[], int]) -> None:
        self._name, self._obj = name, obj

    def values(self) -> dict[str, int | float]:
        value = self._obj()
        if not isinstance(value, Real):
            raise TypeMismatchError(f"gauge {self._name!r} returned {value!r}; return a number")
        if isinstance(value, Integral):
            return {"": int(value)}
        return {"": float(value)} if isfinite(value) else {}

    def scope(self, suffix: str) -> str:
        return "user_max"


class MetricGroup:
    """Metrics under a common name.

    Args:
        path: The names of the enclosing groups, and its own.
    """

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path
        self._metrics: dict[str, Metric] = {}
        self._groups: dict[str, MetricGroup] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Returns the group of this name inside this one; with ``extra`` the group of that name inside it."""
        group = self._groups.setdefault(name, MetricGroup((*self._path, name)))
        return group if extra is None else group.add_group(extra)

    def counter(self, name: str) -> Counter:
        """Returns a new counter."""
        counter = Counter()
        self._metrics[name] = counter
        return counter

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Registers a function that returns a number, which is called at each barrier."""
        self._metrics[name] = _Gauge(name, obj)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Returns a new meter.

        Args:
            name: The name of the meter.
            time_span_in_seconds: Has no effect: a meter counts the events of an epoch.
        """
        meter = Meter()
        self._metrics[name] = meter
        return meter

    def distribution(self, name: str) -> Distribution:
        """Returns a new distribution."""
        distribution = Distribution()
        self._metrics[name] = distribution
        return distribution

    def values(self) -> dict[str, int | float]:
        """Returns all values by name: ``group.name``."""
        found = {
            ".".join((*self._path, name)) + suffix: value
            for name, metric in self._metrics.items()
            for suffix, value in metric.values().items()
        }
        for group in self._groups.values():
            found |= group.values()
        return found

    def take(self) -> dict[str, int | float]:
        """Returns all values by the names that a checkpoint stores, ``{scope}.{name}``; begins a new epoch."""
        found = dict[str, int | float]()
        for name, metric in self._metrics.items():
            for suffix, value in metric.values().items():
                found[".".join((metric.scope(suffix), *self._path, name)) + suffix] = value
            metric.reset()
        for group in self._groups.values():
            found |= group.take()
        return found


def user_metrics(subtasks: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    """Returns the metrics of an operator's functions by their own names.

    Counters, meters, and the sum and count of distributions are added up over the subtasks. Of a distribution's
    minimum the least counts, and of its maximum and of gauges the greatest.

    Args:
        subtasks: The metrics that a checkpoint stores of each subtask; others than those of functions are left out.
    """
    found = dict[str, int | float]()
    for metrics in subtasks:
        for stored, value in metrics.items():
            scope, _, name = stored.partition(".")
            if name and scope in _MERGES:
                found[name] = _MERGES[scope](found[name], value) if name in found else value
    return found
