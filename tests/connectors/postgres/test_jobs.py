"""Whole jobs into PostgreSQL that die anywhere: each record is in the table once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.connectors import PostgresSink
from dagster_flinkpy.connectors.postgres.committer import LedgerCommitter, PreparedTransactionCommitter
from dagster_flinkpy.connectors.postgres.session import Session
from dagster_flinkpy.connectors.postgres.writer import PostgresStagingWriter, PreparingWriter
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import CommitRefusedError, FencedError, HeadLostError, RestoreError
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.connectors.postgres.sinks import Database
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import EVENT, environment, events

RECORDS = [(f"k{i % 3}", i, i) for i in range(9)]
STEPS: list[tuple[Any, str]] = [
    (PostgresStagingWriter, "write"),
    (PostgresStagingWriter, "prepare_commit"),
    (PreparingWriter, "write"),
    (PreparingWriter, "prepare_commit"),
    (LedgerCommitter, "commit"),
    (LedgerCommitter, "abort_lingering"),
    (PreparedTransactionCommitter, "_commit"),
    (PreparedTransactionCommitter, "abort_lingering"),
    (Session, "connect"),
    (Session, "register"),
    (Session, "two_phase"),
    (psycopg.Transaction, "__exit__"),
    (LocalObjectStore, "put"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "delete_many"),
]


@contextmanager
def dying(step: tuple[Any, str], when: str, numbers: Sequence[int]) -> Iterator[None]:
    """Makes the process die at some calls of a method, before or after they take effect."""
    owner, name = step
    real: Callable[..., Any] = getattr(owner, name)
    count = 0

    def method(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        dies = count in numbers
        if dies and when == "before":
            raise Crash
        result = real(*args, **options)
        if dies:
            raise Crash
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        yield


def run(sink: PostgresSink, folder: Path, parallelism: int) -> list[list[CommitRequest]]:
    """Runs attempts until the input is read, and returns what they have committed."""
    committed, connections = [], list[Any]()
    connect = Session.connect

    def connected(session: Session) -> Any:
        connections.append(connect(session))
        return connections[-1]

    real = type(sink.create_committer(CommitterInitContext("job", "sink", 0))).commit

    def commit(committer: Any, requests: Sequence[CommitRequest]) -> None:
        committed.append([CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests])
        real(committer, requests)

    for _ in range(12):
        env = environment(parallelism)
        events(env, RECORDS, per_epoch=3).rebalance().sink_to(sink).uid("sink")
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Session, "connect", connected)
                patch.setattr(LedgerCommitter if sink.staging else PreparedTransactionCommitter, "commit", commit)
                with HarnessAttempt(env.get_job_graph(), folder / "job") as attempt:
                    while not attempt.finished:
                        attempt.run_epoch()
                    return committed
        except Crash:
            for connection in connections:  # they end with the process
                connection.close()
    raise AssertionError("the job does not end")


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    options=st.sampled_from([{}, {"key": ["time"]}, {"prepare_transactions": True}]),
    parallelism=st.integers(1, 2),
)
def test_every_record_is_in_the_table_once_wherever_the_job_dies(
    postgres: str,
    tmp_path_factory: pytest.TempPathFactory,
    step: tuple[Any, str],
    when: str,
    numbers: list[int],
    options: dict[str, Any],
    parallelism: int,
) -> None:
    folder = tmp_path_factory.mktemp("job")
    database = Database(postgres, folder / "staging")
    database.create(
        "key text, time bigint PRIMARY KEY, value bigint" if "key" in options else "key text, time bigint, value bigint"
    )
    sink = database.sink(**options)
    with dying(step, when, numbers):
        committed = run(sink, folder, parallelism)
    expected = [(key, time, value) for key, time, value in RECORDS]
    assert database.rows("key, time, value") == sorted(expected)
    zombie = sink.create_committer(CommitterInitContext("job", "sink", 1, EVENT))
    for requests in committed:  # an attempt that slept all the time
        zombie.commit(requests)
    assert database.rows("key, time, value") == sorted(expected)
    sink.create_committer(CommitterInitContext("job", "sink", 2**62, EVENT)).abort_lingering([])
    assert (database.prepared(), database.staged()) == (0, 0)
    database.sql("DROP SCHEMA {} CASCADE")


def test_a_prepared_transaction_that_somebody_committed_too_early_is_refused(postgres: str, tmp_path: Path) -> None:
    """Its checkpoint did not become complete, so its rows would be written again."""
    database = Database(postgres, tmp_path / "staging")
    database.create("key text, time bigint, value bigint")
    sink = database.sink(prepare_transactions=True)
    env = environment(1)
    events(env, RECORDS, per_epoch=3).rebalance().sink_to(sink).uid("sink")
    died = dying((CompletedCheckpointStore, "complete"), "before", [2])
    with pytest.raises(Crash), died, HarnessAttempt(env.get_job_graph(), tmp_path / "job") as attempt:
        attempt.run_epoch()
        attempt.run_epoch()
    for (gid,) in database.sql("SELECT gid FROM pg_prepared_xacts"):
        database.sql(f"COMMIT PREPARED '{gid}'")
    with pytest.raises(CommitRefusedError, match="did not become complete, and would be written again") as caught:
        run(sink, tmp_path, 1)
    database.sql(str(caught.value).partition("run again: ")[2])
    run(sink, tmp_path, 1)
    assert database.rows("key, time, value") == sorted(RECORDS)
    database.sql("DROP SCHEMA {} CASCADE")


def test_a_job_that_is_told_to_go_back_may_find_rows_of_later_checkpoints(postgres: str, tmp_path: Path) -> None:
    """Nobody but the job has committed them. They were called prepared ones that somebody else has committed."""
    database = Database(postgres, tmp_path / "staging")
    database.create("key text, time bigint, value bigint")

    def attempt(**options: Any) -> HarnessAttempt:
        env = environment(1)
        sink = database.sink(prepare_transactions=True)
        events(env, RECORDS, per_epoch=3).rebalance().sink_to(sink).uid("sink")
        return HarnessAttempt(env.get_job_graph(), tmp_path / "job", **options)

    with attempt() as first:
        first.run_epoch()
    shutil.copytree(tmp_path / "job", tmp_path / "backup")
    with attempt() as second:
        second.run_epoch()
    shutil.rmtree(tmp_path / "job")
    shutil.move(tmp_path / "backup", tmp_path / "job")
    with pytest.raises(HeadLostError, match="'chk-1' to go on from there nevertheless; first remove"), attempt():
        pass
    database.sql("DELETE FROM {}.t WHERE time >= 3")
    with attempt(restore_from="chk-1") as third:
        while not third.finished:
            third.run_epoch()
    assert database.rows("key, time, value") == sorted(RECORDS)
    database.sql("DROP SCHEMA {} CASCADE")


def test_rows_of_the_attempt_that_took_over_are_not_said_to_be_committed_too_early(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the one that was fenced had the statement that deletes them."""
    database = Database(postgres, tmp_path / "staging")
    database.create("key text, time bigint, value bigint")
    env = environment(1)
    events(env, RECORDS, per_epoch=3).rebalance().sink_to(database.sink(prepare_transactions=True)).uid("sink")
    with suppress(FencedError), HarnessAttempt(env.get_job_graph(), tmp_path / "job") as old:
        old.run_epoch()
        check = old._transactions.check_leader

        def overtaken() -> None:
            monkeypatch.setattr(old._transactions, "check_leader", check)
            with HarnessAttempt(env.get_job_graph(), tmp_path / "job", take_over=True) as new:
                new.run_epoch()

        monkeypatch.setattr(old._transactions, "check_leader", overtaken)
        with pytest.raises(FencedError):
            old._transactions.abort_lingering()
    database.sql("DROP SCHEMA {} CASCADE")


