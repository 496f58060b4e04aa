"""A database that is restored from a dump while a job writes to it, or between two of its runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from dagster_flinkpy.errors import CommitRefusedError
from tests.connectors.postgres.sinks import Database
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import environment, events

OPTIONS = pytest.mark.parametrize("options", [{}, {"prepare_transactions": True}], ids=str)


def attempt(database: Database, options: dict[str, Any], **how: Any) -> HarnessAttempt:
    env = environment(1)
    records = [(f"k{i % 3}", i, i) for i in range(9)]
    events(env, records, per_epoch=2).sink_to(database.sink(**options)).uid("sink")
    return HarnessAttempt(env.get_job_graph(), database.staging.parent, **how)


def epoch(database: Database, options: dict[str, Any], **how: Any) -> None:
    with attempt(database, options, **how) as run:
        run.run_epoch()


def dump(database: Database) -> Callable[[], None]:
    """Dumps the schema, and returns what restores it."""
    [(folder,)] = database.sql("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
    file = str(database.staging.parent / "dump")
    given = ["-d", database.conninfo]
    subprocess.run([f"{folder}/pg_dump", *given, "-Fc", "-n", database.schema, "-f", file], check=True)

    def restore() -> None:
        database.sql("DROP SCHEMA {} CASCADE")
        subprocess.run([f"{folder}/pg_restore", *given, file], check=True)

    return restore


@OPTIONS
def test_a_dump_from_before_the_first_commit_is_refused(database: Database, options: dict[str, Any]) -> None:
    """The table has rows of others, and nothing there knows the job: it went on, and its former rows were missing."""
    database.create("key text, time bigint, value bigint")
    database.sql("INSERT INTO {}.t VALUES ('other', -1, -1)")
    restore = dump(database)
    for _ in range(2):
        epoch(database, options)
    restore()
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match=r"has committed checkpoint 2, but .* nothing of it on record"):
            epoch(database, options)
    assert database.rows("time") == [-1]
    epoch(database, options, restore_from="chk-2")
    epoch(database, options)
    assert database.rows("time") == [-1, 4, 5, 6, 7]


@OPTIONS
def test_a_dump_that_is_restored_before_the_first_commit_of_a_run_is_refused(
    database: Database, options: dict[str, Any]
) -> None:
    """The run had looked at the database before. Its first commit went in, and the rows of the one before were lost."""
    database.create("key text, time bigint, value bigint")
    epoch(database, options)
    restore = dump(database)
    epoch(database, options)
    with attempt(database, options) as run:
        restore()
        with pytest.raises(CommitRefusedError, match="does not know all of checkpoint 2 any more"):
            run.run_epoch()
    with pytest.raises(CommitRefusedError, match="has committed checkpoint 2, but its target has only what"):
        epoch(database, options)
    assert database.rows("time") == [0, 1]
