"""The table behind the Delta Lake sink: opening, checking and reading it, and which checkpoints are in it.

What its log demands of writers, the sink keeps, or it refuses the table by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from dagster_flinkpy.connectors.columns.column_casts import cast_column
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.checkpoint_committer import StagedCheckpoint
from dagster_flinkpy.connectors.delta.sink import DeltaSink
from dagster_flinkpy.connectors.files.parquet_table import TableRows
from dagster_flinkpy.connectors.lake.committer import LOOKS, LakeTarget
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext, Json
from dagster_flinkpy.errors import CommittableLostError, ConfigurationError, ObjectNotFoundError, StorageError
from dagster_flinkpy.spark.versions import data_frame
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.s3 import found_keys

__all__ = [
    "CONSTRAINT",
    "DIGEST",
    "Change",
    "DeltaRows",
    "DeltaTarget",
    "check_log",
    "check_protocol",
    "check_rules",
    "entries",
    "entry_name",
    "read_entry",
    "row_count",
    "storage_options",
    "table_url",
]

DIGEST = "flinkpy.digest"
"""The entry of a version that tells which committables it has added."""
_RETENTION = "delta.setTransactionRetentionDuration"
_CLOCK_SKEW_MS = 3_600_000
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
_LOG = "_delta_log/"
_ENTRY = re.compile(r"_delta_log/(\d{20})\.json")


class DeltaTarget(LakeTarget[DeltaTable]):
    """The table of a sink, whose log tells which checkpoints it has."""

    def __init__(self, sink: DeltaSink, context: CommitterInitContext, change: Change) -> None:
        self._sink, self._context, self._change, self._what = sink, context, change, sink.what
        self._store = sink.location.open()
        self.app_id = f"flinkpy.{len(context.job_id)}.{context.job_id}.{context.uid}"
        self.files_id = f"flinkpy-files.{len(context.job_id)}.{context.job_id}.{context.uid}"
        """How the ``txn`` is named that has the number of files that the sink has added and not removed."""
        self._id: str | None = None
        """The table that was found or created. It can be another one later."""
        self.latest = (0, 0)
        """The checkpoint that was committed last, as this attempt knows, and a version that has it."""
        self._known: dict[int, tuple[str | None, int | None]] = {}
        """What versions say that the last search for a commit has read."""

    @property
    def found(self) -> bool:
        return self._id is not None

    def open(self, *, create: bool) -> DeltaTable:
        schema = self._schema()
        if schema is not None and self._id is None and create:
            return self._found_or_created(schema)
        if (table := self.try_open()) is None:
            raise ConfigurationError(f"{self._what} does not exist any more: it was deleted or moved. Put it back")
        return table

    def try_open(self) -> DeltaTable | None:
        try:
            return DeltaTable(table_url(self._sink.location), storage_options=storage_options(self._sink.location))
        except TableNotFoundError:
            return None
        except DeltaError:
            check_log(self._what, self._store)
            raise

    def _found_or_created(self, schema: Schema) -> DeltaTable:
        for _ in range(LOOKS):
            if (table := self.try_open()) is not None:
                return table
            with suppress(CommitFailedError):  # somebody else was faster
                return DeltaTable.create(
                    table_url(self._sink.location),
                    schema,
                    mode="ignore",
                    partition_by=self._sink.partition_by or None,
                    storage_options=storage_options(self._sink.location),
                )
        raise StorageError(f"{self._what} changes faster than it can be opened")

    def _schema(self) -> Schema | None:
        """Returns the columns that are written, or None if the type of the records is unknown."""
        if self._context.type_info is None:
            return None
        columns = [(name, kind.arrow_type) for name, kind in columns_of(self._context.type_info).items()]
        columns += [] if self._sink.filled is None else [(name, pa.string()) for name in self._sink.filled.names]
        return Schema.from_arrow(pa.schema(columns))

    def check(self, table: DeltaTable) -> DeltaTable:
        found, schema = table.metadata(), self._schema()
        if self._id is not None and found.id != self._id:
            raise ConfigurationError(
                f"{self._what} was dropped and made anew since it was opened. Running again adds the rows to the new "
                "table, if they were not deleted with the old one"
            )
        (checkpoint_id, version), filled = self.latest, self._sink.filled
        last = self.last(table)
        in_order = filled is None or filled.owner is None  # runs of an asset commit in any order
        if table.version() < version or (in_order and last is not None and last < checkpoint_id):
            raise ConfigurationError(
                f"{self._what} does not have version {version} any more, with the rows of checkpoint {checkpoint_id}: "
                "it was restored from a backup. Running again adds rows to what was restored"
            )
        check_rules(self._what, table, schema, self._change)
        if schema is not None:
            if self._id is None:
                self._add_columns(table, schema)
            self.check_columns(table, schema)
        if found.partition_columns != self._sink.partition_by:
            raise ConfigurationError(
                f"{self._what} is partitioned by {found.partition_columns}, not by {self._sink.partition_by}: change "
                "partition_by of the sink, or write the table again"
            )
        if last and self._id is None and filled is None:
            self.latest = last, table.version()
        self._id = found.id
        return table

    def check_replaceable(self, table: DeltaTable) -> None:
        """Checks that a sink that only appends may remove its files."""
        check_rules(self._what, table, self._schema(), "replace")
        if _RETENTION in table.metadata().configuration:
            raise ConfigurationError(
                f"{self._what} has {_RETENTION}, so it may have forgotten which checkpoints it has: unset it"
            )

    def _add_columns(self, table: DeltaTable, schema: Schema) -> None:
        """Adds columns that the table does not have, if the sink says so."""
        for _ in range(LOOKS):
            found = {field.name for field in table.schema().fields}
            missing = [field for field in schema.fields if field.name not in found] if self._sink.merge_schema else []
            if not missing:
                return
            for field in missing:
                if same := [name for name in found if name.lower() == field.name.lower()]:
                    raise ConfigurationError(
                        f"column {field.name!r} cannot be added to {self._what}, which has {same[0]!r}: rename one"
                    )
            with suppress(CommitFailedError):  # somebody else has written the version, perhaps with these columns
                table.alter.add_columns(missing, commit_properties=CommitProperties(max_commit_retries=0))
            table.update_incremental()

    def check_columns(self, table: DeltaTable, schema: Schema) -> None:
        found = {field.name: field for field in table.schema().fields}
        for field in schema.fields:
            if field.name not in found:
                raise ConfigurationError(
                    f"column {field.name!r} of {self._what} must be {_shown(field)}, but does not exist: add "
                    f"it, or {'run again' if self._sink.merge_schema else 'give DeltaSink merge_schema=True'}"
                )
            if found[field.name].type != field.type:
                raise ConfigurationError(
                    f"column {field.name!r} of {self._what} must be {_shown(field)}, but is "
                    f"{_shown(found[field.name])}: change the records or the table"
                )

    def last(self, table: DeltaTable) -> int | None:
        last: int | None = table.transaction_version(self.app_id)  # the table may forget it after some time
        return 0 if last is None and _RETENTION not in table.metadata().configuration else last

    def added_files(self, table: DeltaTable) -> int | None:
        files: int | None = table.transaction_version(self.files_id)
        return 0 if files is None and self.last(table) == 0 else files

    def has(self, table: DeltaTable, checkpoint: StagedCheckpoint) -> bool:
        # Not by history(), in which delta-rs holds the GIL: with a slow store, nobody would renew the lease meanwhile.
        # Nor by a list of the log, which may be very long. What the search before this one has read is not read again.
        known, self._known = self._known, {}
        first, last = "a checkpoint", table.transaction_version(self.app_id)
        for version in range(table.version(), -1, -1):
            try:
                digest, ms = self._known[version] = known[version] if version in known else self._said(version)
            except ObjectNotFoundError:  # the log is cleaned up from its beginning
                break
            first = entry_name(version)
            if digest == checkpoint.digest:
                return True
            # Some writers say nothing about their versions. If the table has a checkpoint of this number, it may be
            # this one, whatever the clocks of others say.
            if ms is not None and last != checkpoint.checkpoint_id and ms < checkpoint.staged_ms - _CLOCK_SKEW_MS:
                return False
        else:
            return False
        if last is not None and last < checkpoint.checkpoint_id:  # ids only grow, unless a job begins anew
            return False
        raise CommittableLostError.of(
            checkpoint.checkpoint_id,
            f"cannot tell whether table {self._sink.location.url} has the rows that sink "
            f"{self._context.uid!r} staged for checkpoint {checkpoint.checkpoint_id}: its log begins with "
            f"{first}, which is newer. Look for them",
        )

    def _said(self, version: int) -> tuple[str | None, int | None]:
        """Returns the digest of the checkpoint that a version has added, and when it was written."""
        actions = read_entry(self._what, self._store, entry_name(version))
        said: Json = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        return said.get(DIGEST), said.get("timestamp")


def row_count(sink: DeltaSink) -> int | None:
    """Returns the number of rows of a sink's table, or None if the log does not tell it."""
    table = DeltaTable(table_url(sink.location), storage_options=storage_options(sink.location))
    if pa.table(table.deletion_vectors()).num_rows:
        return None
    counts = pa.table(table.get_add_actions()).column("num_records")
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _shown(field: Field) -> str:
    return str(field.type.to_json()).strip('"')


