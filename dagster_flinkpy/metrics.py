"""Metrics of user functions (``pyflink.metrics``): ``runtime_context.get_metrics_group().counter("name")``.

Their values are part of each subtask's acknowledgement, so they only exist for completed checkpoints. They cover the
time since the previous barrier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import ceil, isfinite, ldexp
from numbers import Integral, Real
from typing import TypeVar

from dagster_flinkpy.errors import TypeMismatchError

__all__ = ["LATE_RECORDS_DROPPED", "Counter", "Distribution", "Meter", "Metric", "MetricGroup", "user_metrics"]

M = TypeVar("M", bound="Metric")

LATE_RECORDS_DROPPED = "late_records_dropped"
"""The metric of windows that counts records which came too late for every window (Flink: ``numLateRecordsDropped``)."""

_MERGES: Mapping[str, Callable[[int | float, int | float], int | float]] = {
    "user": lambda a, b: a + b,
    "user_min": min,
    "user_max": max,
}
"""How the values of subtasks are combined, by the first part of the name under which they are stored."""

_BUCKET = "user_bucket"
"""The first part of the names of a distribution's buckets: ``user_bucket.{name}.{number of the bucket}``."""

_STEPS = 16
"""The number of buckets between two powers of two, so the middle of a bucket is at most 1/32 off."""

_LEAST_EXPONENT = 1_100
"""Makes the exponents of all floats positive."""

_PERCENTILES = (50, 95, 99)

_AT_ONCE = 1_024
"""How many numbers a distribution sorts into buckets at once."""


