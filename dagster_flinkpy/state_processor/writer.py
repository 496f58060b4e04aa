"""Creates savepoints from data frames and from other savepoints (Flink: ``SavepointWriter``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.checkpoint.locations.savepoint_target import check_target, folders_of
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME, CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.savepoints.savepoint import as_savepoint, copy_files
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from dagster_flinkpy.errors import ConfigurationError, ParallelismError, RestoreError, StateSchemaError
from dagster_flinkpy.json_records import Json
from dagster_flinkpy.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    check_whole_number,
    compute_key_group_range_for_operator_index,
)
from dagster_flinkpy.state.files.operator_state import write_partitions
from dagster_flinkpy.state.files.run_file import clip_rows, encode_run, upload_run
from dagster_flinkpy.state.handles import (
    DistributionMode,
    KeyedSnapshot,
    OperatorStateHandle,
    RunHandle,
    describe_schema,
    span_of,
)
from dagster_flinkpy.state.layout import TableLayout, check_key_like, in_key_groups, unplaced_rows
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.state_processor.bootstrap import Columns, bootstrap_table, to_arrow_table
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["SavepointWriter", "write_savepoint"]


def write_savepoint(
    based_on: str | StorageLocation | None = None,
    *,
    max_parallelism: int = 128,
    parallelism: int = 1,
    state_version: int = 0,
) -> SavepointWriter:
    """Begins a savepoint. Nothing is written until :meth:`SavepointWriter.write` is called.

    Args:
        based_on: A savepoint, checkpoint or job to take the operators from, as for :func:`read_savepoint`. Default:
            none (Flink: ``newSavepoint`` instead of ``fromExistingSavepoint``).
        max_parallelism: Max parallelism of new operators. The job must have the same max parallelism, or none set.
        parallelism: Number of parts in which the state of new operators is written. A job may restore it with another
            parallelism.
        state_version: Version of the state of new operators: one more than the highest ``from_version`` that the
            program gives ``env.migrate_state`` for them, if the state is as the program declares it now. State of an
            older version is migrated by the job that restores it. Default: 0, as in a program without migrations.

    Raises:
        ConfigurationError: The version is not a whole number from 0.
        RestoreError: There is no such savepoint, or it has in-flight data.
        CorruptMetadataError: Its metadata cannot be read.
        ParallelismError: One of the numbers is out of range.
    """
    check_whole_number("parallelism", parallelism)
    check_whole_number("max_parallelism", max_parallelism)
    if not 1 <= parallelism <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ParallelismError(
            f"parallelism {parallelism} and max parallelism {max_parallelism} must be at least 1; the first must "
            f"not exceed the second, and the second must not exceed {UPPER_BOUND_MAX_PARALLELISM}"
        )
    if type(state_version) is not int or state_version < 0:
        raise ConfigurationError(f"write_savepoint: state_version is {state_version!r}, but versions count from 0")
    return SavepointWriter(based_on, max_parallelism, parallelism, state_version)


@dataclass
class _Operator:
    state: OperatorState
    files: StorageLocation | None = None
    """Store of the files of ``state``."""
    max_parallelism: int = 0
    """The max parallelism to write."""
    keyed: list[tuple[TableLayout, Iterable[pa.Table]]] = field(default_factory=list)
    """New states with tables of their rows, all in key group 0. Each table becomes a run per subtask."""
    lists: list[tuple[OperatorStateHandle, pa.Table]] = field(default_factory=list)
    """New operator states, which have no partitions yet, with their rows."""

    def names(self, *, keyed: bool) -> set[str]:
        """Returns the names of keyed state or of operator state, which may be the same."""
        if keyed:
            return {*(table.name for table in self.state.tables), *(layout.name for layout, _ in self.keyed)}
        stored = (handle.name for subtask in self.state.subtasks for handle in subtask.operator_state)
        return {*stored, *(handle.name for handle, _ in self.lists)}


class SavepointWriter:
    """Builds a savepoint. :func:`write_savepoint` creates it. All methods except :meth:`write` return the writer."""

    def __init__(
        self, based_on: str | StorageLocation | None, max_parallelism: int, parallelism: int, state_version: int
    ) -> None:
        self._max_parallelism, self._parallelism, self._state_version = max_parallelism, parallelism, state_version
        self._operators: dict[str, _Operator] = {}
        self._base: CheckpointMetadata | None = None
        if based_on is not None:
            self._base, self._operators = _open(based_on)

    # --- new state ----------------------------------------------------------------------------------------------------

    def with_keyed_state(
        self,
        uid: str,
        descriptor: StateDescriptor,
        data: Any,
        *,
        key: Columns,
        value: Columns,
        map_key: Columns | None = None,
        key_type: TypeInformation | None = None,
    ) -> SavepointWriter:
        """Adds a keyed state to a new operator, or to one that has no state of this name.

        Args:
            uid: Uid of the operator.
            descriptor: Descriptor of a value, list, map, reducing or aggregating state, as in the program. With a time
                to live, all values count as written now.
            data: An Arrow table, a pandas, Polars or Spark DataFrame, a dict of columns, or a stored state. It is
                loaded into this process. It has one row per key, for a list state one row per element in order, and
                for a map state one row per entry.
            key: The column of the key. Several columns are the fields of a tuple, or of a row if ``key_type`` is one.
            value: The column of the value, element or map value. Several columns are the fields of a row or tuple. For
                an aggregating state, this is the accumulator. Null means no value.
            map_key: The column of the map key, for a map state only.
            key_type: Type of the job's keys. Default: the type of the column (int64 is LONG, int32 is INT, ...).

        Raises:
            ConfigurationError: A column is missing, a key is null or occurs twice, or the state exists already.
            StateSchemaError: The operator has state with another key type.
            TypeMismatchError: A value of a column is not of the declared type.
            UnsupportedKeyTypeError: The type of the key or map key is not allowed for keys.
        """
        layout, rows = bootstrap_table(
            descriptor,
            to_arrow_table(data),
            key=key,
            value=value,
            map_key=map_key,
            key_type=key_type,
            now=current_millis(),
        )
        operator = self._operator(uid, layout.name, keyed=True)
        stored = [table.key for table in operator.state.tables] + [
            known.key_type.to_json() for known, _ in operator.keyed
        ]
        if stored and stored[0] != layout.key_type.to_json():
            raise StateSchemaError(
                f"operator {uid!r} has keys of {describe_schema(stored[0])}, and state {layout.name!r} has "
                f"keys of {layout.key_type}; pass key_type"
            )
        operator.keyed.append((layout, [rows]))
        return self

    def with_list_state(
        self, uid: str, descriptor: ListStateDescriptor, values: Iterable[Any], *, union: bool = False
    ) -> SavepointWriter:
        """Adds an operator list state.

        Args:
            uid: Uid of the operator: a new one, or one that has no state of this name.
            descriptor: Descriptor of the state, as in the program.
            values: The elements: Python values or an Arrow array. They are distributed over the subtasks.
            union: Whether this is a union list state, whose elements all go to every subtask.

        Raises:
            ConfigurationError: The operator already has a state of this name.
            TypeMismatchError: An element does not have the declared type.
        """
        mode = DistributionMode.UNION if union else DistributionMode.SPLIT_DISTRIBUTE
        columns = {"value": (descriptor.elem_type_info, values)}
        return self._with_operator_state(uid, descriptor.name, mode, columns)

    def with_broadcast_state(
        self, uid: str, descriptor: MapStateDescriptor, entries: Mapping[Any, Any]
    ) -> SavepointWriter:
        """Adds a broadcast state.

        Args:
            uid: Uid of the operator: a new one, or one that has no state of this name.
            descriptor: Descriptor of the state, as in the program.
            entries: The entries of the map.

        Raises:
            ConfigurationError: The operator already has a state of this name.
            TypeMismatchError: An entry does not have the declared types.
            UnsupportedKeyTypeError: The type of the key is not allowed for keys.
        """
        check_key_like(descriptor.key_type_info, f"the key of broadcast state {descriptor.name!r}")
        columns = {
            "key": (descriptor.key_type_info, list(entries)),
            "value": (descriptor.value_type_info, list(entries.values())),
        }
        return self._with_operator_state(uid, descriptor.name, DistributionMode.BROADCAST, columns)

    def _with_operator_state(
        self, uid: str, name: str, mode: DistributionMode, columns: Mapping[str, tuple[TypeInformation, Iterable[Any]]]
    ) -> SavepointWriter:
        arrays = {
            column: fit_column(values, kind, f"operator {uid!r}, state {name!r}, the {column}")
            if isinstance(values, pa.Array)
            else kind.to_arrow(list(values))
            for column, (kind, values) in columns.items()
        }
        types = {column: kind.to_json() for column, (kind, _) in columns.items()}
        self._operator(uid, name, keyed=False).lists.append(
            (OperatorStateHandle(name, mode, (), types), pa.table(arrays))
        )
        return self

    def with_operator(
        self, uid: str, parallelism: int, max_parallelism: int, position: Json | None = None, state_version: int = 0
    ) -> SavepointWriter:
        """Adds an operator without keyed state, with numbers of its own.

        Args:
            uid: Uid of the operator, which must be a new one.
            parallelism: Number of parts in which its state is written.
            max_parallelism: Its number of key groups.
            position: Of a source: what its enumerator starts from. Default: none.
            state_version: The version of its state, see :func:`write_savepoint`.

        Raises:
            ConfigurationError: There is already an operator with this uid.
        """
        if uid in self._operators:
            raise ConfigurationError(f"there is already an operator {uid!r}")
        shell = OperatorState(uid, uid, parallelism, max_parallelism, (), position, state_version=state_version)
        self._operators[uid] = _Operator(shell, None, max_parallelism)
        return self

    def with_keyed_tables(self, uid: str, layout: TableLayout, tables: Iterable[pa.Table]) -> SavepointWriter:
        """Adds a keyed state, or timers, whose rows are read when the savepoint is written, table by table.

        Args:
            uid: Uid of the operator.
            layout: The state.
            tables: Tables with the schema ``layout.local_schema`` and all rows in key group 0.

        Raises:
            ConfigurationError: The operator already has a state of this name.
        """
        self._operator(uid, layout.name, keyed=True).keyed.append((layout, tables))
        return self

    def _operator(self, uid: str, new_state: str, *, keyed: bool) -> _Operator:
        shell = OperatorState(uid, uid, self._parallelism, self._max_parallelism, (), state_version=self._state_version)
        operator = self._operators.setdefault(uid, _Operator(shell, None, self._max_parallelism))
        if new_state in operator.names(keyed=keyed):
            raise ConfigurationError(
                f"operator {uid!r} already has a state {new_state!r}. To write it anew, with all of its rows, call "
                f"remove_state({uid!r}, {new_state!r}) first"
            )
        return operator

    # --- operators of other savepoints --------------------------------------------------------------------------------

    def with_operators_of(self, path: str | StorageLocation, uids: Sequence[str] | None = None) -> SavepointWriter:
        """Adds operators of another savepoint or checkpoint, with all of their state.

        The input of the savepoint has ended if that of all these has.

        Args:
            path: The savepoint or checkpoint, as for :func:`read_savepoint`.
            uids: Uids of the operators. Default: all.

        Raises:
            RestoreError: There is no such savepoint or operator, or the operator has in-flight data.
            ConfigurationError: An operator with one of these uids exists already.
        """
        other, operators = _open(path)
        if self._base is not None:
            self._base = replace(self._base, end_of_input=self._base.end_of_input and other.end_of_input)
        for uid in operators if uids is None else uids:
            if uid not in operators:
                raise RestoreError(f"{path} has no operator {uid!r}; its operators are {list(operators)}")
            if uid in self._operators:
                raise ConfigurationError(f"there is already an operator {uid!r}; rename or remove one of them")
            self._operators[uid] = operators[uid]
        return self

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Removes an operator and its state.

        Raises:
            ConfigurationError: There is no operator with this uid.
        """
        self._known(uid)
        del self._operators[uid]
        return self

    def remove_state(self, uid: str, name: str) -> SavepointWriter:
        """Removes a state of an operator, which keeps all others: so another one can be added in its place.

        Args:
            uid: Uid of the operator.
            name: The state. Of keyed state and operator state with one name, it is the keyed one.

        Raises:
            ConfigurationError: There is no operator with this uid, or it has no such state.
        """
        operator = self._known(uid)
        keyed, others = operator.names(keyed=True), operator.names(keyed=False)
        if name not in keyed | others:
            known = ", ".join(sorted(keyed | others))
            raise ConfigurationError(f"operator {uid!r} has no state {name!r}; it has: {known}")
        remove = _without_keyed if name in keyed else _without_list
        subtasks = tuple(remove(subtask, name) for subtask in operator.state.subtasks)
        operator.state = replace(operator.state, subtasks=subtasks)
        if name in keyed:
            operator.keyed = [each for each in operator.keyed if each[0].name != name]
        else:
            operator.lists = [each for each in operator.lists if each[0].name != name]
        return self

    def change_operator_identifier(self, uid: str, to: str) -> SavepointWriter:
        """Gives an operator another uid.

        Raises:
            ConfigurationError: There is no operator with this uid, or another operator already has the new one.
        """
        self._known(uid)
        if to in self._operators:
            raise ConfigurationError(f"there is already an operator {to!r}")
        self._operators = {to if known == uid else known: operator for known, operator in self._operators.items()}
        return self

    def change_max_parallelism(self, uid: str, max_parallelism: int) -> SavepointWriter:
        """Gives an operator another number of key groups. Its keyed state is read and written again.

        Raises:
            ConfigurationError: There is no operator with this uid, or its keyed state is raw, so its keys are unknown.
            ParallelismError: The number is out of range, or below the parallelism that the state was written with.
        """
        check_whole_number("max_parallelism", max_parallelism)
        operator = self._known(uid)
        parallelism = operator.state.parallelism
        if not parallelism <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
            raise ParallelismError(
                f"operator {uid!r} was stored with parallelism {parallelism}: max parallelism {max_parallelism} must "
                f"be at least that, and at most {UPPER_BOUND_MAX_PARALLELISM}"
            )
        if any(subtask.raw_keyed for subtask in operator.state.subtasks):
            raise ConfigurationError(f"operator {uid!r} has raw keyed state, whose key groups cannot be changed")
        operator.max_parallelism = max_parallelism
        return self

    def _known(self, uid: str) -> _Operator:
        if uid not in self._operators:
            raise ConfigurationError(f"there is no operator {uid!r}; the operators are {list(self._operators)}")
        return self._operators[uid]

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, path: str | StorageLocation) -> str:
        """Writes the savepoint, which is always self-contained.

        Args:
            path: Folder of the savepoint. It must not contain one yet.

        Returns:
            The URL of the savepoint, from which a job can be restored.

        Raises:
            ConfigurationError: The folder already has a savepoint, or must not be used: it is inside the folder of a
                job, of a savepoint, or of a table.
            CorruptStateError: A file of an old savepoint is missing or damaged; the message names it.
            StorageError: The savepoint could not be written. Only a complete savepoint becomes visible.
        """
        target = path if isinstance(path, StorageLocation) else StorageLocation(path)
        store = target.open()
        if store.head(METADATA_NAME) is not None:
            raise ConfigurationError(f"{store.url} already has a savepoint; choose a new folder")
        known = [*(() if self._base is None else self._base.operators), *(o.state for o in self._operators.values())]
        check_target(target, folders=folders_of(known))
        written = tuple(_written(uid, operator, store) for uid, operator in self._operators.items())
        base = self._base or CheckpointMetadata(
            job_id="bootstrap",
            checkpoint_id=0,
            kind=CheckpointKind.SAVEPOINT,
            parent_id=None,
            timestamp_ms=current_millis(),
            partition=None,
            fencing_token=0,
            graph_fingerprint="",
            end_of_input=False,
            operators=(),
            properties={},
        )
        store.put(METADATA_NAME, as_savepoint(base, written).to_bytes(), if_none_match=True)
        return store.url


