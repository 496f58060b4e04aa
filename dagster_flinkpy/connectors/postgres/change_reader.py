"""Reads the changes of a table of PostgreSQL from a range of the WAL."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime

import pyarrow as pa
from psycopg import errors, sql

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.postgres.change_source import PostgresChangeSource
from dagster_flinkpy.connectors.postgres.columns import (
    READING,
    Column,
    check_columns,
    column_of_type,
    columns_of_table,
    from_text,
    row_type_of,
)
from dagster_flinkpy.connectors.postgres.connection import connect, listed, reading, table_of
from dagster_flinkpy.connectors.postgres.pgoutput import (
    Begin,
    Message,
    Relation,
    RowChange,
    Truncate,
    TupleData,
    Unchanged,
    decode,
)
from dagster_flinkpy.connectors.postgres.scan import parsed_rows, struct_of
from dagster_flinkpy.connectors.postgres.slot import IDENTITIES, ReplicationSlot, lsn_text, slot_of
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError, SplitLostError

__all__ = ["change_row_type", "read_changes"]

# The order of the rows in the file, so that an offset among them means the same each time.
_IN_ORDER = (
    "SET LOCAL synchronize_seqscans = off; SET LOCAL max_parallel_workers_per_gather = 0; "
    "SET LOCAL enable_indexonlyscan = off"
)
_LOST = (errors.UndefinedObject, errors.InvalidParameterValue, errors.ObjectNotInPrerequisiteState)
"""What servers say of a snapshot that is gone: since version 18, before it, and while its transaction ends."""
_EPOCH_MICROS = int((datetime(2000, 1, 1) - datetime(1970, 1, 1)).total_seconds()) * 1_000_000


def change_row_type(source: PostgresChangeSource) -> RowTypeInfo:
    """Returns the columns of a source's table. Generated ones are not part of the changes."""
    with slot_of(source) as slot:
        there = columns_of_table(slot.connection, slot.table_name)
        return row_type_of(slot.table_name, {name: c for name, c in there.items() if not c.generated})


def read_changes(source: PostgresChangeSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads the rows of the table, or a range of the WAL, from the split's offset on, which counts records."""
    read, done = _rows if "snapshot" in split.properties else _changes, 0
    with slot_of(source) as slot, closing(read(source, slot, split.properties)) as columns:
        for column in columns:
            done, skipped = done + len(column), min(max(split.offset - done, 0), len(column))
            if skipped < len(column):
                yield column.slice(skipped), done


def _rows(source: PostgresChangeSource, slot: ReplicationSlot, given: Json) -> Generator[pa.Array, None, None]:
    """Yields the rows of the table, as a snapshot sees them."""
    columns = columns_of_table(slot.connection, slot.table_name)
    check_columns(slot.table_name, columns, source.table_type)
    rows = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(
        listed(source.table_type.field_names), table_of(source.schema, source.table)
    )
    with slot.connection.transaction(), slot.connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            cursor.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(given["snapshot"])))
        except _LOST as error:
            raise SplitLostError(
                f"the snapshot with the rows of table {slot.table_name} is gone: the server has restarted, or the "
                f"connection that held it has ended ({str(error).strip()}). The job plans to read the rows anew"
            ) from error
        cursor.execute(READING)
        cursor.execute(_IN_ORDER)
        with cursor.copy(rows) as lines:
            for table in parsed_rows(lines, source.table_type.field_names, source.batch_rows):
                arrays = struct_of(table, source.table_type, columns).flatten()
                kinds = pa.repeat(pa.scalar("+I"), table.num_rows)
                times = pa.repeat(pa.scalar(given["micros"], pa.timestamp("us")), table.num_rows)
                yield pa.StructArray.from_arrays([*arrays, kinds, times], fields=list(source.produced_type.arrow_type))


def _changes(source: PostgresChangeSource, slot: ReplicationSlot, given: Json) -> Generator[pa.Array, None, None]:
    """Yields the changes of a range of the WAL."""
    _check_position(slot, given["start"])
    changes = _Changes(source, slot, given)
    # An open COPY would block the end of the connection.
    with closing(slot.messages(given["start"], given["stop"])) as messages:
        yield from changes.columns(map(_decoded, messages))
    _check_position(slot, given["start"])  # somebody may have made the slot anew before it was read


def _check_position(slot: ReplicationSlot, start: int) -> None:
    confirmed = slot.position()
    if confirmed is None or confirmed > start:
        raise slot.gone(start, confirmed)


def _decoded(data: bytes) -> Message | None:
    try:
        return decode(data)
    except ValueError as error:
        raise SourceReadError(f"cannot read what PostgreSQL sends: {error}") from error


