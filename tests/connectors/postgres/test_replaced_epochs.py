"""A checkpoint takes the place of others of its sink in a table of PostgreSQL, in one transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.connectors.postgres.committer import LedgerCommitter
from dagster_flinkpy.connectors.postgres.session import EpochRows
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import CommitRefusedError, ConfigurationError
from tests.committing import commit_requests
from tests.connectors.postgres.sinks import ROW, Database, committer, numbers, stage
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash


def put(
    database: Database,
    checkpoint_id: int,
    *rows: int,
    replaced: tuple[int, int] | None = None,
    uid: str = "sink",
    execution: str = "e",
) -> list[CommitRequest]:
    sink = database.sink()
    staged = {"checkpoint_id": checkpoint_id, "uid": uid, "execution": execution}
    requests = [stage(sink, numbers(*rows), **staged)] if rows else []
    again(database, requests, replaced, uid)
    return requests


def again(database: Database, requests: list[CommitRequest], replaced: Any = None, uid: str = "sink") -> None:
    made = database.sink().create_committer(CommitterInitContext("job", uid, 1, ROW))
    fresh = [CommitRequest(each.checkpoint_id, each.subtask, each.committable) for each in requests]
    commit_requests(made, fresh, "sink", replaced=replaced)


def test_old_and_new_rows_change_places_once(database: Database) -> None:
    database.create()
    for number in range(1, 5):
        put(database, number, number * 10, number * 10 + 1)
    put(database, 3, 99, uid="other")
    database.sql("INSERT INTO {}.t VALUES (77)")
    committer(database.sink()).check_replaceable(1, 4)
    requests = put(database, 6, 5, 6, replaced=(1, 4))
    assert database.rows() == [5, 6, 10, 11, 40, 41, 77, 99]
    again(database, requests, (1, 4))
    assert database.rows() == [5, 6, 10, 11, 40, 41, 77, 99]
    put(database, 7, 8)
    committer(database.sink()).replace_epochs(8, [], 4, 8)
    committer(database.sink()).replace_epochs(8, [], 4, 8)
    assert database.rows() == [10, 11, 40, 41, 77, 99]
    assert committer(database.sink()).last_committed() == 8


@pytest.mark.parametrize(
    "act",
    [
        "UPDATE {}.t SET s = 'x' WHERE n = 20",
        "DELETE FROM {}.t WHERE n = 20",
        "ALTER TABLE {}.t ALTER n TYPE numeric",
        "DELETE FROM {}.t WHERE n = 20; INSERT INTO {}.t VALUES (20)",
        "CREATE TABLE {}.c AS SELECT * FROM {}.t; TRUNCATE {}.t; INSERT INTO {}.t SELECT * FROM {}.c",
        "CREATE TABLE {}.c AS SELECT * FROM {}.flinkpy_commits; DELETE FROM {}.flinkpy_commits; "
        "INSERT INTO {}.flinkpy_commits SELECT * FROM {}.c",
        "DELETE FROM {}.flinkpy_commits WHERE checkpoint < 3",
    ],
)
def test_rows_that_others_have_changed_are_not_replaced(database: Database, act: str) -> None:
    database.create()
    for number in range(1, 4):
        put(database, number, number * 10, number * 10 + 1)
    database.sql(act)
    before = database.rows()
    with pytest.raises(ConfigurationError, match=r"rows of sink 'sink' as they were|rows that .* does not know"):
        committer(database.sink()).check_replaceable(0, 4)
    with pytest.raises(CommitRefusedError, match="stay staged"):
        put(database, 5, 1, replaced=(0, 4))
    with pytest.raises(ConfigurationError):
        committer(database.sink()).replace_epochs(5, [], 0, 4)
    assert (database.rows(), database.ledger()[-1]) == (before, 3)


@pytest.mark.parametrize(
    "act", ["VACUUM FULL {}.t", "VACUUM (FREEZE) {}.t", "CREATE INDEX i ON {}.t (n); CLUSTER {}.t USING i"]
)
def test_what_moves_no_rows_does_not_matter(database: Database, act: str) -> None:
    database.create()
    put(database, 1, 10)
    put(database, 2, 20)
    for statement in act.split(";"):
        database.sql(statement)
    put(database, 3, 1, replaced=(1, 3))
    assert database.rows() == [1, 10]


def test_rows_that_change_between_look_and_delete_are_not_replaced(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create()
    put(database, 1, 10, 11)
    real = EpochRows.check

    def check(self: EpochRows, connection: Any) -> None:
        real(self, connection)
        database.sql("UPDATE {}.t SET s = 'x' WHERE n = 10")

    monkeypatch.setattr(EpochRows, "check", check)
    with pytest.raises(CommitRefusedError, match="somebody has updated"):
        put(database, 2, 1, replaced=(0, 2))
    assert database.rows() == [10, 11]


def test_what_the_ledger_has_forgotten_is_not_replaced_unless_all_other_rows_are_known(database: Database) -> None:
    database.create()
    for number in range(1, 4):
        put(database, number, number)
    database.sql("UPDATE {}.flinkpy_commits SET committed_at = now() - interval '31 days' WHERE checkpoint = 1")
    database.sql("UPDATE {}.t SET n = n")  # the rows have the transaction of nobody
    put(database, 4, 4)
    assert database.ledger() == [2, 3, 4]
    with pytest.raises(ConfigurationError, match="as they were committed after checkpoint 0"):
        committer(database.sink()).check_replaceable(0, 5)
    with pytest.raises(ConfigurationError, match="as they were committed after checkpoint 1"):
        committer(database.sink()).check_replaceable(1, 5)
    committer(database.sink()).check_replaceable(3, 5)
    database.sql("DELETE FROM {}.flinkpy_commits WHERE checkpoint < 4")
    with pytest.raises(ConfigurationError, match=r"has 3 rows that .* those since 4 only"):
        committer(database.sink()).check_replaceable(0, 5)
    database.sql("ALTER TABLE {}.flinkpy_commits RENAME TO lost")
    with pytest.raises(ConfigurationError, match="30 days, none, and the rows may be from before"):
        committer(database.sink()).check_replaceable(0, 5)
    database.sql("ALTER TABLE {}.lost RENAME TO flinkpy_commits")
    database.sql("DELETE FROM {}.t WHERE n < 4")
    put(database, 6, 1, replaced=(0, 5))
    assert database.rows() == [1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"key": ["n"]}, "With a key, it has changed rows in place"),
        ({"partition_column": "p"}, "It replaces the rows of partitions"),
        ({"prepare_transactions": True}, "Each subtask commits a transaction of its own"),
    ],
)
def test_other_modes_are_refused_with_the_reason(database: Database, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        committer(database.sink(**options)).check_replaceable(0, 2)
    with pytest.raises(ConfigurationError, match=why):
        committer(database.sink(**options)).replace_epochs(3, [], 0, 2)


@given(
    epochs=st.lists(st.integers(0, 3), max_size=6),
    replaced=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from(["", "before", "after"])), max_size=4
    ),
    others=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_replaced_exactly_once(
    postgres: str, tmp_path_factory: pytest.TempPathFactory, epochs: list[int], replaced: list[Any], others: bool
) -> None:
    database = Database(postgres, tmp_path_factory.mktemp("staging"))
    database.create()
    values = iter(range(1, 1000))
    mine, zombies, checkpoint_id = dict[int, list[int]](), list[Any](), 0
    for count in epochs:
        checkpoint_id += 1
        mine[checkpoint_id] = [next(values) for _ in range(count)]
        zombies.append((put(database, checkpoint_id, *mine[checkpoint_id]), None))
    if others:
        database.sql("INSERT INTO {}.t VALUES (0)")
    for after, count, crash in replaced:
        before, checkpoint_id = checkpoint_id + 1, checkpoint_id + 2
        try:
            committer(database.sink()).check_replaceable(after, before)
        except ConfigurationError:
            assert others and not mine.get(1)
            break
        rows = [next(values) for _ in range(count)]
        requests = [stage(database.sink(), numbers(*rows), checkpoint_id=checkpoint_id)] if rows else []
        zombies.append((requests, (after, before)))
        for crashes in (crash, ""):
            step = (LedgerCommitter, "_put" if rows else "_remove_epochs")
            with suppress(Crash), dying(step, crashes, [1] if crashes else []):
                if rows:
                    again(database, requests, (after, before))
                else:
                    committer(database.sink()).replace_epochs(checkpoint_id, [], after, before)
        for number in [number for number in mine if after < number < before]:
            del mine[number]
        mine[checkpoint_id] = rows
        for former, span in zombies:
            again(database, former, span)
        assert database.rows() == sorted([*([0] if others else []), *(row for each in mine.values() for row in each)])
    database.sql("DROP SCHEMA {} CASCADE")
