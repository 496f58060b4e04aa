"""The Iceberg sink on a SQL catalog, read back by pyiceberg, DuckDB and Polars."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Barrier, current_thread
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.expressions.visitors import _ManifestEvalVisitor, visit
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.utils.concurrent import ExecutorFactory

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import IcebergSink
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.connectors.commit.staged_rows import StagedRowsWriter
from dagster_flinkpy.connectors.iceberg import commit_log
from dagster_flinkpy.connectors.iceberg import committer as iceberg_committer
from dagster_flinkpy.connectors.iceberg.commit_log import CommitLog
from dagster_flinkpy.connectors.iceberg.committer import (
    IcebergCommitter,
    IcebergPartitionCommitter,
    IcebergUpsertCommitter,
)
from dagster_flinkpy.connectors.iceberg.table import open_catalog
from dagster_flinkpy.connectors.lake.writer import LakeWriter
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext, WriterInitContext
from dagster_flinkpy.errors import (
    CommitRefusedError,
    CommittableLostError,
    ConfigurationError,
    SinkCommitError,
    TypeMismatchError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.committing import commit_requests
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import EVENT, environment, events

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")


def test_a_kms_key_that_pyiceberg_would_not_use() -> None:
    with pytest.raises(ConfigurationError, match="make the key the default of the bucket"):
        IcebergSink("lake.t", StorageLocation("s3://bucket/t", kms_key_id="alias/lake"))


def sink_in(folder: Path, **options: Any) -> IcebergSink:
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    return IcebergSink("db.t", options.pop("location", str(folder / "t t")), properties=properties, **options)


@pytest.fixture(params=["local", "s3"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    there = {} if request.param == "local" else {"location": request.getfixturevalue("s3_location")}
    return sink_in(tmp_path, **there)


def stage(
    sink: IcebergSink, *numbers: int, row: TypeInformation = ROW, records: Any = None, **changes: Any
) -> CommitRequest:
    context = replace(CONTEXT, **changes)
    writer = sink.create_writer(context, row)
    if numbers or records:
        writer.write(row.to_arrow(records or [(n, str(n)) for n in numbers]))
    [committable] = json.loads(json.dumps(writer.prepare_commit()))
    return CommitRequest(context.checkpoint_id, context.subtask, committable)


def committer(sink: IcebergSink, token: int = 1, type_info: TypeInformation = ROW) -> Committer:
    return sink.create_committer(CommitterInitContext("job", "sink", token, type_info))


def commit(sink: IcebergSink, *requests: CommitRequest, token: int = 1, row: TypeInformation = ROW) -> int:
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    return commit_requests(committer(sink, token, row), fresh, "sink")


def opened(sink: IcebergSink) -> Table:
    made = committer(sink)
    assert isinstance(made, IcebergCommitter)
    return made._target.catalog.load_table(sink.table)


def rows(sink: IcebergSink) -> list[int]:
    return sorted(opened(sink).scan().to_arrow().column("n").to_pylist())


def test_a_checkpoint_is_one_snapshot_and_is_added_once(sink: IcebergSink) -> None:
    requests = [stage(sink, 1, 2), stage(sink, 3, subtask=1)]
    committer(sink).abort_lingering(requests)
    assert rows(sink) == []
    assert commit(sink, *requests) == 0
    assert commit(sink, *requests, token=2) == 2
    commit(sink, stage(sink, 4, checkpoint_id=2))
    commit(sink, *requests, token=0)  # an attempt that slept
    table = opened(sink)
    assert (rows(sink), len(table.snapshots()), committer(sink).last_committed()) == ([1, 2, 3, 4], 2, 2)
    found = table.scan(row_filter="n > 2").to_duckdb("t").execute("SELECT sum(n), max(s) FROM t").fetchall()
    assert found == [(7, "4")]
    summary = table.current_snapshot().summary
    assert (summary["flinkpy.job-id"], summary["flinkpy.checkpoint-id"], summary["total-records"]) == ("job", "2", "4")


def test_a_table_whose_metadata_was_deleted_is_an_error_at_once(sink: IcebergSink) -> None:
    request, store = stage(sink, 1), sink.location.open()
    running = committer(sink)
    running.abort_lingering([request])
    store.delete_many([info.key for info in store.list("metadata/")])
    with pytest.raises(CommitRefusedError, match=r"metadata of .* was deleted or moved.*stay staged"):
        commit_requests(running, [request], "sink", wait=pytest.fail)


def test_a_commit_of_somebody_else_in_between_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_in(tmp_path)
    request = stage(sink, 1)
    committer(sink).abort_lingering([request])
    real, left = IcebergCommitter._swap, [2]

    def swap(self: IcebergCommitter, *args: Any) -> None:
        if left:
            opened(sink).append(pa.table({"n": [left.pop() * 10], "s": ["x"]}))
        real(self, *args)

    monkeypatch.setattr(IcebergCommitter, "_swap", swap)
    assert commit(sink, request) == 0
    assert rows(sink) == [1, 20]


@pytest.mark.parametrize("expires", [False, True])
def test_an_attempt_that_sleeps_between_look_and_write_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expires: bool
) -> None:
    sink = sink_in(tmp_path)
    request = stage(sink, 1)
    committer(sink).abort_lingering([request])
    real, newer = IcebergCommitter._swap, [True]

    def swap(self: IcebergCommitter, *args: Any) -> None:
        if newer:
            newer.clear()
            commit(sink, request, token=2)
            if expires:  # apache/iceberg #5846
                commit(sink, stage(sink, 2, checkpoint_id=2), token=2)
                table = opened(sink)
                table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
                assert len(opened(sink).snapshots()) == 1
        real(self, *args)

    monkeypatch.setattr(IcebergCommitter, "_swap", swap)
    assert commit(sink, request) == 1
    assert rows(sink) == ([1, 2] if expires else [1])


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_whose_outcome_is_unknown_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    sink = sink_in(tmp_path)
    real, lost = SqlCatalog.commit_table, [True]

    def commit_table(self: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        if len(updates) == 1 or not lost:
            return real(self, table, requirements, updates)
        lost.clear()
        if applied:
            real(self, table, requirements, updates)
        raise CommitStateUnknownException("504")

    request = stage(sink, 1)
    committer(sink).abort_lingering([request])
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    commit(sink, request)
    assert not lost
    assert (rows(sink), len(opened(sink).snapshots())) == ([1], 1)


def test_nobody_knows_what_neither_snapshots_nor_property_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_flinkpy.connectors.iceberg.commit_log._RECENT", 2)
    sink = sink_in(tmp_path)
    requests = [stage(sink, n, checkpoint_id=n) for n in (1, 2, 3)]
    commit(sink, *requests)
    table = opened(sink)
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:2]]).commit()
    with pytest.raises(CommittableLostError, match="cannot tell whether Iceberg table"):
        commit(sink, requests[0])
    assert commit(sink, *requests[1:]) == 2
    assert rows(sink) == [1, 2, 3]
    [name] = [name for name in opened(sink).properties if name.startswith("flinkpy.committed")]
    with opened(sink).transaction() as transaction:
        transaction.set_properties({name: "[]"})
    with pytest.raises(SinkCommitError, match="was changed, so that nobody knows"):
        commit(sink, requests[0])


def test_a_job_that_begins_anew_with_the_same_ids_adds_its_rows(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, stage(sink, 1, checkpoint_id=5))
    commit(sink, stage(sink, 2, execution="another"))
    assert rows(sink) == [1, 2]


def test_lost_files_leave_the_table_as_it_is(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    lost, neighbour = stage(sink, 1), stage(sink, 2, subtask=1)
    committer(sink).abort_lingering([neighbour])
    with pytest.raises(CommittableLostError, match="1 rows are lost"):
        commit(sink, lost, neighbour)
    assert rows(sink) == []


def test_partition_columns_and_values_of_every_kind(tmp_path: Path) -> None:
    fields: dict[str, TypeInformation] = {
        "p": Types.STRING(),
        "day": Types.SQL_DATE(),
        "small": Types.BYTE(),
        "yes": Types.BOOLEAN(),
        "price": Types.DECIMAL(10, 2),
        "tags": Types.LIST(Types.ROW_NAMED(["a"], [Types.SHORT()])),
        "map": Types.MAP(Types.STRING(), Types.DOUBLE()),
        "at": Types.INSTANT(),
        "local": Types.SQL_TIMESTAMP(),
        "time": Types.SQL_TIME(),
        "raw": Types.PRIMITIVE_ARRAY(Types.BYTE()),
    }
    row = Types.ROW_NAMED(list(fields), list(fields.values()))
    day = date(2026, 1, 2)
    first = (
        "a/b %=ü",
        day,
        1,
        True,
        Decimal("1.50"),
        [Row(1), None],
        {"x": 0.5},
        None,
        datetime(2026, 1, 2),
        None,
        b"x",
    )
    records = [first, ("", *first[1:]), (None,) * len(fields)]
    sink = sink_in(tmp_path, partition_by=["p", "day", "small", "yes"])
    writer = sink.create_writer(CONTEXT, row)
    writer.write(row.to_arrow(records))
    commit(sink, *(CommitRequest(1, 0, c) for c in writer.prepare_commit()), row=row)
    found = opened(sink).scan().to_arrow().sort_by("p").to_pylist()
    assert [r["p"] for r in found] == ["", "a/b %=ü", None]
    assert found[0] == {**found[1], "p": ""}
    assert (found[1]["day"], found[1]["small"], found[1]["price"]) == (day, 1, Decimal("1.50"))
    assert (found[1]["tags"], found[1]["map"], found[1]["raw"]) == ([{"a": 1}, None], [("x", 0.5)], b"x")
    for name, value in (("p", "''"), ("p", "'a/b %=ü'"), ("day", "'2026-01-02'"), ("small", "1"), ("yes", "true")):
        assert opened(sink).scan(row_filter=f"{name} = {value}").to_arrow().num_rows == (1 if name == "p" else 2)
    assert opened(sink).scan(row_filter="p is null").to_arrow().num_rows == 1
    polars = pl.scan_iceberg(opened(sink)).filter(pl.col("p") == "a/b %=ü").collect()
    assert polars.select("day", "price", "tags", "raw").rows() == [(day, Decimal("1.50"), [{"a": 1}, None], b"x")]


def test_a_partition_that_runs_again_replaces_its_rows(sink: IcebergSink) -> None:
    sink = IcebergSink("db.t", sink.location, properties=sink.properties, partition_column="day", partition_by=["s"])
    jan, feb = (stage(sink, n, n, partition=f"2026-0{n}", checkpoint_id=n) for n in (1, 2))
    commit(sink, jan)
    commit(sink, feb)
    again = stage(sink, 3, partition="2026-01", checkpoint_id=3)
    commit(sink, again)
    assert rows(sink) == [2, 2, 3]
    assert commit(sink, jan, feb, token=0) == 2
    assert rows(sink) == [2, 2, 3]
    assert committer(sink).replace_partition("2026-01", 3) == 0
    commit(sink, stage(sink, partition="2026-01", checkpoint_id=4))
    assert rows(sink) == [2, 2]
    assert commit(sink, again) == 1
    assert opened(sink).scan().to_arrow().column("day").to_pylist() == ["2026-02"] * 2
    with pytest.raises(ConfigurationError, match="the job has no time partitions"):
        stage(sink, 1)


def test_partitions_that_run_again_together_are_looked_up_in_one_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scan reads all manifests: one for each of a thousand partitions took minutes."""
    sink = sink_in(tmp_path, partition_column="day", partition_by=["s"])
    days = [f"2026-01-{day:02}" for day in range(1, 10)]

    def some(checkpoint: int, days: list[str]) -> list[CommitRequest]:
        changes = {"checkpoint_id": checkpoint}
        return [stage(sink, checkpoint, partition=day, subtask=i, **changes) for i, day in enumerate(days)]

    commit(sink, *some(1, days))
    scans, tasks = [], iceberg_committer._tasks
    monkeypatch.setattr(iceberg_committer, "_tasks", lambda *scan: scans.append(scan) or tasks(*scan))
    commit(sink, *some(2, days[1:4]))
    assert rows(sink) == [1] * 6 + [2] * 3
    assert opened(sink).scan("n = 2").to_arrow().column("day").to_pylist() == days[1:4]
    assert len(scans) == 1


