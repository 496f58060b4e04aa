"""Makes a savepoint of this library from a savepoint of Flink, for a program that goes on from it.

Keys are hashed anew: PyFlink keys a stream by a row of the key, so a key is in another key group there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.errors import TypeMismatchError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.connector_state import COMMITTER_STATE, WRITER_STATE, committables, open_part_file
from dagster_flinkpy.flink_savepoint.metadata import FlinkOperator
from dagster_flinkpy.flink_savepoint.savepoint import FlinkSavepoint, name_of
from dagster_flinkpy.state.keys import hash_keys
from dagster_flinkpy.state.layout import unplaced_rows
from dagster_flinkpy.state_processor.flink_reader import (
    Declarations,
    FlinkKeyedRows,
    FlinkOperatorRows,
    FlinkSavepointReader,
)
from dagster_flinkpy.state_processor.flink_sources import position_of
from dagster_flinkpy.state_processor.import_report import (
    ImportedState,
    ImportReport,
    ImportTarget,
    LeftBehind,
    check_rows,
    left_behind,
)
from dagster_flinkpy.state_processor.stored_state import StoredState
from dagster_flinkpy.state_processor.writer import SavepointWriter, write_savepoint
from dagster_flinkpy.storage import StorageLocation

__all__ = ["import_flink_savepoint"]

_READER_STATE = "SourceReaderState"
"""What readers of Flink's sources call the state with their splits."""
_ROWS, _BYTES = 200_000, 16 << 20
"""Key groups are written together until they have this many rows, or bytes."""


