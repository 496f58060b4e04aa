"""Checks whether a checkpoint can be restored, without running its job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.restore import RestoreTarget, assign
from dagster_flinkpy.errors import CheckpointError, FlinkPyError, StorageError
from dagster_flinkpy.state.files.state_files import sha256_of
from dagster_flinkpy.state.reader import parts_of, read_table
from dagster_flinkpy.storage import ObjectStore

__all__ = ["DrillResult", "VerifyResult", "restore_drill", "verify_checkpoint"]

_PART = 16 << 20
_THREADS = 8


@dataclass(frozen=True)
class VerifyResult:
    """The result of a check: how much was read, and what is wrong."""

    files: int
    bytes: int
    problems: tuple[str, ...]
    """One line for each file that is missing or damaged."""


def verify_checkpoint(
    metadata: CheckpointMetadata, store: ObjectStore, *, on_read: Callable[[int], None] = lambda files: None
) -> VerifyResult:
    """Reads all state files of a checkpoint and compares their checksums. What blocking edges retain is no state.

    The metadata itself was checked when it was read.

    Args:
        metadata: The metadata of the checkpoint or savepoint.
        store: The object store, rooted at the prefix that its paths are relative to.
        on_read: Called with the number of further files that have been read.

    Raises:
        StorageError: The store failed, so the state of the files is unknown.
    """
    files = sorted({path for operator in metadata.operators for path in replace(operator, history=None).files()})
    with ThreadPoolExecutor(_THREADS) as threads:
        found = []
        for digest in threads.map(lambda path: _digest(path, store), files):
            found.append(digest)
            on_read(1)
    problems = [
        f"{store.url}/{path} is missing" if seen is None else f"{store.url}/{path} is damaged: its checksum differs"
        for path, seen in zip(files, found, strict=True)
        if seen is None or seen[0] != sha256_of(path)
    ]
    return VerifyResult(len(files), sum(seen[1] for seen in found if seen is not None), tuple(problems))


@dataclass(frozen=True)
class DrillResult:
    """The number of rows of keyed state and timers by operator, before and after a restore at another parallelism."""

    parallelism: int
    before: dict[str, int]
    after: dict[str, int]


def restore_drill(
    metadata: CheckpointMetadata,
    store: ObjectStore,
    *,
    on_read: Callable[[int], None] = lambda subtasks: None,
) -> DrillResult:
    """Assigns a checkpoint to another parallelism like a restore, and reads the keyed state of each new subtask.

    An operator gets one subtask more, up to its max parallelism.

    Args:
        metadata: The metadata of the checkpoint or savepoint.
        store: The object store, rooted at the prefix that its paths are relative to.
        on_read: Called with the number of further subtasks that have been read, both before and after the change.

    Raises:
        RestoreError: The checkpoint could not be restored. The message says why.
        CorruptStateError: A state file is missing or damaged. The message names it.
        CheckpointError: Rows would be lost or duplicated.
    """
    specs = [
        RestoreTarget(o.uid, min(o.parallelism + 1, o.max_parallelism), o.max_parallelism) for o in metadata.operators
    ]
    plan = assign(metadata, specs)

    def rows_in(subtask: SubtaskState) -> int:
        parts = (part for table in subtask.tables for part in parts_of(table))
        rows = sum(len(read_table(part, store)) for part in parts)
        on_read(1)
        return rows

    before = {o.uid: sum(map(rows_in, o.subtasks)) for o in metadata.operators}
    after = {uid: sum(map(rows_in, plan.operators[uid].subtasks)) for uid in before}
    if differ := [uid for uid in before if before[uid] != after[uid]]:
        parts = ", ".join(f"{uid}: {before[uid]} rows become {after[uid]}" for uid in differ)
        raise CheckpointError(f"checkpoint {metadata.checkpoint_id} at another parallelism: {parts}")
    return DrillResult(max((spec.parallelism for spec in specs), default=1), before, after)


def _digest(path: str, store: ObjectStore) -> tuple[str, int] | None:
    """Returns checksum and size of a file, or None if it is missing."""
    info = store.head(path)
    if info is None:
        return None
    digest = hashlib.sha256()
    try:
        for start in range(0, info.size, _PART):
            digest.update(store.get_range(path, start, _PART))
    except FlinkPyError as error:
        if isinstance(error, StorageError) and store.head(path) is not None:
            raise
        return None
    return digest.hexdigest(), info.size
