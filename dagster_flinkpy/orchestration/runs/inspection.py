"""Reads the state of one key of a job as tables. Imported only when it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from dagster import TableMetadataValue

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import open_checkpoint
from dagster_flinkpy.errors import CorruptStateError, RestoreError, shorten
from dagster_flinkpy.orchestration.tables import table
from dagster_flinkpy.state_processor import SavepointReader
from dagster_flinkpy.state_processor.sql import key_from_text
from dagster_flinkpy.state_processor.stored_state import KeyedStateRows
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Inspection", "inspect_key", "state_table"]

_ROWS_SHOWN = 100
_CHARACTERS_SHOWN = 1_000
_TRIES = 5
_EXACT_IN_BROWSERS = 2**53


@dataclass(frozen=True)
class Inspection:
    """The state of one key of an operator."""

    checkpoint: CheckpointMetadata
    states: Mapping[str, pa.Table]
    """The rows of the key, by name of the state."""

    @property
    def rows(self) -> int:
        """Number of rows in all states."""
        return sum(table.num_rows for table in self.states.values())


def inspect_key(location: StorageLocation, uid: str, state: str | None, key: str) -> Inspection:
    """Reads the state of one key. Files and row groups that cannot contain it are not read.

    Args:
        location: The folder of a savepoint, of a checkpoint (``chk-n``), or of a job for its latest checkpoint. If a
            run replaces the job's checkpoint meanwhile, the newer checkpoint is read.
        uid: Uid of the operator.
        state: Name of the state, or None for all keyed states and timers of the operator.
        key: The key: a string as it is, anything else as JSON.

    Raises:
        RestoreError: There is no checkpoint, no such operator or state, or the operator has no keyed state.
        ConfigurationError: The state is operator state, which has no keys.
        TypeMismatchError: The text is not a key of the state's key type.
        CorruptStateError: A file is missing or damaged; the message names it.
    """
    savepoint = SavepointReader(open_checkpoint(location))
    for _ in range(_TRIES):
        try:
            return Inspection(savepoint.metadata, _rows(savepoint, uid, state, key))
        except CorruptStateError:
            newer = SavepointReader(open_checkpoint(location))
            if newer.metadata.checkpoint_id == savepoint.metadata.checkpoint_id:
                raise
            savepoint = newer
    return Inspection(savepoint.metadata, _rows(savepoint, uid, state, key))


def state_table(rows: pa.Table) -> TableMetadataValue:
    """Returns the first rows of a state as a Dagster table. Values for which Dagster has no type become JSON."""
    kinds = {f.name: str(f.type) for f in rows.schema if f.name not in ("key_group", "key_hash")}
    shown = rows.select(list(kinds)).slice(0, _ROWS_SHOWN).to_pylist()
    return table(kinds, (list(map(_cell, row.values())) for row in shown))


def _rows(savepoint: SavepointReader, uid: str, state: str | None, key: str) -> dict[str, pa.Table]:
    if state is not None:
        wanted = [savepoint.state(uid, state)]
    elif uid not in savepoint.operators:
        raise RestoreError(f"no operator has uid {uid!r}; the uids are: {', '.join(sorted(savepoint.operators))}")
    else:
        wanted = [each for each in savepoint.states if each.uid == uid and isinstance(each, KeyedStateRows)]
        if not wanted:
            raise RestoreError(f"operator {uid!r} has no keyed state in checkpoint {savepoint.metadata.checkpoint_id}")
    found = {}
    for each in wanted:
        keys = [key_from_text(key, each.types["key"])] if isinstance(each, KeyedStateRows) else []
        found[each.name] = each.for_keys(keys).to_arrow()  # raises for operator state
    return found


def _cell(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if (isinstance(value, int) and abs(value) <= _EXACT_IN_BROWSERS) or (isinstance(value, float) and isfinite(value)):
        return value
    text = json.dumps(value, default=_plain, ensure_ascii=False) if isinstance(value, (list, dict)) else _plain(value)
    return shorten(text, _CHARACTERS_SHOWN)


def _plain(value: Any) -> str:
    """Converts a value for which JSON has no type."""
    return value.hex() if isinstance(value, bytes) else str(value)
