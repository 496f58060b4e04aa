"""What a Delta Lake table demands of its writers. The sink keeps it, or refuses the table by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema

from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CONSTRAINT", "Change", "check_protocol", "check_rules"]

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