def _open(path: str | StorageLocation) -> tuple[CheckpointMetadata, dict[str, _Operator]]:
    stored = open_checkpoint(path if isinstance(path, StorageLocation) else StorageLocation(path))
    metadata = stored.metadata
    for operator in metadata.operators:
        if operator.in_flight or any(subtask.channel_state for subtask in operator.subtasks):
            raise RestoreError(
                f"operator {operator.uid!r} has in-flight data in {metadata.kind.value} {metadata.checkpoint_id} of "
                f"job {metadata.job_id!r}, an unaligned checkpoint, which only its own job can restore. Take an "
                "aligned savepoint: run the job once without enable_unaligned_checkpoints(), with the savepoint as "
                "restore_from if it has to be this one, and take a savepoint of its next checkpoint"
            )
    return metadata, {o.uid: _Operator(o, stored.files, o.max_parallelism) for o in metadata.operators}


def _without_keyed(subtask: SubtaskState, name: str) -> SubtaskState:
    keyed = subtask.keyed
    if keyed is None:
        return subtask
    return replace(subtask, keyed=replace(keyed, tables=tuple(table for table in keyed.tables if table.name != name)))


def _without_list(subtask: SubtaskState, name: str) -> SubtaskState:
    return replace(subtask, operator_state=tuple(each for each in subtask.operator_state if each.name != name))


