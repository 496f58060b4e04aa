"""The instructions of the driver for the tasks of a Spark job. They are pickled into the Spark job and never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.common.clock import Clock, SystemClock
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.program.python_environment import PackedPython
from dagster_flinkpy.errors import CheckpointError, FlinkPyError, message_of
from dagster_flinkpy.storage import StorageLocation

__all__ = ["EpochInput", "EpochJob", "Reached", "Stop", "SubtaskInputs"]

SubtaskInputs = Mapping[tuple[str, int], SubtaskState]
"""What subtasks start from, by uid and subtask; those without an entry start empty."""
Reached = tuple[int | None, bool, bool]
"""How far a subtask of a source is in event time, None if it had nothing to read; whether it is reading; and whether it
waits for others."""


@dataclass(frozen=True)
class Stop:
    """Where a subtask stops amid its splits, because a barrier follows (Flink: ``CheckpointedPosition``)."""

    splits: int
    """How many splits it reads to their ends, from the first one on, but for those in `begun`."""
    begun: tuple[tuple[int, int, int], ...] = ()
    """Splits of which it reads a part: their numbers, how many records, and the offsets after these."""

    def of(self, split: int) -> tuple[int, int] | None:
        """Returns how many records it reads of a split, and the offset after these; None for all."""
        return next(((records, offset) for number, records, offset in self.begun if number == split), None)

    def followed_by(self, other: Stop, splits: Sequence[SourceSplit]) -> Stop:
        """Returns where it stops amid these splits and those of another part, where it stops as the other one says."""
        n, begun = len(splits), {number for number, *_ in self.begun}
        unread = ((i, 0, splits[i].offset) for i in range(self.splits, n) if i not in begun)
        others = ((number + n, records, offset) for number, records, offset in other.begun)
        return Stop(other.splits + n, (*self.begun, *unread, *others))


@dataclass(frozen=True)
class EpochInput:
    """The input between two barriers, and the checkpoint of the second one."""

    checkpoint_id: int
    """The checkpoint of the barrier at its end."""
    splits: Mapping[tuple[str, int], tuple[SourceSplit, ...]]
    """The splits that sources read, by uid and subtask."""
    ended_sources: frozenset[str] = frozenset()
    """Uids of sources whose input ends with this epoch."""
    open: bool = False
    """Whether more input may follow before the barrier."""
    stops: Mapping[tuple[str, int], Stop] = field(default_factory=dict)
    """Where subtasks stop that do not read all of their splits."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """How far sources are in event time before it, by uid, as far as that is known."""
    again: bool = False
    """Whether another try has read it. It may be several parts, so that a split may go on in a later one."""
    timed: bool = False
    """Whether it is or was open, so that the clock tells which sources are idle."""

    def followed_by(self, part: EpochInput) -> EpochInput:
        """Returns the epoch with what else is read before its barrier."""
        splits, stops = dict(self.splits), dict[tuple[str, int], Stop]()
        for task in self.stops.keys() | part.stops.keys():
            stops[task] = self._stop(task).followed_by(part._stop(task), splits.get(task, ()))
        for task, more in part.splits.items():
            splits[task] = (*splits.get(task, ()), *more)
        ended = self.ended_sources | part.ended_sources
        return replace(self, splits=splits, stops=stops, ended_sources=ended, open=part.open, again=True)

    def _stop(self, task: tuple[str, int]) -> Stop:
        return self.stops.get(task, Stop(len(self.splits.get(task, ()))))

    def read_splits(self) -> dict[str, list[SourceSplit]]:
        """Returns all splits by uid, as they are after the epoch: those that are not finished have a rest."""
        found: dict[str, list[SourceSplit]] = {}
        for task, splits in self.splits.items():
            stop, left = self._stop(task), list(splits)
            left[: stop.splits] = [replace(split, finished=True) for split in splits[: stop.splits]]
            for number, _, offset in stop.begun:
                left[number] = splits[number].advanced(offset, finished=False)
            found.setdefault(task[0], []).extend(left)
        return found

    @property
    def has_input(self) -> bool:
        """Whether there is anything to read."""
        return any(self.splits.values())

    def reads(self, uid: str) -> bool:
        """Returns whether any subtask of a source has something to read."""
        return any(splits for (source, _), splits in self.splits.items() if source == uid)


@dataclass(frozen=True)
class EpochJob:
    """Describes one Spark job of a pipelined region, which reads an epoch."""

    graph: JobGraph
    """The region."""
    job_id: str
    epoch: EpochInput
    """The epoch. Tasks that live read others after it."""
    fencing_token: int
    """Fencing token of the execution attempt."""
    job_storage: StorageLocation
    """The prefix of the job."""
    inputs: SubtaskInputs
    task_tries: int = 1
    """How often Spark may run a task whose function or source raises. The last try reports the error to the driver."""
    restarts: int = 0
    """How often the region has restarted in this execution attempt."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    """Whether gates align barriers, or only count them."""
    alignment_timeout: timedelta | None = None
    """How long an EXACTLY_ONCE gate aligns before its checkpoint becomes unaligned. Zero means that it does not align;
    None means that it has no limit."""
    latency_interval: timedelta = timedelta(0)
    """Time between two latency markers of a source. Default: 0, which sends none."""
    partition: str | None = None
    """The Dagster partition of the run, or None."""
    cache_dir: str = ""
    """The folder in which executors keep local copies of state files."""
    state_backend: StateBackendType = StateBackendType.COLUMNAR
    """Which backend keeps keyed state while a task uses it."""
    managed_memory: int | None = None
    """About how many bytes of keyed state a process holds in memory; None for a number of keys and rows per backend."""
    restored: int | None = None
    """Id of the checkpoint or savepoint that the job continues from, or None."""
    python: PackedPython | None = None
    """The Python dependencies of the user functions, or None."""
    counts: str = ""
    """The folder in which tasks record how many records they have read. Default: empty, which records nothing."""
    start: int = 0
    """The epoch whose state it starts from; 0 for what the execution attempt started from."""
    pipelined: bool = False
    """Whether its tasks live: they go on after the epoch, and are told of others. Default: False."""
    buffer_timeout: float | None = 0.1
    """After how many seconds a live task sends records that have not filled a buffer; None if only then. Default: 0.1,
    as in Flink."""
    declines: bool = False
    """Whether a snapshot that a live task cannot store fails its checkpoint, and not the task. Default: False."""
    unwritten: FlinkPyError | None = None
    """Why a part of the state that it starts from is not in the store: only tasks that have it can go on. None if all
    is there."""
    region: int = 0
    """The number of the region in the job."""
    through_driver: bool = False
    """Whether its tasks have no way to the store: the driver sends them files, and stores theirs. Default: False."""
    clock: Clock = field(default_factory=SystemClock)
    """The clock for processing time."""

    def check_start(self) -> None:
        """Checks that other tasks can continue from the state that it starts from.

        Raises:
            CheckpointError: A part of it is not in the store.
        """
        if self.unwritten is not None:
            raise CheckpointError(
                f"no other tasks can continue from checkpoint {self.start}, because it has failed: "
                f"{message_of(self.unwritten)}"
            ) from self.unwritten

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint of the barrier that ends the epoch."""
        return self.epoch.checkpoint_id

    def writer_of(self, checkpoint_id: int) -> str:
        """Returns a part of the names of state files that no other execution attempt and epoch uses.

        So a file that is deleted, because no checkpoint names it any more, is never one that a task is about to name.
        """
        return f"{self.fencing_token}-{checkpoint_id}"

    @property
    def attempt(self) -> int:
        """The number of the executions of its subtasks, from 0."""
        return self.fencing_token - 1 + self.restarts

    def input(self, uid: str, subtask: int) -> SubtaskState:
        """Returns what a subtask starts from."""
        return self.inputs.get((uid, subtask), SubtaskState(subtask))
