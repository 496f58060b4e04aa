"""What others do to a table while a job reads its rows in the order of a column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.connectors import PostgresSource
from dagster_flinkpy.connectors.postgres import enumerator as module
from dagster_flinkpy.errors import RestoreError, SourceReadError
from tests.connectors.postgres.sinks import Database
from tests.connectors.postgres.test_source import add, numbered, read, restored, source_of, take


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres, tmp_path / "staging")
    yield database
    database.sql("DROP SCHEMA {} CASCADE")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_SECONDS", 5)


def running(database: Database, rows: int = 5) -> tuple[PostgresSource, Any]:
    """Returns a source that has read some rows, and its enumerator."""
    numbered(database)
    add(database, rows)
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == list(range(1, rows + 1))
    return source, enumerator


def refused(source: PostgresSource, enumerator: Any, message: str) -> str:
    """Makes sure that neither the run nor the next one goes on, and returns the error."""
    state = json.dumps(enumerator.snapshot_state())
    with pytest.raises(RestoreError, match=message) as caught:
        enumerator.plan_epoch(1)
    with pytest.raises(RestoreError, match=message):
        source.create_enumerator(json.loads(state)).plan_epoch(1)
    return str(caught.value)


@pytest.mark.parametrize("rows", [3, 8], ids=["fewer than before", "more than before"])
@pytest.mark.parametrize("change", ["TRUNCATE {}.t RESTART IDENTITY", "recreated"])
def test_rows_under_old_values_after_truncate_are_refused(database: Database, change: str, rows: int) -> None:
    source, enumerator = running(database)
    if change == "recreated":
        database.sql("DROP TABLE {}.t")
        numbered(database)
    else:
        database.sql(change)
    if rows == 3:
        add(database, 1)
        refused(source, enumerator, r"was set back from 5 to 1|and has 1 row")
    add(database, rows - (rows == 3))
    error = refused(source, enumerator, r"was set back from 5 to 3|and has (3|5) row\(s\) with such values")
    if "SELECT setval" in error:
        database.sql("SELECT setval" + error.split("SELECT setval")[1].split(", and give")[0])
        refused(source, enumerator, r"has 3 row\(s\) with such values")
    database.sql("UPDATE {}.t SET n = DEFAULT WHERE n <= 5")
    assert len(take(source, enumerator)) == rows
    assert take(source, restored(source, enumerator)) == []


def test_a_sequence_that_was_set_back_is_refused_before_rows_are_missed(database: Database) -> None:
    source, enumerator = running(database)
    database.sql("DELETE FROM {}.t WHERE n > 2; SELECT setval('{}.t_n_seq', 2)")
    error = refused(source, enumerator, "was set back from 5 to 2")
    database.sql("SELECT setval" + error.split("SELECT setval")[1].split(", and give")[0])
    add(database, 1)
    assert take(source, enumerator) == [6]


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE {}.t RESTART IDENTITY",
        "DELETE FROM {}.t; ALTER TABLE {}.t ALTER n RESTART",
        "DELETE FROM {}.t; SELECT setval('{}.t_n_seq', 1, false)",
        "DROP TABLE {}.t; CREATE TABLE {}.t (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, s text)",
        "ALTER TABLE {}.t RENAME TO old; CREATE TABLE {}.t (LIKE {}.old INCLUDING ALL)",
    ],
)
def test_rows_that_come_after_a_look_at_a_sequence_that_begins_anew_are_refused(
    database: Database, change: str
) -> None:
    """The look finds neither rows nor a value of the sequence."""
    source, enumerator = running(database)
    database.sql(change)
    assert take(source, enumerator) == []
    enumerator = restored(source, enumerator)
    assert take(source, enumerator) == []
    add(database, 3)
    error = refused(source, enumerator, "(was set back|was made anew, and went) from 5 to 3")
    database.sql("SELECT setval" + error.split("SELECT setval")[1].split(", and give")[0])
    database.sql("UPDATE {}.t SET n = DEFAULT")
    assert take(source, enumerator) == [6, 7, 8]


def test_what_leaves_the_rows_as_they_are_goes_on(database: Database) -> None:
    source, enumerator = running(database)
    for change in (
        "VACUUM FULL {}.t",
        "UPDATE {}.t SET s = 'y' WHERE n < 5",
        "CLUSTER {}.t USING t_pkey",
        "ALTER TABLE {}.t ALTER s TYPE varchar(9) USING s || '!'",
        "ALTER TABLE {}.t ALTER n TYPE int",
        "ALTER TABLE {}.t ADD x uuid DEFAULT gen_random_uuid()",
        "VACUUM FREEZE {}.t",
        "VACUUM FULL {}.t",
        "TRUNCATE {}.t",
        "DELETE FROM {}.t",
    ):
        database.sql(change)
        add(database, 1)
        enumerator = restored(source, enumerator)
        assert len(take(source, enumerator)) == 1, change


def test_a_table_of_times_may_be_truncated_and_made_anew(database: Database) -> None:
    source = source_of(database, "at", delay=module._DELAY * 0)
    create = "CREATE TABLE {}.t (at timestamptz NOT NULL DEFAULT now(), n bigint)"
    database.sql(create)
    enumerator = source.create_enumerator(None)
    for number, change in enumerate(("SELECT 1", "TRUNCATE {}.t", f"DROP TABLE {{}}.t; {create}")):
        database.sql(change)
        database.sql(f"INSERT INTO {{}}.t (n) VALUES ({number})")
        assert take(source, enumerator) == [number]


def test_partitions_with_old_values_are_refused(database: Database) -> None:
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY) PARTITION BY LIST ((n % 2))".replace(" PRIMARY KEY", ""))
    database.sql("CREATE TABLE {}.even PARTITION OF {}.t FOR VALUES IN (0)")
    database.sql("INSERT INTO {}.t VALUES (2), (4)")
    source = source_of(database)
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [2, 4]
    database.sql("CREATE TABLE {}.odd (n bigint); INSERT INTO {}.odd VALUES (3), (5)")
    database.sql("ALTER TABLE {}.t ATTACH PARTITION {}.odd FOR VALUES IN (1)")
    refused(source, enumerator, r"got another partition, .* and has 1 row\(s\)")
    database.sql("UPDATE {}.t SET n = 7 WHERE n = 3")
    assert take(source, enumerator) == [5, 7]
    database.sql("ALTER TABLE {}.t DETACH PARTITION {}.even; INSERT INTO {}.t VALUES (9)")
    assert take(source, enumerator) == [9]


def test_another_column_of_the_same_name_is_refused(database: Database) -> None:
    source, enumerator = running(database)
    database.sql("ALTER TABLE {}.t DROP n, ADD n bigint GENERATED ALWAYS AS IDENTITY")
    refused(source, enumerator, "is another column")


@pytest.mark.parametrize("kind", ['varchar COLLATE "C"', "date USING '2024-02-29'"])
def test_another_order_is_refused(database: Database, kind: str) -> None:
    database.sql("CREATE TABLE {}.t (c text PRIMARY KEY, n bigint); INSERT INTO {}.t VALUES ('b', 1)")
    source = source_of(database, "c")
    enumerator = source.create_enumerator(None)
    assert take(source, enumerator) == [1]
    database.sql(f"ALTER TABLE {{}}.t ALTER c TYPE {kind}")
    refused(source, enumerator, "has another type or collation")


def test_rows_that_a_policy_hides_are_an_error(database: Database) -> None:
    _, enumerator = running(database)
    role = f"{database.schema}_reader"
    database.sql(
        f"CREATE ROLE {role} LOGIN PASSWORD 's'; GRANT USAGE ON SCHEMA {{}} TO {role}; GRANT SELECT ON {{}}.t TO {role}"
    )
    try:
        reader = source_of(database)
        reader.conninfo = f"{database.conninfo}&user={role}&password=s"
        add(database, 1)
        assert take(reader, restored(reader, enumerator)) == [6]
        database.sql("ALTER TABLE {}.t ENABLE ROW LEVEL SECURITY")
        splits = enumerator.plan_epoch(1)[0]
        with pytest.raises(SourceReadError, match=r"hides rows of table .*ALTER ROLE \S+ BYPASSRLS"):
            restored(reader, enumerator).plan_epoch(1)
        with pytest.raises(SourceReadError, match="row-level security"):
            read(reader, splits)
        database.sql(f"ALTER ROLE {role} BYPASSRLS")
        assert read(reader, splits) == [6]
        database.sql(f"REVOKE SELECT ON {{}}.t FROM {role}")
        with pytest.raises(SourceReadError, match="permission denied"):
            restored(reader, enumerator).plan_epoch(1)
    finally:
        database.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_server_that_was_reset(database: Database) -> None:
    source, enumerator = running(database)
    state = enumerator.snapshot_state()
    state["seen"]["lsn"] = 1 << 62
    with pytest.raises(RestoreError, match="was reset to an earlier state"):
        source.create_enumerator(state).plan_epoch(1)
    state["seen"]["system"] = "1"
    with pytest.raises(RestoreError, match=r"is on another server, .* and has 5 row\(s\) with such values"):
        source.create_enumerator(state).plan_epoch(1)
    state["seen"]["lsn"] = 1
    assert take(source, source.create_enumerator(state)) == [], "pg_upgrade keeps all but the id of the cluster"
    with pytest.raises(ValueError, match="required field `files`"):
        source.create_enumerator({**state, "seen": {k: v for k, v in state["seen"].items() if k != "files"}})
    assert take(source, source.create_enumerator({**state, "seen": None})) == [], "a position of an older release"
