"""The statements with which a table of PostgreSQL is read in the order of columns."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from psycopg import sql

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.postgres.columns import (
    READING,
    Column,
    check_columns,
    columns_of_table,
    from_text,
    row_type_of,
)
from dagster_flinkpy.connectors.postgres.connection import connect, listed, reading, row_of, table_of, value_of
from dagster_flinkpy.connectors.postgres.source import PostgresSource
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError

__all__ = ["TIMES", "Scan", "Value", "parsed_rows", "read_rows", "scanning", "struct_of", "table_row_type"]

Value = list[str]
"""The text of the values of the columns in whose order the table is read."""

TIMES = ("date", "timestamp", "timestamptz")
_ORDERED = ("int2", "int4", "int8", "text", "varchar", "uuid", *TIMES)
_VERSION = "xmin"
"""The transaction that has written a version of a row. No column of a table can have this name."""

_SEQUENCES = """
SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle,
  CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') THEN pg_sequence_last_value(s.seqrelid) END
FROM pg_depend d
JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
JOIN pg_sequence s ON d.refclassid = 'pg_class'::regclass AND d.refobjid = s.seqrelid
WHERE a.adrelid = to_regclass(%(table)s)
  AND a.adnum = (SELECT attnum FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attname = %(column)s)
UNION
SELECT s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle,
  CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT') THEN pg_sequence_last_value(s.seqrelid) END
FROM pg_depend d
JOIN pg_sequence s ON d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid
WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%(table)s) AND d.deptype IN ('a', 'i')
  AND d.refobjsubid = (SELECT attnum FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attname = %(column)s)
