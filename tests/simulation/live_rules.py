"""What must hold of live tasks, besides what must hold of any."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from tests.simulation.bucket import SimulatedStore
from tests.simulation.invariants import Completed, Invariants
from tests.simulation.live_program import in_flight_of
from tests.simulation.live_sources import Position, position_of
from tests.simulation.program import JOB, SPLITS, SourceShape, key_of

__all__ = ["LiveInvariants"]

T = TypeVar("T")


class _Look(SimulatedStore):
    """A view of the bucket for who looks at it from outside the world."""

    def _request(self, what: str, apply: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        return apply()


class LiveInvariants(Invariants):
    """Watches the bucket of a world with live tasks, whose state is in the library's own files."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._counts: dict[int, dict[int, list[int]]] = {}
        """The counts in the files of a checkpoint and of those before it, by key."""
        self._positions: dict[int, Position] = {}
        """How far the checkpoints have read, if not to the end of a split."""
        self._counts_now: dict[int, list[int]] = {}

    def _rows_of(self, data: bytes) -> list[Any]:
        return [json.loads(line) for line in data.splitlines()]

    def _count_of(self, record: int, count: int) -> int:
        self._counts_now.setdefault(key_of(record), []).append(count)
        return count

    def _read(self, metadata: CheckpointMetadata, parent: Completed | None) -> int:
        if self.scenario.source is SourceShape.WHOLE:
            return super()._read(metadata, parent)
        number = metadata.checkpoint_id
        position = position_of(metadata, self.scenario.source, _Look(self.world, JOB), self._fail)
        self._positions[number] = position
        if position.ended and position.finished < SPLITS:
            self._fail(f"checkpoint {number} is at the end of the input, with {position} of {SPLITS} splits")
        return SPLITS if position.ended else min(position.finished, SPLITS - 1)  # that it was the last one comes later

    def _prepare(self, done: Completed) -> None:
        metadata = done.metadata
        before = self._counts.get(metadata.parent_id or 0, {})
        self._counts_now = defaultdict(list, {key: list(counts) for key, counts in before.items()})
        super()._prepare(done)
        self._counts[metadata.checkpoint_id] = self._counts_now

    def _check_written(self, done: Completed) -> None:
        """Checks that each record is in the files once, or in flight."""
        if self.world.broken is not None:
            return  # files may be missing
        metadata, number = done.metadata, done.metadata.checkpoint_id
        in_flight = in_flight_of(metadata, _Look(self.world, JOB))
        position = self._positions.get(number, Position(done.read, {}, ended=False))
        if sorted([*done.lineage, *in_flight]) != position.records:
            self._fail(
                f"checkpoint {number} has read up to {position}, with {sorted(in_flight)} in flight, but the files "
                f"have {sorted(done.lineage)}"
            )
        if metadata.end_of_input and in_flight:
            self._fail(f"checkpoint {number} ends the input, with {in_flight} in flight")
        if metadata.partition is not None and in_flight:
            self._fail(f"checkpoint {number} ends its partition, with {in_flight} in flight")
        if in_flight:
            return
        for key, counts in self._counts[number].items():
            if sorted(counts) != list(range(1, len(counts) + 1)):
                self._fail(f"checkpoint {number} has counted key {key} as {counts}, which no uninterrupted run would")

    def _check_contents(self, metadata: CheckpointMetadata, read: int, prefix: str, what: str) -> None:
        self._check_files(metadata, prefix, what)