def test_many_partitions_are_replaced_beside_files_of_another_one_that_were_written_before_the_table_was_partitioned(
    tmp_path: Path,
) -> None:
    """PyIceberg lets each file match that is not partitioned by the column if more than 200 values are looked for."""
    sink = sink_in(tmp_path, partition_column="day")
    committer(sink).abort_lingering([])
    with opened(sink).update_spec() as spec:
        spec.remove_field("day")
    opened(sink).append(pa.table({"n": [7], "s": ["x"], "day": ["2019"]}))
    with opened(sink).update_spec() as spec:
        spec.add_identity("day")
    made = committer(sink)
    assert isinstance(made, IcebergPartitionCommitter)
    assert made._files_of(opened(sink), [str(day) for day in range(2020, 2520)]) == []
    with pytest.raises(SinkCommitError, match="partitioned otherwise"):
        made._files_of(opened(sink), [str(day) for day in range(1820, 2320)])


class SideBySide(ThreadPoolExecutor):
    """Runs the calls of a map in a thread each. All look at their manifests before one of them goes on."""

    barrier = Barrier(1)

    def map(self, function: Any, *items: Any, **_: Any) -> Any:
        calls = list(zip(*items, strict=True))
        type(self).barrier = Barrier(len(calls))
        with ThreadPoolExecutor(len(calls), "side by side") as threads:
            return iter([each.result() for each in [threads.submit(function, *call) for call in calls]])


