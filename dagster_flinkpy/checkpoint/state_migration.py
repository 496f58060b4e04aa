"""Brings the keyed state of a checkpoint to the version that a program declares with ``env.migrate_state``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.errors import RestoreError
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.migration import MigrateState, migrate_snapshot
from dagster_flinkpy.storage import ObjectStore

__all__ = ["migrate", "migrated_schemas", "state_version"]

_STEP = 1_000_000
"""After how many rows progress is told."""


def state_version(vertex: JobVertex, restored: CheckpointMetadata | None) -> int:
    """Returns the version of an operator's state in the next checkpoint.

    Without migrations, a program takes the state as it is.

    Args:
        vertex: The operator.
        restored: What the job continues from, after the migration; None if it starts empty.
    """
    before = None if restored is None else restored.operator(vertex.uid)
    return max([0 if before is None else before.state_version, *(each + 1 for each, _ in vertex.migrations)])


def migrate(
    metadata: CheckpointMetadata,
    graph: JobGraph,
    store: ObjectStore,
    written_by: str,
    progress: Callable[[str], object],
) -> CheckpointMetadata:
    """Returns a checkpoint with the state of all operators in the version of the program. Old files stay.

    Args:
        metadata: The checkpoint or savepoint.
        graph: The program.
        store: The object store, rooted at the job's prefix.
        written_by: Part of the names of the new files; see `state_files.state_file`.
        progress: Takes one-line progress messages.

    Raises:
        RestoreError: There is no migration from the version of the state.
        StateSchemaError: What a function returns does not fit what it declares, or the keys.
        UserFunctionError: A function has failed.
        CorruptStateError: A file is missing or damaged.
    """

    def changed(vertex: JobVertex, operator: OperatorState) -> OperatorState:
        seen, total = 0, operator.rows

        def on_rows(rows: int) -> None:
            nonlocal seen
            seen += rows
            if seen // _STEP > (seen - rows) // _STEP:
                progress(f"migrating the state of operator {vertex.uid!r}: {seen:,} of {total:,} rows")

        for version, function in _steps(vertex, operator, metadata):
            progress(f"migrating the state of operator {vertex.uid!r} from version {version}: {total:,} rows")
            operator, seen = _changed(operator, function, version, store, written_by, on_rows), 0
        return operator

    return _with(metadata, graph, changed)


def migrated_schemas(metadata: CheckpointMetadata, graph: JobGraph, store: ObjectStore) -> CheckpointMetadata:
    """Returns a checkpoint with the types that :func:`migrate` would give it, but without the rows of these states.

    The functions are called without rows. Nothing is written. For the arguments and errors, see :func:`migrate`.
    """

    def changed(vertex: JobVertex, operator: OperatorState) -> OperatorState:
        for version, function in _steps(vertex, operator, metadata):
            empty = (s.with_tables(lambda table: replace(table, runs=())) for s in operator.subtasks)
            without_rows = replace(operator, subtasks=tuple(empty))
            operator = _changed(without_rows, function, version, store, "", lambda rows: None)
        return operator

    return _with(metadata, graph, changed)


def _with(
    metadata: CheckpointMetadata, graph: JobGraph, changed: Callable[[JobVertex, OperatorState], OperatorState]
) -> CheckpointMetadata:
    vertices = {vertex.uid: vertex for vertex in graph.vertices if vertex.migrations}
    if not vertices:
        return metadata
    operators = (changed(vertices[o.uid], o) if o.uid in vertices else o for o in metadata.operators)
    return replace(metadata, operators=tuple(operators))


def _steps(vertex: JobVertex, operator: OperatorState, metadata: CheckpointMetadata) -> list[tuple[int, MigrateState]]:
    """Returns the migrations that are due, by the version that they start from."""
    known = dict(vertex.migrations)
    version, now = operator.state_version, max(known) + 1
    what = f"{metadata.kind.value} {metadata.checkpoint_id} of job {metadata.job_id!r}"
    if version > now:
        raise RestoreError(
            f"the state of operator {vertex.uid!r} in {what} has version {version}, but the program only knows how to "
            f"get to version {now}: it is older than the state. Use the newer program, or restore an older checkpoint"
        )
    if missing := [each for each in range(version, now) if each not in known]:
        raise RestoreError(
            f"the state of operator {vertex.uid!r} in {what} has version {version}, and the program has no "
            f"migration from version {missing[0]}. Add it with env.migrate_state({vertex.uid!r}, {missing[0]}, ...)"
        )
    return [(each, known[each]) for each in range(version, now)]


def _changed(
    operator: OperatorState,
    function: MigrateState,
    version: int,
    store: ObjectStore,
    written_by: str,
    on_rows: Callable[[int], object],
) -> OperatorState:
    def keyed(snapshot: KeyedSnapshot) -> KeyedSnapshot:
        return migrate_snapshot(
            snapshot,
            function,
            operator=operator.uid,
            max_parallelism=operator.max_parallelism,
            store=store,
            written_by=written_by,
            on_rows=on_rows,
        )

    subtasks = (s if s.keyed is None else replace(s, keyed=keyed(s.keyed)) for s in operator.subtasks)
    return replace(operator, subtasks=tuple(subtasks), state_version=version + 1)