class _Changes:
    """Turns messages into columns of records."""

    def __init__(self, source: PostgresChangeSource, slot: ReplicationSlot, given: Json) -> None:
        self._source, self._table, self._way_on = source, slot.table_name, slot.way_on
        self._lsns, self._oid, self._key = range(given["start"], given["stop"]), given["table"], given.get("key")
        self._seen = _Seen(given["seen"]) if given.get("seen") else None
        self._type = source.table_type
        self._transaction: Begin | None = None
        self._relation: Relation | None = None
        self._described: list[Relation] = []
        """What was described since the last change: the table, and the partition that a change comes from."""
        self._indices: list[int] | None = None
        """Where each field of the records is in the rows of the table, or None before the table was checked."""
        self._columns: dict[str, Column] = {}
        self._rows: list[tuple[str, int, TupleData]] = []

    def columns(self, messages: Iterator[Message | None]) -> Iterator[pa.Array]:
        """Yields the records of the transactions whose commit begins in the range."""
        for message in messages:
            if isinstance(message, Begin):
                self._transaction = message if self._wanted(message) else None
            elif isinstance(message, Relation):
                self._described.append(message)
                if message.oid == self._oid:
                    if self._rows:
                        yield self._flush()
                    self._relation, self._indices = message, None
            elif message is not None:
                if self._transaction is not None:
                    self._take(message, self._transaction)
                self._described.clear()
                if len(self._rows) >= self._source.batch_rows:
                    yield self._flush()
        if self._rows:
            yield self._flush()

    def _wanted(self, transaction: Begin) -> bool:
        return transaction.commit_lsn in self._lsns and (self._seen is None or not self._seen.has(transaction))

    def _take(self, message: RowChange | Truncate, transaction: Begin) -> None:
        if isinstance(message, Truncate):
            if self._oid in message.relations and not self._source.skip_truncate:
                raise InputChangedError(
                    f"table {self._table} was truncated by the transaction at {lsn_text(transaction.commit_lsn)}, and "
                    "no record says which rows that has deleted. Declare skip_truncate=True to go on without such "
                    f"records. Or else: {self._way_on}"
                )
            return
        if message.relation != self._oid:
            return
        for each in self._described:
            if each.identity not in IDENTITIES[self._source.changelog_mode]:
                raise self._changed(f"the replica identity of {each.schema}.{each.name} was {each.identity!r}")
            key = sorted(column.name for column in each.columns if column.is_key)
            if self._source.changelog_mode == "upsert" and self._key and key != sorted(self._key):
                raise self._changed(f"the key of {each.schema}.{each.name} was {key}, not {sorted(self._key)}")
        everything, old, new = self._source.changelog_mode == "all", message.old, message.new
        if everything and old is None and message.kind == "U":
            raise self._changed("an update lacks the row before it")
        if old is not None:
            self._add("-U" if everything and new is not None else "-D", old, transaction)
        if new is not None:
            if everything and old is not None:
                pairs = zip(new, old, strict=True)
                new = tuple([before if isinstance(value, Unchanged) else value for value, before in pairs])
            self._add("+I" if message.kind == "I" else "+U", new, transaction)

    def _add(self, kind: str, row: TupleData, transaction: Begin) -> None:
        if self._indices is None:
            self._indices = self._check()
        if Unchanged.TOAST in row:
            for index, name in zip(self._indices, self._type.field_names, strict=True):
                if row[index] is Unchanged.TOAST:
                    raise InputChangedError(
                        f"an update of table {self._table} leaves the large value of column {name!r} as it is, and "
                        "PostgreSQL does not log it: leave the column out of row_type; or start from empty state with "
                        f"ALTER TABLE {self._table} REPLICA IDENTITY FULL and changelog_mode='all'"
                    )
        self._rows.append((kind, transaction.commit_micros, row))

    def _check(self) -> list[int]:
        """Checks that the table, as it was, has the columns of the records. Returns where they are."""
        relation = self._relation
        if relation is None:
            raise SourceReadError(f"PostgreSQL sends changes of table {self._table}, but does not describe it")
        with reading(f"the types of table {self._table}"), connect(self._source.conninfo, "flinkpy source") as lookup:
            self._columns = {c.name: column_of_type(lookup, c.type_oid, c.modifier) for c in relation.columns}
        names, known = list(self._columns), columns_of(self._type)
        try:
            there = columns_of(row_type_of(self._table, self._columns)) if self._source.all_columns else known
            check_columns(self._table, self._columns, self._type)
        except ConfigurationError as error:
            raise self._changed(str(error)) from error
        if different := [name for name, kind in there.items() if known.get(name) != kind]:
            raise self._changed(f"it had the column {different[0]!r} of type {there[different[0]]}")
        return [names.index(name) for name in known]

    def _changed(self, what: str) -> InputChangedError:
        return InputChangedError(
            f"the definition of table {self._table} was another one when the changes were made that are read now: "
            f"{what}. If columns were changed, declare a row_type with those that it had before and after. Or else: "
            f"{self._way_on}"
        )

    def _flush(self) -> pa.Array:
        """Returns the rows so far as a column of records."""
        assert self._indices is not None
        kinds, micros, rows = zip(*self._rows, strict=True)
        self._rows = []
        arrays = []
        fields: Sequence[str] = self._type.field_names
        for index, name, kind in zip(self._indices, fields, self._type.field_types, strict=True):
            text = pa.array([row[index] for row in rows], pa.string())
            arrays.append(from_text(name, self._columns[name], text, kind))
        arrays.append(pa.array(kinds, pa.string()))
        arrays.append(pa.array([each + _EPOCH_MICROS for each in micros], pa.timestamp("us")))
        return pa.StructArray.from_arrays(arrays, fields=list(self._source.produced_type.arrow_type))


class _Seen:
    """Tells which transactions a snapshot has seen: it has what is ``visible``, all of it ``before`` an LSN."""

    def __init__(self, snapshot: Json) -> None:
        low, high, running = snapshot["visible"].split(":")
        self._before: int = snapshot["before"]
        self._low, self._high = int(low), int(high)
        self._running = frozenset(int(each) for each in running.split(",") if each)

    def has(self, transaction: Begin) -> bool:
        if transaction.commit_lsn >= self._before:
            return False
        # Messages have the lower half of the number. The transaction is at most half a round away.
        behind = (self._high - transaction.xid) % (1 << 32)
        number = self._high - behind + ((1 << 32) if behind >= 1 << 31 else 0)
        return number < self._low or (number < self._high and number not in self._running)
