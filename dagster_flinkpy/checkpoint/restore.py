"""Assigns stored state to new subtasks (Flink: ``StateAssignmentOperation``). Pure rules; nothing is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, may_stay_behind
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.datastream.functions import function_of
from dagster_flinkpy.datastream.operator_coordinator import CoordinatedFunction
from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import RestoreError, StateSchemaError
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import (
    DistributionMode,
    KeyedSnapshot,
    OperatorStateHandle,
    TableId,
    TableSnapshot,
    describe_schema,
)

__all__ = [
    "OperatorAssignment",
    "RestorePlan",
    "RestoreTarget",
    "assign",
    "is_lost",
    "reassign_key_groups",
    "reassign_operator_state",
    "repartition_operator_state",
    "restore_targets",
]


@dataclass(frozen=True)
class RestoreTarget:
    """An operator of the job that state is restored into."""

    uid: str
    parallelism: int
    max_parallelism: int
    max_parallelism_set: bool = False
    """Whether the user set the max parallelism. If it was derived, the stored one replaces it."""
    stateful: bool = True
    commits: bool = True
    """Whether it is a sink that commits what its checkpoints name."""
    coordinated: bool = True
    """Whether it is a source, or its function has a coordinator."""
    keyed: bool = True
    """Whether it can have keyed state."""


@dataclass(frozen=True)
class OperatorAssignment:
    """What one operator starts with."""

    uid: str
    parallelism: int
    max_parallelism: int
    """The max parallelism to use: the stored one if there is state."""
    subtasks: tuple[SubtaskState, ...]
    """What each subtask starts with, in order: the key groups that it has now, the lowest watermark of all old subtasks
    (None if one of them had none), and if the parallelism changed, the in-flight data of all of them."""
    coordinator_state: Any | None = None
    in_flight: tuple[Any, ...] = ()
    """What it reads first: segments of a blocking edge, which any parallelism can read."""
    restored: bool = False
    """Whether the checkpoint contains the operator."""


@dataclass(frozen=True)
class RestorePlan:
    """What a job starts with."""

    checkpoint_id: int
    operators: Mapping[str, OperatorAssignment]
    """Assignments by uid, in the order of the job's operators."""

    @property
    def inputs(self) -> dict[tuple[str, int], SubtaskState]:
        """What each subtask starts with, by uid and index."""
        return {(uid, s.index): s for uid, operator in self.operators.items() for s in operator.subtasks}


def assign(
    metadata: CheckpointMetadata,
    operators: Sequence[RestoreTarget],
    *,
    allow_non_restored_state: NonRestoredState = False,
) -> RestorePlan:
    """Assigns the state of a checkpoint to the operators of a job.

    Args:
        metadata: The checkpoint or savepoint.
        operators: All operators of the job.
        allow_non_restored_state: Whether to leave behind state whose operator is gone: True for any state, or a list of
            uids. Default: such state is an error.

    Raises:
        RestoreError: The state does not fit the job. The message names the uid, the numbers and what to change. (Flink:
            ``Checkpoints.loadAndValidateCheckpoint``, ``StateAssignmentOperation.checkParallelismPreconditions``.)
        StateSchemaError: A subtask would get state of two types under one name.
    """
    what = f"{metadata.kind.value} {metadata.checkpoint_id} of job {metadata.job_id!r}"
    skipped = _left_behind(metadata, operators, what, allow_non_restored_state)
    stored = {operator.uid: operator for operator in metadata.operators if operator.uid not in skipped}
    assignments = {
        spec.uid: _restored(spec, stored[spec.uid], what) if spec.uid in stored else _empty(spec) for spec in operators
    }
    return RestorePlan(metadata.checkpoint_id, assignments)


def restore_targets(graph: JobGraph) -> list[RestoreTarget]:
    """Returns the operators of a program as targets of a restore."""
    return [
        RestoreTarget(
            v.uid,
            v.parallelism,
            v.max_parallelism,
            v.max_parallelism_set,
            v.spec.keeps_state,
            isinstance(v.spec, SinkSpec) and isinstance(v.spec.sink, TwoPhaseCommittingSink),
            isinstance(v.spec, SourceSpec) or function_of(v.spec, CoordinatedFunction) is not None,
            v.spec.keyed,
        )
        for v in graph.vertices
    ]