def test_rows_that_a_job_has_yet_to_commit_do_not_go_into_another_table(postgres: str, tmp_path: Path) -> None:
    """A job died before it committed, and its next version writes elsewhere: that table got the rows."""
    database = Database(postgres, tmp_path / "staging")
    for name in "ab":
        database.sql(f"CREATE TABLE {{}}.{name} (key text, time bigint, value bigint)")

    def attempt(name: str) -> HarnessAttempt:
        env = environment(1)
        sink = PostgresSink(database.conninfo, f"{database.schema}.{name}", str(tmp_path / "staging"))
        events(env, RECORDS, per_epoch=3).sink_to(sink).uid("sink")
        return HarnessAttempt(env.get_job_graph(), tmp_path)

    with pytest.raises(Crash), dying((LedgerCommitter, "commit"), "before", [1]), attempt("a") as first:
        first.run_epoch()
    refused = (
        r"sink 'sink' has written to postgresql://.*\.a .*is not known to be committed, and .* writes to .*\.b now"
    )
    with pytest.raises(RestoreError, match=refused), attempt("b"):
        pass
    with attempt("a"):
        pass
    with attempt("b") as last:
        last.run_epoch()
    for name in "ab":
        assert database.sql(f"SELECT count(*) FROM {{}}.{name}") == [(3,)]
    database.sql("DROP SCHEMA {} CASCADE")


