"""What somebody else does to a Delta Lake table, with delta-rs or as another engine would write its log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

N: dict[str, Any] = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
S: dict[str, Any] = {"name": "s", "type": "string", "nullable": True, "metadata": {}}
READER = {
    "variantShredding-preview",
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "catalogManaged",
    "typeWidening",
}
"""Features that readers must know, too."""


def protocol(*features: str, reader: int = 3, writer: int = 7) -> dict[str, Any]:
    found: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": writer}
    found |= {"readerFeatures": [f for f in features if f in READER]} if reader == 3 else {}
    return {"protocol": found | ({"writerFeatures": list(features)} if writer == 7 else {})}


OLD = protocol(reader=1, writer=4)
"""Keeps constraints, generated columns and the change data feed; has no features by name."""


def metadata(*fields: dict[str, Any], by: Sequence[str] = (), table_id: str = "t", **settings: str) -> dict[str, Any]:
    """Returns the entry of a table. ``a__b=...`` sets the property ``delta.a.b``."""
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": list(fields or (N, S))}),
            "partitionColumns": list(by),
            "configuration": {f"delta.{name.replace('__', '.')}": value for name, value in settings.items()},
            "createdTime": 0,
        }
    }


def log_of(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def write_version(folder: Path, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{len(log_of(folder)):020d}.json").write_text("\n".join(map(json.dumps, actions)))


def change(
    folder: Path,
    fields: Callable[[list[dict[str, Any]]], Sequence[dict[str, Any]]] = lambda fields: fields,
    by: Sequence[str] = (),
    of: Mapping[str, Any] | None = None,
    **settings: str,
) -> None:
    """Changes the columns, the protocol or properties of a table, and partitions it by more columns."""
    table = DeltaTable(str(folder))
    found = json.loads(table.schema().to_json())["fields"]
    now = table.metadata()
    entry = metadata(*fields(found), by=[*now.partition_columns, *by], table_id=str(now.id), **settings)
    write_version(folder, *([] if of is None else [dict(of)]), entry)


def each(column: str, **changes: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Returns what changes one column."""
    return lambda fields: [{**field, **changes} if field["name"] == column else field for field in fields]


def optimize(folder: Path) -> None:
    DeltaTable(str(folder)).optimize.compact()


def vacuum(folder: Path) -> None:
    DeltaTable(str(folder)).vacuum(0, dry_run=False, enforce_retention_duration=False)


def optimize_and_vacuum(folder: Path) -> None:
    optimize(folder)
    vacuum(folder)


def clean_log(folder: Path) -> None:
    """Leaves a checkpoint and the latest version."""
    DeltaTable(str(folder)).create_checkpoint()
    for entry in log_of(folder)[:-1]:
        entry.unlink()


def clean_whole_log(folder: Path) -> None:
    clean_log(folder)
    log_of(folder)[-1].unlink()


def rewrite(folder: Path) -> None:
    table = DeltaTable(str(folder))
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")


def create_or_replace(folder: Path) -> None:
    table = DeltaTable(str(folder))
    by = table.metadata().partition_columns
    DeltaTable.create(str(folder), table.schema(), mode="overwrite", partition_by=by)


def drop_and_create(folder: Path) -> None:
    table = DeltaTable(str(folder))
    schema, by = table.schema(), table.metadata().partition_columns
    shutil.rmtree(folder)
    DeltaTable.create(str(folder), schema, partition_by=by)


def append(folder: Path, *numbers: int) -> None:
    rows = {"n": pa.array(numbers, pa.int64()), "s": [str(number) for number in numbers]}
    write_deltalake(str(folder), pa.table(rows), mode="append")


def delete_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def delete_log(folder: Path) -> None:
    shutil.rmtree(folder / "_delta_log")


def lose_first_version(folder: Path) -> None:
    log_of(folder)[0].unlink()


def break_last_version(folder: Path) -> None:
    log_of(folder)[-1].write_text("{ no JSON")


def lose_data(folder: Path) -> None:
    table = DeltaTable(str(folder))
    for path in pa.table(table.get_add_actions()).column("path").to_pylist():
        (folder / path).unlink()


