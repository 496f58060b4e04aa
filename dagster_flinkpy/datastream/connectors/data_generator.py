"""Generated records (Flink: ``org.apache.flink.connector.datagen.source``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arguments import check_argument, check_count
from dagster_flinkpy.common.clock import steady_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator, position_field
from dagster_flinkpy.datastream.connectors.collection import SliceEnumerator
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

    resumes_splits = counts_records = True

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


class _GeneratorEnumerator(SliceEnumerator):
    """Assigns the records that are due. Its state also tells when the first epoch began."""

    def __init__(self, source: DataGeneratorSource, restored: Json | None) -> None:
        super().__init__(source.count, source.max_records_per_epoch, restored)
        self._rate, self._began_ms = source.strategy.records_per_second, None
        if restored is not None and restored.get("began_ms") is not None:
            self._began_ms = position_field(restored, "began_ms", int)

    def _find_due(self) -> int:
        now = steady_millis()
        if self._began_ms is None:
            self._began_ms = now
        if self._rate is None:
            return self._next + (self._per_epoch or 0) if self._total is None else self._total
        due = math.ceil((max(now - self._began_ms, 0) // 1000 + 1) * self._rate)
        return due if self._total is None else min(due, self._total)

    def snapshot_state(self) -> Json:
        return {**super().snapshot_state(), "began_ms": self._began_ms}