def test_threads_that_look_for_replaced_files_do_not_get_in_the_way_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluator of pyiceberg keeps the manifest that it looks at, and each of its producers has only one."""
    sink = sink_in(tmp_path, partition_column="day")
    for number, day in enumerate("abc", 1):
        commit(sink, stage(sink, number, checkpoint_id=number, partition=day))

    def look(self: _ManifestEvalVisitor, manifest: ManifestFile) -> bool:
        self.partition_fields = manifest.partitions or []
        if current_thread().name.startswith("side by side"):
            SideBySide.barrier.wait()
        return visit(self.partition_filter, self)

    monkeypatch.setattr(_ManifestEvalVisitor, "eval", look)
    monkeypatch.setattr(ExecutorFactory, "get_or_create", lambda: SideBySide(4))
    for number, day in enumerate("cba", 4):
        commit(sink, stage(sink, number, checkpoint_id=number, partition=day))
    assert rows(sink) == [4, 5, 6]


def test_rows_replace_rows_with_the_same_key(sink: IcebergSink) -> None:
    row = Types.ROW_NAMED(["n", "s", "tags"], [Types.LONG(), Types.STRING(), Types.LIST(Types.INT())])
    sink = IcebergSink("db.t", sink.location, properties=sink.properties, key=["n"], partition_by=["s"])

    def some(checkpoint: int, *records: Any, **changes: Any) -> CommitRequest:
        return stage(sink, row=row, records=records, checkpoint_id=checkpoint, **changes)

    first = some(1, (1, "a", [1]), (2, "a", []), (1, "b", None))
    both = [first, some(1, (3, "b", [3]), subtask=1)]
    commit(sink, *both, row=row)
    commit(sink, some(2, (2, "c", [7]), (4, "a", None)), row=row)
    assert commit(sink, *both, row=row, token=0) == 2
    table = opened(sink).scan().to_arrow().sort_by("n")
    assert [tuple(r.values()) for r in table.to_pylist()] == [
        (1, "b", None), (2, "c", [7]), (3, "b", [3]), (4, "a", None)
    ]  # fmt: skip
    assert len(opened(sink).snapshots()) == 2
    assert committer(sink, type_info=row).lingering([]) == 0
    with pytest.raises(TypeMismatchError, match="null in column 'n', which is part of its key"):
        some(3, (None, "a", None))


def test_a_table_gets_columns_that_it_does_not_have(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    old = stage(sink, 2, checkpoint_id=2)
    commit(sink, stage(sink, 1))
    more = Types.ROW_NAMED(["n", "at", "s"], [Types.LONG(), Types.INSTANT(), Types.STRING()])
    with pytest.raises(ConfigurationError, match=r"no column 'at': add it as timestamp.*merge_schema=True"):
        committer(sink, type_info=more).abort_lingering([])
    sink = sink_in(tmp_path, merge_schema=True)
    committer(sink, type_info=more).abort_lingering([old])
    commit(sink, old, row=more)
    commit(sink, stage(sink, row=more, records=[(3, None, "3"), (4, None, "4")], checkpoint_id=3), row=more)
    assert opened(sink).scan().to_arrow().sort_by("n").column("at").null_count == 4
    assert rows(sink) == [1, 2, 3, 4]
    commit(sink_in(tmp_path), stage(sink, 5, checkpoint_id=4))  # an older program
    assert rows(sink) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("type_info", "options", "said"),
    [
        (Types.ROW_NAMED(["n", "s"], [Types.INT(), Types.STRING()]), {}, "column 'n' .* must be int32, but is int64"),
        (ROW, {"partition_by": ["s"]}, r"is partitioned by \[\], not by \['s'\]"),
        (ROW, {"location": "/elsewhere"}, "is at file://.*, not at file:///elsewhere"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, type_info: Any, options: Any, said: str
) -> None:
    committer(sink_in(tmp_path)).abort_lingering([])
    with pytest.raises(ConfigurationError, match=said):
        committer(sink_in(tmp_path, **options), type_info=type_info).abort_lingering([])


@pytest.mark.parametrize("kind", [Types.BIG_INT(), Types.DECIMAL(40, 2), Types.BIG_DEC(), Types.PICKLED_BYTE_ARRAY()])
def test_types_that_iceberg_does_not_have_are_refused_at_once(tmp_path: Path, kind: TypeInformation) -> None:
    with pytest.raises(ConfigurationError):
        sink_in(tmp_path).validate(Types.ROW_NAMED(["a"], [Types.LIST(kind)]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ["n"], "partition_column": "day"}, "give a key or a partition_column"),
        ({"key": "n"}, r"such as \['n'\]"),
        ({"key": ["x"]}, "has the key 'x', but"),
        ({"partition_column": "n"}, "fills column 'n' itself"),
        ({"partition_column": "partition"}, "cannot fill a column 'partition'"),
        ({"partition_column": "s", "partition_by": ["s"]}, "leave partition_column 's' out"),
    ],
)
def test_arguments_that_contradict_each_other(tmp_path: Path, options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        sink_in(tmp_path, **options).validate(ROW)


@pytest.mark.parametrize(
    "properties",
    [{"type": "glu"}, {}, {"type": "sql"}, {"uri": "postgres//x"}, {"type": "sql", "uri": "oracle+nix://x"}],
    ids=["type", "nothing", "no uri", "uri", "driver"],
)
def test_settings_of_no_catalog_are_no_failure_that_another_try_mends(properties: Any) -> None:
    given = {**properties, "downcast-ns-timestamp-to-us-on-write": "true"}
    with pytest.raises(ConfigurationError, match=r"Iceberg catalog 'nowhere' cannot be opened: .*PYICEBERG_CATALOG"):
        open_catalog("nowhere", given)


def test_an_answer_that_is_no_json_may_be_another_one_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy answers so while the catalog starts. The error is a ValueError, like those of wrong settings."""

    def answered(name: str, **properties: str) -> None:
        raise requests.exceptions.JSONDecodeError("no JSON", "<html>", 0)

    monkeypatch.setattr("dagster_flinkpy.connectors.iceberg.table.load_catalog", answered)
    with pytest.raises(OSError):
        open_catalog("rest", {})


