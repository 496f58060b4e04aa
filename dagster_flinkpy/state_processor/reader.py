"""Reads the state in a savepoint or checkpoint (Flink: ``SavepointReader``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import StoredCheckpoint, open_checkpoint
from dagster_flinkpy.datastream.state import StateDescriptor
from dagster_flinkpy.errors import RestoreError, StateSchemaError
from dagster_flinkpy.flink_savepoint.savepoint import METADATA, FlinkSavepoint, is_flink_savepoint
from dagster_flinkpy.state.handles import describe_schema
from dagster_flinkpy.state_processor.flink_reader import FlinkSavepointReader, declarations_of
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows, OperatorStateRows, StatesByName, StoredState
from dagster_flinkpy.storage import StorageLocation

__all__ = ["SavepointReader", "read_savepoint"]


def read_savepoint(
    path: str | StorageLocation, declared: Mapping[str, Iterable[StateDescriptor]] | None = None
) -> SavepointReader | FlinkSavepointReader:
    """Opens a savepoint or checkpoint to read its state. Needs neither Spark nor the program, and runs no user code.

    A savepoint of Flink can be read as well. PyFlink does not write the types of values; with ``declared``, they are
    decoded, and otherwise they stay bytes.

    Args:
        path: The folder of a savepoint, of a checkpoint (``.../chk-7``), or of a job, which means its latest
            checkpoint: a directory, ``s3://bucket/prefix``, or a ``StorageLocation`` with endpoint and credentials.
        declared: Of a savepoint of Flink, the descriptors of state by uid. Default: none. Other savepoints have their
            types, so it is not used.

    Raises:
        RestoreError: There is no savepoint or checkpoint.
        CorruptMetadataError: Its metadata cannot be read.
        UnsupportedSavepointError: It is a savepoint of Flink that cannot be read.
    """
    location = path if isinstance(path, StorageLocation) else StorageLocation(path)
    folder = replace(location, url=location.url.removesuffix(f"/{METADATA}"))
    if is_flink_savepoint(folder):
        return FlinkSavepointReader(FlinkSavepoint(folder), declarations_of(declared or {}))
    return SavepointReader(open_checkpoint(location))


class SavepointReader(StatesByName):
    """The operators of a savepoint or checkpoint and their states. Use :func:`read_savepoint` to create one."""

    def __init__(self, stored: StoredCheckpoint) -> None:
        self._stored = stored

    @property
    def metadata(self) -> CheckpointMetadata:
        """The contents of ``_metadata``."""
        return self._stored.metadata

    @property
    def operators(self) -> tuple[str, ...]:
        """The uids of the operators."""
        return tuple(operator.uid for operator in self.metadata.operators)

    @cached_property
    def states(self) -> tuple[StoredState, ...]:
        """All states, operator by operator: keyed state and timers, then operator state.

        Raises:
            StateSchemaError: Subtasks have different types for one state.
        """
        return tuple(state for operator in self.metadata.operators for state in self._states_of(operator))

    def state(self, uid: str, name: str) -> StoredState:
        """Returns a state by the uid of its operator and its name: the keyed one, if an operator state has its name.

        Raises:
            RestoreError: There is no such operator or state; the message lists the existing ones.
            StateSchemaError: Subtasks have different types for one state.
        """
        operator = self.metadata.operator(uid)
        if operator is None:
            raise RestoreError(f"no operator has uid {uid!r}; the uids are: {', '.join(sorted(self.operators))}")
        states = {state.name: state for state in reversed(self._states_of(operator))}
        if name not in states:
            raise RestoreError(
                f"operator {uid!r} has no state {name!r}; it has: {', '.join(reversed(states)) or 'none'}"
            )
        return states[name]

    def _states_of(self, operator: OperatorState) -> list[StoredState]:
        keyed: dict[str, KeyedStateRows] = {}
        others: dict[str, OperatorStateRows] = {}
        files = self._stored.files
        for subtask in operator.subtasks:
            for table in subtask.tables:
                state = keyed.get(table.name)
                parts = () if state is None else state.tables
                if parts and parts[0][1].schema != table.schema:
                    raise StateSchemaError(
                        f"operator {operator.uid!r}: state {table.name!r} has two schemas in one checkpoint: "
                        f"{describe_schema(parts[0][1].schema)} and {describe_schema(table.schema)}"
                    )
                parts = (*parts, (subtask.index, table))
                keyed[table.name] = KeyedStateRows(operator.uid, table.name, files, operator.max_parallelism, parts)
            for handle in subtask.operator_state:
                known = others.get(handle.name)
                handles = (*(() if known is None else known.handles), (subtask.index, handle))
                others[handle.name] = OperatorStateRows(operator.uid, handle.name, files, handles)
        return [*keyed.values(), *others.values()]
