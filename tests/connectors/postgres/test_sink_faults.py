"""Commits of the PostgreSQL sink that die or lose their connection, against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors.postgres.connection import connect
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.errors import StorageError
from tests.connectors.postgres.sinks import CONTEXT, ROW, Database, commit, committer, numbers, stage
from tests.runtime.harness import Crash


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


@pytest.mark.short
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


UNREACHABLE = [
    psycopg.OperationalError("the connection is lost"),
    psycopg.errors.ReadOnlySqlTransaction("a standby, as during a failover"),
    psycopg.errors.IdleInTransactionSessionTimeout("a setting of the server"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", UNREACHABLE, ids=str)
def test_a_lost_connection_is_tried_again_and_adds_nothing_twice(
    database: Database, error: psycopg.Error, when: str
) -> None:
    database.create()
    sink = database.sink()
    request = stage(sink, numbers(1, 2))
    with failing(psycopg.Transaction, "__exit__", when, error):
        commit(sink, request)
    assert database.rows() == [1, 2]


@pytest.mark.parametrize("error", UNREACHABLE, ids=str)
def test_a_writer_that_loses_its_connection_does_not_say_that_the_table_is_wrong(
    database: Database, error: psycopg.Error
) -> None:
    database.create()
    writer = database.sink(prepare_transactions=True).create_writer(CONTEXT, ROW)
    with failing(psycopg.Copy, "write", "before", error), pytest.raises(StorageError, match="cannot be reached"):
        writer.write(ROW.to_arrow(numbers(1)))
    writer.abort()


@pytest.mark.parametrize(
    ("given", "kept"),
    [("off 0", ("on", "1min")), ("local 5s", ("local", "5s")), ("remote_apply 5s", ("remote_apply", "5s"))],
)
def test_a_commit_outlives_a_crash_of_the_server_and_does_not_wait_for_a_lock_forever(
    database: Database, given: str, kept: tuple[str, str]
) -> None:
    database.create(
        "n bigint, s text, commits text DEFAULT current_setting('synchronous_commit'),"
        "waits text DEFAULT current_setting('lock_timeout')"
    )
    sink = database.sink()
    commits, waits = given.split()
    options = f"-csynchronous_commit={commits} -clock_timeout={waits}"
    sink.conninfo = psycopg.conninfo.make_conninfo(database.conninfo, options=options)
    commit(sink, stage(sink, numbers(1)))
    assert database.rows("commits, waits") == [kept]


def test_a_server_that_vanishes_is_noticed_after_a_minute_unless_conninfo_says_otherwise(postgres: str) -> None:
    def waits(conninfo: str) -> tuple[str, str, str]:
        with connect(conninfo, "test") as connection:
            found = connection.info.get_parameters()
        return found["keepalives_idle"], found["keepalives_interval"], found["keepalives_count"]

    assert waits(postgres) == ("30", "10", "3")
    assert waits(psycopg.conninfo.make_conninfo(postgres, keepalives_idle=5)) == ("5", "10", "3")


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


@pytest.mark.parametrize(
    ("hosts", "standby", "wanted"),
    [
        ("a,b", False, "primary"),
        ("a,b", True, None),
        ("a", False, None),
        ("a,b target_session_attrs=any", False, "any"),
    ],
)
def test_of_several_hosts_the_primary_is_used(
    monkeypatch: pytest.MonkeyPatch, hosts: str, standby: bool, wanted: str | None
) -> None:
    """A standby that came first refused all writes, so a failover ended the job for good. A role may only read."""
    used: list[str] = []
    monkeypatch.setattr(psycopg.Connection, "connect", lambda conninfo, **_: used.append(conninfo))
    connect(f"host={hosts}", "test", standby=standby)
    assert psycopg.conninfo.conninfo_to_dict(used[0]).get("target_session_attrs") == wanted


@pytest.mark.parametrize("prepares", [False, True])
def test_a_pooler_that_gives_each_transaction_another_session_changes_no_value(
    database: Database, monkeypatch: pytest.MonkeyPatch, prepares: bool
) -> None:
    database.create("n timestamptz")
    kind, noon = Types.ROW_NAMED(["n"], [Types.SQL_TIMESTAMP()]), datetime(2026, 1, 2, 12)
    connect = Session.connect

    def pooled(session: Session) -> Any:
        connection = connect(session)
        connection.execute("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL, DMY'")  # as the role has it
        return connection

    monkeypatch.setattr(Session, "connect", pooled)
    sink = database.sink(prepare_transactions=prepares)
    committer(sink, type_info=kind).abort_lingering([])
    commit(sink, stage(sink, [(noon,)], kind), type_info=kind)
    assert database.rows() == [noon.replace(tzinfo=timezone.utc)]
