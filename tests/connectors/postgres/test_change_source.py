"""The changes of a table in PostgreSQL as a source, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.requests import RequestKind
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import PostgresChangeSource
from dagster_flinkpy.connectors.postgres import change_enumerator as module
from dagster_flinkpy.connectors.postgres import slot as postgres_slot
from dagster_flinkpy.datastream import MapFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceLag, SourceSplit, SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.errors import ConfigurationError, RestoreError, SourceReadError
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.testing import run_local
from tests import waiting
from tests.connectors.postgres.sinks import Database
from tests.runtime.harness import HarnessAttempt, collect_graph
from tests.runtime.master.test_open_epochs import Run, World
from tests.runtime.programs import FolderSink


class Changes(Database):
    """A schema with a table, whose slot is dropped at the end."""

    def create(self, columns: str = "n bigint PRIMARY KEY, s text") -> None:
        super().create(columns)
        self.sql("ALTER TABLE {}.t REPLICA IDENTITY FULL")

    def source(self, **options: Any) -> PostgresChangeSource:
        options = {"bounded": False, **options}
        return PostgresChangeSource(self.conninfo, f"{self.schema}.t", self.schema, **options)

    def confirmed(self) -> int:
        rows = self.sql("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = '{}'")
        return int(rows[0][0])


@pytest.fixture
def database(postgres: str, tmp_path: Path) -> Iterator[Changes]:
    database = Changes(postgres, tmp_path / "staging")
    yield database
    database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}'")
    database.sql("DROP PUBLICATION IF EXISTS {}")
    database.sql("DROP SCHEMA {} CASCADE")


LINES: list[str] = []
CONTEXT = SplitEnumeratorContext("job", 1, None, progress=LINES.append)  # type: ignore[arg-type]


def started(source: PostgresChangeSource, state: Any = None) -> SplitEnumerator:
    enumerator = source.create_enumerator(None if state is None else json.loads(json.dumps(state)))
    enumerator.start(CONTEXT)
    return enumerator


def planned(enumerator: SplitEnumerator) -> list[SourceSplit]:
    shares = enumerator.plan_epoch(2)
    return [SourceSplit.from_json(json.loads(json.dumps(split.to_json()))) for share in shares for split in share]


def read(source: PostgresChangeSource, splits: list[SourceSplit]) -> list[str]:
    """Returns kinds and values, such as ``+I 1 a``."""
    found = []
    for column in (column for split in splits for column, _ in source.read(split)):
        assert column.type == source.produced_type.arrow_type
        for row in column.to_pylist():
            assert row.pop("commit_time") is not None
            found.append(" ".join(map(str, (row.pop("row_kind"), *row.values()))))
    return found


def take(source: PostgresChangeSource, enumerator: SplitEnumerator) -> list[str]:
    return read(source, planned(enumerator))


def complete(enumerator: SplitEnumerator, checkpoint_id: int) -> Any:
    """Completes a checkpoint, and returns its state."""
    state = enumerator.snapshot_state()
    enumerator.on_snapshot(checkpoint_id)
    enumerator.notify_checkpoint_complete(checkpoint_id)
    return state


# --- which changes ----------------------------------------------------------------------------------------------------


def test_changes_come_in_the_order_of_commits(database: Changes) -> None:
    database.create()
    database.sql("INSERT INTO {}.t VALUES (0, 'before')")
    source = database.source()
    enumerator = started(source)
    assert "SELECT pg_drop_replication_slot" in LINES[-1]
    assert take(source, enumerator) == []
    with psycopg.connect(database.conninfo) as first:
        first.execute(f"INSERT INTO {database.schema}.t VALUES (1, 'a')")
        database.sql("INSERT INTO {}.t VALUES (2, 'b'); UPDATE {}.t SET s = NULL WHERE n = 0")
    database.sql("BEGIN; INSERT INTO {}.t VALUES (9, 'never'); ROLLBACK")
    database.sql("UPDATE {}.t SET n = 3 WHERE n = 1; DELETE FROM {}.t WHERE n = 2")
    splits = planned(enumerator)
    expected = ["+I 2 b", "-U 0 before", "+U 0 None", "+I 1 a", "-U 1 a", "+U 3 a", "-D 2 b"]
    assert read(source, splits) == read(source, splits) == expected
    assert take(source, enumerator) == []
    [split], at = splits, 0
    small = database.source(batch_rows=2)
    for offset in range(len(expected) + 1):
        parts = list(small.read(split.advanced(offset, finished=False)))
        assert sum(len(column) for column, _ in parts) == len(expected) - offset
        at = parts[-1][1] if parts else at
    assert at == len(expected)


def test_it_says_whether_there_are_changes_and_creates_nothing(database: Changes) -> None:
    database.create()
    source = database.source()
    assert source.create_enumerator(None).has_input(1) is None
    enumerator = started(source)
    assert take(source, enumerator) == []

    def has_input(state: Any) -> bool | None:
        return source.create_enumerator(json.loads(json.dumps(state))).has_input(1)

    assert not has_input(complete(enumerator, 1))
    database.sql("INSERT INTO {}.t VALUES (1, 'a')")
    before = database.confirmed()
    assert has_input(enumerator.snapshot_state())
    assert database.confirmed() == before
    assert take(source, enumerator) == ["+I 1 a"]
    assert not has_input(complete(enumerator, 2))


def test_the_slot_is_told_what_complete_checkpoints_have_read(database: Changes) -> None:
    database.create()
    source = database.source()
    enumerator = started(source)
    begin = database.confirmed()
    database.sql("INSERT INTO {}.t VALUES (1, 'a')")
    assert take(source, enumerator) == ["+I 1 a"]
    first = enumerator.snapshot_state()
    enumerator.on_snapshot(1)
    database.sql("INSERT INTO {}.t VALUES (2, 'b')")
    splits = planned(enumerator)
    enumerator.on_snapshot(2)
    assert database.confirmed() == begin, "nothing is complete"
    enumerator.notify_checkpoint_complete(1)
    assert database.confirmed() == first["lsn"]
    assert read(source, splits) == ["+I 2 b"]
    again = started(source, first)
    assert take(source, again) == ["+I 2 b"], "an attempt from checkpoint 1"
    state = complete(again, 3)
    assert database.confirmed() == state["lsn"]
    with pytest.raises(RestoreError, match=r"begins at .*Restore the latest checkpoint"):
        started(source, first)
    with pytest.raises(RestoreError, match="begins at"):
        read(source, splits)
    assert take(source, started(source, state)) == []


def test_a_checkpoint_that_was_not_confirmed_before_the_crash(database: Changes) -> None:
    database.create()
    source = database.source(max_records_per_epoch=1)
    enumerator = started(source)
    for n in range(3):
        database.sql(f"INSERT INTO {{}}.t VALUES ({n}, 'a')")
    assert take(source, enumerator) == ["+I 0 a"]
    assert enumerator.lag().bytes > 0  # type: ignore[union-attr, operator]
    assert take(source, enumerator) == ["+I 1 a"], "planned ahead"
    state = enumerator.snapshot_state()
    enumerator = started(source, state)
    assert database.confirmed() == state["lsn"]
    assert (take(source, enumerator), take(source, enumerator)) == (["+I 2 a"], [])


def test_epochs_hold_whole_transactions(database: Changes) -> None:
    database.create()
    source = database.source(max_records_per_epoch=3, bounded=True)
    started(source)
    for first in (0, 10, 20, 30):
        database.sql(f"INSERT INTO {{}}.t SELECT n, 'x' FROM generate_series({first}, {first + first // 10}) n")
    enumerator = started(source)
    found = []
    while not enumerator.exhausted:
        found.append(len(take(source, enumerator)))
        enumerator = started(source, enumerator.snapshot_state())
    assert found == [3, 3, 4], "a transaction with more changes is read as a whole"
    assert list(enumerator.unread()) == []
    database.sql("DELETE FROM {}.t WHERE n = 0")
    assert "up to" in enumerator.unread()[0]
    assert take(source, enumerator) == []


def test_what_was_read_is_not_new_input(database: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    database.create()
    database.sql("CREATE TABLE {}.other (n bigint); CREATE PUBLICATION {} FOR TABLE {}.t, {}.other")
    source = database.source(bounded=True)
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'a')")
    [(end,)] = database.sql(
        "SELECT max(lsn) - '0/0' FROM pg_logical_slot_peek_binary_changes('{}', NULL, NULL, "
        "'proto_version', '1', 'publication_names', '{}')"
    )
    with monkeypatch.context() as patched:
        # The log is written page by page, and the record of a commit may be on two of them.
        patched.setattr(postgres_slot.ReplicationSlot, "flushed", lambda self: int(end) - 8)
        assert take(source, enumerator) == ["+I 1 a"]
    assert enumerator.exhausted
    database.sql("INSERT INTO {}.other VALUES (1)")
    again = started(source, enumerator.snapshot_state())  # the attempt died before the slot knew of the checkpoint
    assert list(again.unread()) == []
    database.sql("INSERT INTO {}.t VALUES (2, 'b')")
    assert "changes of table" in again.unread()[0]


@pytest.mark.parametrize("room", [True, False], ids=["with room for a slot", "without"])
def test_the_server_sends_nothing_again_that_was_read_since_the_last_checkpoint(
    database: Changes, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """The slot stays behind: each look took longer than the one before, seconds after 20 MB of changes."""
    database.create()
    source = database.source()
    enumerator = started(source)
    with psycopg.connect(database.conninfo) as begun:
        begun.execute(f"INSERT INTO {database.schema}.t VALUES (1, 'begun before')".encode())
        database.sql("INSERT INTO {}.t VALUES (2, 'read before')")
        assert take(source, enumerator) == ["+I 2 read before"]
    database.sql("INSERT INTO {}.t VALUES (3, 'later')")
    monkeypatch.setattr(postgres_slot, "_MUCH_BYTES", 0)
    if not room:
        others = "FROM generate_series(1, current_setting('max_replication_slots')::int) AS n"
        database.sql(
            f"SELECT pg_create_physical_replication_slot('{{}}_' || n) {others} "
            "LIMIT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)"
        )
    try:
        splits = planned(enumerator)
        assert read(source, splits) == ["+I 1 begun before", "+I 3 later"]
        with postgres_slot.slot_of(source) as slot:
            sent = list(slot.messages(splits[0].properties["start"], splits[0].properties["stop"]))
        assert any(b"read before" in message for message in sent) is not room
        assert database.sql("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(0,)]
    finally:
        database.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '^{}_'")


def test_a_copy_of_the_slot_ends_with_the_reading_and_not_with_the_session(
    database: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A barrier may end the reading amid it. The sessions of a pooler go on, each with a copy that kept WAL."""
    database.create()
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'before'), (2, 'before')")
    take(source, enumerator)
    database.sql("INSERT INTO {}.t VALUES (3, 'later'), (4, 'later')")
    monkeypatch.setattr(postgres_slot, "_MUCH_BYTES", 0)
    (split,) = planned(enumerator)
    with postgres_slot.slot_of(source) as slot:
        messages = slot.messages(split.properties["start"], split.properties["stop"])
        next(messages)
        assert database.sql("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(1,)]
        messages.close()
        assert database.sql("SELECT count(*) FROM pg_replication_slots WHERE temporary") == [(0,)]


def test_a_failover_slot_is_not_copied(database: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends nothing that the standbys do not have. A copy does: after a failover, the state was ahead."""
    if database.sql("SELECT current_setting('server_version_num')::int < 170000") == [(True,)]:
        pytest.skip("failover slots came with PostgreSQL 17")
    database.create()
    database.sql("SELECT pg_create_logical_replication_slot('{}', 'pgoutput', failover => true)")
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'before')")
    take(source, enumerator)
    database.sql("INSERT INTO {}.t VALUES (2, 'later')")
    monkeypatch.setattr(postgres_slot, "_MUCH_BYTES", 0)
    (split,) = planned(enumerator)
    with postgres_slot.slot_of(source) as slot:
        sent = list(slot.messages(split.properties["start"], split.properties["stop"]))
    assert any(b"before" in message for message in sent)


def test_an_epoch_reads_so_many_bytes_of_wal(database: Changes) -> None:
    database.create()
    each = database.source(max_bytes_per_epoch=1)
    enumerator = started(each)
    database.sql("CREATE TABLE {}.other AS SELECT n FROM generate_series(1, 100) n")
    for n in range(3):
        database.sql(f"INSERT INTO {{}}.t VALUES ({n}, 'a')")
    begin, ends = enumerator.snapshot_state(), list[int]()
    for n in range(3):
        assert take(each, enumerator) == [f"+I {n} a"], "a transaction is read as a whole"
        ends.append(enumerator.snapshot_state()["lsn"])
    for size, limit, count in ((0, None, 1), (1, None, 2), (1, 1, 1), (2, None, 3)):
        source = database.source(max_bytes_per_epoch=ends[size] - begin["lsn"], max_records_per_epoch=limit)
        assert len(take(source, started(source, begin))) == count
    database.sql("INSERT INTO {}.other SELECT n FROM generate_series(1, 100) n")
    assert take(each, enumerator) == []
    assert enumerator.lag() == SourceLag(bytes=0), "what is not of the table is passed over"


def test_wal_without_changes_is_released(database: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    database.create()
    monkeypatch.setattr(module, "_IDLE_BYTES", 50_000)
    source = database.source()
    enumerator = started(source)
    database.sql("CREATE TABLE {}.other AS SELECT repeat('x', 100) FROM generate_series(1, 2000)")
    splits = planned(enumerator)
    assert (len(splits), read(source, splits)) == (1, []), "so that there is a checkpoint"
    assert database.confirmed() < complete(enumerator, 1)["lsn"] == database.confirmed()
    assert planned(enumerator) == []


def test_upserts(database: Changes) -> None:
    database.create()
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY DEFAULT")
    source = database.source(changelog_mode="upsert")
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'a'); UPDATE {}.t SET s = 'b'; UPDATE {}.t SET n = 2; DELETE FROM {}.t")
    expected = ["+I 1 a", "+U 1 b", "-D 1 None", "+U 2 b", "-D 2 None"]
    assert take(source, enumerator) == expected


def test_large_values_that_stay_as_they_are(database: Changes) -> None:
    database.create("n bigint PRIMARY KEY, s text, k int")
    database.sql("ALTER TABLE {}.t ALTER s SET STORAGE EXTERNAL")
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, repeat('x', 9000), 0); UPDATE {}.t SET k = 1")
    found = take(source, enumerator)
    assert [row.replace("x", "") for row in found] == ["+I 1  0", "-U 1  0", "+U 1  1"]
    assert {row.count("x") for row in found} == {9000}
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY DEFAULT")
    database.sql("UPDATE {}.t SET k = 2")
    columns = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
    state = enumerator.snapshot_state()
    for names, error in ((2, "large value of column 's'"), (1, None)):
        row_type = Types.ROW_NAMED(list(columns.field_names[:names]), list(columns.field_types[:names]))
        upserts = database.source(changelog_mode="upsert", row_type=row_type)
        splits = planned(started(upserts, state))
        if error is None:
            assert read(upserts, splits) == ["+U 1"]
        else:
            with pytest.raises(SourceReadError, match=error):
                read(upserts, splits)


def test_partitions_of_a_table(database: Changes) -> None:
    database.sql("CREATE TABLE {}.t (n bigint PRIMARY KEY, s text) PARTITION BY RANGE (n)")
    database.sql("CREATE TABLE {}.a PARTITION OF {}.t FOR VALUES FROM (0) TO (5)")
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY FULL")
    with pytest.raises(ConfigurationError, match="also of its partitions"):
        started(database.source())
    database.sql("ALTER TABLE {}.a REPLICA IDENTITY FULL")
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'a'); UPDATE {}.t SET s = 'b'")
    assert take(source, enumerator) == ["+I 1 a", "-U 1 a", "+U 1 b"]


def test_rows_whose_changes_are_not_sent_as_those_of_the_table(database: Changes) -> None:
    database.create()
    enumerator = started(database.source())
    database.sql("CREATE TABLE {}.heir () INHERITS ({}.t)")
    for plan in (lambda: started(database.source(snapshot=True)), lambda: enumerator.plan_epoch(1)):
        with pytest.raises(ConfigurationError, match="heir inherits from table"):
            plan()
    database.sql("DROP TABLE {}.t CASCADE; CREATE TABLE {}.t (n bigint) PARTITION BY LIST (n)")
    database.sql("CREATE UNLOGGED TABLE {}.one PARTITION OF {}.t FOR VALUES IN (1)")
    database.sql("ALTER TABLE {}.one REPLICA IDENTITY FULL; ALTER TABLE {}.t REPLICA IDENTITY FULL")
    with pytest.raises(ConfigurationError, match=r"UNLOGGED, so .* ALTER TABLE .*one SET LOGGED"):
        started(database.source(snapshot=True))


def test_a_partition_on_another_server_gets_no_changes(database: Changes) -> None:
    database.sql("CREATE TABLE {}.t (n bigint) PARTITION BY LIST (n); CREATE TABLE {}.one PARTITION OF {}.t DEFAULT")
    database.sql("ALTER TABLE {}.one REPLICA IDENTITY FULL; ALTER TABLE {}.t REPLICA IDENTITY FULL")
    database.sql("CREATE FOREIGN DATA WRAPPER {}_far; CREATE SERVER {}_far FOREIGN DATA WRAPPER {}_far")
    try:
        enumerator = started(database.source())
        database.sql("CREATE FOREIGN TABLE {}.far PARTITION OF {}.t FOR VALUES IN (2) SERVER {}_far")
        for plan in (lambda: started(database.source(snapshot=True)), lambda: enumerator.plan_epoch(1)):
            with pytest.raises(ConfigurationError, match=r"ALTER FOREIGN TABLE .*far OPTIONS"):
                plan()
        database.sql("ALTER FOREIGN TABLE {}.far OPTIONS (ADD updatable 'false')")
        database.sql("INSERT INTO {}.t VALUES (1)")
        assert take(database.source(), enumerator) == ["+I 1"]
        started(database.source(), enumerator.snapshot_state())
    finally:
        database.sql("DROP FOREIGN DATA WRAPPER {}_far CASCADE")


def test_values_of_each_type(database: Changes) -> None:
    database.sql("CREATE TYPE {}.mood AS ENUM ('sad', 'ok'); CREATE DOMAIN {}.amount AS numeric(10, 2)")
    database.create(
        "n bigint PRIMARY KEY, i smallint, f real, d {}.amount, b boolean, m {}.mood, u uuid, y bytea, dt date, "
        "tm time, ts timestamp, tz timestamptz, g bigint GENERATED ALWAYS AS (n * 2) STORED"
    )
    source = database.source()
    enumerator = started(source)
    database.sql(
        "INSERT INTO {}.t VALUES (1, -1, 1.5, 12.3, true, 'ok', '00000000-0000-7000-8000-000000000001', '\\x00ff', "
        "'2024-02-29', '12:00:00.5', '2024-02-29 12:00:00.000001', '2024-02-29 12:00+02'); "
        "INSERT INTO {}.t (n) VALUES (2)"
    )
    assert take(source, enumerator) == [
        "+I 1 -1 1.5 12.30 True ok 00000000-0000-7000-8000-000000000001 b'\\x00\\xff' 2024-02-29 12:00:00.500000 "
        "2024-02-29 12:00:00.000001 2024-02-29 10:00:00",
        "+I 2" + " None" * 11,
    ]


def test_a_job_confirms_what_it_has_read(database: Changes) -> None:
    database.create()
    source = database.source(bounded=None, max_records_per_epoch=2)
    started(source)
    for n in range(5):
        database.sql(f"INSERT INTO {{}}.t VALUES ({n}, 'x')")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    [found] = run_local(env, rows.map(lambda row: row.row_kind + str(row.n), Types.STRING()))
    assert sorted(found) == [f"+I{n}" for n in range(5)]
    enumerator = started(source)
    assert take(source, enumerator) == [], "the slot begins after all of them"


def test_a_fork_reads_a_copy_of_the_slot_and_takes_nothing_from_the_original(database: Changes, tmp_path: Path) -> None:
    """It advanced the slot of the original, which could not go on: it had to begin anew with a snapshot."""
    database.create()
    copy = f"{database.schema}_copy"

    def attempt(job_id: str, slot: str = database.schema) -> HarnessAttempt:
        source = PostgresChangeSource(
            database.conninfo, f"{database.schema}.t", slot, publication=database.schema, bounded=False
        )
        env = StreamExecutionEnvironment.get_execution_environment()
        rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
        numbers = rows.map(lambda row: (row.n,), Types.TUPLE([Types.LONG()])).uid("numbers")
        numbers.sink_to(FolderSink(tmp_path / job_id)).uid("table")
        return HarnessAttempt(env.get_job_graph(), tmp_path / "jobs", job_id=job_id)

    with attempt("job") as running:
        running.run_epoch()
    database.sql(f"SELECT pg_copy_logical_replication_slot('{database.schema}', '{copy}')")
    try:
        fork_job(StorageLocation(str(tmp_path / "jobs" / "job")), "fork")
        database.sql("INSERT INTO {}.t VALUES (1, 'x')")
        says = f"source 'rows' reads from postgresql://.*slot={database.schema}, as job 'job' does"
        with pytest.raises(ConfigurationError, match=says), attempt("fork"):
            pass
        for job_id, slot in (("fork", copy), ("job", database.schema)):
            with attempt(job_id, slot) as running:
                running.run_epoch()
            assert FolderSink(tmp_path / job_id).rows() == [(1,)]
    finally:
        database.sql(f"SELECT pg_drop_replication_slot('{copy}')")


class Seen(MapFunction):
    """Tells a world of each row."""

    def __init__(self, world: World) -> None:
        self._world = world

    def map(self, value: Any) -> int:
        self._world.see(value.n)
        return int(value.n)


@pytest.mark.parametrize("values", ["(NULL)", "(NULL), ('a'), ('')", r"(E'a\n\nb'), (E'\n'), (NULL)"])
def test_the_only_column_of_rows_that_are_there_may_be_null(database: Changes, values: str) -> None:
    database.create("s text")
    database.sql(f"INSERT INTO {{}}.t VALUES {values}")
    source = database.source(snapshot=True)
    enumerator = started(source)
    splits = planned(enumerator)
    found = read(source, splits)
    enumerator.on_epoch_read(splits)  # nobody needs the snapshot any more
    assert found == [text for (text,) in database.sql("SELECT '+I ' || coalesce(s, 'None') FROM {}.t")]


def test_the_rows_of_a_snapshot_are_there_until_live_tasks_have_read_them(database: Changes, tmp_path: Path) -> None:
    database.create()
    database.sql("INSERT INTO {}.t VALUES (1, 'x'), (2, 'x')")
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_source(database.source(snapshot=True), WatermarkStrategy.no_watermarks(), "rows").uid("numbers")
    world = World()
    graph = collect_graph(rows.map(Seen(world), Types.LONG()).uid("seen"))
    with Run(world, tmp_path, graph=graph) as run:
        world.wait_for(2)
        database.sql("INSERT INTO {}.t VALUES (3, 'x')")
        world.wait_for(3)
        run.ask(RequestKind.STOP)
    assert run.error is None
    assert sorted(run.rows) == [1, 2, 3]
    assert world.seen == [1, 2, 3], "nothing was tried again"


def test_rows_whose_snapshot_is_lost_are_planned_anew(
    database: Changes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server restarted while the rows were read: the region tried the lost snapshot again, for ever."""
    database.create()
    database.sql("INSERT INTO {}.t VALUES (1, 'x')")
    read_table = module.PostgresChangeEnumerator._read_table

    def loses(enumerator: Any, slot: Any) -> SourceSplit:
        split = read_table(enumerator, slot)
        monkeypatch.undo()
        database.sql(f"SELECT pg_terminate_backend({enumerator._exporting.info.backend_pid}, 10000)")
        return split

    monkeypatch.setattr(module.PostgresChangeEnumerator, "_read_table", loses)
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_source(database.source(snapshot=True), WatermarkStrategy.no_watermarks(), "rows").uid("numbers")
    world = World()
    graph = collect_graph(rows.map(Seen(world), Types.LONG()).uid("seen"))
    with Run(world, tmp_path, graph=graph) as run:
        world.wait_for(1)
        run.ask(RequestKind.STOP)
    assert run.error is None
    assert run.rows == [1]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_truncated_tables(database: Changes) -> None:
    database.create()
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t VALUES (1, 'a'); TRUNCATE {}.t; INSERT INTO {}.t VALUES (2, 'b')")
    splits = planned(enumerator)
    with pytest.raises(SourceReadError, match="was truncated by the transaction at"):
        read(source, splits)
    assert read(database.source(skip_truncate=True), splits) == ["+I 1 a", "+I 2 b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ADD COLUMN x int", "had the column 'x' of type"),
        ("DROP COLUMN s", "has no column 's'"),
        ("RENAME COLUMN s TO r", "has no column 's'"),
        ("ALTER COLUMN s TYPE bytea USING s::bytea", "had the column 's' of type"),
        ("REPLICA IDENTITY DEFAULT", r"replica identity of \w+\.t was 'd'"),
    ],
)
def test_changed_tables(database: Changes, change: str, message: str) -> None:
    database.create()
    source = database.source(batch_rows=1, row_type=None)
    enumerator = started(source)
    assert source.table_type.field_names
    database.sql("INSERT INTO {}.t (n) VALUES (1)")
    database.sql(f"ALTER TABLE {{}}.t {change}")
    database.sql("INSERT INTO {}.t (n) VALUES (2)")
    splits = planned(enumerator)
    with pytest.raises(SourceReadError, match=message):
        read(source, splits)
    narrow = database.source(row_type=Types.ROW_NAMED(["n"], [Types.LONG()]))
    if "COLUMN" in change:
        assert read(narrow, splits) == ["+I 1", "+I 2"]


