"""A table of PostgreSQL as a source, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import PostgresSource
from dagster_flinkpy.connectors.postgres import enumerator as module
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceLag, SourceSplit, SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, SourceReadError
from dagster_flinkpy.testing import run_local
from tests.connectors.postgres.sinks import Database
from tests.examples import examples

ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
UNFLUSHED = module._UNFLUSHED


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres, tmp_path / "staging")
    yield database
    for (gid,) in database.sql("SELECT gid FROM pg_prepared_xacts"):
        database.sql(f"ROLLBACK PREPARED '{gid}'")
    database.sql("DROP SCHEMA {} CASCADE")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans do not wait for transactions that the tests hold open. Others, such as those of autovacuum, are short."""
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.3)
    monkeypatch.setattr(module, "_PARTITION_WAIT_SECONDS", 0.3)
    monkeypatch.setattr(module, "_UNFLUSHED", "SELECT %s < 0")  # after a rollback it takes a moment
    monkeypatch.setattr(module, "_SPLIT_ROWS", 2)


def numbered(database: Database, *, name: str = "t") -> None:
    database.sql(f"CREATE TABLE {{}}.{name} (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, s text)")


def add(database: Database, rows: int) -> None:
    database.sql(f"INSERT INTO {{}}.t (s) SELECT 'x' FROM generate_series(1, {rows})")


def source_of(database: Database, column: Any = "n", **options: Any) -> PostgresSource:
    options = {"row_type": ROW, "bounded": False, **options}
    return PostgresSource(database.conninfo, f"{database.schema}.t", column, **options)


def planned(enumerator: SplitEnumerator, parallelism: int = 2) -> list[SourceSplit]:
    """Plans an epoch. The splits make a round trip through metadata."""
    shares = enumerator.plan_epoch(parallelism)
    return [SourceSplit.from_json(json.loads(json.dumps(split.to_json()))) for share in shares for split in share]


def read(source: PostgresSource, splits: list[SourceSplit], field: str = "n") -> list[Any]:
    return sorted(v for split in splits for column, _ in source.read(split) for v in column.field(field).to_pylist())


def take(source: PostgresSource, enumerator: SplitEnumerator, parallelism: int = 2) -> list[Any]:
    return read(source, planned(enumerator, parallelism))


def restored(source: PostgresSource, enumerator: SplitEnumerator) -> SplitEnumerator:
    return source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))


class Writer:
    """A transaction that stays open."""

    def __init__(self, database: Database) -> None:
        self._connection = psycopg.connect(database.conninfo, autocommit=True)
        self._schema = database.schema
        self.run("BEGIN")

    def run(self, statement: str) -> None:
        self._connection.execute(statement.replace("{}", self._schema))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


# --- which rows -------------------------------------------------------------------------------------------------------


