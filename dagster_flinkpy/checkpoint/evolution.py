"""Finds out what has changed in a program since a checkpoint, and what becomes of its state. Reads no state files."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_program import OperatorProgram, describe_setting_change, operator_program
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.restore import is_lost, restore_targets
from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, may_stay_behind
from dagster_flinkpy.datastream.operator_specs import SinkSpec, WindowSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from dagster_flinkpy.errors import StateSchemaError

__all__ = [
    "Change",
    "Evolution",
    "OperatorEvolution",
    "StateOutcome",
    "evolution_since",
    "refuse_other_windows",
]

_WINDOWS = {
    TumblingEventTimeWindows: "windows of event time",
    SlidingEventTimeWindows: "windows of event time",
    EventTimeSessionWindows: "sessions of event time",
    DynamicEventTimeSessionWindows: "sessions of event time",
    TumblingProcessingTimeWindows: "windows of processing time",
    SlidingProcessingTimeWindows: "windows of processing time",
    ProcessingTimeSessionWindows: "sessions of processing time",
    DynamicProcessingTimeSessionWindows: "sessions of processing time",
    CountTumblingWindowAssigner: "windows of {window_size} records",
    CountSlidingWindowAssigner: "windows of {window_size} records, one every {window_slide}",
}
"""What kind of windows an assigner makes. Timers of one kind do not fire the windows of another, and windows by count
that are not full do not get the records that they wait for if the size changes."""
_NUMBER = re.compile(r"(window_size|window_slide)=(\d+)")


class Change(Enum):
    """What became of an operator."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    UNKNOWN = "unknown"
    """The checkpoint does not record what the operator did."""


class StateOutcome(Enum):
    """What becomes of the state of an operator."""

    KEPT = "kept"
    DROPPED = "dropped"
    REFUSED = "refused"
    """The state has no operator and may not be left behind, so the restore fails."""
    INCOMPATIBLE = "does not fit"
    """The operator is there, but cannot continue from the state, so the restore fails."""
    RECOMPUTED = "recomputed"
    """The operator starts empty, and reads again what the state was built from."""
    EMPTY = "starts empty"
    NONE = "none"
    """The operator has no state, neither in the checkpoint nor in the program. That of a sink is what is to commit."""


@dataclass(frozen=True)
class OperatorEvolution:
    """What became of one operator and of its state."""

    uid: str
    change: Change
    state: StateOutcome
    rows: int = 0
    """Number of stored rows of keyed state and timers in the checkpoint. A key may have several rows."""
    details: tuple[str, ...] = ()
    """The settings that have changed, and how."""
    compared: bool = True
    """Whether all settings could be compared."""

    def __str__(self) -> str:
        said = self.change.value
        if self.details:
            said += f": {'; '.join(self.details)}"
        rows = f" ({self.rows:,} rows)" if self.rows else ""
        outcome = {
            StateOutcome.KEPT: f"; its state is kept{rows}",
            StateOutcome.DROPPED: f"; its state is dropped{rows}",
            StateOutcome.REFUSED: f"; its state{rows} would be lost, so the restore is refused",
            StateOutcome.INCOMPATIBLE: f"; its state{rows} does not fit, so the restore is refused",
            StateOutcome.RECOMPUTED: f"; its state{rows} is recomputed",
            StateOutcome.EMPTY: "; starts empty",
            StateOutcome.NONE: "",
        }[self.state]
        return f"operator {self.uid!r} {said}{outcome}"


@dataclass(frozen=True)
class Evolution:
    """What has changed between a checkpoint and a program."""

    since: str
    """The checkpoint or savepoint, for messages."""
    operators: tuple[OperatorEvolution, ...]
    """The program's operators in their order, then removed operators. Operators without state and uid are left out."""
    not_needed: tuple[str, ...] = ()
    """The names in ``allow_non_restored_state`` for which there is no state to leave behind."""
    event_time: tuple[str, ...] = ()
    """How far event time is, for each operator whose watermark strategy has changed."""

    @property
    def changes(self) -> tuple[OperatorEvolution, ...]:
        """The operators that have changed."""
        return tuple(o for o in self.operators if o.change not in (Change.UNCHANGED, Change.UNKNOWN))

    @property
    def refused(self) -> tuple[OperatorEvolution, ...]:
        """The operators whose state makes a restore fail."""
        return tuple(o for o in self.operators if o.state is StateOutcome.REFUSED)

    @property
    def lines(self) -> list[str]:
        """The changes and remarks as lines for a log; empty if there are none."""
        lines = []
        if self.changes:
            counts = Counter(o.change.value for o in self.changes)
            summary = ", ".join(f"{count} {change}" for change, count in sorted(counts.items()))
            lines = [f"what changed since {self.since}: {summary}", *map(str, self.changes)]
        return [*lines, *self.remarks]

    @property
    def remarks(self) -> list[str]:
        """Remarks besides the changes: on event time, operators that cannot be compared, and permissions not needed."""
        lines = list(self.event_time)
        unknown = [o.uid for o in self.operators if o.change is Change.UNKNOWN]
        if unknown:
            uids = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
            lines.append(
                f"{self.since} does not record what {uids} did, so it is unknown whether that has changed; the next "
                "checkpoint will record it"
            )
        if self.not_needed:
            names = ", ".join(map(repr, self.not_needed))
            lines.append(f"allow_non_restored_state names {names}, but {self.since} has no such state to leave behind")
        return lines


