"""What others do to a table, its publication and its slot while a job reads the changes of the table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import PostgresChangeSource
from dagster_flinkpy.connectors.postgres import enumerator as enumerators
from dagster_flinkpy.connectors.postgres.change_reader import _Seen
from dagster_flinkpy.connectors.postgres.pgoutput import Begin
from dagster_flinkpy.errors import ConfigurationError, RestoreError, SourceReadError
from tests import servers, waiting
from tests.connectors.postgres.sinks import Database
from tests.connectors.postgres.test_change_source import Changes, complete, planned, read, started, take
from tests.connectors.postgres.test_source import add, numbered, source_of
from tests.connectors.postgres.test_source import take as take_numbers

N = Types.ROW_NAMED(["n"], [Types.LONG()])


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Changes]:
    database = Changes(postgres, tmp_path / "staging")
    yield database
    database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'")
    database.sql("DROP PUBLICATION IF EXISTS {}")
    database.sql("DROP SCHEMA {} CASCADE")


def running(database: Changes, **options: Any) -> tuple[PostgresChangeSource, Any]:
    """Returns a source that has read a change, and its enumerator."""
    source = database.source(**options)
    enumerator = started(source)
    database.sql("INSERT INTO {}.t (n) VALUES (1)")
    assert [row.split()[:2] for row in take(source, enumerator)] == [["+I", "1"]]
    complete(enumerator, 1)
    return source, enumerator


def refused(source: PostgresChangeSource, enumerator: Any, message: str) -> str:
    """Makes sure that neither the run nor the next one goes on, and returns the error."""
    state = enumerator.snapshot_state()
    with pytest.raises(RestoreError, match=message) as caught:
        enumerator.plan_epoch(1)
    assert enumerator.snapshot_state() == state
    with pytest.raises(RestoreError, match=message):
        started(source, state)
    return str(caught.value)


def start_anew(database: Changes, error: str, **options: Any) -> tuple[list[str], Any]:
    """Does literally what an error says, and returns what is read then."""
    if ". First put it right: " in error:
        database.sql(error.split(". First put it right: ")[1].split(". To go on without a gap:")[0])
    assert "start from empty state (start_empty: true) with snapshot=True" in error
    if (drop := f"SELECT pg_drop_replication_slot('{database.schema}')") in error:
        database.sql(drop)
    source = database.source(snapshot=True, **options)
    enumerator = started(source)
    return take_rows(source, enumerator) + take(source, enumerator), enumerator


def take_rows(source: PostgresChangeSource, enumerator: Any) -> list[str]:
    splits = planned(enumerator)
    found = read(source, splits)
    enumerator.on_epoch_read(splits)
    return found


PUBLICATIONS = [
    "ALTER PUBLICATION {} SET TABLE {}.t WHERE (n < 0)",
    "ALTER PUBLICATION {} SET TABLE {}.t (n)",
    "ALTER PUBLICATION {} SET (publish = 'insert')",
    "ALTER PUBLICATION {} DROP TABLE {}.t",
    "DROP PUBLICATION {}",
    "DROP PUBLICATION {}; CREATE PUBLICATION {} FOR TABLES IN SCHEMA {}",
    "ALTER PUBLICATION {} SET TABLES IN SCHEMA public",
]
BACK = "ALTER PUBLICATION {} SET TABLE {}.t"


@pytest.mark.parametrize(
    ("change", "back"),
    [
        *((change, None) for change in (PUBLICATIONS[0], *PUBLICATIONS[4:])),
        *((change, BACK) for change in (PUBLICATIONS[0], PUBLICATIONS[1], PUBLICATIONS[3])),
        (PUBLICATIONS[2], "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')"),
    ],
)
def test_a_publication_that_was_changed_is_refused_and_what_the_error_says_closes_the_gap(
    database: Changes, change: str, back: str | None
) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql(change)
    database.sql("INSERT INTO {}.t VALUES (2, 'perhaps not published')")
    if back is not None:  # it looks as before
        database.sql(back)
    error = refused(source, enumerator, "publication .* was changed after the changes .* some can be missing")
    assert ("First put it right" in error) == (back is None and "IN SCHEMA {}" not in change)
    found, enumerator = start_anew(database, error)
    assert sorted(found) == ["+I 1 None", "+I 2 perhaps not published"]
    database.sql("UPDATE {}.t SET s = 'x' WHERE n = 2; DELETE FROM {}.t WHERE n = 1")
    source = database.source(snapshot=True)
    assert take(source, started(source, complete(enumerator, 1))) == [
        "-U 2 perhaps not published", "+U 2 x", "-D 1 None"
    ]  # fmt: skip


def test_what_does_not_concern_the_table_may_be_changed(database: Changes) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql("CREATE TABLE {}.other (n bigint PRIMARY KEY); ALTER PUBLICATION {} ADD TABLE {}.other WHERE (n > 0)")
    database.sql("ALTER TABLE {}.t ALTER s SET STATISTICS 10; CREATE INDEX ON {}.t (s)")
    database.sql("VACUUM FULL {}.t")
    database.sql("INSERT INTO {}.other VALUES (1); INSERT INTO {}.t VALUES (2, 'b')")
    assert take(source, started(source, enumerator.snapshot_state())) == ["+I 2 b"]


@pytest.mark.parametrize("change", PUBLICATIONS[:4])
def test_a_publication_that_does_not_suffice_is_refused_before_anything_is_read(database: Changes, change: str) -> None:
    database.create()
    database.sql("CREATE PUBLICATION {} FOR TABLE {}.t")
    database.sql(change)
    with pytest.raises(ConfigurationError, match="does not publish all changes") as caught:
        started(database.source())
    database.sql(str(caught.value).split("Put it right: ")[1])
    source, enumerator = running(database)
    assert take(source, enumerator) == []


def test_a_column_list_may_leave_out_what_is_not_read(database: Changes) -> None:
    database.create("n bigint PRIMARY KEY, s text")
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY DEFAULT; CREATE PUBLICATION {} FOR TABLE {}.t (n)")
    with pytest.raises(ConfigurationError, match=r"DROP TABLE .* ADD TABLE"):
        started(database.source(changelog_mode="upsert"))
    running(database, changelog_mode="upsert", row_type=N)


@pytest.mark.parametrize("again", ["s text", "s text DEFAULT 'new'"])
def test_a_column_that_was_dropped_and_added_again_is_refused(database: Changes, again: str) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql(f"ALTER TABLE {{}}.t DROP s, ADD {again}")
    error = refused(source, enumerator, "column 's' of table .* was dropped and added again")
    narrow = database.source(row_type=N)
    database.sql("INSERT INTO {}.t VALUES (2)")
    assert take(narrow, started(narrow, enumerator.snapshot_state())) == ["+I 2"]
    new = "new" if "DEFAULT" in again else None
    assert sorted(start_anew(database, error)[0]) == [f"+I 1 {new}", f"+I 2 {new}"]


def test_a_column_that_is_dropped_in_one_epoch_and_added_in_another(database: Changes) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql("ALTER TABLE {}.t DROP s")
    assert take(source, enumerator) == []
    database.sql("ALTER TABLE {}.t ADD s text")
    refused(source, enumerator, "was dropped and added again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DROP TABLE {}.t; CREATE TABLE {}.t (n bigint, s text)", "was dropped and created anew"),
        ("ALTER TABLE {}.t RENAME TO old; CREATE TABLE {}.t (LIKE {}.old)", "or another one has its name"),
        ("SELECT pg_replication_slot_advance('{}', pg_current_wal_flush_lsn())", "somebody has advanced the slot"),
        ("SELECT pg_drop_replication_slot('{}')", "is gone"),
        (
            "SELECT pg_drop_replication_slot('{}'); SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
            "or it was created anew",
        ),
    ],
)
def test_other_tables_and_slots_under_the_same_name_are_refused(database: Changes, change: str, message: str) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql("INSERT INTO {}.t VALUES (2, 'b')")
    for statement in change.split("; "):
        database.sql(statement)
    with pytest.raises(RestoreError, match=message):
        enumerator.plan_epoch(1)
    if "TABLE" in change:
        database.sql("ALTER TABLE {}.t REPLICA IDENTITY FULL")
    error = refused(source, enumerator, message)
    if "TABLE" in change:
        database.sql("DROP PUBLICATION {}; INSERT INTO {}.t VALUES (1, 'new'), (2, 'b')")
    found, _ = start_anew(database, error)
    assert sorted(row.split()[1] for row in found) == ["1", "2"]


def test_a_table_that_is_away_is_an_error(database: Changes) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql("ALTER TABLE {}.t RENAME TO other")
    with pytest.raises(SourceReadError, match="there is no table"):
        enumerator.plan_epoch(1)
    database.sql("ALTER TABLE {}.other RENAME TO t; INSERT INTO {}.t VALUES (2, 'b')")
    assert take(source, enumerator) == ["+I 2 b"]


def test_a_slot_that_is_made_anew_while_an_epoch_is_read_is_refused(
    database: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_flinkpy.connectors.postgres.slot import ReplicationSlot

    database.create()
    source, enumerator = running(database)
    database.sql("INSERT INTO {}.t VALUES (2, 'b')")
    splits, real = planned(enumerator), ReplicationSlot.messages

    def messages(slot: ReplicationSlot, after: int, upto: int) -> Any:
        database.sql("SELECT pg_drop_replication_slot('{}')")
        database.sql("SELECT pg_create_logical_replication_slot('{}', 'pgoutput')")
        return real(slot, after, upto)

    monkeypatch.setattr(ReplicationSlot, "messages", messages)
    with pytest.raises(RestoreError, match="created anew"):
        read(source, splits)


@pytest.mark.parametrize("setting", ["max_slot_wal_keep_size = '1MB'", "idle_replication_slot_timeout = '1s'"])
def test_a_slot_that_the_server_has_given_up_is_refused(tmp_path: Path, setting: str) -> None:
    """The message blamed the size, also if the job had not run for too long."""
    with servers.postgres() as conninfo:
        database = Changes(conninfo, tmp_path / "staging")
        database.create()
        source, enumerator = running(database)
        try:
            database.sql(f"ALTER SYSTEM SET {setting}")
        except psycopg.errors.UndefinedObject:
            pytest.skip("this server does not have the setting")
        database.sql("SELECT pg_reload_conf(); INSERT INTO {}.t VALUES (2, 'b')")

        def gives_up() -> bool:
            database.sql("SELECT pg_logical_emit_message(false, '', repeat('x', 10000000)); SELECT pg_switch_wal()")
            database.sql("CHECKPOINT")
            return bool(
                database.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}' AND wal_status = 'lost'")
            )

        try:
            waiting.until(gives_up, "the server gives up the slot")
            for plan in (enumerator, source.create_enumerator(enumerator.snapshot_state())):
                with pytest.raises(SourceReadError, match=f"has lost WAL .* {setting.split()[0]}.* Raise it") as caught:
                    plan.plan_epoch(1)
            assert sorted(start_anew(database, str(caught.value))[0]) == ["+I 1 None", "+I 2 b"]
        finally:
            database.sql(f"ALTER SYSTEM RESET {setting.split()[0]}")
            database.sql("SELECT pg_reload_conf()")


def test_a_partition_without_the_rows_before_changes_is_refused(database: Changes) -> None:
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, s text) PARTITION BY RANGE (n)")
    database.sql("CREATE TABLE {}.a PARTITION OF {}.t FOR VALUES FROM (0) TO (5)")
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY FULL; ALTER TABLE {}.a REPLICA IDENTITY FULL")
    source, enumerator = running(database)
    database.sql("CREATE TABLE {}.b PARTITION OF {}.t FOR VALUES FROM (5) TO (9)")
    database.sql("INSERT INTO {}.t VALUES (6, 'x'); DELETE FROM {}.t WHERE n = 6")
    database.sql("ALTER TABLE {}.b REPLICA IDENTITY FULL")
    with pytest.raises(SourceReadError, match=r"replica identity of \w+\.b was 'd'") as caught:
        take(source, enumerator)
    found, _ = start_anew(database, str(caught.value))
    assert found == ["+I 1 None"]


_MAKE = "CREATE TABLE {}.b (LIKE {}.t); ALTER TABLE {}.b REPLICA IDENTITY FULL"
_MAKE_PARTS = (
    "CREATE TABLE {}.b (LIKE {}.t) PARTITION BY RANGE (n); ALTER TABLE {}.b REPLICA IDENTITY FULL; "
    "CREATE TABLE {}.c PARTITION OF {}.b FOR VALUES FROM (5) TO (7); ALTER TABLE {}.c REPLICA IDENTITY FULL"
)
_FILL = "INSERT INTO {}.b VALUES (5, 'x')"
_ATTACH = "ALTER TABLE {}.t ATTACH PARTITION {}.b FOR VALUES FROM (5) TO (9)"
_AGAIN = "ALTER TABLE {}.t ATTACH PARTITION {}.a FOR VALUES FROM (0) TO (5)"


@pytest.mark.parametrize(
    ("statements", "read"),
    [
        (["CREATE TABLE {}.b PARTITION OF {}.t FOR VALUES FROM (5) TO (9)"], []),
        ([_MAKE, _ATTACH], []),
        ([f"BEGIN; {_MAKE}; {_ATTACH}; INSERT INTO {{}}.t VALUES (5, 'x'); COMMIT"], ["+I 5 x"]),
        ([_MAKE, _FILL, _ATTACH], None),
        ([f"BEGIN; {_MAKE}; {_FILL}; {_ATTACH}; COMMIT"], None),
        (["ALTER TABLE {}.t DETACH PARTITION {}.a", "INSERT INTO {}.a VALUES (2, 'x')", _AGAIN], None),
        ([_MAKE_PARTS, _ATTACH, "INSERT INTO {}.t VALUES (6, 'x')"], ["+I 6 x"]),
        ([_MAKE_PARTS, _FILL, _ATTACH], None),
    ],
)
def test_a_partition_that_is_attached_with_rows_is_refused(
    database: Changes, statements: list[str], read: list[str] | None
) -> None:
    """No change says that they are there: they were never read."""
    database.sql("CREATE TABLE {}.t (n bigint, s text) PARTITION BY RANGE (n)")
    database.sql("CREATE TABLE {}.a PARTITION OF {}.t FOR VALUES FROM (0) TO (5)")
    for name in ("t", "a"):
        database.sql(f"ALTER TABLE {{}}.{name} REPLICA IDENTITY FULL")
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'a')")
    assert take(source, enumerator) == ["+I 1 a"]
    for statement in statements:
        database.sql(statement)
    database.sql("INSERT INTO {}.t VALUES (3, 'b')")
    if read is not None:
        assert take(source, enumerator) == [*read, "+I 3 b"]
        return
    for again in (enumerator, source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))):
        with pytest.raises(RestoreError, match=r"partition .*\.[a-c] was attached with rows after the changes of"):
            take(source, again)


def test_another_key_of_deleted_rows_is_refused(database: Changes) -> None:
    database.create("n bigint PRIMARY KEY, s text")
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY DEFAULT")
    source, enumerator = running(database, changelog_mode="upsert")
    database.sql("UPDATE {}.t SET s = 'a'; ALTER TABLE {}.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (s)")
    database.sql("DELETE FROM {}.t")
    with pytest.raises(SourceReadError, match=r"key of \w+\.t was \['s'\], not \['n'\]"):
        take(source, enumerator)


def test_another_key_of_a_partition_is_refused(database: Changes) -> None:
    """A row that it deletes has that key, and null in the key of the table."""
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, s text NOT NULL) PARTITION BY RANGE (n)")
    database.sql("CREATE TABLE {}.a PARTITION OF {}.t FOR VALUES FROM (0) TO (5)")
    source = database.source(changelog_mode="upsert")
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'a')")
    database.sql("CREATE UNIQUE INDEX u ON {}.a (s); ALTER TABLE {}.a REPLICA IDENTITY USING INDEX u")
    database.sql("DELETE FROM {}.t")
    with pytest.raises(SourceReadError, match=r"key of \w+\.a was \['s'\], not \['n'\]"):
        take(source, enumerator)


def test_truncated_tables_are_read_again_from_a_snapshot(database: Changes) -> None:
    database.create()
    source, enumerator = running(database)
    database.sql("TRUNCATE {}.t; INSERT INTO {}.t VALUES (5, 'e')")
    with pytest.raises(SourceReadError, match="was truncated by") as caught:
        take(source, enumerator)
    assert start_anew(database, str(caught.value))[0] == ["+I 5 e"]


@contextmanager
def goes_back(conninfo: str) -> Iterator[None]:
    """A server goes back to what it has now, on another timeline, as by a backup or a standby that lacked the rest."""
    data = servers.data_of_postgres(conninfo)
    servers.stop_postgres(conninfo)
    subprocess.run(["cp", "-a", str(data), f"{data}.backup"], check=True)
    servers.start_postgres(conninfo)
    yield
    servers.stop_postgres(conninfo)
    for each in data.iterdir():
        subprocess.run(["rm", "-rf", str(each)], check=True)
    subprocess.run(["cp", "-a", f"{data}.backup/.", str(data)], check=True)
    with (data / "postgresql.conf").open("a") as settings_file:
        settings_file.write("restore_command = 'false'\n")
    (data / "recovery.signal").touch()
    servers.start_postgres(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        in_recovery = "SELECT pg_is_in_recovery()"
        waiting.until(lambda: not connection.execute(in_recovery).fetchall()[0][0], "the server takes writes")


@pytest.mark.system
def test_a_server_that_was_restored_from_a_backup(tmp_path: Path) -> None:
    """Its log goes on from the backup on another timeline: positions from before go on, others name other changes."""
    with servers.postgres() as conninfo:
        database = Changes(conninfo, tmp_path / "staging")
        database.create()
        source, enumerator = running(database)
        before = enumerator.snapshot_state()
        with goes_back(conninfo):
            database.sql("INSERT INTO {}.t VALUES (2, 'lost')")
            assert take(source, enumerator) == ["+I 2 lost"]
            after = complete(enumerator, 2)
        with pytest.raises(RestoreError, match="was reset to an earlier state"):
            enumerator.plan_epoch(1)
        database.sql("CREATE TABLE {}.filler AS SELECT repeat('x', 100) FROM generate_series(1, 2000)")
        with pytest.raises(RestoreError, match="was reset to an earlier state") as caught:
            started(source, after)
        database.sql("INSERT INTO {}.t VALUES (3, 'c')")
        going_on = started(source, before)
        assert take(source, going_on) == ["+I 3 c"]
        assert started(source, complete(going_on, 2)).snapshot_state()["timeline"] == before["timeline"] + 1
        assert sorted(start_anew(database, str(caught.value))[0]) == ["+I 1 None", "+I 3 c"]


@pytest.mark.short("False")
@pytest.mark.parametrize("may_ask", [True, False])
def test_rows_that_a_server_lost_before_it_went_on_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_ask: bool
) -> None:
    """Its log has overtaken what was seen, and the sequence, too: rows under the values of those lost were skipped."""
    if not may_ask:

        def refuses(*_: object) -> int:
            raise psycopg.OperationalError("must be superuser or replication role to start walsender")

        monkeypatch.setattr(enumerators, "end_of_timeline", refuses)
    with servers.postgres() as conninfo:
        database = Database(conninfo, tmp_path / "staging")
        numbered(database)
        add(database, 3)
        source = source_of(database)
        enumerator = source.create_enumerator(None)
        assert take_numbers(source, enumerator) == [1, 2, 3]
        before = enumerator.snapshot_state()
        database.sql("UPDATE {}.t SET s = 'later' WHERE n = 3")
        with goes_back(conninfo):
            add(database, 100)
            lost = take_numbers(source, enumerator)
            assert len(lost) == 100
        database.sql("CREATE TABLE {}.filler AS SELECT repeat('x', 100) FROM generate_series(1, 2000)")
        add(database, 300)
        assert database.sql("SELECT max(n), count(*) FROM {}.t")[0] > (lost[-1], 303)
        with pytest.raises(RestoreError, match="was reset to an earlier state"):
            enumerator.plan_epoch(1)
        if may_ask:  # what was changed is not what was lost
            assert len(take_numbers(source, source.create_enumerator(before))) == 300


# --- the rows that the table has --------------------------------------------------------------------------------------


def test_rows_and_then_their_changes(database: Changes) -> None:
    database.create()
    database.sql("INSERT INTO {}.t SELECT n, 'x' FROM generate_series(1, 5) n")
    source = database.source(snapshot=True, batch_rows=2)
    enumerator = started(source)
    state = enumerator.snapshot_state()
    database.sql("INSERT INTO {}.t VALUES (6, 'both in the slot and in the snapshot')")
    with psycopg.connect(database.conninfo) as late:
        late.execute(f"INSERT INTO {database.schema}.t VALUES (7, 'only in the slot')")
        splits = planned(enumerator)
    database.sql("DELETE FROM {}.t WHERE n = 1")
    rows = [*(f"+I {n} x" for n in range(1, 6)), "+I 6 both in the slot and in the snapshot"]
    assert read(source, splits) == read(source, splits) == rows
    [split] = splits
    assert read(source, [split.advanced(3, finished=False)]) == rows[3:]
    enumerator.on_epoch_read(splits)
    again = started(source, enumerator.snapshot_state())
    changes = ["+I 7 only in the slot", "-D 1 x"]
    assert take(source, again) == take(source, enumerator) == changes
    lost = started(source, state)  # the epoch with the rows was not complete
    assert sorted(take_rows(source, lost)) == sorted([*rows[1:], "+I 7 only in the slot"])
    assert take(source, lost) == []


def test_rows_that_a_crash_of_the_server_would_take_are_no_part_of_a_snapshot(database: Changes) -> None:
    database.create()
    source = database.source(snapshot=True)
    enumerator = started(source)
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute(f"INSERT INTO {database.schema}.t VALUES (1, 'x')")
        [(written,)] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
        splits = planned(enumerator)
        assert connection.execute(f"SELECT pg_current_wal_flush_lsn() >= '{written}'").fetchall() == [(True,)]
    assert read(source, splits) == ["+I 1 x"]
    enumerator.on_epoch_read(splits)


def test_a_bounded_input_has_the_rows_and_the_changes(database: Changes) -> None:
    database.create()
    database.sql("INSERT INTO {}.t VALUES (1, 'a')")
    source = database.source(snapshot=True, bounded=True)
    enumerator, found = started(source), list[str]()
    while not enumerator.exhausted:
        found += take_rows(source, enumerator)
        enumerator = started(source, enumerator.snapshot_state())
    assert found == ["+I 1 a"]


@given(st.integers(3, 1 << 34), st.integers(0, 1000), st.data())
def test_which_transactions_a_snapshot_has_seen(low: int, more: int, data: st.DataObject) -> None:
    high = low + more
    running = data.draw(st.sets(st.integers(low, high))) - {high}
    number = data.draw(st.integers(max(low - 1000, 3), high + 1000))
    seen = _Seen({"visible": f"{low}:{high}:{','.join(map(str, sorted(running)))}", "before": 100})
    expected = number < low or (number < high and number not in running)
    assert seen.has(Begin(99, 0, number % (1 << 32))) == expected
    assert not seen.has(Begin(100, 0, number % (1 << 32)))
