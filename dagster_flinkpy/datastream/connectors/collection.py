"""A source over a Python collection, for tests and notebooks (``env.from_collection``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CollectionSource", "SliceEnumerator"]

Json = dict[str, Any]


class CollectionSource(Source):
    """Reads a collection that travels with the program.

    Args:
        values: The records.
        type_info: Their type.
        records_per_epoch: Records between two barriers; None: all of them.
        batch_size: Records of one batch.
    """

    def __init__(
        self,
        values: Sequence[Any],
        type_info: TypeInformation,
        *,
        records_per_epoch: int | None = None,
        batch_size: int = 8192,
    ) -> None:
        # Values without a type are pickled by the worker that reads them: their classes travel with the program.
        untyped = isinstance(type_info, PickledBytesTypeInfo)
        self._values = list(values) if untyped else type_info.to_arrow(values)
        self._type_info = type_info
        self._records_per_epoch = records_per_epoch
        self._batch_size = batch_size

    @property
    def produced_type(self) -> TypeInformation:
        return self._type_info

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return SliceEnumerator(len(self._values), self._records_per_epoch, (restored or {}).get("next", 0))

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        end = split.properties["end"]
        for start in range(split.offset, end, self._batch_size):
            stop = min(start + self._batch_size, end)
            batch = self._values[start:stop]
            yield self._type_info.to_arrow(batch) if isinstance(batch, list) else batch, stop


class SliceEnumerator(SplitEnumerator):
    """Deals out consecutive slices."""

    def __init__(self, total: int, per_epoch: int | None, start: int) -> None:
        self._total, self._per_epoch, self._next = total, per_epoch, start

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        count = self._total - self._next
        count = count if self._per_epoch is None else min(count, self._per_epoch)
        splits: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        bounds = [self._next + count * i // parallelism for i in range(parallelism + 1)]
        for i in range(parallelism):
            if bounds[i] < bounds[i + 1]:
                splits[i] = [SourceSplit(f"{bounds[i]}-{bounds[i + 1]}", {"end": bounds[i + 1]}, bounds[i])]
        self._next += count
        return splits

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        pass

    @property
    def exhausted(self) -> bool:
        return self._next >= self._total

    def snapshot_state(self) -> Json:
        return {"next": self._next}