def reassign_key_groups(
    old: Sequence[KeyedSnapshot | None], max_parallelism: int, new_parallelism: int
) -> list[list[tuple[int, KeyedSnapshot]]]:
    """Intersects the old subtasks' snapshots with the new subtasks' key groups.

    Flink: ``StateAssignmentOperation.reAssignSubKeyedStates``.

    Args:
        old: The snapshot of each old subtask, or None if it has no state.
        max_parallelism: Number of key groups.
        new_parallelism: Number of new subtasks.

    Returns:
        For each new subtask, the indexes of old subtasks and its parts of their snapshots, in order of the old
        subtasks.
    """
    located = [(index, snapshot) for index, snapshot in enumerate(old) if snapshot is not None]
    new: list[list[tuple[int, KeyedSnapshot]]] = []
    first = 0  # both sides are in order of key groups: what ends before this subtask also ends before all later ones
    for subtask in range(new_parallelism):
        key_groups = compute_key_group_range_for_operator_index(max_parallelism, new_parallelism, subtask)
        while first < len(located) and located[first][1].key_groups.end < key_groups.start:
            first += 1
        parts: list[tuple[int, KeyedSnapshot]] = []
        for index, snapshot in islice(located, first, None):
            if snapshot.key_groups.start > key_groups.end:
                break
            if part := snapshot.restrict(key_groups):
                parts.append((index, part))
        new.append(parts)
    return new


def repartition_operator_state(
    old: Sequence[Sequence[OperatorStateHandle] | None],
    new_parallelism: int,
    *,
    split_name_order: Sequence[str] | None = None,
) -> list[list[tuple[int, OperatorStateHandle]]]:
    """Redistributes named list states over new subtasks (Flink: ``RoundRobinOperatorStateRepartitioner``).

    If the parallelism is unchanged, SPLIT_DISTRIBUTE state stays where it is. Otherwise the partitions of each named
    state are distributed in contiguous shares. The next name begins at the subtask after the one that got the last odd
    partition.

    Args:
        old: The states of each old subtask, or None if it had none.
        new_parallelism: Number of new subtasks.
        split_name_order: The order in which SPLIT_DISTRIBUTE names are distributed. Default: alphabetical. (In Flink it
            is the order of a hash map.)

    Returns:
        For each new subtask, the indexes of old subtasks and what it gets of their states. A handle may be empty.
    """
    by_mode: dict[DistributionMode, dict[str, list[tuple[int, OperatorStateHandle]]]] = {
        m: {} for m in DistributionMode
    }
    for index, handles in enumerate(old):
        for handle in handles or ():
            by_mode[handle.mode].setdefault(handle.name, []).append((index, handle))
    new: list[list[tuple[int, OperatorStateHandle]]] = [[] for _ in range(new_parallelism)]

    split = by_mode[DistributionMode.SPLIT_DISTRIBUTE]
    if new_parallelism == len(old):
        for located in split.values():
            for index, handle in located:
                new[index].append((index, handle))
    else:
        first = 0
        for name in split_name_order if split_name_order is not None else sorted(split):
            first = _deal(split[name], new, first)

    for located in by_mode[DistributionMode.UNION].values():
        for subtask in new:
            subtask.extend(located)

    for located in by_mode[DistributionMode.BROADCAST].values():
        own = dict(located) if new_parallelism == len(old) else {}
        for number, subtask in enumerate(new):
            copies = {number: own[number]} if number in own else {}
            if len(own) < len(old):  # Flink gives subtasks that have a copy a second, equal one
                index, handle = located[number % len(located)]
                copies[index] = handle
            subtask.extend(copies.items())
    return new


def reassign_operator_state(
    old: Sequence[Sequence[OperatorStateHandle] | None], new_parallelism: int
) -> list[tuple[OperatorStateHandle, ...]]:
    """Returns the operator state of each new subtask, with one handle per name and mode.

    See :func:`repartition_operator_state` for the rules.

    Raises:
        StateSchemaError: A subtask would get elements of two types under one name.
    """
    return _merged(repartition_operator_state(old, new_parallelism))


def _rescaled_channels(old: Sequence[SubtaskState]) -> tuple[Any, ...]:
    """Returns the in-flight data of all old subtasks, each part with whose it was: a subtask takes its share of them.

    Flink: ``StateAssignmentOperation.reDistributeInputChannelStates``, ``RescaleMappings``.
    """
    return tuple(
        {**part, "rescaled": [*part.get("rescaled", ()), [subtask.index, len(old)]]}
        for subtask in old
        for part in subtask.channel_state
    )


