"""Checks checkpoint metadata before it is restored: its parts must fit together, and none may be missing.

A checksum shows that a file is unchanged, but not that it was complete when it was written. So metadata is checked
before it is written, and again when it is read. Besides the rules there is an inventory, which counts each part of each
operator. Metadata from a release without inventories, or from a tool of such a release, is checked by the rules alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    compute_key_group_range_for_operator_index,
)
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot

__all__ = ["INVENTORY", "check_inventory", "inventory_of", "validate"]

INVENTORY = "inventory"
"""The field of the inventory in the metadata."""
_PARTS = (
    *("subtasks", "coordinator states", "watermarks", "splits", "committables", "parts of raw keyed state"),
    *("parts of in-flight data", "operator states", "partitions of operator state", "types of operator state"),
    *("keyed states", "tables", "tables with time to live", "runs", "rows", "tombstones", "appended rows"),
    *("runs of fired timers", "types of values"),
    *("epochs in flight", "segments in flight", "retained epochs", "retained segments"),
)
_OF_HISTORY = ("checkpoint", "written_ms")


def validate(operators: Sequence[OperatorState]) -> None:
    """Checks that the parts of a checkpoint or savepoint fit together. Handles check their own paths and sizes.

    Raises:
        ValueError: They do not fit; the message names the parts.
    """
    _unique("uid", [operator.uid for operator in operators])
    for operator in operators:
        where = f"operator {operator.uid!r}"
        if not 1 <= operator.parallelism <= operator.max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
            raise ValueError(f"{where} has parallelism {operator.parallelism} of at most {operator.max_parallelism}")
        _validate_subtasks(where, operator)
        for output in operator.in_flight:
            _validate_output(where, output)
        for output in () if operator.history is None else operator.history.outputs:
            _validate_output(where, output)
            if type(output["settled"]) is not bool or any(type(output[each]) is not int for each in _OF_HISTORY):
                raise ValueError(f"{where} retains data of a blocking edge that is not described as it should be")
        _unique(f"split of {where}", [split_id for s in operator.subtasks if s.splits for split_id in _split_ids(s)])


def _validate_subtasks(where: str, operator: OperatorState) -> None:
    indexes = [subtask.index for subtask in operator.subtasks]
    _unique(f"subtask of {where}", indexes)
    if wrong := [index for index in indexes if not 0 <= index < operator.parallelism]:
        raise ValueError(f"{where} has parallelism {operator.parallelism} and a subtask {wrong[0]}")
    if indexes and len(indexes) < operator.parallelism:
        missing = min({*range(operator.parallelism)} - {*indexes})
        raise ValueError(f"{where} has parallelism {operator.parallelism}, but no subtask {missing}")
    keyed = [subtask.index for subtask in operator.subtasks if subtask.keyed is not None]
    if keyed and len(keyed) < len(indexes):
        missing = min({*indexes} - {*keyed})
        raise ValueError(f"subtask {missing} of {where} has no keyed state, but subtask {keyed[0]} has")
    for subtask in operator.subtasks:
        own = compute_key_group_range_for_operator_index(operator.max_parallelism, operator.parallelism, subtask.index)
        name = f"subtask {subtask.index} of {where}"
        if len(subtask.operator_state) > 1:
            _unique(
                f"operator state of {name}", [(handle.name, handle.mode.value) for handle in subtask.operator_state]
            )
        if subtask.raw_keyed:
            raw = [part["key_group"] for part in subtask.raw_keyed]
            _unique(f"key group of raw keyed state of {name}", raw)
            if foreign := [group for group in raw if type(group) is not int or group not in own]:
                raise ValueError(f"{name} has raw keyed state of key group {foreign[0]!r}, which is not its own")
        if subtask.keyed is not None:
            _validate_keyed(name, operator, own, subtask.keyed)


def _validate_output(where: str, output: Mapping[str, Any]) -> None:
    numbers = [output["checkpoint_id"]]
    numbers += [segment[name] for segment in output["segments"] for name in ("subtask", "bytes", "rows")]
    watermark = output["watermark"]
    fits = all(type(number) is int and number >= 0 for number in numbers) and type(output["segments"]) is list
    fits = fits and all(type(segment["key"]) is str for segment in output["segments"])
    if not fits or type(output["end_of_input"]) is not bool or not (watermark is None or type(watermark) is int):
        raise ValueError(f"{where} has data of a blocking edge that is not described as it should be")


def _validate_keyed(where: str, operator: OperatorState, own: KeyGroupRange, keyed: KeyedSnapshot) -> None:
    """Checks that each key group belongs to one subtask; otherwise state would be lost or counted twice."""
    if keyed.key_groups != own:
        raise ValueError(
            f"{where} has key groups {keyed.key_groups.start} to {keyed.key_groups.end}, but with parallelism "
            f"{operator.parallelism} and max parallelism {operator.max_parallelism} it owns {own.start} to {own.end}"
        )
    if len(keyed.tables) > 1:
        _unique(f"state of {where}", [(table.name, table.kind == "TIMER") for table in keyed.tables])
    for table in keyed.tables:
        for run in table.runs:
            start, end = run.key_groups.start, run.key_groups.end
            if not own.start <= start <= end <= own.end:
                raise ValueError(f"a run of {where} has key groups {start} to {end}, which are not its own")
            if run.rows != (rows := _rows_in(run, start, end)):
                raise ValueError(
                    f"a run of state {table.name!r} of {where} should have {run.rows} rows in key groups {start} to "
                    f"{end}, but its file has {rows}"
                )


def _rows_in(run: RunHandle, start: int, end: int) -> int:
    """Counts the rows of a file in a range of key groups, in one call, because a job may have a million runs."""
    group, rows = run.rows_per_key_group[0], 0
    for count in run.rows_per_key_group[1:]:
        if count < 0:
            group -= count
            continue
        if start <= group <= end:
            rows += count
        group += 1
    return rows


# --- the inventory ----------------------------------------------------------------------------------------------------


def inventory_of(
    what: str, operators: Sequence[OperatorState], properties: Mapping[str, Any], master_states: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the inventory as JSON: the count of each part.

    An inventory names the checkpoint that it belongs to. A tool of a release without inventories may copy it into
    another checkpoint. Because of the name, that checkpoint is not compared with the wrong inventory.

    Args:
        what: Names the checkpoint or savepoint.
        operators: Its operators.
        properties: Its properties.
        master_states: The states of its master hooks.
    """
    return {
        "of": what,
        "properties": len(properties),
        "states of master hooks": len(master_states),
        "operators": {operator.uid: _parts(operator) for operator in operators},
    }