def test_a_program_follows_a_table_that_gets_another_name(database: Changes) -> None:
    """Changes from before were an error for good, also when the table was renamed back."""
    database.create()
    source = database.source()
    enumerator = started(source)
    database.sql(
        "INSERT INTO {}.t VALUES (1, 'before'); ALTER TABLE {}.t RENAME TO u; INSERT INTO {}.u VALUES (2, 'u')"
    )
    with pytest.raises(SourceReadError, match="there is no table"):
        enumerator.plan_epoch(1)
    renamed = PostgresChangeSource(database.conninfo, f"{database.schema}.u", database.schema, bounded=False)
    assert take(renamed, started(renamed, enumerator.snapshot_state())) == ["+I 1 before", "+I 2 u"]
    database.sql("ALTER TABLE {}.u RENAME TO t")
    assert take(source, enumerator) == ["+I 1 before", "+I 2 u"]


def test_slots_that_are_gone(database: Changes) -> None:
    database.create()
    source = database.source()
    enumerator = started(source)
    state = enumerator.snapshot_state()
    database.sql("SELECT pg_drop_replication_slot('{}')")
    with pytest.raises(RestoreError, match=r"is gone, so the changes .* since"):
        started(source, state)
    with pytest.raises(RestoreError, match="is gone"):
        enumerator.plan_epoch(1)
    database.sql("INSERT INTO {}.t VALUES (1, 'missed')")
    started(source)
    with pytest.raises(RestoreError, match="or it was created anew"):
        started(source, state)