def _written(uid: str, operator: _Operator, store: ObjectStore) -> OperatorState:
    """Writes an operator, so that all of its files are in the store."""
    state = replace(operator.state, uid=uid, max_parallelism=operator.max_parallelism)
    parallelism = state.parallelism
    by_index = {subtask.index: replace(subtask, committables=()) for subtask in state.subtasks}
    subtasks = [by_index.get(index, SubtaskState(index)) for index in range(parallelism)]
    new = list(operator.keyed)
    if operator.files is not None:
        source = operator.files.open()
        if operator.max_parallelism != operator.state.max_parallelism:
            new = [*_all_rows(operator, source), *new]
            subtasks = [replace(subtask, keyed=None) for subtask in subtasks]
        subtasks = list(copy_files(subtasks, source, store))
    ranges = [
        compute_key_group_range_for_operator_index(state.max_parallelism, parallelism, index)
        for index in range(parallelism)
    ]
    for layout, tables in new:
        runs: list[list[RunHandle]] = [[] for _ in ranges]
        for rows in tables:
            placed = in_key_groups(layout, rows, state.max_parallelism)
            for index, key_groups in enumerate(ranges):
                runs[index] += _write_part(layout, placed, key_groups, store)
        for index, key_groups in enumerate(ranges):
            table = layout.snapshot(tuple(runs[index]))
            known = subtasks[index].keyed or KeyedSnapshot(key_groups, ())
            sorted_tables = sorted((*known.tables, table), key=lambda each: each.identity)
            subtasks[index] = replace(subtasks[index], keyed=replace(known, tables=tuple(sorted_tables)))
    for handle, rows in operator.lists:
        for index, part in enumerate(_dealt(handle.mode, rows, parallelism)):
            split = handle.mode is not DistributionMode.BROADCAST
            mine = replace(handle, partitions=write_partitions(part, store, split=split))
            subtasks[index] = replace(subtasks[index], operator_state=(*subtasks[index].operator_state, mine))
    return replace(state, subtasks=tuple(subtasks))


