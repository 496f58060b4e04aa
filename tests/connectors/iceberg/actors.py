"""What somebody else does to an Iceberg table, with pyiceberg or as another engine would write it."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.types import LongType, StringType

from dagster_flinkpy.connectors.iceberg.table import NAME_MAPPING


def folder_of(table: Table) -> Path:
    return Path(urlsplit(table.location()).path)


def again(table: Table) -> Table:
    return table.catalog.load_table(table.name())


def rename(table: Table, old: str, new: str) -> None:
    with table.update_schema() as update:
        update.rename_column(old, new)


def rename_and_add(table: Table) -> None:
    rename(table, "n", "m")
    with table.update_schema() as update:
        update.add_column("n", LongType())


def drop_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("n")


def drop_and_add(table: Table) -> None:
    drop_column(table)
    with table.update_schema() as update:
        update.add_column("n", LongType())


def to_text(table: Table) -> None:
    drop_column(table)
    with table.update_schema() as update:
        update.add_column("n", StringType())


def add_required(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("x", LongType(), required=True)


def add_default(table: Table, default: int = 5) -> None:
    with table.update_schema() as update:
        update.add_column("x", LongType(), default_value=default)


def more_and_reordered(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("more", LongType())
        update.move_first("s")


def partition(table: Table, transform: Transform) -> None:
    with table.update_spec() as spec:
        spec.add_field("s", transform, "by_s")


def partition_and_back(table: Table) -> None:
    partition(table, IdentityTransform())
    with table.update_spec() as spec:
        spec.remove_field("by_s")


def sort(table: Table) -> None:
    with table.update_sort_order() as order:
        order.asc("s", IdentityTransform())


def set_property(table: Table, name: str, value: str) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({name: value})


def remove_properties(table: Table) -> None:
    """Removes those of the sink."""
    with table.transaction() as transaction:
        transaction.remove_properties(*(name for name in table.properties if name.startswith("flinkpy")))


def misleading(table: Table) -> None:
    """Says in the name mapping that each of two columns is the other one."""
    [n, s, *rest] = parse_mapping_from_json(table.properties[NAME_MAPPING]).root
    swapped = [n.model_copy(update={"names": s.names}), s.model_copy(update={"names": n.names}), *rest]
    text = "[" + ", ".join(field.model_dump_json(by_alias=True) for field in swapped) + "]"
    set_property(table, NAME_MAPPING, text)


def drop(table: Table) -> None:
    table.catalog.drop_table(table.name())


def rename_table(table: Table) -> None:
    table.catalog.rename_table(table.name(), f"{'.'.join(table.name())}_renamed")


def anew(table: Table, location: str) -> None:
    """Drops the table, and creates it in a place."""
    catalog, schema = table.catalog, table.schema()
    catalog.drop_table(table.name())
    catalog.create_table(table.name(), schema, location=location)


def edit_metadata(table: Table, **changes: Any) -> None:
    """Changes what pyiceberg cannot: ``format_version=3`` sets ``format-version``."""
    found = json.loads(Path(urlsplit(table.metadata_location).path).read_text())
    found |= {name.replace("_", "-"): value for name, value in changes.items()}
    path = folder_of(table) / "metadata" / f"{uuid.uuid4()}.metadata.json"
    path.write_text(json.dumps(found))
    table.catalog.drop_table(table.name())
    table.catalog.register_table(table.name(), f"file://{path}")


def lose_metadata(table: Table) -> None:
    shutil.rmtree(folder_of(table) / "metadata")


def lose_manifests(table: Table) -> None:
    for manifest in (folder_of(table) / "metadata").glob("*.avro"):
        manifest.unlink()


def append(table: Table, *numbers: int) -> None:
    table.append(pa.table({"n": pa.array(numbers, pa.int64()), "s": [str(number) for number in numbers]}))


def tag(table: Table) -> None:
    current = table.current_snapshot()
    assert current is not None
    manage = table.manage_snapshots()
    manage.create_tag(current.snapshot_id, "tag").create_branch(current.snapshot_id, "branch").commit()


def rewrite(table: Table) -> None:
    table.overwrite(table.scan().to_arrow())


def rewrite_and_expire(table: Table) -> None:
    """Leaves only the latest snapshot, as compaction and the expiry of snapshots do."""
    rewrite(table)
    table = again(table)
    current = table.current_snapshot()
    ids = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot != current]
    table.maintenance.expire_snapshots().by_ids(ids).commit()


def append_and_roll_back(table: Table) -> None:
    current = table.current_snapshot()
    assert current is not None
    table.append(table.scan().to_arrow())
    again(table).manage_snapshots().rollback_to_snapshot(current.snapshot_id).commit()


def delete_by_equality(table: Table, number: int) -> None:
    """Deletes the rows with a number, as Flink does: by a file that tells values instead of positions."""
    path = folder_of(table) / "data" / f"deletes-{number}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": pa.array([number], pa.int64())}), path)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=next(iter(table.scan().plan_files())).file.partition,
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[table.schema().find_field("n").field_id],
        spec_id=table.metadata.default_spec_id,
    )
    producer = table.transaction().update_snapshot().fast_append()
    producer._operation = Operation.DELETE
    producer.append_data_file(file)
    with patch.object(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES):
        producer.commit()
    producer._transaction.commit_transaction()


def kept(table: Table, copy: Path) -> Callable[[], None]:
    """Keeps a copy of a table, and returns what puts it back."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder_of(table), copy)

    def put_back() -> None:
        with suppress(NoSuchTableError):
            table.catalog.drop_table(table.name())
        shutil.rmtree(folder_of(table), ignore_errors=True)
        shutil.copytree(copy, folder_of(table))
        table.catalog.register_table(table.name(), table.metadata_location)

    return put_back