@pytest.mark.parametrize("create", [False, True])
def test_a_schema_that_is_made_anew_between_two_runs_is_refused(postgres: str, tmp_path: Path, create: bool) -> None:
    """Nothing there knows the job: its later rows went into a table without the earlier ones."""
    database = Database(postgres, tmp_path / "staging")
    table = "CREATE TABLE {}.a (key text, time bigint, value bigint)"

    def attempt(**options: Any) -> HarnessAttempt:
        env = environment(1)
        sink = PostgresSink(database.conninfo, f"{database.schema}.a", str(tmp_path / "staging"), create=create)
        events(env, RECORDS, per_epoch=2).sink_to(sink).uid("sink")
        return HarnessAttempt(env.get_job_graph(), tmp_path, **options)

    database.sql(table)
    for _ in range(2):
        with attempt() as first:
            first.run_epoch()
    anew = "DROP SCHEMA {} CASCADE; CREATE SCHEMA {}"
    database.sql(anew if create else f"{anew}; {table}")
    for _ in range(2):
        with pytest.raises(CommitRefusedError, match=r"has committed checkpoint 2, but .* nothing of it"), attempt():
            pass
    with attempt(restore_from="chk-2") as last:
        last.run_epoch()
    assert database.sql("SELECT count(*) FROM {}.a") == [(2,)]
    database.sql("DROP TABLE {}.flinkpy_commits")
    with (
        pytest.raises(CommitRefusedError, match=r"has committed checkpoint 3, but .* it, or the record, was"),
        attempt(),
    ):
        pass
    with attempt(restore_from="chk-3") as last:  # the rows are there
        last.run_epoch()
    assert database.sql("SELECT count(*) FROM {}.a") == [(4,)]
    database.sql("DROP SCHEMA {} CASCADE")


@pytest.mark.parametrize("keeps", [False, True])
def test_a_standby_that_took_over_without_the_last_commits(postgres: str, tmp_path: Path, keeps: bool) -> None:
    """What it has prepared is committed again; without it the run is refused. It went on, and the rows were missing."""
    database = Database(postgres, tmp_path)
    database.create("key text, time bigint, value bigint")

    def attempt() -> HarnessAttempt:
        env = environment(2)
        sink = database.sink(prepare_transactions=True)
        events(env, RECORDS[:6], per_epoch=4).rebalance().sink_to(sink).uid("sink")
        return HarnessAttempt(env.get_job_graph(), tmp_path)

    with attempt() as first:
        first.run_epoch()
    gids = [gid for (gid,) in database.sql("SELECT digest FROM {}.flinkpy_commits ORDER BY digest")]
    for gid, rest in zip(gids, (0, 1), strict=True):
        of_task = f"FROM {{}}.t WHERE time % 2 = {rest}"
        database.sql(f"CREATE TABLE {{}}.kept{rest} AS SELECT * {of_task}; DELETE {of_task}")
        database.sql(f"DELETE FROM {{}}.flinkpy_commits WHERE digest = '{gid}'")
        if keeps:
            entry = f"INSERT INTO {{}}.flinkpy_commits VALUES ('job', 'sink', 1, '{gid}', 2)"
            database.sql(f"BEGIN; INSERT INTO {{}}.t TABLE {{}}.kept{rest}; {entry}; PREPARE TRANSACTION '{gid}'")
    if keeps:
        database.sql(f"COMMIT PREPARED '{gids[0]}'")
        with attempt() as last:
            last.run_epoch()
        assert database.rows("time") == list(range(6))
    else:
        with pytest.raises(CommitRefusedError, match="checkpoint 1, but its target has nothing of it"), attempt():
            pass
    assert database.prepared() == 0
    database.sql("DROP SCHEMA {} CASCADE")


@pytest.mark.parametrize("options", [{}, {"prepare_transactions": True}], ids=str)
def test_the_last_commit_alone_does_not_make_up_for_earlier_ones(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The last checkpoint was committed again, and the job went on without the rows of the one before."""
    database = Database(postgres, tmp_path / "staging")
    database.create("key text, time bigint, value bigint")

    def attempt() -> HarnessAttempt:
        env = environment(1)
        events(env, RECORDS, per_epoch=2).sink_to(database.sink(**options)).uid("sink")
        return HarnessAttempt(env.get_job_graph(), tmp_path)

    monkeypatch.setattr(LedgerCommitter, "_clean_up", lambda *_: None)  # the store was away
    for _ in range(3):
        with attempt() as first:
            first.run_epoch()
    monkeypatch.undo()
    [(gid,)] = database.sql("SELECT digest FROM {}.flinkpy_commits WHERE checkpoint = 3")
    database.sql("CREATE TABLE {}.kept AS SELECT * FROM {}.t WHERE time >= 4")
    database.sql("DELETE FROM {}.t WHERE time >= 2; DELETE FROM {}.flinkpy_commits WHERE checkpoint >= 2")
    if options:
        entry = f"INSERT INTO {{}}.flinkpy_commits VALUES ('job', 'sink', 3, '{gid}', 2)"
        database.sql(f"BEGIN; INSERT INTO {{}}.t TABLE {{}}.kept; {entry}; PREPARE TRANSACTION '{gid}'")
    with pytest.raises(CommitRefusedError, match=r"checkpoint 3, but .* only what .* up to checkpoint 1"), attempt():
        pass
    assert database.rows("time") == [0, 1]
    if options:
        database.sql(f"ROLLBACK PREPARED '{gid}'")
    database.sql("DROP SCHEMA {} CASCADE")
