"""The log of a Delta Lake table, and what it demands of writers. The sink keeps it, or refuses the table by name."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.storage import ObjectStore

__all__ = ["CONSTRAINT", "Change", "check_log", "check_protocol", "check_rules", "entries", "entry_name", "read_entry"]

CONSTRAINT = "delta.constraints."
"""How the settings that are constraints begin."""

Change = Literal["append", "replace", "merge"]
"""What a commit does: adds files, also removes those of partitions, or merges rows by key, which delta-rs does."""

_KEPT = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Features that a table may have. For some of them `check_rules` looks whether the table makes use of them."""
_UNDO = {
    "allowColumnDefaults": "ALTER TABLE ... DROP FEATURE allowColumnDefaults",
    "clustering": "ALTER TABLE ... CLUSTER BY NONE, and then DROP FEATURE clustering",
    "inCommitTimestamp": "set delta.enableInCommitTimestamps to false, and then DROP FEATURE inCommitTimestamp",
    "rowTracking": "set delta.enableRowTracking to false, and then DROP FEATURE rowTracking",
}


def check_protocol(what: str, reader: int, writer: int, features: Iterable[str]) -> None:
    """Checks that the sink can write to a table with a protocol."""
    if unknown := sorted(set(features) - _KEPT):
        undo = _UNDO.get(unknown[0], f"ALTER TABLE ... DROP FEATURE {unknown[0]!r}")
        raise ConfigurationError(
            f"{what} has the feature {unknown[0]!r}, which DeltaSink does not keep: {undo}, or write to another table"
        )
    if reader > 3 or writer > 7:
        raise ConfigurationError(
            f"{what} needs reader version {reader} and writer version {writer} of the protocol, but DeltaSink knows 3 "
            "and 7: write to another table"
        )
    if writer == 6:
        raise ConfigurationError(
            f"{what} needs writer version 6 of the protocol, which has identity columns, and DeltaSink does not keep "
            "them: write to another table"
        )


def check_rules(what: str, table: DeltaTable, written: Schema | None, change: Change) -> None:
    """Checks that a commit of columns that were written, if they are known, breaks no rule of a table."""
    protocol, settings = table.protocol(), table.metadata().configuration
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    check_protocol(what, protocol.min_reader_version, protocol.min_writer_version, features)
    if (mode := settings.get("delta.columnMapping.mode", "none")) != "none":
        raise ConfigurationError(
            f"{what} maps columns (delta.columnMapping.mode={mode!r}), which DeltaSink does not: write to a table "
            "without column mapping"
        )
    if change != "append" and settings.get("delta.appendOnly", "").lower() == "true":
        raise ConfigurationError(
            f"{what} has delta.appendOnly=true, but DeltaSink replaces rows: set it to false, or leave out key or "
            "partition_column"
        )
    if change != "append" and "deletionVectors" in features and pa.table(table.deletion_vectors()).num_rows:
        raise ConfigurationError(
            f"{what} has deletion vectors, so DeltaSink cannot replace rows: set delta.enableDeletionVectors to false, "
            "and REORG TABLE ... APPLY (PURGE)"
        )
    checks = [name for name in settings if name.startswith(CONSTRAINT)]
    if checks and change != "merge":
        raise ConfigurationError(
            f"{what} has the constraint {checks[0].removeprefix(CONSTRAINT)!r}, CHECK ({settings[checks[0]]}), which "
            "DeltaSink only keeps if it has a key: drop the constraint, and filter() the records"
        )
    for field in table.schema().fields:
        _check_field(what, field, None if written is None else [each.name for each in written.fields], change)


def _check_field(what: str, field: Field, written: Collection[str] | None, change: Change) -> None:
    where = f"column {field.name!r} of {what}"
    if not field.nullable and written is not None and field.name not in written:
        raise ConfigurationError(f"{where} is NOT NULL, but the records do not have it: add it, or drop NOT NULL")
    if not field.nullable and change != "merge":
        raise ConfigurationError(
            f"{where} is NOT NULL, but records may have nulls, and DeltaSink only keeps that if it has a key: drop NOT "
            "NULL, and filter() the records"
        )
    if "delta.generationExpression" in field.metadata:
        raise ConfigurationError(
            f"{where} is generated as {field.metadata['delta.generationExpression']}, which DeltaSink does not "
            "compute: write to a table where it is an ordinary column, and compute it with map()"
        )
    if any(name.startswith("delta.identity.") for name in field.metadata):
        raise ConfigurationError(
            f"{where} is an identity column, whose values DeltaSink does not assign: write to a table without it"
        )
    if "delta.invariants" in field.metadata and change != "merge":
        raise ConfigurationError(
            f"{where} has the invariant {field.metadata['delta.invariants']}, which DeltaSink only keeps if it has a "
            "key: drop it, and filter() the records"
        )


_LOG = "_delta_log/"
_ENTRY = re.compile(r"_delta_log/(\d{20})\.json")


def entry_name(version: int) -> str:
    """Returns the name of the entry of a version."""
    return f"{_LOG}{version:020d}.json"


def entries(store: ObjectStore) -> list[str]:
    """Lists the entries that are there, the oldest first."""
    return sorted(info.key for info in store.list(_LOG) if _ENTRY.fullmatch(info.key))


def read_entry(what: str, store: ObjectStore, key: str) -> list[Json]:
    """Returns the actions of an entry."""
    try:
        return [json.loads(line) for line in store.get(key)[0].decode().splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigurationError(f"{key} of {what} is broken ({error}): put it back as it was") from error


def check_log(what: str, store: ObjectStore, latest: int = 0) -> None:
    """Checks a log with which delta-rs has failed. If this raises, trying again does not help."""
    there = entries(store)
    for key in reversed(there):
        protocols = [action["protocol"] for action in read_entry(what, store, key) if "protocol" in action]
        for protocol in protocols:
            features = {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}
            check_protocol(what, protocol["minReaderVersion"], protocol["minWriterVersion"], features)
        if protocols:
            break
    versions = [int(_ENTRY.sub(r"\1", key)) for key in there]
    has_checkpoint = any(".checkpoint." in info.key for info in store.list(_LOG))
    for version in range(min(versions, default=latest) if has_checkpoint else 0, max([*versions, latest]) + 1):
        if version not in versions:
            raise ConfigurationError(f"{entry_name(version)} of {what} is missing: put it back")