"""
_INDEX = """
SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(%s) AND a.attname = %s AND i.indisvalid AND i.indpred IS NULL
"""


class Scan:
    """Phrases and runs statements about the rows of a table."""

    def __init__(self, source: PostgresSource, connection: psycopg.Connection[Any]) -> None:
        self._source, self.connection, self.ordered_by = source, connection, source.columns
        self.conninfo = source.conninfo
        self.table, self.one = table_of(source.schema, source.table), partial(value_of, connection)
        self.name = self.table.as_string(connection)
        connection.execute(READING)
        self.columns = columns_of_table(connection, self.name)
        for name in source.columns:
            if name not in self.columns:
                raise ConfigurationError(f"table {self.name} has no column {name!r}, only {list(self.columns)}")
            if self.columns[name].type_name not in _ORDERED:
                raise ConfigurationError(
                    f"column {name!r} of table {self.name} is {self.columns[name].shown}, which the source cannot read "
                    "in order: choose a whole number, text, uuid, date or timestamp"
                )
        self._kinds = [self.columns[name].type_name for name in source.columns]
        self._key = sql.SQL("({})").format(listed(source.columns))
        # Named otherwise, because ORDER BY would take a column of the output rather than that of the table.
        texts = [sql.SQL("{}::text AS flinkpy_value").format(sql.Identifier(name)) for name in source.columns]
        self._texts = sql.SQL(", ").join(texts)
        self._first = sql.Identifier(source.columns[0])

    @property
    def by_time(self) -> bool:
        return self._kinds[0] in TIMES

    def check(self) -> str | None:
        """Checks that the table can be read in the order of its columns, once. Returns advice, if there is any."""
        source = self._source
        kind = self.one("SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", self.name)
        if kind not in ("r", "p"):
            raise ConfigurationError(f"{self.name} is not a table, so nobody knows when its rows were added")
        check_columns(self.name, self.columns, source.produced_type)
        if not self.by_time and (source.delay is not None or source.partition is not None):
            what = "delay is" if source.partition is None else "time partitions are"
            raise ConfigurationError(
                f"{what} for a column of times, but {source.columns[0]!r} of table {self.name} is "
                f"{self.columns[source.columns[0]].shown}"
            )
        partition, day = source.partition, self._kinds[0] == "date"
        if partition is not None and day and partition.start.date() == partition.end.date():
            raise ConfigurationError(
                f"partition {partition.key} is shorter than a day, but {source.columns[0]!r} of table {self.name} "
                "is a date: choose longer partitions or another column"
            )
        if source.bounded is False or source.partition is not None:
            self._check_safe()
        if self.connection.execute(_INDEX, [self.name, source.columns[0]]).fetchone() is None:
            return f"table {self.name} has no index on {source.columns[0]!r}: each epoch reads all of the table"
        return None

    def _check_safe(self) -> None:
        if self.one("SELECT pg_is_in_recovery()"):
            raise ConfigurationError(
                f"table {self.name} is on a standby, which does not know the transactions in flight on the primary, so "
                "rows could be missed: connect to the primary, or declare bounded=True"
            )
        column = self._source.columns[0]
        for name, cache, increment, cycles, _ in self._sequences():
            if cache > 1 or increment < 0 or cycles:
                change = "NO CYCLE" if cycles else "CACHE 1" if cache > 1 else "INCREMENT 1"
                raise ConfigurationError(
                    f"the values of column {column!r} of table {self.name} come from sequence {name}, which does not "
                    f"hand them out in order, so rows could be missed: ALTER SEQUENCE {name} {change}"
                )

    def _sequences(self) -> list[Any]:
        values = {"table": self.name, "column": self._source.columns[0]}
        return self.connection.execute(_SEQUENCES, values).fetchall()

    def last_values(self) -> dict[str, int]:
        """Returns the last value of each sequence of the first column that has one and that this role may read."""
        return {name: int(last) for name, _, _, _, last in self._sequences() if last is not None}

    def refuse_unordered(self) -> None:
        """Checks that each row has a place in the order: no null, and no infinite time."""
        for name, kind in zip(self._source.columns, self._kinds, strict=True):
            wrong = [] if self.columns[name].not_null else [("null", "{} IS NULL")]
            wrong += [("infinity", "{} = 'infinity'")] if kind in TIMES else []
            for what, condition in wrong:
                statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE " + condition + ")")
                if self.one(statement.format(self.table, sql.Identifier(name))):
                    raise InputChangedError(
                        f"table {self.name} has rows with {what} in {name!r}, which would never be read: give them "
                        "values and add NOT NULL, or read by another column"
                    )

    def clock(self, delay: timedelta) -> str:
        """Returns the time of the server, minus a delay, as text of the first column's type."""
        zone = " AT TIME ZONE 'UTC'" if self._kinds[0] != "timestamptz" else ""
        statement = f"SELECT ((clock_timestamp() - %s){zone})::{self._kinds[0]}::text"
        return str(self.one(statement, delay))

    def age(self, when: datetime) -> timedelta:
        age: timedelta = self.one("SELECT clock_timestamp() - %s", when)
        return age

    def newest(self, after: Value | None, before: str | None = None) -> Value | None:
        """Returns the last visible value, after one and with a first column below ``before``, if given, or None."""
        conditions = [self.within(after, None)]
        if before is not None:
            conditions.append(sql.SQL("{} < {}").format(self._first, self._literal(before, self._kinds[0])))
        return self._value_at(conditions, "DESC")

    def nth(self, after: Value | None, through: Value, number: int) -> Value | None:
        """Returns the value of a row within a range, counted from 0, or None if there are fewer rows."""
        return self._value_at([self.within(after, through)], "ASC", number)

    def beyond(self, after: Value | None, through: Value, size: int) -> Value | None:
        """Returns the value with which the rows of a range have more bytes than a size, or None if they never have.

        Counted are the columns that are read, as text.
        """
        ordered, read = listed(self._source.columns), listed(self._source.produced_type.field_names)
        statement = sql.SQL(
            "SELECT {} FROM (SELECT {}, sum(octet_length(ROW({})::text)) OVER (ORDER BY {}) AS flinkpy_bytes "
            "FROM {} WHERE {}) AS rows WHERE flinkpy_bytes > {} ORDER BY {} LIMIT 1"
        ).format(
            *(self._texts, ordered, read, self._order("ASC"), self.table, self.within(after, through)),
            *(sql.Literal(size), self._order("ASC")),
        )
        return self._value(statement)

    def before(self, after: Value | None, value: Value) -> Value | None:
        """Returns the last value of a range that is less than a value, or None if there is none."""
        less = sql.SQL("{} < {}").format(self._key, self._row(value))
        return self._value_at([self.within(after, None), less], "DESC")

    def _value_at(self, conditions: Sequence[sql.Composable], direction: str, offset: int = 0) -> Value | None:
        among, order = sql.SQL(" AND ").join(conditions), self._order(direction)
        statement = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} OFFSET {} LIMIT 1")
        return self._value(statement.format(self._texts, self.table, among, order, sql.Literal(offset)))

    def _value(self, statement: sql.Composed) -> Value | None:
        found = self.connection.execute(statement).fetchone()
        return None if found is None else list(found)

    def count(self, after: Value | None, through: Value) -> int:
        statement = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self.table, self.within(after, through))
        return int(self.one(statement))

    def versions(self, after: Value | None, through: Value) -> tuple[int, int]:
        """Returns the number of rows of a range, and the sum of the transactions that have written them.

        If a row is added, changed or deleted, one of them changes.
        """
        statement = sql.SQL("SELECT count(*), coalesce(sum(xmin::text::bigint), 0)::bigint FROM {} WHERE {}")
        count, versions = row_of(self.connection, statement.format(self.table, self.within(after, through)))
        return int(count), int(versions)

    def every(self, after: Value | None, through: Value, size: int) -> list[Value]:
        """Returns the value of each row of a range whose number, from 1, is a multiple of a size."""
        names = listed(self._source.columns)
        statement = sql.SQL(
            "SELECT {} FROM (SELECT {}, row_number() OVER (ORDER BY {}) AS flinkpy_number FROM {} WHERE {}) AS rows "
            "WHERE flinkpy_number % {} = 0 ORDER BY flinkpy_number"
        ).format(self._texts, names, self._order("ASC"), self.table, self.within(after, through), sql.Literal(size))
        return [list(row) for row in self.connection.execute(statement).fetchall()]

    def copy(self, names: Sequence[str], after: Value | None, through: Value) -> sql.Composed:
        """Returns the statement that copies the rows of a range, in an order that stays, and their versions."""
        selected = sql.SQL(", ").join([*map(sql.Identifier, names), sql.SQL(_VERSION)])
        return sql.SQL("COPY (SELECT {} FROM {} WHERE {} ORDER BY {}, tableoid, ctid) TO STDOUT (FORMAT csv)").format(
            selected, self.table, self.within(after, through), self._order("ASC")
        )

    def within(self, after: Value | None, through: Value | None) -> sql.Composable:
        """Returns the condition for rows after a value, up to another one, and in the partition if there is one."""
        conditions: list[sql.Composable] = []
        if after is not None:
            conditions.append(sql.SQL("{} > {}").format(self._key, self._row(after)))
        if through is not None:
            conditions.append(sql.SQL("{} <= {}").format(self._key, self._row(through)))
        if (partition := self._source.partition) is not None:
            conditions.append(sql.SQL("{} >= {}").format(self._first, self._time(partition.start)))
            conditions.append(sql.SQL("{} < {}").format(self._first, self._time(partition.end)))
        return sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("true")

    def _row(self, value: Value) -> sql.Composed:
        parts = [self._literal(text, kind) for text, kind in zip(value, self._kinds, strict=True)]
        return sql.SQL("({})").format(sql.SQL(", ").join(parts))

    def _literal(self, text: str, kind: str) -> sql.Composed:
        return sql.SQL("{}::{}").format(sql.Literal(text), sql.Identifier(kind))

    def _time(self, when: datetime) -> sql.Composed:
        """Returns a bound of a partition. A date is that of the partition's zone; other times are in UTC."""
        day = self._kinds[0] == "date"
        text = when.date().isoformat() if day else when.astimezone(timezone.utc).isoformat(sep=" ")
        return self._literal(text, self._kinds[0])

    def _order(self, direction: str) -> sql.Composed:
        ordered = (sql.SQL("{} " + direction).format(sql.Identifier(name)) for name in self._source.columns)
        return sql.SQL(", ").join(ordered)


