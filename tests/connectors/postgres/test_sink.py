"""The PostgreSQL sink, against a real server."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import PostgresSink
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    StorageError,
    TypeMismatchError,
)
from dagster_flinkpy.storage import StorageLocation
from tests.connectors.postgres.sinks import CONTEXT, ROW, Database, commit, committer, numbers, stage
from tests.servers import crash_postgres, data_of_postgres


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


def test_an_index_may_include_columns_that_are_not_of_the_key(database: Database) -> None:
    database.create("n bigint, s text, UNIQUE (n) INCLUDE (s)")
    sink = database.sink(key=["n"])
    assert commit(sink, stage(sink, numbers(1, 1))) == 0
    assert database.rows() == [1]


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


def test_a_key_with_null_is_refused_when_it_is_written(database: Database) -> None:
    """A unique index does not compare nulls: one row of a checkpoint was kept, and added in each checkpoint."""
    database.create("n bigint, s text, UNIQUE (n, s)")
    sink = database.sink(key=["n", "s"])
    writer = sink.create_writer(CONTEXT, ROW)
    writer.write(ROW.to_arrow([(1, "a")]))
    with pytest.raises(TypeMismatchError, match=r"a row for table '.*' has null in column 's', which is part of its"):
        writer.write(ROW.to_arrow([(1, "b"), (1, None)]))
    writer.abort()


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
    data_of_postgres(database.conninfo)  # skips the test if this server must not crash
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
        ("n bigint, s text, UNIQUE (n) DEFERRABLE", {"key": ["n"]}, 'DROP CONSTRAINT "t_n_key", ADD UNIQUE'),
        ("n bigint, s text GENERATED ALWAYS AS ('a') STORED", {}, "DROP EXPRESSION"),
    ],
)
def test_a_table_that_does_not_fit_comes_with_what_to_do(
    database: Database, columns: str, options: Any, said: str
) -> None:
    database.create(columns)
    sink = database.sink(**options)
    with pytest.raises(ConfigurationError, match=said) as refused:
        committer(sink).abort_lingering([])
    if said != "CREATE UNIQUE INDEX ON" or "UNIQUE" not in columns:
        database.sql(str(refused.value).partition(" it: ")[2])
        committer(sink).abort_lingering([])


def test_a_table_whose_policies_keep_the_role_from_writing_is_refused_at_the_start(database: Database) -> None:
    database.create()
    database.sql("CREATE ROLE {}_r; GRANT ALL ON SCHEMA {} TO {}_r; GRANT ALL ON {}.t TO {}_r")
    database.sql("CREATE POLICY p ON {}.t USING (n < 10); ALTER TABLE {}.t ENABLE ROW LEVEL SECURITY")
    sink = database.sink()
    sink.conninfo = f"{database.conninfo}&options=-c%20role%3D{database.schema}_r"
    try:
        with pytest.raises(ConfigurationError, match=r"row-level security .* BYPASSRLS"):
            committer(sink).abort_lingering([])
    finally:
        database.sql("DROP OWNED BY {}_r; DROP ROLE {}_r")


@pytest.mark.parametrize("options", [{}, {"key": ["n"]}])
def test_an_identity_column_takes_the_values_of_records(database: Database, options: Any) -> None:
    database.create("n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, s text")
    sink = database.sink(**options)
    assert commit(sink, stage(sink, numbers(5, 7))) == 0
    assert database.rows() == [5, 7]


@pytest.mark.parametrize("timeout", ["statement_timeout", "transaction_timeout"])
@pytest.mark.parametrize("options", [{}, {"key": ["n"]}, {"prepare_transactions": True}])
def test_a_transaction_may_take_longer_than_the_role_lets_others(
    database: Database, options: Any, timeout: str
) -> None:
    """One that writes takes as long as an epoch, or its rows need."""
    database.create(f"n bigint UNIQUE, s text CHECK (current_setting('{timeout}') = '0')")
    sink = database.sink(**options)
    sink.conninfo = f"{database.conninfo}&options=-c%20{timeout}%3D1h"
    committer(sink).abort_lingering([])
    assert commit(sink, stage(sink, numbers(1))) == 0
    assert database.rows() == [1]


def test_an_identity_column_that_is_no_key_is_refused_at_the_start_if_rows_are_replaced(database: Database) -> None:
    database.create("n bigint PRIMARY KEY, id bigint GENERATED ALWAYS AS IDENTITY")
    kind = Types.ROW_NAMED(["n", "id"], [Types.LONG(), Types.LONG()])
    sink = database.sink(key=["n"])
    with pytest.raises(ConfigurationError, match="SET GENERATED BY DEFAULT") as refused:
        committer(sink, type_info=kind).abort_lingering([])
    database.sql(str(refused.value).partition(" it: ")[2])
    committer(sink, type_info=kind).abort_lingering([])


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


@pytest.mark.parametrize("options", [{"key": ["n"]}, {"prepare_transactions": True}])
def test_an_owner_cannot_replace_by_key_nor_prepare(tmp_path: Path, options: Any) -> None:
    staging = None if "prepare_transactions" in options else str(tmp_path)
    sink = PostgresSink("host=127.0.0.1", "orders", staging, **options)
    with pytest.raises(ConfigurationError, match=r"'shop' replaces all of its rows .*: leave out key and prep"):
        sink.for_owner("shop")


# --- values -----------------------------------------------------------------------------------------------------------