class Metric(ABC):
    """Base class of the metrics."""

    @abstractmethod
    def values(self) -> dict[str, int | float]:
        """Returns the values to report, by suffix of the metric's name; the suffix may be empty."""

    def stored(self) -> dict[tuple[str, str], int | float]:
        """Returns the values that a checkpoint stores, by scope and suffix.

        The scope says how the values of subtasks are combined: ``user`` for their sum, ``user_min`` or ``user_max``.
        """
        return {("user", suffix): value for suffix, value in self.values().items()}

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
    """A histogram of numbers: count, sum, minimum, maximum, mean, and the percentiles 50, 95 and 99.

    Percentiles are at most 3.2 % off. They are exact for integers below 32, and if all numbers are equal: numbers are
    counted in 16 buckets between two powers of two. Everything else is exact.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._pending: list[int | float] = []
        self._sum: int | float = 0
        self._min: int | float | None = None
        self._max: int | float | None = None
        self._buckets: Tally[int] = Tally()

    def update(self, value: int | float) -> None:
        """Adds a number.

        Raises:
            TypeMismatchError: The value is not a finite number.
        """
        self._pending.append(value if type(value) is int else _finite(value))
        if len(self._pending) == _AT_ONCE:
            self._count_pending()

    def _count_pending(self) -> None:
        values, self._pending = self._pending, []
        if values:
            self._buckets.update(_buckets_of(values))
            self._sum += sum(values)
            self._min = min(values) if self._min is None else min(self._min, *values)
            self._max = max(values) if self._max is None else max(self._max, *values)

    def values(self) -> dict[str, int | float]:
        self._count_pending()
        found: dict[str, int | float] = {".count": self._buckets.total(), ".sum": self._sum}
        if self._min is not None and self._max is not None:
            found |= {".min": self._min, ".max": self._max}
            found |= _shape(self._buckets, self._sum, self._min, self._max)
        return found

    def stored(self) -> dict[tuple[str, str], int | float]:
        self._count_pending()
        found: dict[tuple[str, str], int | float] = {
            ("user", ".count"): self._buckets.total(),
            ("user", ".sum"): self._sum,
        }
        if self._min is not None and self._max is not None:
            found |= {("user_min", ".min"): self._min, ("user_max", ".max"): self._max}
        return found | {(_BUCKET, f".{bucket}"): count for bucket, count in sorted(self._buckets.items())}


def _finite(value: object) -> int | float:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and isfinite(value):
        return float(value)
    raise TypeMismatchError(f"a distribution takes finite numbers, not {value!r}")


def _buckets_of(values: list[int | float]) -> dict[int, int]:
    """Returns how many values are in each bucket. Greater values have greater numbers; 0 has bucket 0."""
    import numpy as np  # not at the top: a code location that declares a job does not need it

    numbers = np.array(values, dtype=np.float64)
    mantissas, exponents = np.frexp(np.abs(numbers))  # a mantissa is at least 0.5 and less than 1
    steps = (mantissas * 2 * _STEPS).astype(np.int64) - _STEPS
    signed = np.sign(numbers).astype(np.int64) * ((exponents + _LEAST_EXPONENT) * _STEPS + steps)
    buckets, counts = np.unique(signed, return_counts=True)
    return dict(zip(buckets.tolist(), counts.tolist(), strict=True))


def _middle(bucket: int, whole: bool) -> int | float:
    """Returns the middle of a bucket, which is a whole number for whole numbers."""
    if bucket < 0:
        return -_middle(-bucket, whole)
    if bucket == 0:
        return 0
    exponent, step = divmod(bucket, _STEPS)
    start, end = (ldexp(at / (2 * _STEPS), exponent - _LEAST_EXPONENT) for at in (_STEPS + step, _STEPS + step + 1))
    return (ceil(start) + ceil(end) - 1) // 2 if whole else start + (end - start) / 2


def _shape(
    buckets: Mapping[int, int], total: int | float, least: int | float, greatest: int | float
) -> dict[str, int | float]:
    """Returns mean and percentiles, by suffix of the name. A percentile is the lowest number that bounds its share."""
    count = sum(buckets.values())
    found: dict[str, int | float] = {".mean": total / count}
    ordered, below, position = sorted(buckets), 0, -1
    for percentile in _PERCENTILES:
        while below * 100 < percentile * count:
            position += 1
            below += buckets[ordered[position]]
        middle = _middle(ordered[position], isinstance(total, int))
        found[f".p{percentile}"] = min(max(middle, least), greatest)
    return found


class _Gauge(Metric):
    def __init__(self, name: str, obj: Callable[[], int]) -> None:
        self._name, self._obj = name, obj

    def values(self) -> dict[str, int | float]:
        try:
            value = self._obj()
        except Exception as e:  # of the user's function
            raise TypeMismatchError(f"gauge {self._name!r} raised {type(e).__name__}: {e}; return a number") from e
        if not isinstance(value, Real):
            raise TypeMismatchError(f"gauge {self._name!r} returned {value!r}; return a number")
        if isinstance(value, Integral):
            return {"": int(value)}
        return {"": float(value)} if isfinite(value) else {}

    def stored(self) -> dict[tuple[str, str], int | float]:
        return {("user_max", suffix): value for suffix, value in self.values().items()}


class MetricGroup:
    """Metrics under a common name.

    Args:
        path: The names of the enclosing groups and of this group.
    """

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path
        self._metrics: dict[str, Metric] = {}
        self._groups: dict[str, MetricGroup] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Returns the group with a name inside this group; with ``extra``, the group of that name inside it."""
        group = self._groups.setdefault(name, MetricGroup((*self._path, name)))
        return group if extra is None else group.add_group(extra)

    def counter(self, name: str) -> Counter:
        """Returns the counter with this name."""
        return self._registered(name, Counter)

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Registers a function that returns a number, which is called at each barrier."""
        self._metrics[name] = _Gauge(name, obj)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Returns the meter with this name.

        Args:
            name: The name of the meter.
            time_span_in_seconds: Has no effect: a meter counts the events of an epoch.
        """
        return self._registered(name, Meter)

    def distribution(self, name: str) -> Distribution:
        """Returns the distribution with this name."""
        return self._registered(name, Distribution)

    def _registered(self, name: str, kind: type[M]) -> M:
        """Returns the metric with a name; a new one if there is none, or one of another kind."""
        metric = self._metrics.get(name)
        if not isinstance(metric, kind):
            metric = self._metrics[name] = kind()
        return metric

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
        """Returns all values by the names in a checkpoint, ``{scope}.{name}``, and begins a new epoch."""
        found = dict[str, int | float]()
        for name, metric in self._metrics.items():
            for (scope, suffix), value in metric.stored().items():
                found[".".join((scope, *self._path, name)) + suffix] = value
            metric.reset()
        for group in self._groups.values():
            found |= group.take()
        return found


def user_metrics(subtasks: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    """Combines the metrics of all subtasks of an operator, by the names that the user gave them.

    Counters, meters, and the sum and count of distributions are added up. The minimum of a distribution is the lowest
    of all subtasks; its maximum, and gauges, are the highest. Its percentiles and mean are those of all subtasks
    together. They are missing in checkpoints of releases that did not store buckets.

    Args:
        subtasks: The metrics of each subtask in a checkpoint. Only metrics of user functions are used.
    """
    found = dict[str, int | float]()
    buckets = defaultdict[str, Tally[int]](Tally)
    for metrics in subtasks:
        for stored, value in metrics.items():
            scope, _, name = stored.partition(".")
            if scope == _BUCKET:
                name, _, bucket = name.rpartition(".")
                buckets[name][int(bucket)] += int(value)
            elif name and scope in _MERGES:
                found[name] = _MERGES[scope](found[name], value) if name in found else value
    for name, counted in buckets.items():
        shape = _shape(counted, *(found[f"{name}{suffix}"] for suffix in (".sum", ".min", ".max")))
        found |= {f"{name}{suffix}": value for suffix, value in shape.items()}
    return found