def _all_rows(operator: _Operator, store: ObjectStore) -> Iterable[tuple[TableLayout, Iterable[pa.Table]]]:
    """Reads the live rows of each state from all subtasks."""
    parts: dict[tuple[bool, str], tuple[TableLayout, list[pa.Table]]] = {}
    for table in operator.state.tables:
        layout = TableLayout.of(table)
        _, tables = parts.setdefault(table.identity, (layout, []))
        rows = read_table(table, store)
        columns = {name: rows.column(name) for name in rows.column_names[2:]}
        tables.append(unplaced_rows(layout, columns, rows.column("key_hash").to_numpy()))
    return ((layout, [pa.concat_tables(tables)]) for layout, tables in parts.values())


def _write_part(layout: TableLayout, rows: pa.Table, key_groups: KeyGroupRange, store: ObjectStore) -> list[RunHandle]:
    start, stop = clip_rows(rows.column("sort_key").to_numpy(), span_of(key_groups))
    if start == stop:
        return []
    data, handle = encode_run(layout, rows.slice(start, stop - start).combine_chunks(), key_groups)
    upload_run(store, handle, data)
    return [handle]


def _dealt(mode: DistributionMode, rows: pa.Table, parallelism: int) -> list[pa.Table]:
    """Splits an operator state into one part per subtask."""
    if mode is DistributionMode.BROADCAST:
        return [rows] * parallelism
    if mode is DistributionMode.UNION:
        return [rows, *[rows.slice(0, 0)] * (parallelism - 1)]
    bounds = np.linspace(0, len(rows), parallelism + 1).astype(int).tolist()
    return [rows.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]
