"""How far a version of a program has come: what it has read, and which of its timers have fired."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.orchestration.upgrade.shadow import positions_of
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["Reached", "with_timers"]


@dataclass(frozen=True)
class Reached:
    """What a program has done up to a checkpoint."""

    metadata: CheckpointMetadata | None = field(compare=False)
    """The checkpoint; None: there is none yet."""
    folder: StorageLocation
    """The folder of its job."""
    read: dict[str, Any] = field(default_factory=dict)
    """How far the sources are."""
    recomputes: bool = False
    """Whether rows still wait for what is recomputed."""
    ended: bool = False
    """Whether all input has ended."""
    in_flight: bool = False
    """Whether there are records that are not in the sinks yet."""
    event_times: dict[str, int] = field(default_factory=dict)
    """The event time of each operator, in milliseconds."""

    @staticmethod
    def by(metadata: CheckpointMetadata | None, sources: Sequence[str], folder: StorageLocation) -> Reached:
        """Returns what a checkpoint has.

        Args:
            metadata: The checkpoint.
            sources: Uids of the sources.
            folder: The folder of its job.
        """
        from dagster_flinkpy.checkpoint.recomputation import TO_REPLACE
        from dagster_flinkpy.checkpoint.reports.in_flight import has_in_flight
        from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK

        if metadata is None:
            return Reached(None, folder)
        return Reached(
            metadata,
            folder,
            positions_of(metadata, sources),
            TO_REPLACE in metadata.properties,
            metadata.end_of_input,
            has_in_flight(metadata),
            {
                operator.uid: min(MIN_WATERMARK if s.watermark is None else s.watermark for s in operator.subtasks)
                for operator in metadata.operators
                if operator.subtasks
            },
        )

    def is_over(self, goal: Reached) -> bool:
        """Returns whether nothing is left but input, as in another job."""
        return (self.ended or not goal.ended) and (goal.recomputes or not self.recomputes) and not self.in_flight

    def fired_otherwise(self, goal: Reached, sinks: Collection[str]) -> list[str]:
        """Returns the operators of which timers or windows have fired in only one of two jobs that have read the same.

        Event time depends on the epochs in which records were read: which subtask has read what, and whether nobody
        waits for sources without input. Of timers of operators that only one of the jobs has, the sinks are asked.

        Args:
            goal: The other job.
            sinks: Uids of the sinks.
        """
        from dagster_flinkpy.state.handles import EVENT_TIMERS

        both = self.event_times.keys() & goal.event_times.keys()
        timed = {uid for each in (self, goal) for uid in with_timers(each.metadata, EVENT_TIMERS)}
        found = []
        for uid in both & (timed if timed <= both else timed.union(sinks)):
            behind, ahead = sorted((self, goal), key=lambda each: each.event_times[uid])
            until = ahead.event_times[uid]
            if behind.event_times[uid] < until and (uid not in timed or behind._waits(uid, until)):
                found.append(uid)
        return sorted(found)

    def _waits(self, uid: str, until: int) -> bool:
        """Returns whether an operator has timers up to a time that have not fired."""
        from dagster_flinkpy.state.handles import EVENT_TIMERS
        from dagster_flinkpy.state.reader import parts_of, read_rows

        store = self.folder.open()
        timers = () if self.metadata is None else self.metadata.timers(EVENT_TIMERS)
        parts = (part for of, table in timers if of == uid for part in parts_of(table))
        return any(time <= until for part in parts for time in read_rows(part, store, ["time"])["time"].to_pylist())


def with_timers(metadata: CheckpointMetadata | None, name: str) -> list[str]:
    """Returns the operators that have timers with a name."""
    return [] if metadata is None else list(dict.fromkeys(uid for uid, _ in metadata.timers(name)))