def check_inventory(found: Mapping[str, Any], written: Any) -> None:
    """Checks that no part is missing.

    Args:
        found: The inventory of the metadata as it was read.
        written: The inventory in the metadata, or None.

    Raises:
        ValueError: A part is missing or occurs twice; the message names it.
    """
    if written is None or written["of"] != found["of"]:
        return
    if lost := [uid for uid in written["operators"] if uid not in found["operators"]]:
        raise ValueError(f"operator {lost[0]!r} is missing")
    for uid, parts in found["operators"].items():
        _compare(f"operator {uid!r}", written["operators"].get(uid, {}), parts)
    for part in ("properties", "states of master hooks"):
        _compare("it", {part: written[part]}, {part: found[part]})


def _compare(where: str, expected: Mapping[str, Any], found: Mapping[str, int]) -> None:
    for part in {**expected, **found}:
        written, there = expected.get(part, 0), found.get(part, 0)
        if written != there:
            raise ValueError(f"{where} has {there} {part}, but was written with {written}")


def _parts(operator: OperatorState) -> dict[str, int]:
    """Returns the counts by the name of the part, without counts of 0."""
    counts = dict.fromkeys(_PARTS, 0)
    counts["subtasks"] = len(operator.subtasks)
    counts["coordinator states"] = int(operator.coordinator_state is not None)
    counts["epochs in flight"] = len(operator.in_flight)
    counts["segments in flight"] = sum(len(output["segments"]) for output in operator.in_flight)
    retained = () if operator.history is None else operator.history.outputs
    counts["retained epochs"] = len(retained)
    counts["retained segments"] = sum(len(output["segments"]) for output in retained)
    for subtask in operator.subtasks:
        counts["watermarks"] += subtask.watermark is not None
        counts["splits"] += len(subtask.splits)
        counts["committables"] += len(subtask.committables)
        counts["parts of raw keyed state"] += len(subtask.raw_keyed)
        counts["parts of in-flight data"] += len(subtask.channel_state)
        counts["operator states"] += len(subtask.operator_state)
        for handle in subtask.operator_state:
            counts["partitions of operator state"] += len(handle.partitions)
            counts["types of operator state"] += len(handle.types)
        if subtask.keyed is not None:
            counts["keyed states"] += 1
            _count_tables(counts, subtask.keyed.tables)
    return {part: count for part, count in counts.items() if count}


def _count_tables(counts: dict[str, int], tables: tuple[TableSnapshot, ...]) -> None:
    counts["tables"] += len(tables)
    for table in tables:
        counts["tables with time to live"] += table.ttl
        counts["runs"] += len(table.runs)
        for run in table.runs:
            counts["rows"] += run.rows
            counts["tombstones"] += run.tombstones
            counts["appended rows"] += run.appends
            counts["runs of fired timers"] += run.fired_before is not None
            counts["types of values"] += len(run.value_types)


# --- shared -----------------------------------------------------------------------------------------------------------


def _split_ids(subtask: SubtaskState) -> list[str]:
    return [split["split_id"] for split in subtask.splits if type(split) is dict and "split_id" in split]


def _unique(what: str, values: Sequence[Hashable]) -> None:
    if len({*values}) < len(values):
        twice = next(value for position, value in enumerate(values) if value in values[:position])
        raise ValueError(f"{what} {twice!r} occurs twice")
