"""Names in PostgreSQL that mean something to those who phrase statements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import PostgresChangeSource, PostgresSink, PostgresSource
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from tests.connectors.postgres.sinks import Database, commit, committer, stage

ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
TABLE, COLUMN = "%(t)s %s {0}", "%s of {1}"
SCHEMA = "%s{0}"
CONTEXT = SplitEnumeratorContext("job", 1, None)  # type: ignore[arg-type]


class Names(Database):
    """A schema with such a name. ``@`` is a table in it."""

    @property
    def table(self) -> str:
        return f"{self.schema}{SCHEMA}.{TABLE}"

    def sql(self, statement: str) -> list[Any]:
        return super().sql(statement.replace("@", f'"{self.schema}{SCHEMA}"."{TABLE}"'))


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Names]:
    database = Names(postgres, tmp_path / "staging")
    database.sql(f'CREATE SCHEMA "{{}}{SCHEMA}"')
    yield database
    database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'")
    database.sql(f'DROP PUBLICATION IF EXISTS {{}}; DROP SCHEMA {{}}; DROP SCHEMA "{{}}{SCHEMA}" CASCADE')


def test_a_sink(database: Names) -> None:
    staging = str(database.staging)
    sink = PostgresSink(database.conninfo, database.table, staging, create=True, partition_column=COLUMN)
    for checkpoint_id, day in enumerate(("a", "%s", "a"), 1):
        request = stage(sink, [(checkpoint_id,)], ROW, checkpoint_id=checkpoint_id, partition=day)
        for _ in range(2):
            commit(sink, request, type_info=ROW)
    assert database.sql("SELECT * FROM @ ORDER BY n") == [(2, "%s"), (3, "a")]
    appends = PostgresSink(database.conninfo, database.table, staging)
    again = stage(appends, [(4,)], ROW, checkpoint_id=4)
    committer(appends, type_info=ROW).replace_epochs(4, [again], 1, 4)
    assert database.sql("SELECT n FROM @ ORDER BY n") == [(4,)]
    prepared = PostgresSink(database.conninfo, database.table, prepare_transactions=True)
    commit(prepared, stage(prepared, [(5,)], ROW, checkpoint_id=5), type_info=ROW)
    assert committer(prepared, type_info=ROW).last_committed() == 5


def test_sources(database: Names) -> None:
    database.sql(f'CREATE TABLE @ ("{COLUMN}" text COLLATE "C" PRIMARY KEY); ALTER TABLE @ REPLICA IDENTITY FULL')
    database.sql("INSERT INTO @ VALUES ('a%s'), ('a%%')")
    rows = PostgresSource(database.conninfo, database.table, COLUMN)
    changes = PostgresChangeSource(database.conninfo, database.table, database.schema, snapshot=True)
    for source in (rows, changes):
        enumerator = source.create_enumerator(None)
        enumerator.start(CONTEXT)
        [split] = [split for share in enumerator.plan_epoch(1) for split in share]
        assert sorted(row[COLUMN] for column, _ in source.read(split) for row in column.to_pylist()) == ["a%%", "a%s"]
        enumerator.on_epoch_read([split])
        database.sql("VACUUM FULL @")  # a file that is to be checked
        again = source.create_enumerator(enumerator.snapshot_state())
        again.start(CONTEXT)
        assert list(again.unread()) == []
