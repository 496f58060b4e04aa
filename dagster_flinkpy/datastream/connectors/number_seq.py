"""A sequence of numbers (``pyflink.datastream.connectors.number_seq``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.collection import SliceEnumerator
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NumberSequenceSource"]


class NumberSequenceSource(Source):
    """Produces the integers from ``start`` to ``end``, both inclusive. Each subtask reads a slice in order.

    Args:
        start: The first number.
        end: The last number.
    """

    resumes_splits = counts_records = True

    def __init__(self, start: int, end: int) -> None:
        for number in (start, end):
            check_argument("NumberSequenceSource()", number, int, "two whole numbers")
            if not -(2**63) <= number < 2**63:
                raise ConfigurationError(f"NumberSequenceSource: {number} is not a number of 64 bits")
        if start > end:
            raise ConfigurationError(f"NumberSequenceSource: start {start} is greater than end {end}")
        self._start, self._end = start, end

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last number."""
        return self._start, self._end

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return SliceEnumerator(self._end - self._start + 1, None, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        import numpy as np
        import pyarrow as pa

        end = split.properties["end"]
        for start in range(split.offset, end, 1 << 16):
            stop = min(start + (1 << 16), end)
            yield pa.array(np.arange(self._start + start, self._start + stop, dtype=np.int64)), stop