def _reassign_raw(old: Sequence[SubtaskState], max_parallelism: int, parallelism: int) -> list[tuple[Any, ...]]:
    parts = [part for subtask in old for part in subtask.raw_keyed]
    groups = [compute_key_group_range_for_operator_index(max_parallelism, parallelism, i) for i in range(parallelism)]
    return [tuple(part for part in parts if part["key_group"] in mine) for mine in groups]


def _deal(
    located: Sequence[tuple[int, OperatorStateHandle]], new: Sequence[list[tuple[int, OperatorStateHandle]]], first: int
) -> int:
    """Distributes the partitions of one name from subtask ``first``; returns where the next name begins."""
    base, odd = divmod(sum(len(handle.partitions) for _, handle in located), len(new))
    source = position = 0
    for number in range(len(new)):
        wanted = base + (number < odd)
        while wanted > 0:
            index, handle = located[source]
            # An empty handle is passed on, too: Flink walks the list in this way, and it keeps the name registered.
            share = handle.partitions[position : position + wanted]
            new[(first + number) % len(new)].append((index, replace(handle, partitions=share)))
            if len(handle.partitions) - position > wanted:
                position += wanted
            else:
                source, position = source + 1, 0
            wanted -= len(share)
    return (first + odd) % len(new)


def is_lost(operator: OperatorState, target: RestoreTarget | None) -> bool:
    """Returns whether an operator has state in a checkpoint that no operator of the job could take.

    Args:
        operator: The operator in the checkpoint.
        target: The operator of the job with the same uid; None if there is none.
    """
    if target is None:
        return operator.has_state
    kept = any(s.keyed or s.operator_state or s.raw_keyed for s in operator.subtasks)
    prepared = any(s.committables for s in operator.subtasks)
    only_position = operator.coordinator_state is not None and not kept  # what a source has
    return (
        (kept and not target.stateful)
        or (any(s.keyed for s in operator.subtasks) and not target.keyed)
        or (prepared and not target.commits)
        or (only_position and not target.coordinated)
    )


def _left_behind(
    metadata: CheckpointMetadata, operators: Sequence[RestoreTarget], what: str, allowed: NonRestoredState
) -> tuple[str, ...]:
    targets = {spec.uid: spec for spec in operators}
    skipped: list[str] = []
    for operator in metadata.operators:
        target = targets.get(operator.uid)
        if not is_lost(operator, target):
            continue
        committed = replace(operator, subtasks=tuple(replace(s, committables=()) for s in operator.subtasks))
        found, leave = "state", "leave this state behind"
        if not is_lost(committed, target):
            problem = (
                "that is not known to be committed, and the job has no sink with this uid. Run the program that has it "
                "once more, which commits it"
            )
        elif target is None:
            problem = f"the job has no operator with this uid (it has {_quoted(targets)}). Give it its old uid back"
            if any(s.channel_state for s in operator.subtasks):
                found, leave = "in-flight records", "lose these records, and its state if it has any"
                problem += ", first run the old program, with enable_unaligned_checkpoints(False), up to a checkpoint "
                problem += "that has none"
        elif target.stateful and not target.keyed and any(s.keyed for s in operator.subtasks):
            problem = "the job's operator with this uid has no keyed state. Give the new operator another uid"
        elif target.stateful:
            problem = "the job's operator with this uid has no position as a source has. Give the new one another uid"
        else:
            problem = "the job's operator with this uid keeps no state. Give the new operator another uid"
        if not may_stay_behind(allowed, operator.uid):
            raise RestoreError(
                f"{what} has {found} for operator {operator.uid!r}, but {problem}, or set allow_non_restored_state to "
                f"[{operator.uid!r}] to {leave}."
            )
        skipped.append(operator.uid)
    return tuple(skipped)


def _empty(spec: RestoreTarget) -> OperatorAssignment:
    subtasks = tuple(SubtaskState(index) for index in range(spec.parallelism))
    return OperatorAssignment(spec.uid, spec.parallelism, spec.max_parallelism, subtasks)