def table_url(location: StorageLocation) -> str:
    """Returns the URL of a location as delta-rs takes it: without quotes, ``#`` and ``?`` would end a key on S3."""
    if not location.url.startswith("s3://"):
        return location.url
    bucket, _, prefix = location.url.removeprefix("s3://").partition("/")
    return f"s3://{bucket}/{quote(prefix)}"


def storage_options(location: StorageLocation) -> dict[str, str]:
    """Returns the settings of a location as delta-rs names them, with the keys of this moment, which may expire."""
    if not location.url.startswith("s3://"):
        return {}
    found = {}
    if location.access_key_id is None:  # delta-rs does not look in files of keys
        found = found_keys(location.endpoint_url, location.region, location.addressing_style)
    given = {
        "AWS_ENDPOINT_URL": location.endpoint_url,
        "AWS_REGION": location.region,
        "AWS_ACCESS_KEY_ID": location.access_key_id,
        "AWS_SECRET_ACCESS_KEY": location.secret_access_key,
        "AWS_SERVER_SIDE_ENCRYPTION": None if location.kms_key_id is None else "aws:kms",
        "AWS_SSE_KMS_KEY_ID": location.kms_key_id,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true" if location.addressing_style == "virtual" else None,
        "AWS_ALLOW_HTTP": "true" if urlsplit(location.endpoint_url or "").scheme == "http" else None,
        "aws_conditional_put": "etag",
    }
    return found | {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class DeltaRows(TableRows):
    """The rows of the latest version of a table.

    A column that the table does not have is null: no checkpoint of the program that has it is committed yet.
    """

    partition_column: str | None = None
    """The column that has the Dagster partition."""

    def to_arrow(self) -> pa.Table:
        url, options = table_url(self.location), storage_options(self.location)
        if not DeltaTable.is_deltatable(url, options):
            return self.schema.empty_table()
        dataset = DeltaTable(url, storage_options=options).to_pyarrow_dataset()
        condition = None
        if self.partitions is not None and self.partition_column is not None:
            condition = pc.field(self.partition_column).isin(list(self.partitions))
        there = [name for name in self.schema.names if name in dataset.schema.names]
        rows = dataset.to_table(there, filter=condition)
        columns = [
            cast_column(field.name, rows.column(field.name), field.type)
            if field.name in there
            else pa.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def to_spark(self, session: Any) -> Any:
        """Returns the rows as a Spark DataFrame. They go through this process, because Spark cannot read the log."""
        return data_frame(session, self.to_arrow())


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