def test_it_says_whether_there_is_input(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == []
    assert not restored(source, enumerator).has_input(2)
    add(database, 1)
    assert restored(source, enumerator).has_input(2)
    assert take(source, enumerator) == [1]
    assert not restored(source, enumerator).has_input(2)


def test_the_table_is_read_and_then_what_is_added(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    assert (take(source, enumerator), enumerator.exhausted) == ([], False)
    add(database, 5)
    splits = planned(enumerator)
    assert (len(splits), read(source, splits)) == (3, [1, 2, 3, 4, 5])
    assert read(source, splits) == [1, 2, 3, 4, 5], "again"
    assert take(source, enumerator) == []
    add(database, 2)
    assert (len(enumerator.unread()), enumerator.lag()) == (1, SourceLag(records=0))
    enumerator = restored(source, enumerator)
    assert take(source, enumerator) == [6, 7]
    assert (take(source, restored(source, enumerator)), list(enumerator.unread())) == ([], [])


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=14),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 20),
    st.integers(1, 3),
    st.booleans(),
)
def test_each_row_is_read_once_in_any_epochs(
    database: Database,
    rows: list[tuple[int, int]],
    limit: int | None,
    size: int | None,
    parallelism: int,
    bounded: bool,
) -> None:
    database.sql("DROP TABLE IF EXISTS {}.t; CREATE TABLE {}.t (a int NOT NULL, b int NOT NULL, n bigint)")
    for number, (a, b) in enumerate(rows):
        database.sql(f"INSERT INTO {{}}.t VALUES ({a}, {b}, {number})")
    limits = {"max_records_per_epoch": limit, "max_bytes_per_epoch": size}
    source = source_of(database, ["a", "b"], **limits, bounded=bounded, batch_rows=2)
    enumerator, found, epochs = source.create_enumerator(None), list[int](), 0
    while len(found) < len(rows) or (bounded and not enumerator.exhausted):
        enumerator = restored(source, enumerator)
        epoch = take(source, enumerator, parallelism)
        assert enumerator.lag() == SourceLag(records=len(rows) - len(found) - len(epoch))
        values = [rows[number] for number in epoch]
        read_bytes = sum(len(f"({number})") for number in epoch)
        within = (limit is None or len(epoch) <= limit) and (size is None or read_bytes <= size)
        assert within or len(set(values)) == 1, "equal values are not torn apart"
        assert all(rows[number] <= min(values, default=(9, 9)) for number in found)
        found, epochs = found + epoch, epochs + 1
        assert epochs <= len(rows) + 1
    assert sorted(found) == list(range(len(rows)))
    assert take(source, restored(source, enumerator), parallelism) == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("smallint", "1, 2, 3"),
        ("text", "'a', 'b''', 'c\\'"),
        ("varchar(3)", "'', 'ä', '%s'"),
        ("uuid", "'00000000-0000-7000-8000-000000000001', '00000000-0000-7000-8000-000000000002', gen_random_uuid()"),
        ("date", "'1999-12-31', '2024-02-29', '2024-03-01'"),
        ("timestamp", "'1999-12-31', '2024-02-29 12:00:00.000001', '2024-02-29 12:00:00.000002'"),
        ("timestamptz", "'1999-12-31', '2024-02-29 12:00:00.000001+05', '2024-02-29 12:00:00.000002+05'"),
    ],
)
def test_columns_of_each_type(database: Database, kind: str, values: str) -> None:
    database.sql(f"CREATE TABLE {{}}.t (c {kind} UNIQUE NOT NULL, n bigint GENERATED ALWAYS AS IDENTITY)")
    database.sql(f"INSERT INTO {{}}.t (c) SELECT unnest(ARRAY[{values}]::{kind.split('(')[0]}[])")
    source = source_of(database, "c", max_records_per_epoch=1)
    enumerator = source.create_enumerator(None)
    found = []
    for _ in range(3):
        enumerator = restored(source, enumerator)
        found.append(take(source, enumerator))
    assert sorted(found) == [[1], [2], [3]]
    assert take(source, enumerator) == []


def test_a_split_is_read_from_any_row(database: Database) -> None:
    numbered(database)
    add(database, 7)
    source = source_of(database, batch_rows=3)
    [split] = [SourceSplit("all", {"after": None, "through": ["7"], "rows": 7, "versions": 0})]
    counted = source.create_enumerator(None).plan_epoch(1)[0]
    split.properties["versions"] = sum(each.properties["versions"] for each in counted)
    for offset in range(7):
        parts = list(source.read(split.advanced(offset, finished=False)))
        assert [n for column, _ in parts for n in column.field("n").to_pylist()] == list(range(offset + 1, 8))
        assert parts[-1][1] == 7


@pytest.mark.parametrize("change", ["DELETE FROM {}.t WHERE n = 2", "UPDATE {}.t SET s = 'y' WHERE n = 2"])
def test_rows_that_change_while_they_are_read_are_an_error(database: Database, change: str) -> None:
    numbered(database)
    add(database, 3)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    splits = planned(enumerator)
    database.sql(change)
    with pytest.raises(SourceReadError, match=r"were added, changed or deleted in the range .*PostgresChangeSource"):
        read(source, splits)
    assert len(take(source, source.create_enumerator(None))) in (2, 3), "another attempt plans again"
    assert take(source, enumerator) == [], "rows that were read may be deleted"


