"""Which values and settings the PostgreSQL sink takes, against a real server."""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.common import Instant, Row, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import PostgresSink
from dagster_flinkpy.datastream.connectors.base import CommitRequest
from dagster_flinkpy.errors import (
    ConfigurationError,
    TypeMismatchError,
)
from tests.connectors.postgres.sinks import CONTEXT, ROW, Database, commit

NOON = datetime(2026, 1, 2, 12, 0, 0, 123456)
VALUES: list[tuple[TypeInformation, str, list[Any], list[Any]]] = [
    (Types.STRING(), "text", ["", 'a"b', "x,y\n\\.", "\\N", "ü🙂"], ["", 'a"b', "x,y\n\\.", "\\N", "ü🙂"]),
    (Types.BOOLEAN(), "boolean", [True, False], [True, False]),
    (Types.SHORT(), "smallint", [-(2**15), 2**15 - 1], [-(2**15), 2**15 - 1]),
    (Types.LONG(), "bigint", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
    (Types.DOUBLE(), "double precision", [0.1, -1e300, float("inf")], [0.1, -1e300, float("inf")]),
    (Types.FLOAT(), "real", [0.5, 1.25e30], [0.5, 1.25e30]),
    (Types.BIG_DEC(), "numeric", [Decimal("1.10"), Decimal("-1e40")], [Decimal("1.10"), Decimal("-1e40")]),
    (Types.BIG_INT(), "numeric", [10**75, -1], [Decimal(10**75), Decimal(-1)]),
    (Types.DECIMAL(40, 2), "numeric(40, 2)", [Decimal("1.5")], [Decimal("1.50")]),
    (Types.SQL_DATE(), "date", [date(1, 1, 1), date(9999, 12, 31)], [date(1, 1, 1), date(9999, 12, 31)]),
    (Types.SQL_TIME(), "time", [time(23, 59, 59, 999999)], [time(23, 59, 59, 999999)]),
    (Types.SQL_TIMESTAMP(), "timestamp", [NOON], [NOON]),
    (Types.INSTANT(), "timestamptz", [Instant(1, 5000)], [datetime(1970, 1, 1, 0, 0, 1, 5, timezone.utc)]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), "bytea", [b"", b"\x00\xff\\x"], [b"", b"\x00\xff\\x"]),
    (Types.LIST(Types.DOUBLE()), "jsonb", [[], [1.5, None]], [[], [1.5, None]]),
    (Types.MAP(Types.LONG(), Types.SQL_DATE()), "jsonb", [{1: date(2026, 1, 2)}], [{"1": "2026-01-02"}]),
    (
        Types.LIST(Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.DECIMAL(5, 1)])),
        "jsonb",
        [[Row("ü\n", Decimal("1.5")), None]],
        [[{"a": "ü\n", "b": "1.5"}, None]],
    ),
]


@pytest.mark.parametrize(
    ("type_info", "sql", "values", "expected"), VALUES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_values_keep_what_they_are(
    database: Database, type_info: TypeInformation, sql: str, values: list[Any], expected: list[Any]
) -> None:
    database.create(f"at bigserial, value {sql}")
    sink = database.sink()
    records = [*values, None]
    writer = sink.create_writer(CONTEXT, type_info)
    writer.write(type_info.to_arrow(records).slice(1))  # arrays with an offset
    writer.write(type_info.to_arrow(records[:1]))
    [committable] = writer.prepare_commit()
    commit(sink, CommitRequest(1, 0, committable), type_info=type_info)
    with psycopg.connect(database.conninfo) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        found = connection.execute(f"SELECT value FROM {database.schema}.t ORDER BY at").fetchall()
    assert [value for (value,) in found] == [*expected[1:], None, expected[0]]


@pytest.mark.parametrize(
    ("type_info", "value", "said"),
    [
        (Types.STRING(), "a\0b", "NUL"),
        (Types.LIST(Types.STRING()), ["a\0b"], "NUL"),
        (Types.LIST(Types.DOUBLE()), [float("nan")], "NaN"),
    ],
)
def test_values_that_the_table_cannot_store_are_refused_when_written(
    database: Database, type_info: TypeInformation, value: Any, said: str
) -> None:
    with pytest.raises(TypeMismatchError, match=said):
        database.sink().create_writer(CONTEXT, type_info).write(type_info.to_arrow([value]))


@pytest.mark.parametrize(
    ("type_info", "said"),
    [
        (None, "needs typed records"),
        (Types.PICKLED_BYTE_ARRAY(), "has no type in PostgreSQL"),
        (Types.LIST(Types.PRIMITIVE_ARRAY(Types.BYTE())), "JSON cannot contain"),
        (Types.MAP(Types.TUPLE([Types.INT()]), Types.INT()), "keys in JSON are text"),
        (Types.ROW_NAMED(["day"], [Types.INT()]), "leave it out of the records"),
    ],
)
def test_types_without_a_column_are_refused_at_once(tmp_path: Path, type_info: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PostgresSink("host=db", "t", str(tmp_path), partition_column="day").validate(type_info)


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("a.b.c", {"staging": "x"}, "'name' or 'schema.name'"),
        ("t", {}, "needs staging"),
        ("t", {"staging": "x", "key": "id"}, r"such as \['id'\]"),
        ("t", {"staging": "x", "key": ["id"], "partition_column": "day"}, "a key or a partition_column"),
        ("t", {"staging": "x", "prepare_transactions": True}, "leave out"),
        ("t", {"key": ["id"], "prepare_transactions": True}, "leave out"),
    ],
)
def test_settings_that_contradict_each_other(table: str, options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PostgresSink("host=db", table, **options)


def test_a_key_that_the_records_lack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"key 'id', but the records have \['n', 's'\]"):
        PostgresSink("host=db", "t", str(tmp_path), key=["id"]).validate(ROW)


@pytest.mark.parametrize(
    ("conninfo", "uri"),
    [
        ("postgresql://me:secret@db:5433/shop?sslmode=require", "postgresql://db:5433/shop/s.t"),
        ("postgresql://me:secret@db1:5432,[::1]:5433/shop", "postgresql://db1:5432,::1:5433/shop/s.t"),
        ("host=db dbname='my shop' password=secret", "postgresql://db/my shop/s.t"),
    ],
)
def test_the_uri_has_no_password(conninfo: str, uri: str, tmp_path: Path) -> None:
    assert PostgresSink(conninfo, "s.t", str(tmp_path)).uri() == uri


@pytest.mark.parametrize("password", ["no/secret", "se#cret"])
def test_a_password_that_a_url_cannot_have_is_not_shown(password: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="written as %2F") as raised:
        PostgresSink(f"postgresql://me:{password}@db/shop", "s.t", str(tmp_path)).uri()
    assert password not in str(raised.value)


# --- commits that die -------------------------------------------------------------------------------------------------
