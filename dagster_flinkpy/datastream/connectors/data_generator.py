"""Generated records (Flink: ``org.apache.flink.connector.datagen.source``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arguments import check_argument, check_count
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    Source,
    SourceLag,
    SourceSplit,
    SplitEnumerator,
    position_field,
)
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DataGeneratorSource", "RateLimiterStrategy"]

_BATCH_RECORDS = 8192


@dataclass(frozen=True)
class RateLimiterStrategy:
    """How fast records are generated (Flink: ``RateLimiterStrategy``)."""

    records_per_second: float | None = None
    """Over all subtasks. None: as fast as they are read."""

    @staticmethod
    def per_second(records_per_second: float) -> RateLimiterStrategy:
        """Limits the records per second, over all subtasks.

        So many records are due for each second that has begun since the first epoch of the job. An epoch reads what is
        due when it begins. So the rate holds on average, however long epochs take, and a job that was stopped catches
        up. (In Flink it does not.)

        Args:
            records_per_second: A positive number.

        Raises:
            ConfigurationError: It is not positive.
        """
        check_argument("RateLimiterStrategy.per_second()", records_per_second, (int, float), "a number of records")
        if not 0 < records_per_second < math.inf:
            raise ConfigurationError(f"RateLimiterStrategy.per_second() must be positive, not {records_per_second}")
        return RateLimiterStrategy(float(records_per_second))

    @staticmethod
    def no_op() -> RateLimiterStrategy:
        """Limits nothing."""
        return RateLimiterStrategy()


class DataGeneratorSource(Source):
    """Generates record ``i`` with a function of ``i``, for ``i`` from 0 on. Each subtask gets slices in order.

    The position is the next ``i``. After a failure the same records come again if the function returns the same for the
    same ``i``: derive random numbers from it, as in ``random.Random(i)``.

    Example::

        from dagster_flinkpy.common import Types
        from dagster_flinkpy.datastream.connectors import DataGeneratorSource, RateLimiterStrategy

        ticks = DataGeneratorSource(lambda i: f"tick {i}", None, RateLimiterStrategy.per_second(100), Types.STRING())

    Args:
        generator_function: Returns the record for an index.
        count: The number of records, after which the input ends. None: it does not end. (Flink: ``Long.MAX_VALUE``.)
        rate_limiter_strategy: How fast. Default: all records at once.
        type_info: The type of the records.
        max_records_per_epoch: Maximum number of records between two barriers (Flink: ``perCheckpoint``). Default: all
            that are due.

    Raises:
        ConfigurationError: An argument has no sense, or one epoch would never end: there is neither a count, nor a
            rate, nor a limit.
    """

    def __init__(
        self,
        generator_function: Callable[[int], Any],
        count: int | None,
        rate_limiter_strategy: RateLimiterStrategy | None = None,
        type_info: TypeInformation | None = None,
        *,
        max_records_per_epoch: int | None = None,
    ) -> None:
        call = "DataGeneratorSource()"
        if not callable(generator_function):
            raise ConfigurationError(f"{call} needs a function of an index, not {generator_function!r}")
        if count is not None:
            check_count(call, "count", count, "records")
        check_argument(f"type_info of {call}", type_info, TypeInformation, "a type from Types.*")
        strategy = rate_limiter_strategy or RateLimiterStrategy.no_op()
        check_argument(f"rate_limiter_strategy of {call}", strategy, RateLimiterStrategy, "RateLimiterStrategy")
        limits = EpochLimits.checked(call, max_records_per_epoch, None)
        if count is None and strategy.records_per_second is None and not limits:
            raise ConfigurationError(
                f"{call} without a count would never end its first epoch: give it RateLimiterStrategy.per_second(), or "
                "max_records_per_epoch"
            )
        self._generate, self._type_info = generator_function, type_info
        self.count, self.strategy, self.max_records_per_epoch = count, strategy, limits.records

    @property
    def produced_type(self) -> TypeInformation:
        assert self._type_info is not None
        return self._type_info

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return _GeneratorEnumerator(self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        end = split.properties["end"]
        for start in range(split.offset, end, _BATCH_RECORDS):
            stop = min(start + _BATCH_RECORDS, end)
            yield self.produced_type.to_arrow([self._generate(i) for i in range(start, stop)]), stop


class _GeneratorEnumerator(SplitEnumerator):
    """Assigns the records that are due.

    State: the index of the next record, and when the first epoch began.
    """

    def __init__(self, source: DataGeneratorSource, restored: Json | None) -> None:
        self._source = source
        self._next, self._began_ms, self._ended = 0, None if restored is None else restored.get("began_ms"), False
        self._due = 0
        self._unread: int | None = None
        """The first record that was planned, if it was not read yet."""
        if restored is not None:
            self._next = position_field(restored, "next", int)
            self._ended = position_field(restored, "ended", bool)
            if self._began_ms is not None:
                position_field(restored, "began_ms", int)

    def has_input(self, parallelism: int) -> bool:
        return self.plans_something(parallelism)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        begin = self._next if self._unread is None else self._unread
        if not self._ended:
            self._due = self._find_due()
            most = self._source.max_records_per_epoch
            self._next = max(self._next, self._due if most is None else min(self._due, begin + most))
            self._ended = self._source.count is not None and self._next >= self._source.count
        self._unread = begin if begin < self._next else None
        bounds = [begin + (self._next - begin) * i // parallelism for i in range(parallelism + 1)]
        return [
            [SourceSplit(f"{start}-{end}", {"end": end}, start)] if start < end else []
            for start, end in pairwise(bounds)
        ]

    def _find_due(self) -> int:
        """Returns the index after the last record that is due."""
        source, now = self._source, current_millis()
        if self._began_ms is None:
            self._began_ms = now
        rate = source.strategy.records_per_second
        if rate is None:
            due = self._next + (source.max_records_per_epoch or 0) if source.count is None else source.count
        else:
            seconds = max(now - self._began_ms, 0) // 1000 + 1
            due = math.ceil(seconds * rate)
        return due if source.count is None else min(due, source.count)

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        if splits:
            self._unread = None

    @property
    def exhausted(self) -> bool:
        return self._ended

    def lag(self) -> SourceLag:
        return SourceLag(records=max(self._due - self._next, 0))

    def snapshot_state(self) -> Json:
        position, ended = (self._next, self._ended) if self._unread is None else (self._unread, False)
        return {"next": position, "began_ms": self._began_ms, "ended": ended}
