"""The state of operators and their subtasks, as described in checkpoint metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from dagster_flinkpy.checkpoint.edge_history import EdgeHistory
from dagster_flinkpy.checkpoint.operator_program import OperatorProgram
from dagster_flinkpy.json_records import Json, JsonRecord
from dagster_flinkpy.state.files.state_files import files_of
from dagster_flinkpy.state.handles import KeyedSnapshot, OperatorStateHandle, TableId, TableSnapshot
from dagster_flinkpy.storage.object_store import check_relative

__all__ = ["EXCHANGE_FOLDER", "OperatorState", "SubtaskState", "with_declared_types", "without_copies"]

EXCHANGE_FOLDER = "exchange"
"""The folder of a job's blocking edges, below its prefix."""


@dataclass(frozen=True)
class SubtaskState(JsonRecord, omit_defaults=True):
    """What one subtask acknowledged (Flink: ``OperatorSubtaskState``)."""

    index: int
    keyed: KeyedSnapshot | None = None
    """Keyed state, or None."""
    operator_state: tuple[OperatorStateHandle, ...] = ()
    raw_keyed: tuple[Json, ...] = ()
    """Raw keyed state: for each key group, its number and the partition with its bytes."""
    channel_state: tuple[Json, ...] = ()
    """In-flight buffers of an unaligned checkpoint; empty for aligned ones."""
    splits: tuple[Json, ...] = ()
    """Source splits with their offsets."""
    watermark: int | None = None
    """Event time in milliseconds; None before the first watermark."""
    committables: tuple[Json, ...] = ()
    """What a sink's committer commits when the checkpoint completes."""
    metrics: dict[str, int | float] = field(default_factory=dict)
    extra: Json = field(default_factory=dict)
    """Fields that this release does not know."""

    @property
    def has_state(self) -> bool:
        """Whether it has anything that could be lost (Flink: ``OperatorSubtaskState.hasState``)."""
        return bool(
            self.keyed is not None
            or self.operator_state
            or self.raw_keyed
            or self.channel_state
            or self.splits
            or self.committables
        )

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return self.keyed.bytes if self.keyed else 0

    @property
    def rows(self) -> int:
        """Number of stored rows of keyed state and timers. A key may have several."""
        return self.keyed.rows if self.keyed else 0

    @property
    def tables(self) -> tuple[TableSnapshot, ...]:
        """The keyed states and timers."""
        return self.keyed.tables if self.keyed else ()

    def with_tables(self, change: Callable[[TableSnapshot], TableSnapshot]) -> SubtaskState:
        """Returns it with each table changed."""
        if self.keyed is None:
            return self
        return replace(self, keyed=replace(self.keyed, tables=tuple(map(change, self.keyed.tables))))

    def files(self) -> set[str]:
        """Returns the paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return (self.keyed.files() if self.keyed else set()) | self.operator_state_files()

    def operator_state_files(self) -> set[str]:
        """Returns the paths of the files of operator state, raw keyed state and in-flight data."""
        partitions = (p for handle in self.operator_state for p in handle.partitions)
        return files_of([*partitions, *self.raw_keyed, *self.channel_state])


def without_copies(subtasks: Iterable[SubtaskState]) -> tuple[SubtaskState, ...]:
    """Returns the subtasks of an operator with one copy of each union state that several have as it was restored.

    A restore gives all of it to every subtask. If each passed that on, it would double with every restore; and if only
    a certain one did, what it drops would be lost. Of a split that one has read on where another one has stopped, the
    last stop counts.
    """
    subtasks, known = tuple(subtasks), set[str]()
    stops = [(s["finished"], s["offset"], i, s["split_id"]) for i, each in enumerate(subtasks) for s in each.splits]
    last = {split_id: i for _, _, i, split_id in sorted(stops)}
    kept = []
    for i, subtask in enumerate(subtasks):
        splits = tuple(s for s in subtask.splits if s["finished"] or last[s["split_id"]] == i)
        copies = {handle.name for handle in subtask.operator_state if handle.inherited}
        handles = [handle for handle in subtask.operator_state if handle.name not in copies & known]
        known |= copies
        operator_state = tuple(replace(handle, inherited=False) for handle in handles)
        kept.append(replace(subtask, operator_state=operator_state, splits=splits))
    return tuple(kept)


def with_declared_types(
    subtasks: tuple[SubtaskState, ...], restored: Iterable[SubtaskState]
) -> tuple[SubtaskState, ...]:
    """Returns the subtasks of an operator with one type for each state.

    A function may use a state only when it gets records. So if its type has changed, a subtask without any still has
    the type that was restored. It takes over what others have declared; its runs record their own type.

    Args:
        subtasks: The acknowledged state.
        restored: The state that the operator was restored from.
    """
    before: dict[TableId, list[Json | None]] = {}
    for table in (table for each in restored for table in each.tables):
        before.setdefault(table.identity, []).append(table.value)
    # A checkpoint of an earlier release may have two types of a state. Which one is the newer is not known.
    known = {identity: values[0] for identity, values in before.items() if all(v == values[0] for v in values)}
    tables = [table for each in subtasks for table in each.tables]
    declared = {t.identity: t.value for t in tables if t.value != known.get(t.identity, t.value)}
    if not declared:
        return subtasks

    def declared_as(table: TableSnapshot) -> TableSnapshot:
        value = declared.get(table.identity)
        return table if value is None or table.value == value else table.with_value_type(value)

    return tuple(each.with_tables(declared_as) for each in subtasks)


@dataclass(frozen=True)
class OperatorState(JsonRecord, omit_defaults=True):
    """The whole state of one operator (Flink: ``OperatorState``)."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskState, ...]
    """All subtasks in order of their index, or empty."""
    coordinator_state: Json | None = None
    """State of the operator's coordinator, such as a source's split enumerator."""
    in_flight: tuple[Json, ...] = ()
    """What the operator before a blocking edge has written and this one has not read, by epoch, the oldest first."""
    history: EdgeHistory | None = None
    """What is retained of a blocking edge that it writes; None if nothing is to be. It is no state."""
    program: OperatorProgram | None = None
    """What the operator did; None if unknown, as in checkpoints of older releases."""
    state_version: int = 0
    """How many migrations of the program its keyed state has been through; see ``env.migrate_state``."""
    extra: Json = field(default_factory=dict)
    """Fields that this release does not know."""

    @property
    def has_state(self) -> bool:
        """Whether it has anything that could be lost."""
        subtasks = any(subtask.has_state for subtask in self.subtasks)
        return self.coordinator_state is not None or bool(self.in_flight) or subtasks

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return sum(subtask.state_bytes for subtask in self.subtasks)

    @property
    def rows(self) -> int:
        """Number of stored rows of keyed state and timers. A key may have several."""
        return sum(subtask.rows for subtask in self.subtasks)

    @property
    def tables(self) -> Iterator[TableSnapshot]:
        """The parts of keyed states and timers that the subtasks have."""
        return (table for subtask in self.subtasks for table in subtask.tables)

    @property
    def watermarks(self) -> list[int]:
        """The event times of the subtasks that have one, in milliseconds."""
        return [subtask.watermark for subtask in self.subtasks if subtask.watermark is not None]

    def files(self) -> set[str]:
        """Returns the paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        retained = () if self.history is None else self.history.outputs
        of_subtasks = {path for subtask in self.subtasks for path in subtask.files()}
        return of_subtasks | self.segments() | _segments((self.uid, output) for output in retained)

    def segments(self) -> set[str]:
        """Returns the paths of the segments of a blocking edge that it has not read, as in :meth:`files`.

        Raises:
            PathEscapesPrefixError: A path leads outside the prefix.
        """
        return _segments((output["edge"], output) for output in self.in_flight)


def _segments(outputs: Iterable[tuple[str, Json]]) -> set[str]:
    return {
        check_relative(f"{EXCHANGE_FOLDER}/{edge}/{segment['key']}")
        for edge, output in outputs
        for segment in output["segments"]
    }