@contextmanager
def scanning(source: PostgresSource) -> Iterator[Scan]:
    """Connects for a scan. What fails becomes a SourceReadError."""
    what, standby = f"table {source.table!r} of PostgreSQL", source.bounded is not False and source.partition is None
    with reading(what), connect(source.conninfo, "flinkpy source", standby=standby) as connection:
        yield Scan(source, connection)


def table_row_type(source: PostgresSource) -> RowTypeInfo:
    """Returns the columns of a source's table."""
    with scanning(source) as scan:
        return row_type_of(scan.name, scan.columns)


def read_rows(source: PostgresSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads the rows of a range from the split's offset on, and checks that they are those that were planned."""
    names, given = list(source.produced_type.field_names), split.properties
    rows = versions = 0
    with scanning(source) as scan, scan.connection.transaction(), scan.connection.cursor() as cursor:
        cursor.execute(READING)
        check_columns(scan.name, scan.columns, source.produced_type)
        with cursor.copy(scan.copy(names, given["after"], given["through"])) as lines:
            for table in parsed_rows(lines, [*names, _VERSION], source.batch_rows):
                versions += pc.sum(table.column(_VERSION).cast(pa.int64())).as_py()
                rows, skipped = rows + table.num_rows, min(max(split.offset - rows, 0), table.num_rows)
                if skipped < table.num_rows:
                    yield struct_of(table.slice(skipped), source.produced_type, scan.columns), rows
        if (rows, versions) != (given["rows"], given["versions"]):
            raise SourceReadError(
                f"rows of table {scan.name} were added, changed or deleted in the range {split.split_id} after the "
                "epoch was planned, so a retry would read other rows. The next attempt plans the epoch again. If the "
                "table is not only appended to, use PostgresChangeSource"
            )


def parsed_rows(lines: Any, names: Sequence[str], batch_rows: int) -> Iterator[pa.Table]:
    """Parses CSV, some lines at a time. The values stay text."""
    gathered: list[bytes] = []
    for line in lines:  # the server sends one at a time
        gathered.append(bytes(line))
        if len(gathered) == batch_rows:
            yield _parse(b"".join(gathered), names)
            gathered = []
    if gathered:
        yield _parse(b"".join(gathered), names)


def _parse(text: bytes, names: Sequence[str]) -> pa.Table:
    return csv.read_csv(
        io.BytesIO(text),
        csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(text) + 1),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),  # null in the only column is an empty line
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()


def struct_of(table: pa.Table, row_type: RowTypeInfo, columns: dict[str, Column]) -> pa.Array:
    """Converts values, which are text, to the fields of a row type."""
    arrays = []
    for name, kind in zip(row_type.field_names, row_type.field_types, strict=True):
        arrays.append(from_text(name, columns[name], one_chunk(table.column(name)), kind))
    return pa.StructArray.from_arrays(arrays, fields=list(row_type.arrow_type))