@dataclass(frozen=True)
class Act:
    """Something that changes no rows."""

    do: Callable[[Table], None]
    said: str = ""
    """How the sinks say that they refuse the table afterwards."""
    by: Sequence[str] = ("append", "merge", "replace")
    """Which of them do."""


ACTS: dict[str, Act] = {
    "renamed": Act(lambda table: rename(table, "n", "m"), "column 'n' .* was renamed to 'm': rename it back"),
    "renamed and added": Act(rename_and_add, "column 'n' .* was renamed to 'm'"),
    "column dropped": Act(drop_column, "column 'n' .* was dropped, but"),
    "dropped and added": Act(drop_and_add, "column 'n' .* was dropped and added again, but"),
    "text": Act(to_text, "column 'n' .* was dropped and added again, but"),
    "required": Act(add_required, "column 'x' .* must be optional"),
    "default": Act(add_default, "column 'x' .* has the default value 5"),
    "partitioned": Act(lambda table: partition(table, IdentityTransform()), r"is partitioned by \[.*'s'\], not by"),
    "bucketed": Act(lambda table: partition(table, BucketTransform(4)), r"is partitioned by bucket\[4\] of 's'"),
    "encrypted": Act(lambda table: set_property(table, "encryption.key-id", "k"), "is encrypted"),
    "misleading": Act(misleading, "does not say that '[ns]' is field"),
    "no mapping": Act(lambda table: set_property(table, NAME_MAPPING, "{}"), "is no name mapping: {}"),
    "version 3": Act(lambda table: edit_metadata(table, format_version=3, next_row_id=0), "has format version 3"),
    "moved": Act(lambda table: edit_metadata(table, location=f"{table.location()}_moved"), "is at .*_moved, not at"),
    "codec": Act(
        lambda table: set_property(table, "write.parquet.compression-codec", "x"),
        "pyiceberg cannot write files .*Change the 'write' properties",
        ("merge",),
    ),
    "dropped": Act(drop, "does not exist any more: it was dropped or renamed"),
    "table renamed": Act(rename_table, "does not exist any more: it was dropped or renamed"),
    "metadata lost": Act(lose_metadata, "the metadata of .* was deleted or moved"),
    "manifests lost": Act(lose_manifests, "has lost a file: .*avro"),
    "reordered, and a column more": Act(more_and_reordered),
    "partitioned and back": Act(partition_and_back),
    "sorted": Act(sort),
    "ORC": Act(lambda table: set_property(table, "write.format.default", "orc")),
    "properties removed": Act(remove_properties),
    "tagged": Act(tag),
    "rewritten": Act(rewrite),
    "rewritten and expired": Act(rewrite_and_expire),
    "rolled back": Act(append_and_roll_back),
}
