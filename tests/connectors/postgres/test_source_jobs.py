"""Sources that read PostgreSQL while others write, in jobs that die anywhere: each row and change is read once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, PostgresChangeSource, PostgresSource
from dagster_flinkpy.connectors.postgres import connection
from dagster_flinkpy.connectors.postgres import enumerator as postgres_enumerator
from dagster_flinkpy.connectors.postgres.change_enumerator import PostgresChangeEnumerator
from dagster_flinkpy.connectors.postgres.columns import READING
from dagster_flinkpy.connectors.postgres.connection import value_of
from dagster_flinkpy.connectors.postgres.scan import scanning
from dagster_flinkpy.connectors.postgres.slot import ReplicationSlot, slot_of
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.connectors.postgres.sinks import Database
from tests.connectors.postgres.test_change_source import started
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import environment

NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])
WRITERS = 2


@example([("insert", 0, "epoch"), ("insert", 1, "epoch"), ("commit", 1, "epoch"), ("commit", 0, "epoch")], None)
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["insert", "commit", "rollback"]),
            st.integers(0, WRITERS - 1),
            st.sampled_from(["epoch", "epoch", "crash"]),
        ),
        min_size=10,
        max_size=16,
    ),
    limit=st.none() | st.integers(1, 3),
)
def test_rows_of_any_transactions_are_read_once(
    postgres: str, tmp_path: Path, steps: list[tuple[str, int, str]], limit: int | None
) -> None:
    database = Database(postgres, tmp_path / "staging")
    database.sql("CREATE TABLE {}.t (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
    source = PostgresSource(
        postgres, f"{database.schema}.t", "n", row_type=NUMBER, bounded=False, max_records_per_epoch=limit
    )
    found, state = list[int](), None
    enumerator = source.create_enumerator(None)

    def epoch() -> None:
        nonlocal state
        shares = enumerator.plan_epoch(2)
        found.extend(
            n for share in shares for s in share for column, _ in source.read(s) for n in column.field("n").to_pylist()
        )
        state = json.loads(json.dumps(enumerator.snapshot_state()))

    writers = [psycopg.connect(postgres) for _ in range(WRITERS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_enumerator, "_WAIT_SECONDS", 0.0)
        patch.setattr(postgres_enumerator, "_UNFLUSHED", "SELECT %s < 0")  # after a rollback it takes a moment
        try:
            for step, writer, then in steps:
                if step == "insert":
                    writers[writer].execute(f"INSERT INTO {database.schema}.t DEFAULT VALUES")
                elif step == "commit":
                    writers[writer].commit()
                else:
                    writers[writer].rollback()
                if then == "epoch":
                    epoch()
                else:
                    enumerator.plan_epoch(2)  # and nothing comes of it
                    enumerator = source.create_enumerator(state)
            for connection in writers:
                connection.commit()
            there = database.rows()
            for _ in range(len(there) + 2):
                epoch()
        finally:
            for connection in writers:
                connection.close()
    assert sorted(found) == there
    assert found == sorted(found) or limit is None
    database.sql("DROP SCHEMA {} CASCADE")


STEPS: list[tuple[Any, str]] = [
    (ReplicationSlot, "create"),
    (ReplicationSlot, "confirm"),
    (ReplicationSlot, "transactions"),
    (ReplicationSlot, "messages"),
    (PostgresChangeEnumerator, "plan_epoch"),
    (PostgresChangeEnumerator, "on_snapshot"),
    (PostgresChangeEnumerator, "notify_checkpoint_complete"),
    (LocalObjectStore, "put"),
    (LocalObjectStore, "complete_upload"),
]
CHANGES = [
    ("INSERT INTO {}.t VALUES (1, 'a'), (2, 'b')", ["+I 1 a", "+I 2 b"]),
    ("UPDATE {}.t SET s = 'c' WHERE n = 1", ["-U 1 a", "+U 1 c"]),
    ("DELETE FROM {}.t WHERE n = 2", ["-D 2 b"]),
    ("INSERT INTO {}.t SELECT n, 'd' FROM generate_series(3, 5) n", ["+I 3 d", "+I 4 d", "+I 5 d"]),
    ("UPDATE {}.t SET n = 9 WHERE n = 3", ["-U 3 d", "+U 9 d"]),
    ("DELETE FROM {}.t", ["-D 1 c", "-D 9 d", "-D 4 d", "-D 5 d"]),
]


@pytest.mark.system
@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    limit=st.none() | st.integers(1, 3),
    size=st.none() | st.integers(1, 600),
)
def test_each_change_is_read_once_wherever_the_job_dies(
    postgres: str,
    tmp_path_factory: pytest.TempPathFactory,
    step: tuple[Any, str],
    when: str,
    numbers: list[int],
    limit: int | None,
    size: int | None,
) -> None:
    folder = tmp_path_factory.mktemp("job")
    database = Database(postgres, folder / "staging")
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, s text); ALTER TABLE {}.t REPLICA IDENTITY FULL")
    left, done = list(CHANGES), False
    try:
        with dying(step, when, numbers):
            for _ in range(12):
                env = environment(2)
                source = PostgresChangeSource(
                    postgres,
                    f"{database.schema}.t",
                    database.schema,
                    bounded=False,
                    max_records_per_epoch=limit,
                    max_bytes_per_epoch=size,
                )
                changes = env.from_source(source, WatermarkStrategy.no_watermarks(), "changes").uid("changes")
                changes.sink_to(ParquetSink(str(folder / "out"))).uid("sink")
                try:
                    with HarnessAttempt(env.get_job_graph(), folder / "job") as attempt:
                        while left:
                            statement, _ = left.pop(0)
                            database.sql(statement)
                            attempt.run_epoch()
                        for _ in range(len(CHANGES) + 1):
                            attempt.run_epoch()
                        done = True
                        break
                except Crash:
                    pass
        assert done, "the job does not end"
        rows = [row for file in (folder / "out").glob("**/*.parquet") for row in pq.read_table(file).to_pylist()]
        found = Counter(f"{row['row_kind']} {row['n']} {row['s']}" for row in rows)
        assert found == Counter(change for _, expected in CHANGES for change in expected)
    finally:
        database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'")
        database.sql("DROP PUBLICATION IF EXISTS {}; DROP SCHEMA {} CASCADE")


@pytest.mark.parametrize("reads", ["rows", "snapshot", "changes"])
def test_a_pooler_that_gives_each_transaction_another_session_changes_no_value(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """Values were read as the settings of the role had them: 0.1 + 0.2 as 0.3, and times in another zone."""
    database = Database(postgres, tmp_path)
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, f float8, at timestamptz)")
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY FULL")

    class Pooled(connection._Connection):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            if query == READING:
                return None  # of another session
            return super().execute(query, *args, **options)

    row, table = Types.ROW_NAMED(["f", "at"], [Types.DOUBLE(), Types.SQL_TIMESTAMP()]), f"{database.schema}.t"
    other = f"{postgres}&options=-c%20TimeZone%3DAsia/Tokyo%20-c%20extra_float_digits%3D0"  # as the role has it
    source: Any = PostgresSource(other, table, "n", row_type=row)
    if reads != "rows":
        slot, snapshot = database.schema, reads == "snapshot"
        source = PostgresChangeSource(other, table, slot, row_type=row, snapshot=snapshot, bounded=False)
    monkeypatch.setattr(connection, "_Connection", Pooled)
    enumerator = started(source)
    if reads == "changes":
        enumerator.plan_epoch(1)
    database.sql("INSERT INTO {}.t VALUES (1, 0.1::float8 + 0.2, '2026-01-02 12:00:00Z')")
    [split] = [split for share in enumerator.plan_epoch(1) for split in share][:1]
    [column] = [column for column, _ in source.read(split)]
    assert column.field("f").to_pylist() == [0.1 + 0.2]
    assert str(column.field("at")[0].as_py()).startswith("2026-01-02 12:00:00")
    enumerator.on_epoch_read([split])
    database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'")
    database.sql("DROP SCHEMA {} CASCADE")


@pytest.mark.parametrize("timeout", ["statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_transaction_that_reads_may_take_longer_than_the_role_lets_others(
    postgres: str, tmp_path: Path, timeout: str
) -> None:
    """It takes as long as functions take for the rows: a slow one made the server end it, in each attempt.

    If all rows are on their way, the server waits for the end of the transaction.
    """
    database = Database(postgres, tmp_path)
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY)")
    table, limited = f"{database.schema}.t", f"{postgres}&options=-c%20{timeout}%3D1h"
    with scanning(PostgresSource(limited, table, "n", row_type=NUMBER)) as scan:
        assert scan.one(f"SHOW {timeout}") == "0"
    with slot_of(PostgresChangeSource(limited, table, "slot", row_type=NUMBER)) as slot:
        assert value_of(slot.connection, f"SHOW {timeout}") == "0"
    database.sql("DROP SCHEMA {} CASCADE")
