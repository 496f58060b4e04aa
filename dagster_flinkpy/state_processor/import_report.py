"""What an import of state from elsewhere is for, what it did, and what it left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, may_stay_behind
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.state_processor.flink_columns import DeclaredState
from dagster_flinkpy.storage import StorageLocation

__all__ = ["ImportReport", "ImportTarget", "ImportedState", "LeftBehind", "check_rows", "left_behind"]


@dataclass(frozen=True)
class ImportTarget:
    """An operator of the program that goes on."""

    uid: str
    max_parallelism: int | None = None
    """The number of key groups that the program sets. Default: that of the savepoint, or 128."""
    key_type: TypeInformation | None = None
    """The type of its keys; None without keys."""
    states: Sequence[DeclaredState] = ()
    namespaces: Mapping[str, TypeInformation | None] = field(default_factory=dict)
    """The type of the namespace of states and timers that are known, by name."""
    broadcast: Sequence[MapStateDescriptor] = ()
    source: Any = None
    """The source, of an operator that reads one."""
    state_version: int = 0
    """The version of its state as the program declares it, which is how the state is read."""


@dataclass(frozen=True)
class ImportedState:
    """State that was written."""

    uid: str
    name: str
    origin: str
    """What it was called where it comes from."""
    rows: int
    """Of keyed state: its keys, or for maps its entries; timers; entries of broadcast state; 1 for a position."""
    keyed: bool = False
    """Whether it is keyed state or timers."""


@dataclass(frozen=True)
class LeftBehind:
    """State that was not written, because that was allowed, or nothing is lost."""

    operator: str
    problem: str
    lost: bool = True
    """Whether something is lost, so that it must be allowed."""


@dataclass(frozen=True)
class ImportReport:
    """What an import did."""

    url: str
    """The new savepoint."""
    imported: tuple[ImportedState, ...]
    left_behind: tuple[LeftBehind, ...]


def left_behind(
    problems: Sequence[LeftBehind],
    allowed: NonRestoredState,
    what: str,
    one: str = "UID for one operator",
    id_of: Callable[[str], str] = str,
) -> tuple[LeftBehind, ...]:
    """Returns what is left behind, if all of it may be.

    Args:
        problems: The state that cannot be moved.
        allowed: What may be left behind.
        what: What the message says first: where the state is, and what cannot be done with it.
        one: What ``--allow-non-restored-uid`` takes, for the message.
        id_of: Returns another name of an operator, by which it may be allowed.

    Raises:
        UnsupportedSavepointError: There is other state that cannot be moved. The message names each, and says why.
    """
    refused = [
        each
        for each in problems
        if each.lost and not (may_stay_behind(allowed, each.operator) or may_stay_behind(allowed, id_of(each.operator)))
    ]
    if refused:
        lines = "\n".join(f"- {each.problem}" for each in refused)
        raise UnsupportedSavepointError(
            f"{what}:\n{lines}\n"
            "To leave it behind, pass allow_non_restored_state (--allow-non-restored-state, or "
            f"--allow-non-restored-uid {one})"
        )
    return tuple(problems)


def check_rows(target: StorageLocation, imported: Sequence[ImportedState]) -> None:
    """Checks that the new savepoint has as many rows of each keyed state as were read.

    Raises:
        CorruptStateError: It has not.
    """
    found: Counter[tuple[str, str]] = Counter()
    for operator in open_checkpoint(target).metadata.operators:
        for table in operator.tables:
            found[operator.uid, table.name] += table.rows
    for each in imported:
        if not each.keyed:
            continue
        written = found[each.uid, each.name]
        if written != each.rows:
            raise CorruptStateError(
                f"operator {each.uid!r}, state {each.name!r}: {each.rows:,} rows were read, and {written:,} written"
            )