def test_a_slot_of_another_plugin_is_refused(database: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    database.create()
    source = database.source()
    started(source)
    monkeypatch.setattr(postgres_slot, "_SLOT", postgres_slot._SLOT.replace("plugin", "'wal2json'", 1))
    with pytest.raises(ConfigurationError, match="is of plugin wal2json"):
        started(source)


def test_a_slot_that_is_still_being_created_is_not_lost(database: Changes) -> None:
    """An attempt that dies while it waits for a transaction in flight leaves a connection that creates the slot."""
    database.create()
    source, there = database.source(), "SELECT 1 FROM pg_replication_slots WHERE slot_name = '{}'"
    with psycopg.connect(database.conninfo) as running:
        running.execute("SELECT pg_current_xact_id()")
        dead = psycopg.connect(database.conninfo)
        create = f"SELECT pg_create_logical_replication_slot('{database.schema}', 'pgoutput')"
        dead.pgconn.send_query(create.encode())
        waiting.until(lambda: bool(database.sql(there)), "the slot is there")
        dead.close()
        with pytest.raises(SourceReadError, match="is still being created") as caught:
            started(source)
        database.sql("SELECT" + str(caught.value).rpartition(": SELECT")[2])
        waiting.until(lambda: not database.sql(there), "the slot is gone")
    started(source)


def test_a_slot_that_sends_prepared_transactions_is_refused(database: Changes) -> None:
    database.create()
    database.sql("SELECT pg_create_logical_replication_slot('{}', 'pgoutput', false, true)")
    with pytest.raises(ConfigurationError, match="has two_phase = true") as caught:
        started(database.source())
    database.sql(str(caught.value).rsplit(": ", 1)[1])
    started(database.source())


def test_states_of_another_server_or_table(database: Changes) -> None:
    database.create()
    source = database.source()
    state = started(source).snapshot_state()
    for change, message in (
        ({"system": "1"}, "database cluster 1, but"),
        ({"lsn": 1 << 62}, "was reset to an earlier state"),
        ({"table": 1}, "was dropped and created anew"),
    ):
        with pytest.raises(RestoreError, match=message):
            started(source, {**state, **change})
    for change in ({"lsn": -1}, {"lsn": None}, {"ended": 1}):
        with pytest.raises(ValueError, match="must be of type"):
            source.create_enumerator({**state, **change})


def test_tables_and_publications_that_lack_something(database: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceReadError, match="there is no table"):
        started(database.source())
    database.sql("CREATE TABLE {}.t (n bigint, s text)")
    for mode, message in (("all", "REPLICA IDENTITY FULL"), ("upsert", "needs a primary key")):
        with pytest.raises(ConfigurationError, match=message):
            started(database.source(changelog_mode=mode))
    assert database.sql("SELECT FROM pg_publication WHERE pubname = '{}'") == [], "updates would fail"
    database.sql("ALTER TABLE {}.t REPLICA IDENTITY FULL")
    database.sql("CREATE PUBLICATION {} WITH (publish = 'insert')")
    for statement in ("ADD TABLE {}.t", "SET (publish = 'insert, update, delete, truncate')"):
        with pytest.raises(ConfigurationError) as caught:
            started(database.source())
        expected = statement.replace("{}.t", f'"{database.schema}"."t"')
        assert str(caught.value).endswith(f'Put it right: ALTER PUBLICATION "{database.schema}" {expected}')
        database.sql(f"ALTER PUBLICATION {{}} {expected}")
    started(database.source())
    real = postgres_slot.value_of
    monkeypatch.setattr(
        postgres_slot, "value_of", lambda c, q, *v: "replica" if q == "SHOW wal_level" else real(c, q, *v)
    )
    with pytest.raises(ConfigurationError, match="ALTER SYSTEM SET wal_level = 'logical'"):
        started(database.source())


def test_a_slot_that_somebody_reads_from(database: Changes, monkeypatch: pytest.MonkeyPatch) -> None:
    database.create()
    source = database.source()
    enumerator = started(source)
    database.sql("INSERT INTO {}.t SELECT n, 'x' FROM generate_series(1, 10) n")
    splits = planned(enumerator)
    enumerator.on_snapshot(1)
    reader = psycopg.connect(f"{database.conninfo}&replication=database", autocommit=True)
    options = f"proto_version '1', publication_names '{database.schema}'"
    reader.pgconn.exec_(f"START_REPLICATION SLOT {database.schema} LOGICAL 0/0 ({options})".encode())
    try:
        monkeypatch.setattr(postgres_slot, "_BUSY_SECONDS", 0.2)
        with pytest.raises(SourceReadError, match="is in use"):
            read(source, splits)
        before = database.confirmed()
        enumerator.notify_checkpoint_complete(1)
        assert database.confirmed() == before, "later"
    finally:
        reader.close()
    monkeypatch.setattr(postgres_slot, "_BUSY_SECONDS", 60)
    assert len(read(source, splits)) == 10
    assert take(source, enumerator) == []
    assert database.confirmed() > before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "t", "s", {}), "conninfo"),
        (("x", "a.b.c", "s", {}), "must be 'name' or 'schema.name'"),
        (("x", "t", "My-Slot", {}), "lower-case"),
        (("x", "t", "s", {"changelog_mode": "none"}), "'all' or 'upsert'"),
        (("x", "t", "s", {"max_records_per_epoch": 0}), "at least 1"),
        (("x", "t", "s", {"max_bytes_per_epoch": 0}), "at least 1"),
        (("x", "t", "s", {"batch_rows": 0}), "at least 1"),
        (("x", "t", "s", {"row_type": Types.ROW_NAMED(["row_kind"], [Types.STRING()])}), "leave it out"),
        (("x", "t", "s", {"publication": ""}), "publication"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PostgresChangeSource(*arguments[:3], **arguments[3])
