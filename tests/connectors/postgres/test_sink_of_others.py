"""What others do to the table of a PostgreSQL sink and to its ledger while a job runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import PostgresSink, PostgresSource
from dagster_flinkpy.connectors.postgres.columns import Column
from dagster_flinkpy.connectors.postgres.session import _keeps
from dagster_flinkpy.connectors.postgres.sql_types import sql_type
from dagster_flinkpy.errors import (
    CommitRefusedError,
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    SourceReadError,
    StorageError,
)
from tests import servers
from tests.committing import commit_requests
from tests.connectors.postgres.sinks import (
    CONTEXT,
    ROW,
    Database,
    commit,
    committer,
    numbers,
    stage,
)
from tests.waiting import until


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres, tmp_path / "staging")
    yield database
    for (gid,) in database.sql("SELECT gid FROM pg_prepared_xacts"):
        database.sql(f"ROLLBACK PREPARED '{gid}'")
    database.sql("DROP SCHEMA {} CASCADE")


def no_retry(seconds: float) -> None:
    raise AssertionError("trying again does not help")


def trigger(database: Database, event: str, condition: str, table: str = "t") -> None:
    """Adds a trigger that drops rows."""
    row = "OLD" if event == "DELETE" else "NEW"
    database.sql(
        "CREATE FUNCTION {}.skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF "
        f"{condition} THEN RETURN NULL; END IF; RETURN {row}; END'"
    )
    database.sql(f"CREATE TRIGGER skips BEFORE {event} ON {{}}.{table} FOR EACH ROW EXECUTE FUNCTION {{}}.skip()")


CHANGES = [
    ("ALTER TABLE {}.t RENAME s TO r", "does not exist", "ALTER TABLE {}.t RENAME r TO s"),
    ("ALTER TABLE {}.t DROP s", "does not exist", "ALTER TABLE {}.t ADD s text"),
    ("ALTER TABLE {}.t ALTER n TYPE float8", "would change values of bigint", "ALTER TABLE {}.t ALTER n TYPE bigint"),
    ("ALTER TABLE {}.t ADD CHECK (n < 2)", "check constraint", "ALTER TABLE {}.t DROP CONSTRAINT t_n_check"),
    ("DROP TABLE {}.t", "does not exist", "CREATE TABLE {}.t (n bigint PRIMARY KEY, s text)"),
    ("ALTER TABLE {}.t SET UNLOGGED", "is UNLOGGED", "ALTER TABLE {}.t SET LOGGED"),
    ("TRIGGER", "has taken only 1 of 2 rows", "DROP TRIGGER skips ON {}.t"),
    ("POLICY", "row-level security", "ALTER TABLE {}.t DISABLE ROW LEVEL SECURITY"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said", "back", "options"),
    [(*each, options) for each in CHANGES for options in ({}, {"key": ["n"]})] + [(*CHANGES[6], {"key": ["n", "s"]})],
    ids=str,
)
def test_a_table_that_was_changed_gets_no_rows_until_it_takes_all(
    database: Database,
    change: str,
    said: str,
    back: str,
    options: Any,
) -> None:
    keys = ", UNIQUE (n, s)" if len(options.get("key", [])) == 2 else ""
    database.create(f"n bigint PRIMARY KEY, s text{keys}")
    sink = database.sink(**options)
    running = committer(sink)
    running.abort_lingering([])
    assert commit_requests(running, [stage(sink, numbers(1))], "sink") == 0
    request = stage(sink, numbers(1, 2) if options else numbers(2, 3), checkpoint_id=2)
    if change == "TRIGGER":
        trigger(database, "INSERT OR UPDATE", "NEW.n = 2")
    elif change == "POLICY":  # superusers see all rows
        database.sql("CREATE ROLE {}_owner; GRANT ALL ON SCHEMA {} TO {}_owner; ALTER TABLE {}.t OWNER TO {}_owner")
        database.sql("GRANT ALL ON ALL TABLES IN SCHEMA {} TO {}_owner")
        database.sql("ALTER TABLE {}.t ENABLE ROW LEVEL SECURITY; ALTER TABLE {}.t FORCE ROW LEVEL SECURITY")
        sink.conninfo = f"{database.conninfo}&options=-c%20role%3D{database.schema}_owner"
        running = committer(sink)
    else:
        database.sql(change)
    try:
        with pytest.raises(CommitRefusedError, match=said):
            commit_requests(running, [request], "sink")
        assert (database.ledger(), database.staged()) == ([1], 1)
        database.sql(back.replace("PRIMARY KEY, s text", f"PRIMARY KEY, s text{keys}"))
        assert commit(sink, request, token=2) == 0
        expected = {1, *([2] if options else [2, 3])} - ({1} if change == "DROP TABLE {}.t" and not options else set())
        assert (set(database.rows()), database.staged()) == (expected, 0)
    finally:
        if change == "POLICY":
            database.sql("REASSIGN OWNED BY {}_owner TO CURRENT_USER; DROP OWNED BY {}_owner; DROP ROLE {}_owner")


def test_a_table_whose_partition_a_crash_would_empty_is_refused(database: Database) -> None:
    database.create("n bigint, s text) PARTITION BY RANGE (n")
    database.sql("CREATE UNLOGGED TABLE {}.part PARTITION OF {}.t DEFAULT")
    sink = database.sink(prepare_transactions=True)
    with pytest.raises(ConfigurationError, match=f"ALTER TABLE {database.schema}.part SET LOGGED"):
        committer(sink).abort_lingering([])


def test_a_table_with_a_partition_on_another_server_is_refused(database: Database) -> None:
    """That server commits by itself: a crash before the commit here wrote rows twice. One may take no rows, though."""
    database.create("n bigint, s text) PARTITION BY RANGE (n")
    database.sql("CREATE FOREIGN DATA WRAPPER {}_far; CREATE SERVER {}_far FOREIGN DATA WRAPPER {}_far")
    try:
        database.sql("CREATE FOREIGN TABLE {}.far PARTITION OF {}.t DEFAULT SERVER {}_far")
        with pytest.raises(ConfigurationError, match=f"{database.schema}.far is a foreign table"):
            committer(database.sink()).abort_lingering([])
        database.sql("ALTER FOREIGN TABLE {}.far OPTIONS (ADD updatable 'false')")
        running = committer(database.sink())
        running.abort_lingering([])
        with pytest.raises(CommitRefusedError, match=r"has no handler(.|\n)* stay staged"):
            commit_requests(running, [stage(database.sink(), numbers(1))], "sink", wait=no_retry)
    finally:
        database.sql("DROP FOREIGN DATA WRAPPER {}_far CASCADE")


@pytest.mark.parametrize("options", [{}, {"key": ["s"]}, {"prepare_transactions": True}], ids=str)
def test_a_row_that_an_index_cannot_take_is_refused_at_once(database: Database, options: Any) -> None:
    """It was tried eleven times."""
    database.create("n bigint, s text UNIQUE")
    long = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(6000))  # it cannot be compressed
    sink = database.sink(**options)
    running = committer(sink)
    running.abort_lingering([])
    with pytest.raises(SinkCommitError, match=r"index row (size|requires)"):
        commit_requests(running, [stage(sink, [(1, long)])], "sink", wait=no_retry)


def test_a_table_that_was_made_anew_during_a_run_is_refused(database: Database) -> None:
    database.create()
    sink = database.sink()
    running = committer(sink)
    commit_requests(running, [stage(sink, numbers(1))], "sink")
    database.sql("DROP TABLE {}.t")
    database.create()
    request = stage(sink, numbers(2), checkpoint_id=2)
    with pytest.raises(CommitRefusedError, match="was dropped and made anew since it was opened"):
        commit_requests(running, [request], "sink")
    assert database.rows() == []
    commit(sink, request, token=2)
    assert database.rows() == [2]


def test_an_update_that_a_trigger_drops_is_refused(database: Database) -> None:
    database.create("n bigint PRIMARY KEY, s text, j json DEFAULT '[]'")
    sink = database.sink(key=["n"])
    commit(sink, stage(sink, numbers(1, 2)))
    trigger(database, "UPDATE", "NEW.n = 2")
    commit(sink, stage(sink, numbers(1, 2), checkpoint_id=2))  # it is as it should be
    request = stage(sink, [(1, "new"), (2, "old"), (2, "new")], checkpoint_id=3)
    with pytest.raises(CommitRefusedError, match="has taken only 1 of 2 rows"):
        commit(sink, request)
    database.sql("DROP TRIGGER skips ON {}.t")
    commit(sink, request)
    assert database.rows("n, s") == [(1, "new"), (2, "new")]


def test_a_unique_index_that_is_gone_is_refused(database: Database) -> None:
    database.create("n bigint PRIMARY KEY, s text")
    sink = database.sink(key=["n"])
    running = committer(sink)
    commit_requests(running, [stage(sink, numbers(1))], "sink")
    database.sql("ALTER TABLE {}.t DROP CONSTRAINT t_pkey")
    request = stage(sink, [(1, "new")], checkpoint_id=2)
    with pytest.raises(CommitRefusedError, match="no unique or exclusion constraint"):
        commit_requests(running, [request], "sink")
    with pytest.raises(
        CommitRefusedError, match=r"has no unique index on its key\. Add it: CREATE UNIQUE INDEX"
    ) as caught:
        commit(sink, request, token=2)
    database.sql(
        "CREATE UNIQUE INDEX" + str(caught.value).split("CREATE UNIQUE INDEX")[1].split(".  ")[0].split(". The")[0]
    )
    commit(sink, request, token=2)
    assert database.rows("n, s") == [(1, "new")]


def test_a_partition_whose_rows_cannot_be_deleted_is_refused(database: Database) -> None:
    database.create("n bigint, s text, day text")
    sink = database.sink(partition_column="day")
    commit(sink, stage(sink, numbers(1, 2), partition="a"))
    trigger(database, "DELETE", "OLD.n = 2")
    request = stage(sink, numbers(3), partition="a", checkpoint_id=2)
    with pytest.raises(CommitRefusedError, match="keeps rows of partition 'a'"):
        commit(sink, request)
    with pytest.raises(ConfigurationError, match="keeps rows of partition 'a'"):
        committer(sink).replace_partition("a", 3)
    database.sql("DROP TRIGGER skips ON {}.t")
    commit(sink, request)
    assert database.rows() == [3]


# --- the ledger -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"prepare_transactions": True}], ids=str)
def test_without_the_ledger_an_earlier_attempt_is_not_committed_twice(database: Database, options: Any) -> None:
    database.create()
    sink = database.sink(**options)
    committer(sink).abort_lingering([])
    request = stage(sink, numbers(1))
    commit(sink, request)
    database.sql("DROP TABLE {}.flinkpy_commits")
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match="nobody knows whether the rows of checkpoint 1 are in") as caught:
            commit(sink, request, token=2)
    assert database.rows() == [1]
    database.sql(str(caught.value).split("create the table and run again: ")[1])
    if options:
        with pytest.raises(CommittableLostError, match="or the database was restored from a backup"):
            commit(sink, request, token=2)
    else:  # the rows are staged no longer, because they were committed
        with pytest.raises(CommittableLostError, match="is gone"):
            commit(sink, request, token=2)
    assert database.rows() == [1]


@pytest.mark.parametrize("table", ["CREATE TABLE {}_o.t (LIKE {}.t)", "SELECT"], ids=["other table", "same table"])
def test_a_search_path_that_leads_to_another_ledger_commits_nothing_twice(database: Database, table: str) -> None:
    database.create()

    def sink(*schemas: str) -> PostgresSink:
        path = "%2C".join(each.replace("{}", database.schema) for each in schemas)
        return PostgresSink(f"{database.conninfo}&options=-csearch_path%3D{path}", "t", str(database.staging))

    request, copy = stage(sink("{}"), numbers(1)), database.staging.with_name("copy")
    shutil.copytree(database.staging, copy)
    commit(sink("{}"), request)
    shutil.copytree(copy, database.staging, dirs_exist_ok=True)  # it died before it had cleaned up
    ledger = "CREATE TABLE {}_o.flinkpy_commits (LIKE {}.flinkpy_commits INCLUDING ALL)"
    for statement in ("CREATE SCHEMA {}_o", table, ledger):
        database.sql(statement)
    try:
        advice = rf"entries in schema '{database.schema}'.* After that run, .*table='{database.schema}\.t'"
        with pytest.raises(CommitRefusedError, match=advice):
            commit(sink("{}_o", "{}"), request, token=2)
        commit(sink("{}"), request, token=2)
        assert database.rows() == [1]
    finally:
        database.sql("DROP SCHEMA {}_o CASCADE")


@pytest.mark.parametrize(
    ("columns", "grant"), [("LIKE {}.flinkpy_commits", ""), ("n int", "GRANT USAGE ON SCHEMA {}_o TO {}_r")]
)
def test_a_ledger_of_others_in_another_schema_is_left_alone(database: Database, columns: str, grant: str) -> None:
    """Each commit of what an earlier attempt had staged was refused."""
    database.create()
    path = f"{database.conninfo}&options=-csearch_path%3D{database.schema}"
    request, role = stage(PostgresSink(path, "t", str(database.staging)), numbers(1)), f"{database.schema}_r"
    database.sql(f"CREATE SCHEMA {{}}_o; CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA {{}} TO {role}")
    committer(database.sink()).abort_lingering([request])  # creates the ledger
    database.sql(f"CREATE TABLE {{}}_o.flinkpy_commits ({columns}); GRANT SELECT ON {{}}_o.flinkpy_commits TO {role}")
    database.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {{}} TO {role}; {grant}")
    try:
        commit(PostgresSink(path.replace("//postgres", f"//{role}"), "t", str(database.staging)), request, token=2)
        assert database.rows() == [1]
    finally:
        database.sql(f"DROP SCHEMA {{}}_o CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("change", ["DELETE FROM {}.flinkpy_commits", "TRUNCATE {}.t, {}.flinkpy_commits"])
@pytest.mark.parametrize("options", [{}, {"prepare_transactions": True}], ids=str)
def test_a_database_without_what_the_attempt_has_committed_is_refused(
    database: Database,
    options: Any,
    change: str,
) -> None:
    database.create()
    sink = database.sink(**options)
    running = committer(sink)
    running.abort_lingering([])
    commit_requests(running, [stage(sink, numbers(1))], "sink")
    database.sql(change)
    request = stage(sink, numbers(2), checkpoint_id=2)
    with pytest.raises(CommitRefusedError, match=r"does not know all of checkpoint 1 any more.*restored from a backup"):
        commit_requests(running, [request], "sink")
    assert 2 not in database.rows()
    commit(sink, request, token=2)
    assert 2 in database.rows()


def test_an_old_entry_that_another_commit_has_deleted_is_not_missed(database: Database) -> None:
    """Two runs of an asset that has not run for long: the first one forgot the entry that the other one had seen."""
    database.create()
    sink = database.sink()
    committer(sink).abort_lingering([])
    commit(sink, stage(sink, numbers(1)))
    database.sql("UPDATE {}.flinkpy_commits SET committed_at = now() - interval '31 days'")
    other = committer(sink)
    other.abort_lingering([])
    commit(sink, stage(sink, numbers(3), checkpoint_id=3))
    assert database.ledger() == [3]
    assert commit_requests(other, [stage(sink, numbers(2), checkpoint_id=2)], "sink") == 0
    assert database.rows() == [1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"prepare_transactions": True}], ids=str)
def test_a_ledger_that_takes_no_entry_or_takes_it_twice_is_refused(database: Database, options: Any) -> None:
    database.create()
    sink = database.sink(**options)
    committer(sink).abort_lingering([])
    trigger(database, "INSERT", "true", "flinkpy_commits")
    error: Any = ConfigurationError if options else CommitRefusedError
    with pytest.raises(error, match="does not take the entry of checkpoint 1"):
        commit(sink, stage(sink, numbers(1)))
    database.sql("DROP TRIGGER skips ON {}.flinkpy_commits")
    database.sql("ALTER TABLE {}.flinkpy_commits DROP CONSTRAINT flinkpy_commits_pkey")
    if not options:
        with pytest.raises(CommitRefusedError, match="no unique or exclusion constraint"):
            commit(sink, stage(sink, numbers(1), execution="other"))
    assert database.rows() == []


# --- prepared transactions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [("TRIGGER", "has taken only 1 of 2 rows"), ("ALTER TABLE {}.t ALTER n TYPE float8", "would change values")],
)
def test_transactions_are_only_prepared_if_the_table_takes_all_rows(database: Database, change: str, said: str) -> None:
    database.create()
    sink = database.sink(prepare_transactions=True)
    committer(sink).abort_lingering([])
    if change == "TRIGGER":
        trigger(database, "INSERT", "NEW.n = 2")
    else:
        database.sql(change)
    writer = sink.create_writer(CONTEXT, ROW)
    writer.write(ROW.to_arrow(numbers(1, 2)))
    with pytest.raises((ConfigurationError, CommitRefusedError), match=said):
        writer.prepare_commit()
    writer.abort()
    assert (database.rows(), database.prepared()) == ([], 0)


def test_a_standby_that_took_over_without_the_last_of_several_commits(database: Database) -> None:
    """The next checkpoint was committed, and the rows stayed in a prepared transaction, which the next run ended."""
    database.create()
    sink = database.sink(prepare_transactions=True)
    running = committer(sink)
    running.abort_lingering([])
    requests = [stage(sink, numbers(subtask), subtask=subtask) for subtask in range(3)]
    commit_requests(running, requests, "sink")
    lost = requests[2].committable["gid"]
    database.sql(f"DELETE FROM {{}}.t WHERE n = 2; DELETE FROM {{}}.flinkpy_commits WHERE digest = '{lost}'")
    entry = f"INSERT INTO {{}}.flinkpy_commits VALUES ('job', 'sink', 1, '{lost}', 1)"
    database.sql(f"BEGIN; INSERT INTO {{}}.t VALUES (2, 'text 2'); {entry}; PREPARE TRANSACTION '{lost}'")
    commit_requests(running, [stage(sink, numbers(3), checkpoint_id=2)], "sink")
    assert database.rows() == [0, 1, 2, 3]
    database.sql("DELETE FROM {}.flinkpy_commits WHERE checkpoint = 2")
    entry = entry.replace(f"1, '{lost}'", "2, 'others'")
    database.sql(entry)
    with pytest.raises(CommitRefusedError, match="does not know all of checkpoint 2 any more"):
        commit_requests(running, [stage(sink, numbers(4), checkpoint_id=3)], "sink")


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_info", "kept", "changed"),
    [
        (Types.LONG(), "bigint int2 numeric numeric(9,0) text varchar(3)", "real double_precision bytea date bool"),
        (Types.DOUBLE(), "double_precision numeric text", "real numeric(9,2) int4"),
        (Types.DECIMAL(9, 2), "numeric numeric(20,3) int4 text", "numeric(9,1) double_precision"),
        (Types.BIG_INT(), "numeric numeric(50,0) int8", "double_precision"),
        (Types.BIG_DEC(), "numeric", "numeric(50,9)"),
        (Types.SQL_TIMESTAMP(), "timestamp timestamptz timestamp(6)", "date time timestamp(3) timestamptz(0)"),
        (Types.INSTANT(), "timestamptz timestamp", "date timestamptz(3)"),
        (Types.SQL_DATE(), "date timestamp", "time int4"),
        (Types.SQL_TIME(), "time time(6) text", "time(0) timestamp interval"),
        (Types.STRING(), "text uuid date varchar(2) jsonb", ""),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "bytea", "text"),
        (Types.LIST(Types.INT()), "jsonb json text", "bytea hstore"),
    ],
    ids=str,
)
def test_columns_that_keep_values_and_columns_that_change_them(type_info: Any, kept: str, changed: str) -> None:
    for expected, names in ((True, kept.split()), (False, changed.split())):
        for name in names:
            assert _keeps(type_info, sql_type("c", type_info), column(name)) == expected, name


def column(name: str) -> Column:
    kind, _, given = name.rstrip(")").replace("_", " ").partition("(")
    kind = {"bigint": "int8", "real": "float4", "double precision": "float8"}.get(kind, kind)
    numbers = [int(each) for each in given.split(",") if each]
    modifier = (numbers[0] << 16 | numbers[1]) + 4 if kind == "numeric" and numbers else [*numbers, -1][0]
    return Column(kind, modifier, name)


def test_times_without_a_zone_are_in_utc_in_columns_with_one(database: Database) -> None:
    from datetime import datetime, timezone

    database.create("value timestamptz")
    database.sql("ALTER ROLE CURRENT_USER SET TimeZone = 'Asia/Tokyo'")
    try:
        kind = Types.SQL_TIMESTAMP()
        sink = database.sink()
        commit(sink, stage(sink, [datetime(2026, 1, 2, 12)], kind), type_info=kind)
        assert database.rows("value") == [datetime(2026, 1, 2, 12, tzinfo=timezone.utc)]
    finally:
        database.sql("ALTER ROLE CURRENT_USER RESET TimeZone")


def refuses(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError:
        return True
    return False


def test_a_server_that_wants_the_user_of_the_system_says_how_to_come_in_otherwise(database: Database) -> None:
    hba = servers.data_of_postgres(database.conninfo) / "pg_hba.conf"
    before, role = hba.read_text(), f"{database.schema}_peer"
    conninfo = f"{database.conninfo}&user={role}"
    database.create()
    database.sql(f"CREATE ROLE {role} LOGIN")
    hba.write_text(f"local all {role} peer\n{before}")  # the rule of Debian, for this role
    try:
        database.sql("SELECT pg_reload_conf()")
        until(lambda: refuses(conninfo), "the server reads its rules")
        sink = PostgresSink(conninfo, f"{database.schema}.t", str(database.staging))
        with pytest.raises(StorageError, match=r"Peer authentication failed .* Give conninfo a host"):
            committer(sink).abort_lingering([])
        with pytest.raises(SourceReadError, match=r"Peer authentication failed .* Give conninfo a host"):
            PostgresSource(conninfo, f"{database.schema}.t", "n").create_enumerator(None).plan_epoch(1)
    finally:
        hba.write_text(before)
        database.sql("SELECT pg_reload_conf()")
        database.sql(f"DROP ROLE {role}")