def test_a_table_in_a_catalog_in_postgresql(postgres: str, tmp_path: Path) -> None:
    info = dict(part.split("=", 1) for part in postgres.split()) if "://" not in postgres else {}
    uri = (
        f"postgresql+psycopg://{info['user']}@/{info['dbname']}?host={info['host']}"
        if info
        else postgres.replace("postgresql://", "postgresql+psycopg://")
    )
    sink = IcebergSink("db.pg", str(tmp_path), properties={"type": "sql", "uri": uri})
    requests = [stage(sink, 1, 2), stage(sink, 3, subtask=1)]
    assert (commit(sink, *requests), commit(sink, *requests, token=2)) == (0, 2)
    assert rows(sink) == [1, 2, 3]


def test_an_owner_replaces_its_own_rows_only(tmp_path: Path) -> None:
    mine, other = (sink_in(tmp_path).for_owner(owner) for owner in ("mine", "other"))
    slept = stage(mine, 1, 2, checkpoint_id=1)
    commit(mine, stage(mine, 3, checkpoint_id=2))
    commit_requests(
        other.create_committer(CommitterInitContext("job", "other", 1, ROW)),
        [stage(other, 4, partition="p", uid="other")],
        "other",
    )
    with pytest.raises(SinkCommitError, match="newer rows, those of 2: 1 must not replace them"):
        commit(mine, slept)
    commit(mine, stage(mine, 5, checkpoint_id=3))
    assert rows(mine) == [4, 5]
    assert [column.name for column in opened(mine).spec().fields] == ["dagster_asset_key", "dagster_partition_key"]