def evolution_since(
    metadata: CheckpointMetadata, graph: JobGraph, *, allow_non_restored_state: NonRestoredState = False
) -> Evolution:
    """Compares a program with a checkpoint or savepoint.

    Operators are matched by uid. An operator has changed if its kind, a setting, its key selector or the code of one
    of its functions has changed. Code that these functions call is not compared. Bytecode is compared only if both
    have the same Python version.

    Args:
        metadata: The checkpoint or savepoint.
        graph: The program.
        allow_non_restored_state: Whether state without an operator may be left behind: True for any state, or a list
            of uids.
    """
    stored = {operator.uid: operator for operator in metadata.operators}
    targets = {target.uid: target for target in restore_targets(graph)}
    sinks = {vertex.uid for vertex in graph.vertices if isinstance(vertex.spec, SinkSpec)}
    lost = {uid for uid, operator in stored.items() if is_lost(operator, targets.get(uid))}
    dropped = {uid for uid in lost if may_stay_behind(allow_non_restored_state, uid)}

    def outcome(uid: str) -> StateOutcome:
        if uid in lost:
            return StateOutcome.DROPPED if uid in dropped else StateOutcome.REFUSED
        if uid not in targets or not targets[uid].stateful:
            return StateOutcome.NONE
        if uid in stored and stored[uid].has_state:
            return StateOutcome.KEPT
        return StateOutcome.NONE if uid in sinks else StateOutcome.EMPTY

    found = []
    for vertex in graph.vertices:
        if vertex.uid_set:
            before = stored.get(vertex.uid)
            found.append(_compared(OperatorEvolution(vertex.uid, Change.ADDED, outcome(vertex.uid)), before, graph))
    for operator in metadata.operators:
        if operator.uid not in targets and (operator.program is not None or operator.has_state):
            found.append(OperatorEvolution(operator.uid, Change.REMOVED, outcome(operator.uid), operator.rows))
    names = () if isinstance(allow_non_restored_state, bool) else sorted(allow_non_restored_state)
    not_needed = tuple(uid for uid in names if uid not in dropped and uid not in metadata.master_states)
    since = f"{metadata.kind.value} {metadata.checkpoint_id} of job {metadata.job_id!r}"
    event_time = tuple(line for each in found if each.uid in stored and (line := _event_time(each, stored[each.uid])))
    return Evolution(since, tuple(found), not_needed, event_time)


def _event_time(found: OperatorEvolution, before: OperatorState) -> str | None:
    """Returns how far event time is if the watermark strategy has changed: it goes on from there, unlike in Flink."""
    if not any(change.startswith("watermark strategy") for change in found.details):
        return None
    watermark = max(before.watermarks, default=None)
    if watermark is None:
        return None
    try:
        at = f"{datetime_of_millis(watermark):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        at = f"{watermark} ms"
    return (
        f"event time of {found.uid!r} goes on from {at}, under the new watermark strategy, too: records before that "
        "are late, and windows drop them. If times have another unit or field now, begin anew with start_empty"
    )


def refuse_other_windows(before: OperatorState | None, vertex: JobVertex) -> None:
    """Refuses windows of another kind than those that are open in a checkpoint, which would never fire.

    Args:
        before: The operator in the checkpoint; None if it is not in it.
        vertex: The operator of the program.

    Raises:
        StateSchemaError: The open windows are of another kind.
    """
    if before is None or before.program is None or not isinstance(vertex.spec, WindowSpec) or not before.rows:
        return
    said, assigner = before.program.settings.get("assigner", "").partition("@")[0], vertex.spec.assigner
    was = next((kind for each, kind in _WINDOWS.items() if each.__name__ == said.partition("(")[0]), None)
    now = _WINDOWS.get(type(assigner))
    if was is None or now is None:
        return
    was, now = was.format(**dict(_NUMBER.findall(said))), now.format(**vars(assigner))
    if was != now:
        raise StateSchemaError(
            f"operator {vertex.uid!r}: its state is of {was}, and the program has {now}: the open ones would never "
            f"fire. Give the new operator another uid, and set allow_non_restored_state to [{vertex.uid!r}] to lose "
            "the open ones; or recompute it."
        )


def _compared(found: OperatorEvolution, before: OperatorState | None, graph: JobGraph) -> OperatorEvolution:
    """Returns what became of an operator of the program that is in the checkpoint, too, unless before is None."""
    if before is None:
        return found
    found = replace(found, rows=before.rows)
    if before.program is None:
        return replace(found, change=Change.UNKNOWN, compared=False)
    changes = _changes(before.program, operator_program(graph, found.uid))
    if any(changes):
        # An earlier release has described classes with their modules.
        earlier = _changes(before.program, operator_program(graph, found.uid, with_modules=True))
        changes = changes if any(earlier) else earlier
    details = tuple(change for change in changes if change)
    version = max((each + 1 for each, _ in graph.vertex(found.uid).migrations), default=0)
    if before.state_version < version:
        details = (*details, f"its state is migrated from version {before.state_version} to {version}")
    change = Change.CHANGED if details else Change.UNCHANGED
    return replace(found, change=change, details=details, compared=None not in changes)


def _changes(before: OperatorProgram, now: OperatorProgram) -> list[str | None]:
    """Returns for each setting how it has changed, in words; None where that is unknown."""
    if before.kind != now.kind:
        return [f"was {before.kind.replace('_', ' ')}, is now {now.kind.replace('_', ' ')}"]
    same_python = before.python == now.python
    # If only one side has a setting, the other is of a release that does not know it.
    return [
        describe_setting_change(name, before.settings[name], text, same_python=same_python)
        if name in before.settings
        else None
        for name, text in now.settings.items()
    ]