def import_flink_savepoint(
    source: StorageLocation,
    target: StorageLocation,
    operators: Sequence[ImportTarget],
    *,
    allow_non_restored_state: NonRestoredState = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> ImportReport:
    """Writes a savepoint with the state of a savepoint of Flink.

    All is looked at before anything is written. Of keyed state, about one key group at a time is in memory.

    Args:
        source: The folder of Flink's savepoint.
        target: The folder of the new savepoint.
        operators: The operators of the program.
        allow_non_restored_state: Whether to leave behind state that cannot be imported: True for any, or the uids (or
            ids) of the operators whose state may be. Default: it is an error.
        on_progress: Receives one-line messages.

    Raises:
        UnsupportedSavepointError: There is state that cannot be imported. The message names each, and says why.
        TypeMismatchError: The program declares state differently.
        CorruptStateError: A file is missing or damaged.
        ConfigurationError: The target has a savepoint already, or must not be used.
    """
    targets = {each.uid: each for each in operators}
    declared = Declarations(
        {uid: each.states for uid, each in targets.items()}, {uid: each.broadcast for uid, each in targets.items()}
    )
    reader = FlinkSavepointReader(FlinkSavepoint(source), declared)
    plans, problems = [], []
    for operator in reader.metadata.operators:
        plan = _Plan(reader, operator, targets.get(reader.uid_of(operator)))
        plans.append(plan)
        problems += plan.problems
    left = left_behind(
        problems,
        allow_non_restored_state,
        f"{reader.location.url} has state that cannot be imported",
        id_of=lambda name: getattr(reader.metadata.operator(name), "id", name),
    )
    writer = write_savepoint()
    for plan in plans:
        plan.add_to(writer, on_progress)
    url = writer.write(target)
    imported = tuple(state for plan in plans for state in plan.imported())
    check_rows(target, imported)
    return ImportReport(url, imported, left)


class _Plan:
    """What happens to the state of one operator of Flink."""

    def __init__(self, reader: FlinkSavepointReader, operator: FlinkOperator, target: ImportTarget | None) -> None:
        self._operator, self._target, self._savepoint = operator, target, reader.savepoint
        self._position: dict[str, Any] | None = None
        self._name = reader.uid_of(operator)
        self._keyed: list[_KeyedImport] = []
        self._broadcast: list[tuple[FlinkOperatorRows, MapStateDescriptor]] = []
        self.problems: list[LeftBehind] = []
        if operator.fully_finished:
            self._problem(f"{name_of(operator)} has read all of its input, and finished operators are not imported")
        states, unreadable = reader.states_of(operator)
        for each in unreadable:
            self._problem(each.problem)
        for state in states:
            if isinstance(state, FlinkKeyedRows):
                self._plan_keyed(state)
            elif isinstance(state, FlinkOperatorRows) and state.name != _READER_STATE:
                self._plan_operator_state(state)
        self._plan_source(states)

    def _problem(self, text: str, *, lost: bool = True) -> None:
        self.problems.append(LeftBehind(self._name, text, lost))

    def _plan_source(self, states: Sequence[StoredState]) -> None:
        coordinator, what = self._savepoint.coordinator_state(self._operator), name_of(self._operator)
        readers = [each for each in states if isinstance(each, FlinkOperatorRows) and each.name == _READER_STATE]
        try:
            splits = [split for each in readers for split in _raw(each, what)]
            if not coordinator and not splits:
                return
            if self._target is None or self._target.source is None:
                self._problem(f"{what} is a source, and no source of the program has this uid")
                return
            self._position = position_of(self._target.source, coordinator, splits, what)
        except UnsupportedSavepointError as error:
            self._problem(str(error))

    def _plan_keyed(self, state: FlinkKeyedRows) -> None:
        what = f"{name_of(self._operator)}, state {state.name!r}"
        if not state.has_rows():
            return
        if self._target is None:
            self._problem(f"{what}: no operator of the program has this uid")
        elif self._target.key_type is None:
            self._problem(f"{what}: operator {self._target.uid!r} of the program has no keyed state")
        elif state.declared is None and not state.header.is_timers:
            self._problem(
                f"{what}: the program does not declare it in open(). State that a function asks for with its first "
                "record only is unknown: pass its descriptor as `declared`"
            )
        else:
            new = _KeyedImport(state, self._target)
            if (other := next((each for each in self._keyed if each.layout.name == new.layout.name), None)) is not None:
                self._problem(f"{what}: it would be state {new.layout.name!r}, as {other.state.header.name!r} is")
                return
            self._keyed.append(new)

    def _plan_operator_state(self, state: FlinkOperatorRows) -> None:
        what = f"{name_of(self._operator)}, operator state {state.name!r}"
        if not any(state.elements(position) for position in range(len(state.subtasks))):
            return
        if state.name in (COMMITTER_STATE, WRITER_STATE):
            try:
                (self._plan_committer if state.name == COMMITTER_STATE else self._plan_writer)(_raw(state, what), what)
            except UnsupportedSavepointError as error:
                self._problem(str(error))
        elif self._target is None:
            self._problem(f"{what}: no operator of the program has this uid")
        elif state.declared is None:
            self._problem(f"{what}: it is not broadcast state that the program declares, and nothing else is imported")
        else:
            self._broadcast.append((state, state.declared))

    def _plan_committer(self, elements: Sequence[bytes], what: str) -> None:
        if not (count := sum(committables(each, what) for each in elements)):
            return
        if self._savepoint.metadata.stopped:
            self._problem(f"{what}: Flink committed its last results ({count}) when the job had stopped", lost=False)
        else:
            self._problem(
                f"{what}: its last results ({count}) are not committed, which only Flink can do. Stop the job with "
                "`flink stop`, and import the savepoint of that"
            )

    def _plan_writer(self, elements: Sequence[bytes], what: str) -> None:
        if folders := [folder for each in elements if (folder := open_part_file(each, what))]:
            self._problem(
                f"{what}: part files are open ({len(folders)}) in {', '.join(dict.fromkeys(folders))}, and their rows "
                "are in no other file. Stop the job with --drain, or with a sink that rolls files at each checkpoint"
            )

    def add_to(self, writer: SavepointWriter, on_progress: Callable[[str], None]) -> None:
        """Adds the state to a new savepoint, which reads it when it is written."""
        target, operator = self._target, self._operator
        if target is None or not (self._keyed or self._broadcast or self._position):
            return
        max_parallelism = target.max_parallelism or operator.max_parallelism
        parallelism = min(operator.parallelism, max_parallelism)
        writer.with_operator(target.uid, parallelism, max_parallelism, self._position, target.state_version)
        for each in self._keyed:
            writer.with_keyed_tables(target.uid, each.layout, each.tables(on_progress))
        for state, descriptor in self._broadcast:
            writer.with_broadcast_state(target.uid, descriptor, dict(state.elements(0)))

    def imported(self) -> Iterator[ImportedState]:
        """Yields what was written."""
        if self._target is None:
            return
        for each in self._keyed:
            yield ImportedState(self._target.uid, each.layout.name, each.state.header.name, each.rows, True)
        for state, descriptor in self._broadcast:
            yield ImportedState(self._target.uid, descriptor.name, state.header.name, len(state.elements(0)))
        if self._position is not None:
            yield ImportedState(self._target.uid, "position", _READER_STATE, 1)


def _raw(state: FlinkOperatorRows, what: str) -> list[bytes]:
    """Returns the elements of a state that sources or sinks of Flink serialize themselves."""
    found = [each for position in range(len(state.subtasks)) for each in state.elements(position)]
    if not all(isinstance(each, bytes) for each in found):
        raise UnsupportedSavepointError(
            f"{what}: elements of {state.name!r} are not bytes, as a source or sink has them"
        )
    return found


class _KeyedImport:
    """The import of one keyed state, or of timers.

    Raises:
        TypeMismatchError: The program declares it differently.
    """

    def __init__(self, state: FlinkKeyedRows, target: ImportTarget) -> None:
        self.state = state
        self.rows = 0
        columns = state.columns
        name = state.name if state.declared is None else state.declared.name
        wanted = target.namespaces.get(name, columns.namespace_type)
        if wanted != columns.namespace_type:
            raise TypeMismatchError(
                f"operator {target.uid!r}, state {name!r}: the program keeps it per {wanted}, but the savepoint per "
                f"{columns.namespace_type}"
            )
        self.layout = replace(columns.layout, name=name)

    def tables(self, on_progress: Callable[[str], None]) -> Iterator[pa.Table]:
        """Yields the rows as those of a state table, all in key group 0."""
        waiting: list[pa.Table] = []
        for position in range(len(self.state.subtasks)):
            for _, columns in self.state.groups_of(position):
                hashes = hash_keys(self.layout.key_type, columns["key"])
                waiting.append(unplaced_rows(self.layout, columns, hashes))
                self.rows += len(hashes)
                if sum(map(len, waiting)) >= _ROWS or sum(table.nbytes for table in waiting) >= _BYTES:
                    yield pa.concat_tables(waiting)
                    waiting.clear()
            on_progress(
                f"{self.state.uid}.{self.layout.name}: {self.rows:,} rows of {position + 1} of "
                f"{len(self.state.subtasks)} subtasks"
            )
        if waiting:
            yield pa.concat_tables(waiting)
