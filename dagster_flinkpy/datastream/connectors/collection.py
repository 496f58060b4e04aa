"""A source over a Python collection, for tests and notebooks (``env.from_collection``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    Source,
    SourceLag,
    SourceSplit,
    SplitEnumerator,
    position_field,
)
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CollectionSource", "SliceEnumerator"]


class CollectionSource(Source):
    """Reads a collection that travels with the program.

    Args:
        values: The records.
        type_info: Their type.
        records_per_epoch: The number of records between two barriers, or None for all.
        batch_size: The number of records in a batch.

    Raises:
        ConfigurationError: The type is not a type from ``Types``.
        TypeMismatchError: A record does not have the type.
    """

    resumes_splits = counts_records = True

    def __init__(
        self,
        values: Sequence[Any],
        type_info: TypeInformation,
        *,
        records_per_epoch: int | None = None,
        batch_size: int = 8192,
    ) -> None:
        if not isinstance(type_info, TypeInformation):
            raise ConfigurationError(f"a collection needs a type from Types.*, not {type_info!r}")
        # Values without a type are pickled only by the worker that reads them: their classes travel with the program.
        untyped = isinstance(type_info, PickledBytesTypeInfo)
        self._values = list(values) if untyped else type_info.to_arrow(values)
        self._type_info = type_info
        self._records_per_epoch = records_per_epoch
        self._batch_size = batch_size

    @property
    def produced_type(self) -> TypeInformation:
        return self._type_info

    @property
    def content_token(self) -> str | None:
        if isinstance(self._values, list):
            return None  # pickled values need not have equal bytes
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([pa.field("value", self._values.type)])) as writer:
            writer.write_batch(pa.record_batch([self._values], names=["value"]))
        return hashlib.sha256(sink.getvalue()).hexdigest()

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return SliceEnumerator(len(self._values), self._records_per_epoch, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        end = split.properties["end"]
        for start in range(split.offset, end, self._batch_size):
            stop = min(start + self._batch_size, end)
            batch = self._values[start:stop]
            yield self._type_info.to_arrow(batch) if isinstance(batch, list) else batch, stop


class SliceEnumerator(SplitEnumerator):
    """Assigns consecutive slices. Its state is the first record that was never read, and whether the input has ended.

    It has other names if slices were read in part: earlier releases refuse it, as they would lose the rest.

    Args:
        total: The number of records, or None if they do not end.
        per_epoch: The number of records between two barriers, or None for all.
        restored: The state of an earlier enumerator.
    """

    def __init__(self, total: int | None, per_epoch: int | None, restored: Json | None) -> None:
        self._total, self._per_epoch = total, per_epoch
        self._next, self._ended = 0, False
        self._due = total or 0
        self._unread: int | None = None
        """The first record that was planned, if it was not read yet."""
        self._rest: list[SourceSplit] = []
        """What is left of slices that were read in part."""
        if restored is not None:
            if "rest" in restored:
                self._rest = [SourceSplit.from_json(each) for each in position_field(restored, "rest", list)]
                for split, name in product(self._rest, ("subtask", "end")):
                    position_field(split.properties, name, int)
            self._next = position_field(restored, "after" if self._rest else "next", int)
            self._ended = position_field({"ended": False, **restored}, "ended", bool)  # as earlier releases stored it

    def _find_due(self) -> int:
        """Returns the index after the last record that an epoch may read."""
        return self._due

    def has_input(self, parallelism: int) -> bool:
        return self.plans_something(parallelism)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        begin = self._next if self._unread is None else self._unread
        if not self._ended:
            self._due = self._find_due()
            limit = self._due
            if self._per_epoch is not None:
                rest = sum(split.properties["end"] - split.offset for split in self._rest)
                limit = min(limit, begin + max(self._per_epoch - rest, 0))
            self._next = max(self._next, limit)
            self._ended = self._total is not None and self._next >= self._total
        self._unread = begin if begin < self._next else None
        bounds = [begin + (self._next - begin) * i // parallelism for i in range(parallelism + 1)]
        # A subtask goes on with its slices: their records keep their order. After a rescale it has slices of
        # several, and event time goes on with the first of them.
        rest = sorted(self._rest, key=lambda split: split.offset)
        planned = [[each for each in rest if each.properties["subtask"] % parallelism == i] for i in range(parallelism)]
        for i, (start, end) in enumerate(pairwise(bounds)):
            if start < end:
                planned[i].append(SourceSplit(f"{start}-{end}", {"end": end, "subtask": i}, start))
        return planned

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        if splits:
            self._unread = None
            self._rest = [split for split in splits if not split.finished]
            self._ended &= not self._rest

    @property
    def exhausted(self) -> bool:
        return self._ended

    @property
    def assigns_late(self) -> bool:
        return self._per_epoch is None

    def lag(self) -> SourceLag:
        return SourceLag(records=max(self._due - self._next, 0))

    def unread(self) -> Sequence[str]:
        more = (self._total or 0) - self._next
        return [f"{more} record(s) of the collection"] if more > 0 else []

    def snapshot_state(self) -> Json:
        position, ended = (self._next, self._ended) if self._unread is None else (self._unread, False)
        if self._rest:
            return {"after": position, "rest": [split.to_json() for split in self._rest], "ended": False}
        return {"next": position, "ended": ended}