# --- transactions in flight -------------------------------------------------------------------------------------------


def test_rows_that_commit_late_are_not_lost(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    lines: list[str] = []
    enumerator.start(SplitEnumeratorContext("job", 1, None, progress=lines.append))  # type: ignore[arg-type]
    with Writer(database) as late:
        late.run("INSERT INTO {}.t (s) VALUES ('late')")
        add(database, 2)
        assert take(source, enumerator) == []
        assert "not committed" in lines[-1]
        assert "process " in lines[-1]
        other = restored(source, enumerator)
        add(database, 1)
        late.run("COMMIT")
    assert take(source, other) == take(source, enumerator) == [1, 2, 3, 4]


def test_rows_that_a_crash_of_the_server_would_take_are_not_read(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(database)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(f"INSERT INTO {database.schema}.t (s) VALUES ('x')")
        [(written,)] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_UNFLUSHED", "SELECT %s > 0")
        assert planned(enumerator) == []
    monkeypatch.setattr(module, "_UNFLUSHED", UNFLUSHED)
    monkeypatch.setattr(module, "_WAIT_SECONDS", 10)
    assert read(source, planned(restored(source, enumerator))) == [1]
    assert database.sql(f"SELECT pg_current_wal_flush_lsn() >= '{written}'") == [(True,)]


def test_rows_that_were_seen_before_the_server_was_started_again_are_looked_for_anew(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    with Writer(database) as writer:
        writer.run("INSERT INTO {}.t (s) VALUES ('early')")
        add(database, 1)
        enumerator = source.create_enumerator(None)
        assert planned(enumerator) == []
        state = enumerator.snapshot_state()
        state["candidate"] = {**state["candidate"], "server": "before", "value": ["9"], "waiting": {}}
        again = source.create_enumerator(state)
        assert planned(again) == [], "values up to 9 were lost, and the first one is not committed"
        writer.run("COMMIT")
    assert take(source, again) == [1, 2]
    assert again.snapshot_state()["position"] == ["2"]


def test_a_value_may_be_taken_before_the_table_is_touched(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    with Writer(database) as late:
        late.run("SELECT nextval(pg_get_serial_sequence('{}.t', 'n'))")  # the transaction writes nothing yet
        add(database, 1)
        assert take(source, enumerator) == []
        late.run("INSERT INTO {}.t OVERRIDING SYSTEM VALUE VALUES (1, 'late')")
        late.run("COMMIT")
    assert take(source, enumerator) == [1, 2]


def test_prepared_transactions_are_in_flight(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    with Writer(database) as late:
        late.run("INSERT INTO {}.t (s) VALUES ('late')")
        add(database, 1)
        assert take(source, enumerator) == []
        late.run("PREPARE TRANSACTION 'flinkpy test'")
    enumerator = restored(source, enumerator)
    assert take(source, enumerator) == []
    database.sql("COMMIT PREPARED 'flinkpy test'")
    assert take(source, enumerator) == [1, 2]


def test_times_of_transactions_that_began_earlier(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (at timestamptz NOT NULL DEFAULT now(), n bigint)")
    database.sql("CREATE INDEX ON {}.t (at)")
    source = source_of(database, "at", delay=timedelta(0))
    enumerator = source.create_enumerator(None)
    with Writer(database) as late:
        late.run("SELECT now()")
        database.sql("INSERT INTO {}.t (n) VALUES (2)")
        assert take(source, enumerator) == []
        late.run("INSERT INTO {}.t (n) VALUES (1)")
        late.run("COMMIT")
    assert take(source, enumerator) == [1, 2]
    database.sql("INSERT INTO {}.t (at, n) VALUES (now() + interval '1 hour', 3)")
    assert take(source, enumerator) == []
    assert take(source_of(database, "at", delay=timedelta(hours=1)), source.create_enumerator(None)) == [1, 2]
    patient = source_of(database, "at", delay=timedelta(hours=1))
    assert take(patient, patient.create_enumerator(None)) == []


def test_rows_behind_the_position_are_an_error(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY)")
    database.sql("INSERT INTO {}.t VALUES (1), (5)")
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1, 5]
    database.sql("INSERT INTO {}.t VALUES (3), (6)")
    with pytest.raises(SourceReadError, match=r"got 1 row\(s\) behind the position"):
        restored(source, enumerator).plan_epoch(1)
    database.sql("DELETE FROM {}.t WHERE n = 3")
    assert take(source, enumerator) == [6]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_values_without_a_place_are_an_error(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (n bigint, at timestamp)")
    database.sql("INSERT INTO {}.t VALUES (null, 'infinity')")
    for column, what in (("n", "null in 'n'"), ("at", "infinity in 'at'")):
        with pytest.raises(SourceReadError, match=what):
            source_of(database, column).create_enumerator(None).plan_epoch(1)


def test_tables_that_cannot_be_read_in_order(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (n bigserial PRIMARY KEY, x double precision)")
    database.sql("ALTER SEQUENCE {}.t_n_seq CACHE 20")
    database.sql("CREATE VIEW {}.v AS SELECT * FROM {}.t")

    def refused(source: PostgresSource, kind: type[Exception] = ConfigurationError) -> str:
        with pytest.raises(kind) as caught:
            source.create_enumerator(None).plan_epoch(1)
        return str(caught.value)

    assert "t_n_seq CACHE 1" in refused(source_of(database))
    assert take(source_of(database, bounded=True), source_of(database, bounded=True).create_enumerator(None)) == []
    assert "cannot read in order" in refused(source_of(database, "x"))
    assert "has no column 'y'" in refused(source_of(database, "y"))
    view = PostgresSource(database.conninfo, f"{database.schema}.v", "n", row_type=ROW)
    assert "is not a table" in refused(view)
    assert "there is no table" in refused(PostgresSource(database.conninfo, "nowhere.t", "n"), SourceReadError)
    away = PostgresSource("postgresql://127.0.0.1:1/x", "t", "n", row_type=ROW)
    assert "cannot read table 't'" in refused(away, SourceReadError)
    database.sql("ALTER SEQUENCE {}.t_n_seq CACHE 1")
    assert "delay is for a column of times" in refused(source_of(database, delay=timedelta(1)))
    wrong = source_of(database, row_type=Types.ROW_NAMED(["x"], [Types.INT()]))
    assert "cannot be read as" in refused(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "t", "n"), "conninfo"),
        (("x", "a.b.c", "n"), "must be 'name' or 'schema.name'"),
        (("x", "t", []), "name of a column"),
        (("x", "t", "n", {"max_records_per_epoch": 0}), "at least 1"),
        (("x", "t", "n", {"max_bytes_per_epoch": 0}), "at least 1"),
        (("x", "t", "n", {"batch_rows": 0}), "at least 1"),
        (("x", "t", "n", {"delay": timedelta(-1)}), "must not be negative"),
        (("x", "t", "n", {"delay": timedelta(1), "bounded": True}), "leave out delay"),
        (("x", "t", "n", {"discovery_interval": timedelta(0)}), "must be positive"),
        (("x", "t", "n", {"row_type": Types.LONG()}), "ROW_NAMED"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    options = arguments[3] if len(arguments) > 3 else {}
    with pytest.raises(ConfigurationError, match=message):
        PostgresSource(*arguments[:3], **options)


# --- types and jobs ---------------------------------------------------------------------------------------------------


def test_values_of_each_type(database: Database) -> None:
    database.sql("CREATE TYPE {}.mood AS ENUM ('sad', 'ok'); CREATE DOMAIN {}.amount AS numeric(10, 2)")
    database.sql(
        "CREATE TABLE {}.t (n bigint PRIMARY KEY, i2 smallint, i4 int, f4 real, f8 double precision, d {}.amount, "
        "big numeric, b boolean, s text, v varchar(5), u uuid, j jsonb, m {}.mood, y bytea, dt date, tm time, "
        "ts timestamp, tz timestamptz)"
    )
    database.sql(
        "INSERT INTO {}.t VALUES (1, -1, 2, 1.5, 'NaN', 12.30, 123456789012345678901234567890.5, true, E'a,\"b\\nc', "
        "'', '00000000-0000-7000-8000-000000000001', '{\"a\": 1}', 'ok', '\\x00ff', '2024-02-29', '12:00:00.5', "
        "'2024-02-29 12:00:00.000001', '2024-02-29 12:00:00+02'), (2" + ", NULL" * 17 + ")"
    )
    source = source_of(database, row_type=None)
    types = dict(zip(source.produced_type.field_names, source.produced_type.field_types, strict=True))
    assert (types["d"], types["big"], types["u"]) == (Types.DECIMAL(10, 2), Types.BIG_DEC(), Types.STRING())
    [split] = planned(source.create_enumerator(None), 1)
    [(column, rows)] = source.read(split)
    assert rows == 2
    assert column.type == source.produced_type.arrow_type
    first, second = column.to_pylist()
    assert second == {"n": 2} | dict.fromkeys(list(types)[1:])
    assert str(first.pop("f8")) == "nan"
    assert {name: str(value) for name, value in first.items()} == {
        "n": "1",
        "i2": "-1",
        "i4": "2",
        "f4": "1.5",
        "d": "12.30",
        "big": "123456789012345678901234567890.5",
        "b": "True",
        "s": 'a,"b\nc',
        "v": "",
        "u": "00000000-0000-7000-8000-000000000001",
        "j": '{"a": 1}',
        "m": "ok",
        "y": "b'\\x00\\xff'",
        "dt": "2024-02-29",
        "tm": "12:00:00.500000",
        "ts": "2024-02-29 12:00:00.000001",
        "tz": "2024-02-29 10:00:00",
    }
    other = Types.ROW_NAMED(["tz", "i4", "d"], [Types.INSTANT(), Types.LONG(), Types.STRING()])
    source = source_of(database, row_type=other)
    [(column, _)] = source.read(planned(source.create_enumerator(None), 1)[0])
    assert column.to_pylist()[0] == {
        "tz": datetime(2024, 2, 29, 10, tzinfo=timezone.utc), "i4": 2, "d": "12.30"
    }  # fmt: skip
    wider = {"i2": Types.DOUBLE(), "i4": Types.DECIMAL(12, 1), "n": Types.BIG_INT(), "d": Types.DECIMAL(12, 3)}
    wider |= {"f4": Types.DOUBLE(), "dt": Types.SQL_TIMESTAMP(), "big": Types.DECIMAL(40, 2), "v": Types.CHAR()}
    source = source_of(database, row_type=Types.ROW_NAMED(list(wider), list(wider.values())))
    [(column, _)] = source.read(planned(source.create_enumerator(None), 1)[0])
    assert {name: str(value) for name, value in column.to_pylist()[0].items()} == {
        "i2": "-1.0", "i4": "2.0", "n": "1", "d": "12.300", "f4": "1.5", "dt": "2024-02-29 00:00:00",
        "big": "123456789012345678901234567890.50", "v": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("smallint", Types.BYTE()),
        ("bigint", Types.DOUBLE()),
        ("double precision", Types.FLOAT()),
        ("double precision", Types.DECIMAL(9, 2)),
        ("numeric(10, 4)", Types.DECIMAL(10, 2)),
        ("numeric", Types.DOUBLE()),
        ("timestamp", Types.INSTANT()),
        ("timestamp", Types.SQL_DATE()),
        ("timestamp", Types.LONG()),
        ("date", Types.INT()),
        ("text", Types.LONG()),
        ("int[]", Types.LIST(Types.INT())),
    ],
)
def test_a_type_that_could_change_values_is_refused(database: Database, column: str, kind: TypeInformation) -> None:
    database.sql(f"CREATE TABLE {{}}.t (n bigint PRIMARY KEY, v {column})")
    with pytest.raises(
        ConfigurationError, match=r"cannot be read as declared: column 'v' is .*does not become"
    ) as caught:
        source_of(database, row_type=Types.ROW_NAMED(["v"], [kind])).create_enumerator(None).plan_epoch(1)
    assert str(kind) in str(caught.value)


def test_types_without_a_counterpart(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, a int[], at timestamp)")
    database.sql("INSERT INTO {}.t VALUES (1, '{1,2}', '-infinity')")
    with pytest.raises(ConfigurationError, match=r"column 'a' .* is integer\[\], which no Types"):
        source_of(database, row_type=None).produced_type  # noqa: B018
    source = source_of(database, row_type=Types.ROW_NAMED(["a"], [Types.STRING()]))
    assert read(source, planned(source.create_enumerator(None)), "a") == ["{1,2}"]
    source = source_of(database, row_type=Types.ROW_NAMED(["at"], [Types.SQL_TIMESTAMP()]))
    with pytest.raises(SourceReadError, match=r"column 'at', a timestamp .*-infinity"):
        read(source, planned(source.create_enumerator(None)), "at")


def test_partitions_of_time(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (at timestamptz NOT NULL, d date NOT NULL, n bigint)")
    database.sql(
        "INSERT INTO {}.t SELECT t, t::date, row_number() OVER (ORDER BY t) "
        "FROM generate_series('2024-03-01 00:00+00'::timestamptz, '2024-03-02 12:00+00', interval '12 hours') t"
    )
    start = datetime(2024, 3, 1, tzinfo=timezone.utc)
    day = TimePartition("2024-03-01", start, start + timedelta(days=1), 0)
    for column in ("at", "d"):
        source = source_of(database, column, bounded=None).for_partition(day)
        enumerator = source.create_enumerator(None)
        assert (take(source, enumerator), enumerator.exhausted) == ([1, 2], True)
    with Writer(database), pytest.raises(SourceReadError, match="may still get rows from transactions"):
        source.create_enumerator(None).plan_epoch(1)
    today = datetime.now(timezone.utc)
    recent = source_of(database, "at", bounded=None, delay=timedelta(days=2))
    with pytest.raises(SourceReadError, match="may still get rows: it ends at"):
        recent.for_partition(TimePartition("now", today, today, 0)).create_enumerator(None).plan_epoch(1)
    hour = TimePartition("h", start, start + timedelta(hours=1), 0)
    with pytest.raises(ConfigurationError, match="shorter than a day"):
        source.for_partition(hour).create_enumerator(None).plan_epoch(1)
    with pytest.raises(ConfigurationError, match="time partitions are for a column of times"):
        source_of(database, "n").for_partition(hour).create_enumerator(None).plan_epoch(1)


def test_a_job_reads_a_partitioned_table(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, s text) PARTITION BY RANGE (n)")
    database.sql("CREATE TABLE {}.a PARTITION OF {}.t FOR VALUES FROM (0) TO (5)")
    database.sql("CREATE TABLE {}.b PARTITION OF {}.t FOR VALUES FROM (5) TO (100)")
    database.sql("INSERT INTO {}.t SELECT n, 'x' FROM generate_series(1, 20) n")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    source = source_of(database, bounded=None, max_records_per_epoch=7)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    [found] = run_local(env, rows.map(lambda row: row.n, Types.LONG()))
    assert sorted(found) == list(range(1, 21))


def test_positions_of_others_are_refused(database: Database) -> None:
    numbered(database)
    source = source_of(database)
    state = source.create_enumerator(None).snapshot_state()
    for change in ({"columns": ["s"]}, {"position": [1]}, {"position": ["1", "2"]}, {"planned": -1}, {"candidate": {}}):
        with pytest.raises(ValueError, match=r"position|planned|candidate|value"):
            source.create_enumerator({**state, **change})
    assert source.continuous() is source
    assert source_of(database, bounded=None).continuous().bounded is False
    assert source.kinds() == {"postgres"}