def kept(folder: Path, copy: Path) -> Callable[[], None]:
    """Keeps a copy of a table, and returns what puts it back."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)

    def put_back() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(copy, folder)

    return put_back


@dataclass(frozen=True)
class Act:
    """Something that changes no rows."""

    do: Callable[[Path], None]
    said: str = ""
    """How the sinks say that they refuse the table afterwards."""
    by: Sequence[str] = ("append", "merge", "replace")
    """Which of them do."""


def _mapped(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Columns that are there keep their names in files."""
    ids = ("delta.columnMapping.id", "delta.columnMapping.physicalName")
    return [{**field, "metadata": dict(zip(ids, (i, field["name"]), strict=True))} for i, field in enumerate(fields, 1)]


_INVARIANT = {"delta.invariants": '{"expression": {"expression": "n > 0"}}'}
_NO_MERGE = ("append", "replace")

ACTS: dict[str, Act] = {
    "check": Act(
        lambda folder: change(folder, of=OLD, constraints__positive="n > 0"), "the constraint 'positive'", _NO_MERGE
    ),
    "check by delta-rs": Act(
        lambda folder: DeltaTable(str(folder)).alter.add_constraint({"few": "n < 100"}), "constraint 'few'", _NO_MERGE
    ),
    "not null": Act(lambda folder: change(folder, each("n", nullable=False)), "'n' .* is NOT NULL", _NO_MERGE),
    "another not null": Act(
        lambda folder: change(folder, lambda fields: [*fields, {**N, "name": "x", "nullable": False}]),
        "'x' .* is NOT NULL, but the records do not have it",
    ),
    "invariant": Act(
        lambda folder: change(folder, each("n", metadata=_INVARIANT)), "'n' .* has the invariant", _NO_MERGE
    ),
    "generated": Act(
        lambda folder: change(folder, each("n", metadata={"delta.generationExpression": "1"}), of=OLD),
        "'n' .* is generated as 1",
    ),
    "identity": Act(
        lambda folder: change(folder, each("n", metadata={"delta.identity.start": 1}), of=protocol("identityColumns")),
        "'identityColumns'",
    ),
    "append only": Act(lambda folder: change(folder, appendOnly="true"), "delta.appendOnly=true", ("merge", "replace")),
    "mapped": Act(
        lambda folder: change(
            folder,
            _mapped,
            of=protocol(reader=2, writer=5),
            columnMapping__mode="name",
        ),
        "maps columns",
    ),
    "feature": Act(lambda folder: write_version(folder, protocol("rowTracking", reader=1)), "'rowTracking'"),
    "unknown feature": Act(lambda folder: write_version(folder, protocol("x", reader=1)), "the feature 'x'"),
    "newer protocol": Act(lambda folder: write_version(folder, protocol(reader=4)), "reader version 4"),
    "renamed": Act(lambda folder: change(folder, each("n", name="m")), "column 'n' .* does not exist"),
    "in capitals": Act(lambda folder: change(folder, each("n", name="N")), "column 'n' .* does not exist"),
    "text": Act(lambda folder: change(folder, each("n", type="string")), "column 'n' .* must be long, but is string"),
    "narrower": Act(lambda folder: change(folder, each("n", type="integer")), "must be long, but is integer"),
    "partitioned": Act(lambda folder: change(folder, by=["s"]), r"is partitioned by \[.*'s'\], not by"),
    "folder deleted": Act(delete_folder, "does not exist any more: it was deleted or moved"),
    "log deleted": Act(delete_log, "does not exist any more: it was deleted or moved"),
    "first version lost": Act(lose_first_version, f"{0:020d}.json of .* is missing"),
    "last version broken": Act(break_last_version, r"\.json of .* is broken"),
    "whole log cleaned": Act(clean_whole_log, r"\.json of .* is missing"),
    "reordered, and a column more": Act(
        lambda folder: change(folder, lambda fields: [*reversed(fields), {**N, "name": "more"}])
    ),
    "change data feed": Act(lambda folder: change(folder, enableChangeDataFeed="true", of=OLD)),
    "features without use": Act(
        lambda folder: write_version(folder, protocol("checkConstraints", "timestampNtz", "invariants"))
    ),
    "log cleaned": Act(clean_log),
    "optimize": Act(optimize),
    "vacuum": Act(vacuum),
    "optimize and vacuum": Act(optimize_and_vacuum),
    "rewrite": Act(rewrite),
}
