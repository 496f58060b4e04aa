"""Commits of the PostgreSQL sink that die or lose their connection, against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors.postgres.session import Session
from tests.connectors.postgres.sinks import Database, commit, committer, numbers, stage
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
