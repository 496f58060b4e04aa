"""The PostgreSQL sink, against a real server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.common import Instant, Row, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import PostgresSink
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext, WriterInitContext
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    StorageError,
    TypeMismatchError,
)
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import Crash
from tests.servers import crash_postgres

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")


class Database:
    """A schema of the server.

    Args:
        conninfo: How to connect to the server.
        staging: The folder for staged rows.
    """

    def __init__(self, conninfo: str, staging: Path) -> None:
        self.conninfo, self.staging = conninfo, staging
        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE SCHEMA {self.schema}")

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '20s'")
            cursor = connection.execute(statement.replace("{}", self.schema))
            return cursor.fetchall() if cursor.description else []

    def create(self, columns: str = "n bigint, s text") -> None:
        self.sql(f"CREATE TABLE {{}}.t ({columns})")

    def rows(self, columns: str = "n") -> list[Any]:
        return sorted(row if len(row) > 1 else row[0] for row in self.sql(f"SELECT {columns} FROM {{}}.t"))

    def ledger(self) -> list[Any]:
        return [row[0] for row in self.sql("SELECT checkpoint FROM {}.flinkpy_commits ORDER BY checkpoint")]

    def prepared(self) -> int:
        return len(self.sql("SELECT gid FROM pg_prepared_xacts"))

    def sink(self, **options: Any) -> PostgresSink:
        staging = None if options.get("prepare_transactions") else str(self.staging)
        return PostgresSink(self.conninfo, f"{self.schema}.t", staging, **options)

    def staged(self) -> int:
        return len(list(StorageLocation(str(self.staging)).open().list()))


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres, tmp_path / "staging")
    yield database
    for (gid,) in database.sql("SELECT gid FROM pg_prepared_xacts"):
        database.sql(f"ROLLBACK PREPARED '{gid}'")
    database.sql("DROP SCHEMA {} CASCADE")


def stage(sink: PostgresSink, records: list[Any], type_info: TypeInformation = ROW, **changes: Any) -> CommitRequest:
    """Writes one epoch of one subtask up to the barrier. The committable makes a round trip through metadata."""
    context = replace(CONTEXT, **changes)
    writer = sink.create_writer(context, type_info)
    for record in records:
        writer.write(type_info.to_arrow([record]))
    [committable] = json.loads(json.dumps(writer.prepare_commit()))
    return CommitRequest(context.checkpoint_id, context.subtask, committable)


def numbers(*values: int) -> list[Any]:
    return [(value, f"text {value}") for value in values]


def committer(sink: PostgresSink, token: int = 1, type_info: TypeInformation = ROW) -> Committer:
    return sink.create_committer(CommitterInitContext("job", "sink", token, type_info))


def commit(sink: PostgresSink, *requests: CommitRequest, token: int = 1, type_info: TypeInformation = ROW) -> int:
    # Another attempt gets requests of its own.
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    return commit_requests(committer(sink, token, type_info), fresh, "sink", wait=lambda _: None)


# --- append -----------------------------------------------------------------------------------------------------------


def test_rows_are_there_after_the_commit_and_once(database: Database) -> None:
    database.create()
    sink = database.sink()
    requests = [stage(sink, numbers(1, 2)), stage(sink, numbers(3), subtask=1)]
    assert (database.rows(), database.staged()) == ([], 2)
    assert commit(sink, *requests) == 0
    assert commit(sink, *requests, token=2) == 2
    assert (database.rows(), database.ledger(), database.staged()) == ([1, 2, 3], [1], 0)
    assert committer(sink).last_committed() == 1


def test_checkpoints_are_committed_in_their_order(database: Database) -> None:
    database.create("n bigint, s text, at bigserial")
    sink = database.sink()
    requests = [stage(sink, numbers(n), checkpoint_id=n) for n in (3, 1, 2)]
    commit(sink, *requests)
    assert [n for _, n in database.rows("at, n")] == [1, 2, 3]


def test_a_job_that_begins_anew_with_the_same_ids_adds_its_rows(database: Database) -> None:
    database.create()
    sink = database.sink()
    commit(sink, stage(sink, numbers(1)))
    commit(sink, stage(sink, numbers(2), execution="another"))  # also checkpoint 1
    assert database.rows() == [1, 2]


def test_what_no_checkpoint_names_is_deleted(database: Database) -> None:
    database.create()
    sink = database.sink()
    kept = stage(sink, numbers(1))
    stage(sink, numbers(2), execution="speculative")
    newer = stage(sink, numbers(3), fencing_token=3, checkpoint_id=2)
    stage(sink, numbers(4), uid="other")
    assert committer(sink, 2).lingering([kept]) == 1
    assert committer(sink, 2).abort_lingering([kept]) == 1
    commit(sink, kept, newer, token=2)
    assert (database.rows(), database.staged()) == ([1, 3], 1)


def test_an_aborted_writer_leaves_nothing(database: Database) -> None:
    writer = database.sink().create_writer(CONTEXT, ROW)
    writer.write(ROW.to_arrow(numbers(1)))
    writer.prepare_commit()
    writer.abort()
    assert database.staged() == 0


def test_no_records_no_committable(database: Database) -> None:
    assert database.sink().create_writer(CONTEXT, ROW).prepare_commit() == []
    assert database.sink(prepare_transactions=True).create_writer(CONTEXT, ROW).prepare_commit() == []


@pytest.mark.parametrize("damage", ["gone", "changed", "cut"])
def test_staged_rows_that_are_lost_or_damaged_are_an_error_and_add_nothing(database: Database, damage: str) -> None:
    database.create()
    sink = database.sink()
    lost, neighbour = stage(sink, numbers(1)), stage(sink, numbers(2), subtask=1)
    store, key = StorageLocation(str(database.staging)).open(), lost.committable["key"]
    data, _ = store.get(key)
    if damage == "gone":
        store.delete(key)
    else:
        store.put(key, stage_bytes(sink, numbers(7)) if damage == "changed" else data[:-9])
    with pytest.raises(CommittableLostError, match=r"1 rows of checkpoint 1, is .*'chk-1' to continue without them"):
        commit(sink, lost, neighbour)
    assert (database.rows(), database.ledger()) == ([], [])


def stage_bytes(sink: PostgresSink, records: list[Any]) -> bytes:
    assert sink.staging is not None
    return sink.staging.open().get(stage(sink, records, execution="other").committable["key"])[0]


@pytest.mark.parametrize("damage", [{"key": "../x"}, {"rows": "many"}, {"bytes": None}])
def test_a_damaged_committable_is_refused(database: Database, damage: Any) -> None:
    database.create()
    sink = database.sink()
    request = stage(sink, numbers(1))
    request.committable = {**request.committable, **damage}
    with pytest.raises(SinkCommitError, match="not a committable"):
        commit(sink, request)


def test_rows_that_the_table_refuses_stay_staged_until_it_takes_them(database: Database) -> None:
    database.create("n bigint CHECK (n < 2), s text")
    sink = database.sink()
    request = stage(sink, numbers(1, 2))
    with pytest.raises(SinkCommitError, match=r"(?s)refuses the rows of checkpoint 1 .*check constr.*change the table"):
        commit(sink, request)
    assert (database.rows(), database.ledger()) == ([], [])
    committer(sink, 2).abort_lingering([request])
    database.sql("ALTER TABLE {}.t DROP CONSTRAINT t_n_check")
    commit(sink, request, token=2)
    assert database.rows() == [1, 2]


def test_the_ledger_forgets_what_is_old(database: Database) -> None:
    database.create()
    sink = database.sink()
    for n in (1, 2):
        commit(sink, stage(sink, numbers(n), checkpoint_id=n))
    database.sql("UPDATE {}.flinkpy_commits SET committed_at = now() - interval '31 days'")
    commit(sink, stage(sink, numbers(3), checkpoint_id=3))
    assert database.ledger() == [3]
    assert database.rows() == [1, 2, 3]


# --- upsert -----------------------------------------------------------------------------------------------------------


def test_rows_replace_rows_with_the_same_key(database: Database) -> None:
    database.create("n bigint PRIMARY KEY, s text")
    sink = database.sink(key=["n"])
    commit(sink, stage(sink, [(1, "a"), (2, "b"), (1, "c")]))
    again = stage(sink, [(2, "d"), (3, None), (2, "e")], checkpoint_id=2)
    commit(sink, again)
    commit(sink, again, token=2)
    assert database.rows("n, s") == [(1, "c"), (2, "e"), (3, None)]


def test_a_key_may_be_the_whole_row(database: Database) -> None:
    database.create("s text, n bigint, PRIMARY KEY (n, s)")
    sink = database.sink(key=["s", "n"])
    commit(sink, stage(sink, [(1, "a"), (1, "a"), (1, "b")]))
    commit(sink, stage(sink, [(1, "b")], checkpoint_id=2))
    assert database.rows("n, s") == [(1, "a"), (1, "b")]


# --- partitions -------------------------------------------------------------------------------------------------------


def test_a_partition_replaces_its_earlier_rows_in_the_same_transaction(database: Database) -> None:
    database.create("n bigint, s text, day date")
    sink = database.sink(partition_column="day")
    first = stage(sink, numbers(1, 2), partition="2026-01-01")
    other = stage(sink, numbers(3), partition="2026-01-02", checkpoint_id=2)
    again = stage(sink, numbers(4), partition="2026-01-01", checkpoint_id=3)
    for request in (first, other, again):
        commit(sink, request)
        assert committer(sink).replace_partition(request.committable["partition"], request.checkpoint_id) == 0
    commit(sink, first, token=0)  # an attempt that slept since it began this commit
    expected = [(3, date(2026, 1, 2)), (4, date(2026, 1, 1))]
    assert database.rows("n, day") == expected


def test_a_partition_that_has_no_rows_any_longer_is_emptied(database: Database) -> None:
    database.create("n bigint, s text, day text")
    sink = database.sink(partition_column="day")
    commit(sink, stage(sink, numbers(1, 2), partition="a"))
    assert committer(sink).replace_partition("a", 2) == 2
    commit(sink, stage(sink, numbers(3), partition="a", checkpoint_id=3))
    assert committer(sink).replace_partition("a", 2) == 0  # an attempt that slept
    assert database.rows() == [3]


def test_a_partition_column_needs_a_partition(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="no time partitions"):
        database.sink(partition_column="day").create_writer(CONTEXT, ROW)


# --- prepared transactions --------------------------------------------------------------------------------------------


def test_prepared_transactions_are_committed_once(database: Database) -> None:
    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    requests = [stage(sink, numbers(1, 2)), stage(sink, numbers(3), subtask=1)]
    assert (database.rows(), database.prepared()) == ([], 2)
    assert commit(sink, requests[0]) == 0
    assert commit(sink, *requests, token=2) == 1
    assert (database.rows(), database.prepared()) == ([1, 2, 3], 0)


def test_prepared_transactions_of_dead_attempts_are_rolled_back(database: Database) -> None:
    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    kept = stage(sink, numbers(1))
    stage(sink, numbers(2), execution="speculative")
    newer = stage(sink, numbers(3), fencing_token=3)
    stage(sink, numbers(4), uid="other")
    assert committer(sink, 2).lingering([kept]) == 1
    assert committer(sink, 2).abort_lingering([kept]) == 1
    commit(sink, kept, newer, token=2)
    assert (database.rows(), database.prepared()) == ([1, 3], 1)


def test_a_job_of_the_same_name_does_not_abort_what_another_has_prepared_for_another_table(database: Database) -> None:
    database.create()
    database.sql("CREATE TABLE {}.copy (n bigint, s text)")
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    request = stage(sink, numbers(1))
    copy = PostgresSink(database.conninfo, f"{database.schema}.copy", prepare_transactions=True)
    assert committer(copy, 9).abort_lingering([]) == 0
    commit(sink, request)
    assert database.rows() == [1]


def test_a_prepared_transaction_that_somebody_rolled_back_is_lost(database: Database) -> None:
    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    request = stage(sink, numbers(1))
    database.sql(f"ROLLBACK PREPARED '{request.committable['gid']}'")
    with pytest.raises(CommittableLostError, match=r"1 rows of checkpoint 1 .*somebody rolled back"):
        commit(sink, request)


def test_aborting_a_writer_rolls_back_its_transaction(database: Database) -> None:
    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    for prepare in (False, True):
        writer = sink.create_writer(CONTEXT, ROW)
        writer.write(ROW.to_arrow(numbers(1)))
        if prepare:
            writer.prepare_commit()
        writer.abort()
        assert (database.rows(), database.prepared()) == ([], 0)


def test_the_server_crashes_between_prepare_and_commit(database: Database) -> None:
    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    requests = [stage(sink, numbers(1, 2)), stage(sink, numbers(3), subtask=1)]
    commit(sink, requests[0])  # amid the commits of a checkpoint
    orphan = stage(sink, numbers(9), checkpoint_id=2, execution="lost")
    writer = sink.create_writer(replace(CONTEXT, checkpoint_id=3), ROW)
    writer.write(ROW.to_arrow(numbers(4)))
    crash_postgres(database.conninfo)
    with pytest.raises(StorageError, match="cannot be reached"):
        writer.write(ROW.to_arrow(numbers(5)))
        writer.prepare_commit()
    writer.abort()
    assert (database.rows(), database.prepared()) == ([1, 2], 2)
    assert committer(sink).abort_lingering(requests) == 1
    assert (commit(sink, *requests), commit(sink, *requests)) == (1, 2)
    assert (database.rows(), database.prepared()) == ([1, 2, 3], 0)
    with pytest.raises(CommittableLostError):
        commit(sink, orphan)


def test_a_server_without_prepared_transactions_is_refused_at_the_start(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create()
    real = psycopg.Connection.execute

    def execute(connection: Any, statement: Any, *args: Any, **options: Any) -> Any:
        if statement == "SHOW max_prepared_transactions":
            statement = "SELECT '0'"
        return real(connection, statement, *args, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    with pytest.raises(ConfigurationError, match="ALTER SYSTEM SET max_prepared_transactions = 64 and restart"):
        committer(database.sink(prepare_transactions=True)).abort_lingering([])


# --- the table --------------------------------------------------------------------------------------------------------


def test_a_missing_table_comes_with_the_statement_that_creates_it(database: Database) -> None:
    type_info = Types.ROW_NAMED(["id", "Price"], [Types.INT(), Types.DECIMAL(10, 2)])
    sink = database.sink(key=["id"])
    with pytest.raises(ConfigurationError, match=r"does not exist\. Give .* create it: CREATE TABLE") as refused:
        committer(sink, type_info=type_info).abort_lingering([])
    database.sql(str(refused.value).partition("create it: ")[2])
    committer(sink, type_info=type_info).abort_lingering([])
    commit(sink, stage(sink, [(1, Decimal("9.99"))], type_info), type_info=type_info)
    assert database.rows('id, "Price"') == [(1, Decimal("9.99"))]


@pytest.mark.parametrize("options", [{}, {"key": ["n"]}, {"partition_column": "day"}, {"prepare_transactions": True}])
def test_a_table_is_created_once(database: Database, options: Any) -> None:
    sink = database.sink(create=True, **options)
    partition = "d1" if "partition_column" in options else None
    committer(sink).abort_lingering([])
    assert database.rows() == []
    commit(sink, stage(sink, [(1, "a")], partition=partition))
    assert database.rows() == [1]
    database.sql("DROP TABLE {}.t")
    with pytest.raises(ConfigurationError, match="does not exist any more, and had rows up to checkpoint 1"):
        committer(sink).abort_lingering([])


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("n bigint", {}, "ADD COLUMN"),
        ("n bigint, s text", {"key": ["n"]}, "CREATE UNIQUE INDEX ON"),
        ("n bigint, s text, UNIQUE (n, s)", {"key": ["n"]}, "CREATE UNIQUE INDEX ON"),
        ("n bigint, s text", {"partition_column": "day"}, "ADD COLUMN"),
    ],
)
def test_a_table_that_does_not_fit_comes_with_what_to_do(
    database: Database, columns: str, options: Any, said: str
) -> None:
    database.create(columns)
    sink = database.sink(**options)
    with pytest.raises(ConfigurationError, match=said) as refused:
        committer(sink).abort_lingering([])
    if "UNIQUE" not in columns:
        database.sql(str(refused.value).partition(" it: ")[2])
        committer(sink).abort_lingering([])


DROPS = """CREATE FUNCTION {}.drops() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF NEW.n > 1 THEN RETURN NULL; END IF; RETURN NEW; END';
CREATE TRIGGER drops BEFORE INSERT ON {}.t FOR EACH ROW EXECUTE FUNCTION {}.drops()"""


@pytest.mark.parametrize("options", [{}, {"key": ["n"]}])
def test_rows_that_a_trigger_drops_are_an_error_and_stay_staged(database: Database, options: Any) -> None:
    database.create("n bigint UNIQUE, s text")
    database.sql(DROPS)
    sink = database.sink(**options)
    request = stage(sink, numbers(1, 1, 2, 3) if options else numbers(1, 2, 3))
    with pytest.raises(SinkCommitError, match=r"t has taken only 1 of 3 rows: a trigger"):
        commit(sink, request)
    assert (database.rows(), database.staged()) == ([], 1)
    database.sql("DROP TRIGGER drops ON {}.t")
    assert commit(sink, request) == 0
    assert database.rows() == [1, 2, 3]


def test_a_trigger_may_skip_updates_that_change_nothing(database: Database) -> None:
    database.create("n bigint PRIMARY KEY, s text")
    database.sql(
        "CREATE TRIGGER same BEFORE UPDATE ON {}.t FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    sink = database.sink(key=["n"])
    commit(sink, stage(sink, numbers(1, 2)))
    commit(sink, stage(sink, numbers(2, 3), checkpoint_id=2))
    assert database.rows() == [1, 2, 3]


def test_what_the_table_refuses_is_no_error_of_a_function_of_the_user(database: Database) -> None:
    database.create()
    database.sql(DROPS)
    sink = database.sink(prepare_transactions=True)
    with pytest.raises(SinkCommitError, match="has taken only 1 of 3 rows"):
        stage(sink, numbers(1, 2, 3))
    database.sql("ALTER TABLE {}.t DROP s")
    with pytest.raises(SinkCommitError, match=r't of sink \'sink\' refuses the rows of checkpoint 1: .* "s" .*Change'):
        stage(sink, numbers(1))
    assert database.prepared() == 0


def test_a_server_that_cannot_be_reached_is_named_without_the_password(tmp_path: Path) -> None:
    sink = PostgresSink("host=127.0.0.1 port=1 dbname=shop password='s e c'", "orders", str(tmp_path))
    with pytest.raises(StorageError, match=r"(?s)//127\.0\.0\.1:1/shop/orders: .*Check that") as error:
        committer(sink).abort_lingering([])
    assert "s e c" not in str(error.value)


# --- values -----------------------------------------------------------------------------------------------------------

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
        ("host=db dbname='my shop' password=secret", "postgresql://db/my shop/s.t"),
    ],
)
def test_the_uri_has_no_password(conninfo: str, uri: str, tmp_path: Path) -> None:
    assert PostgresSink(conninfo, "s.t", str(tmp_path)).uri() == uri


# --- commits that die -------------------------------------------------------------------------------------------------


@contextmanager
def failing(owner: Any, name: str, when: str, error: BaseException) -> Iterator[None]:
    """Makes the first call of a method fail before or after it takes effect."""
    real: Callable[..., Any] = getattr(owner, name)
    left = [error]

    def method(*args: Any, **options: Any) -> Any:
        if left and when == "before":
            raise left.pop()
        result = real(*args, **options)
        if left:
            raise left.pop()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        yield


def _steps() -> list[Any]:
    from dagster_flinkpy.connectors.postgres.committer import LedgerCommitter
    from dagster_flinkpy.storage.local import LocalObjectStore

    return [
        (Session, "connect"),
        (Session, "register"),
        (LedgerCommitter, "_replace"),
        (psycopg.Copy, "write"),
        (psycopg.Copy, "__exit__"),
        (psycopg.Transaction, "__exit__"),  # the COMMIT
        (LocalObjectStore, "delete_many"),
    ]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", _steps(), ids=lambda step: step[1].strip("_"))
@pytest.mark.parametrize("options", [{}, {"key": ["n"]}, {"partition_column": "day"}], ids=str)
def test_a_commit_that_dies_is_committed_by_the_next_attempt(
    database: Database, options: Any, step: tuple[Any, str], when: str
) -> None:
    database.create("n bigint PRIMARY KEY, s text, day text")
    sink = database.sink(**options)
    committer(sink).abort_lingering([])
    request = stage(sink, numbers(1, 2), partition="a")
    with failing(*step, when, Crash()), pytest.raises(Crash):
        commit(sink, request)
    commit(sink, request, token=2)
    assert committer(sink, 2).abort_lingering([]) == 0
    assert (database.rows(), database.ledger(), database.staged()) == ([1, 2], [1], 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_is_tried_again_and_adds_nothing_twice(database: Database, when: str) -> None:
    database.create()
    sink = database.sink()
    request = stage(sink, numbers(1, 2))
    with failing(psycopg.Transaction, "__exit__", when, psycopg.OperationalError("the connection is lost")):
        commit(sink, request)
    assert database.rows() == [1, 2]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["_commit", "_connect"])
def test_commits_of_prepared_transactions_that_die_are_committed_by_the_next_attempt(
    database: Database, name: str, when: str
) -> None:
    from dagster_flinkpy.connectors.postgres.committer import PreparedTransactionCommitter

    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    requests = [stage(sink, numbers(1, 2)), stage(sink, numbers(3), subtask=1)]
    with failing(PreparedTransactionCommitter, name, when, Crash()), pytest.raises(Crash):
        commit(sink, *requests)
    commit(sink, *requests, token=2)
    assert (database.rows(), database.prepared()) == ([1, 2, 3], 0)