def _restored(spec: RestoreTarget, stored: OperatorState, what: str) -> OperatorAssignment:
    if stored.has_state:
        _check(spec, stored, what)
        max_parallelism = stored.max_parallelism
    else:
        max_parallelism = spec.max_parallelism
    old = [SubtaskState(index) for index in range(stored.parallelism)]
    for subtask in stored.subtasks:
        old[subtask.index] = subtask
    if spec.parallelism == stored.parallelism:
        keyed = [subtask.keyed for subtask in old]
        channels = [subtask.channel_state for subtask in old]
    else:
        keyed = _reshard([subtask.keyed for subtask in old], max_parallelism, spec.parallelism)
        channels = [_rescaled_channels(old)] * spec.parallelism
    keyed = _with_all_tables(keyed)
    operator_state = reassign_operator_state([s.operator_state for s in old], spec.parallelism)
    raw_keyed = _reassign_raw(old, max_parallelism, spec.parallelism)
    watermark = _least(subtask.watermark for subtask in old)
    return OperatorAssignment(
        uid=spec.uid,
        parallelism=spec.parallelism,
        max_parallelism=max_parallelism,
        subtasks=tuple(
            SubtaskState(
                index,
                keyed=keyed[index],
                operator_state=operator_state[index],
                raw_keyed=raw_keyed[index],
                channel_state=channels[index],
                watermark=watermark,
            )
            for index in range(spec.parallelism)
        ),
        coordinator_state=stored.coordinator_state,
        in_flight=stored.in_flight,
        restored=True,
    )


def _check(spec: RestoreTarget, stored: OperatorState, what: str) -> None:
    if spec.max_parallelism_set and spec.max_parallelism != stored.max_parallelism:
        raise RestoreError(
            f"operator {spec.uid!r} sets max parallelism {spec.max_parallelism}, but its state in {what} has "
            f"{stored.max_parallelism} key groups, and that number cannot change. Set it to {stored.max_parallelism}, "
            "or do not set it."
        )
    if spec.parallelism > stored.max_parallelism:
        raise RestoreError(
            f"operator {spec.uid!r} has parallelism {spec.parallelism}, but its state in {what} has max parallelism "
            f"{stored.max_parallelism}. Lower the parallelism to at most {stored.max_parallelism}."
        )


def _reshard(old: Sequence[KeyedSnapshot | None], max_parallelism: int, parallelism: int) -> list[KeyedSnapshot | None]:
    new: list[KeyedSnapshot | None] = []
    for index, parts in enumerate(reassign_key_groups(old, max_parallelism, parallelism)):
        key_groups = compute_key_group_range_for_operator_index(max_parallelism, parallelism, index)
        new.append(KeyedSnapshot.concat((part for _, part in parts), key_groups) if parts else None)
    return new


def _with_all_tables(keyed: Sequence[KeyedSnapshot | None]) -> list[KeyedSnapshot | None]:
    """Adds the states that only other subtasks have, without rows: what may be declared is the same for all."""
    every: dict[TableId, TableSnapshot] = {}
    for table in (table for snapshot in keyed if snapshot for table in snapshot.tables):
        every.setdefault(table.identity, replace(table, runs=()))

    def with_all(snapshot: KeyedSnapshot) -> KeyedSnapshot:
        mine = {table.identity for table in snapshot.tables}
        others = (table for identity, table in every.items() if identity not in mine)
        return replace(snapshot, tables=(*snapshot.tables, *others))

    return [snapshot and with_all(snapshot) for snapshot in keyed]


def _merged(
    located: Sequence[Sequence[tuple[int, OperatorStateHandle]]],
) -> list[tuple[OperatorStateHandle, ...]]:
    """Joins the parts of each name, in order of the old subtasks. Of broadcast state, one copy is kept."""
    merged: list[tuple[OperatorStateHandle, ...]] = []
    for subtask in located:
        by_name: dict[tuple[str, DistributionMode], OperatorStateHandle] = {}
        for _, handle in subtask:
            key = handle.name, handle.mode
            known = by_name.get(key)
            if known is not None and handle.mode is DistributionMode.BROADCAST:
                continue
            if known is not None:
                if known.types != handle.types:  # A partition does not say its type.
                    raise StateSchemaError(_two_types(known, handle))
                handle = replace(known, partitions=known.partitions + handle.partitions)
            by_name[key] = handle
        merged.append(tuple(by_name.values()))
    return merged


def _two_types(one: OperatorStateHandle, other: OperatorStateHandle) -> str:
    types = " and of ".join(describe_schema(handle.types["value"]) for handle in (one, other))
    return (
        f"operator state {one.name!r} has in one checkpoint elements of {types}, because not all subtasks have "
        "declared it since its type has changed. Declare it in initialize_state(), which all subtasks call, and "
        "start from a checkpoint in which all of its elements have one type."
    )


def _least(watermarks: Iterable[int | None]) -> int | None:
    least: int | None = None
    for watermark in watermarks:
        if watermark is None:
            return None
        least = watermark if least is None else min(least, watermark)
    return least


def _quoted(uids: Iterable[str]) -> str:
    return ", ".join(repr(uid) for uid in uids) or "none"