STEPS: list[tuple[Any, str]] = [
    (LakeWriter, "write"),
    (LakeWriter, "prepare_commit"),
    (StagedRowsWriter, "prepare_commit"),
    (StagedFileCommitter, "complete"),
    (IcebergCommitter, "_swap"),
    (IcebergUpsertCommitter, "_change"),
    (IcebergUpsertCommitter, "_clean_up"),
    (CommitLog, "has"),
    (SqlCatalog, "commit_table"),
    (StagedFileCommitter, "_commit_one"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "put"),
]


@settings(max_examples=examples(8))
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    key=st.sampled_from([[], ["value"]]),
)
def test_every_record_is_in_the_table_once_wherever_the_job_dies(
    tmp_path_factory: pytest.TempPathFactory, step: tuple[Any, str], when: str, numbers: list[int], key: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("job")
    sink = sink_in(folder, key=key)
    finished = False
    with dying(step, when, numbers):
        for _ in range(12):
            env = environment(2)
            events(env, [("k", i, i) for i in range(9)], per_epoch=3).rebalance().sink_to(sink).uid("sink")
            try:
                with HarnessAttempt(env.get_job_graph(), folder / "job") as attempt:
                    while not attempt.finished:
                        attempt.run_epoch()
                finished = True
                break
            except Crash:
                pass
    assert finished
    assert sorted(opened(sink).scan().to_arrow().column("value").to_pylist()) == list(range(9))
    sink.create_committer(CommitterInitContext("job", "sink", 2**62, EVENT)).abort_lingering([])
    assert list(sink.location.open().list_uploads()) == []
    assert list(sink.staged.location.open().list()) == []


def test_a_job_that_begins_anew_replaces_what_it_wrote_before(tmp_path: Path) -> None:
    sink = sink_in(tmp_path, partition_column="day")
    slept, frozen = stage(sink, 0, partition="a", checkpoint_id=1), committer(sink)
    for n, partition in ((1, "a"), (2, "b")):
        commit(sink, stage(sink, n, partition=partition, checkpoint_id=8 + n))
    with pytest.raises(SinkCommitError, match="newer rows of a, those of 9"):
        commit(sink, slept)
    anew = committer(sink)
    commit(sink, stage(sink, 3, partition="a", checkpoint_id=2))
    assert rows(sink) == [2, 3]
    assert frozen.replace_partition("b", 3) == 0, "an attempt from before"
    assert anew.replace_partition("b", 3) == 1
    assert (anew.replace_partition("b", 3), anew.replace_partition("a", 2), rows(sink)) == (0, 0, [3])


def test_an_attempt_that_slept_for_many_commits_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_RECENT", 3)
    sink = sink_in(tmp_path, partition_column="day")
    commit(sink, stage(sink, 1, partition="a", checkpoint_id=1))
    frozen = committer(sink)
    for n in (2, 3, 4, 5):
        commit(sink, stage(sink, n, partition="a" if n == 2 else f"b{n}", checkpoint_id=n))
    with pytest.raises(SinkCommitError, match="another attempt runs the job"):
        frozen.replace_partition("a", 1)
    assert rows(sink) == [2, 3, 4, 5]


def test_partition_transforms_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot partition by bucket\(8, n\)"):
        sink_in(tmp_path, partition_by=["bucket(8, n)"]).validate(ROW)
    sink_in(tmp_path, partition_by=["day (local)"]).validate(
        Types.ROW_NAMED(["n", "day (local)"], [Types.LONG(), Types.STRING()])
    )
    sink = sink_in(tmp_path)
    committer(sink).abort_lingering([])
    with opened(sink).update_spec() as spec:
        spec.add_field("n", "bucket[8]")
    with pytest.raises(ConfigurationError, match=r"is partitioned by bucket\[8\] of 'n'"):
        committer(sink).abort_lingering([])
