"""The Delta Lake sink, read back by delta-rs, DuckDB and Polars."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Row, Types
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import DeltaSink
from dagster_flinkpy.connectors.commit.staged_files import StagedFileCommitter
from dagster_flinkpy.connectors.delta.committer import DeltaCommitter, DeltaUpsertCommitter
from dagster_flinkpy.connectors.delta.table import DeltaTarget, row_count, storage_options, table_url
from dagster_flinkpy.connectors.lake import writer as lake_writer
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
from dagster_flinkpy.storage.s3 import s3_client
from tests.committing import commit_requests
from tests.connectors.postgres.test_jobs import dying
from tests.examples import examples
from tests.runtime.harness import Crash, HarnessAttempt
from tests.runtime.programs import EVENT, environment, events
from tests.storage.keys import only_keys

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")


@pytest.fixture(params=["local", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return StorageLocation(str(tmp_path / "t")) if request.param == "local" else request.getfixturevalue("s3_location")


def stage(sink: DeltaSink, *numbers: int, **changes: Any) -> CommitRequest:
    context = replace(CONTEXT, **changes)
    writer = sink.create_writer(context, ROW)
    writer.write(ROW.to_arrow([(n, str(n)) for n in numbers]))
    [committable] = json.loads(json.dumps(writer.prepare_commit()))
    return CommitRequest(context.checkpoint_id, context.subtask, committable)


def committer(sink: DeltaSink, token: int = 1, type_info: TypeInformation = ROW) -> Committer:
    return sink.create_committer(CommitterInitContext("job", "sink", token, type_info))


def commit(sink: DeltaSink, *requests: CommitRequest, token: int = 1) -> int:
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    return commit_requests(committer(sink, token), fresh, "sink")


def opened(sink: DeltaSink) -> DeltaTable:
    return DeltaTable(sink.location.url, storage_options=storage_options(sink.location))


def rows(sink: DeltaSink) -> list[int]:
    return sorted(opened(sink).to_pyarrow_table().column("n").to_pylist())


def test_a_checkpoint_is_one_version_and_is_added_once(location: StorageLocation) -> None:
    sink = DeltaSink(location)
    requests = [stage(sink, 1, 2), stage(sink, 3, subtask=1)]
    committer(sink).abort_lingering(requests)
    assert rows(sink) == []
    assert commit(sink, *requests) == 0
    assert commit(sink, *requests, token=2) == 2
    later = stage(sink, 4, checkpoint_id=2)
    commit(sink, later)
    commit(sink, *requests, token=0)  # an attempt that slept
    assert (rows(sink), opened(sink).version(), committer(sink).last_committed()) == ([1, 2, 3, 4], 2, 2)


@pytest.mark.parametrize("name", ["a b", "100%", "h#i", "q?r=&+"])
def test_the_log_is_beside_the_files_whatever_the_folder_is_called(location: StorageLocation, name: str) -> None:
    """On S3 the log was in a folder whose name ended before ``#`` or ``?``, and readers found none of its files."""
    sink = DeltaSink(location.child(name))
    commit(sink, stage(sink, 1))
    commit(sink, stage(sink, 2, checkpoint_id=2))
    assert list(location.open().list_folders()) == [f"{name}/"]
    table = DeltaTable(table_url(sink.location), storage_options=storage_options(sink.location))
    assert sorted(table.to_pyarrow_table().column("n").to_pylist()) == [1, 2]
    assert row_count(sink) == 2


def test_a_commit_of_somebody_else_in_between_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(str(tmp_path))
    request = stage(sink, 1)
    committer(sink).abort_lingering([request])
    real, left = DeltaCommitter._swap, [2]

    def swap(self: DeltaCommitter, *args: Any) -> None:
        if left:
            write_deltalake(str(tmp_path), pa.table({"n": [left.pop() * 10], "s": ["x"]}), mode="append")
        real(self, *args)

    monkeypatch.setattr(DeltaCommitter, "_swap", swap)
    assert commit(sink, request) == 0
    assert rows(sink) == [1, 20]


@pytest.mark.system
def test_writers_beside_the_sink_on_s3_lose_nothing(s3_location: StorageLocation) -> None:
    """They write the same versions of the log, so all but one has to look again."""
    sink = DeltaSink(s3_location)
    commit(sink, stage(sink, 0))
    start = threading.Barrier(3)

    def append(first: int) -> None:
        start.wait()
        for number in range(first, first + 5):
            more = pa.table({"n": [number], "s": ["x"]})
            write_deltalake(s3_location.url, more, mode="append", storage_options=storage_options(s3_location))

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(append, first) for first in (100, 200)]
        start.wait()
        for number in range(1, 6):
            commit(sink, stage(sink, number, checkpoint_id=number + 1))
        for other in others:
            other.result()
    assert rows(sink) == [*range(6), *range(100, 105), *range(200, 205)]
    assert opened(sink).version() == 16


def test_log_and_files_have_the_kms_key(s3_location: StorageLocation) -> None:
    place = replace(s3_location, kms_key_id="alias/lake")
    commit(DeltaSink(place), stage(DeltaSink(place), 1))
    client = s3_client(place.endpoint_url, place.region, place.access_key_id, place.secret_access_key)
    bucket, _, prefix = place.url.removeprefix("s3://").partition("/")
    names = [f"{prefix}/{info.key}" for info in place.open().list()]
    assert any("_delta_log" in name for name in names)
    assert any(name.endswith(".parquet") for name in names)
    keys = {client.head_object(Bucket=bucket, Key=name).get("SSEKMSKeyId") for name in names}
    assert keys == {"alias/lake"}


def test_keys_are_found_in_a_file(
    s3_location: StorageLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_keys(tmp_path / "credentials", monkeypatch)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # delta-rs would ask the machine next
    # No other test has a client for this address, which would keep what it has found.
    endpoint = str(s3_location.endpoint_url).replace("127.0.0.1", "localhost")
    sink = DeltaSink(StorageLocation(s3_location.url, endpoint, "us-east-1"))
    commit(sink, stage(sink, 1))
    assert rows(sink) == [1]


def test_an_attempt_that_sleeps_between_look_and_write_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(str(tmp_path))
    request = stage(sink, 1)
    committer(sink).abort_lingering([request])
    real, newer = DeltaCommitter._swap, [True]

    def swap(self: DeltaCommitter, *args: Any) -> None:
        if newer:
            newer.clear()
            commit(sink, request, token=2)
        real(self, *args)

    monkeypatch.setattr(DeltaCommitter, "_swap", swap)
    assert commit(sink, request) == 1
    assert rows(sink) == [1]


def test_a_job_that_begins_anew_with_the_same_ids_adds_its_rows(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path))
    commit(sink, stage(sink, 1, checkpoint_id=5))
    commit(sink, stage(sink, 2, execution="another"))
    assert rows(sink) == [1, 2]


def test_a_committed_file_may_be_compacted_and_vacuumed(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path))
    first, second = stage(sink, 1), stage(sink, 2, checkpoint_id=2)
    commit(sink, first)
    commit(sink, second)
    opened(sink).optimize.compact()
    opened(sink).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert commit(sink, first, second, token=2) == 2
    assert rows(sink) == [1, 2]


def test_a_log_is_searched_without_the_call_that_holds_the_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a slow store, nobody would renew the lease during ``DeltaTable.history()`` of deltalake 1.6."""
    monkeypatch.setattr(DeltaTable, "history", lambda self, limit=None: pytest.fail("called"))
    sink = DeltaSink(str(tmp_path))
    requests = [stage(sink, n, checkpoint_id=n) for n in range(1, 6)]
    commit(sink, *requests)
    assert commit(sink, *requests, token=2) == 5
    assert rows(sink) == [1, 2, 3, 4, 5]


def test_a_commit_reads_only_what_is_new_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a commit each second, all of the last hour was read each time; and a log of months was listed."""
    sink, keys = DeltaSink(str(tmp_path)), list[str]()
    running = committer(sink)
    running.abort_lingering([])
    get, listed = LocalObjectStore.get, LocalObjectStore.list

    def noted(store: LocalObjectStore, key: str) -> Any:
        keys.append(key)
        return get(store, key)

    def refused(store: LocalObjectStore, prefix: str = "") -> Any:
        assert not prefix.startswith("_delta_log")
        return listed(store, prefix)

    monkeypatch.setattr(LocalObjectStore, "get", noted)
    monkeypatch.setattr(LocalObjectStore, "list", refused)
    for n in range(1, 6):
        commit_requests(running, [stage(sink, n, checkpoint_id=n)], "sink")
    read = [key for key in keys if key.startswith("_delta_log")]
    assert len(read) == len({*read}) == 5
    assert rows(sink) == [1, 2, 3, 4, 5]


def test_a_clock_of_a_worker_that_is_hours_ahead_adds_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the log seemed older than what was staged, so rows were added again that somebody had compacted."""
    sink = DeltaSink(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(lake_writer, "current_millis", lambda: current_millis() + 5 * 3_600_000)
        request, other = stage(sink, 1), stage(sink, 2, subtask=1)
    assert commit(sink, request, other) == 0
    opened(sink).optimize.compact()
    assert commit(sink, request, other, token=2) == 2
    assert rows(sink) == [1, 2]


def test_a_table_that_was_deleted_is_an_error_at_once(location: StorageLocation) -> None:
    sink = DeltaSink(location)
    request, store = stage(sink, 1), location.open()
    running = committer(sink)
    running.abort_lingering([request])
    store.delete_many([info.key for info in store.list("_delta_log/")])
    with pytest.raises(CommitRefusedError, match=r"does not exist any more.*stay staged"):
        commit_requests(running, [request], "sink", wait=pytest.fail)
    assert running.last_committed() == 0


@pytest.mark.parametrize("key", [(), ("n",)])
def test_a_local_table_that_was_deleted_with_its_staged_rows(tmp_path: Path, key: tuple[str, ...]) -> None:
    """The message says that they are gone; with the folder put back, they are there again."""
    sink = DeltaSink(str(tmp_path / "t"), key=key)
    request = stage(sink, 1, 2)
    running = committer(sink)
    running.abort_lingering([request])
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    with pytest.raises(CommitRefusedError, match=r"2 staged rows are gone, too\. Put .* 'chk-1' to continue") as caught:
        commit_requests(running, [request], "sink", wait=pytest.fail)
    assert "stay staged" not in str(caught.value)
    (tmp_path / "elsewhere").rename(tmp_path / "t")
    assert commit(sink, request) == 0
    assert rows(sink) == [1, 2]


def test_a_log_that_was_cut_off_after_the_rows_were_staged_is_an_error(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path))
    request, next_one = stage(sink, 0, checkpoint_id=3), stage(sink, 4, checkpoint_id=4)
    commit(sink, *(stage(sink, n, checkpoint_id=n) for n in (1, 2, 3)))
    opened(sink).create_checkpoint()
    for version in (0, 1, 2):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(CommittableLostError, match=r"cannot tell whether table .* 'chk-3' to continue without"):
        commit(sink, request)
    commit(sink, next_one)  # the table knows the latest checkpoint that it has
    assert rows(sink) == [1, 2, 3, 4]


def test_lost_files_leave_the_table_as_it_is(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path))
    lost, neighbour = stage(sink, 1), stage(sink, 2, subtask=1)
    committer(sink).abort_lingering([neighbour])
    with pytest.raises(CommittableLostError, match="1 rows are lost"):
        commit(sink, lost, neighbour)
    assert rows(sink) == []


def test_partition_columns_and_values_of_every_kind(tmp_path: Path) -> None:
    row = Types.ROW_NAMED(
        ["p", "day", "price", "tags", "map", "at"],
        [
            Types.STRING(),
            Types.SQL_DATE(),
            Types.DECIMAL(10, 2),
            Types.LIST(Types.ROW_NAMED(["a"], [Types.INT()])),
            Types.MAP(Types.STRING(), Types.DOUBLE()),
            Types.INSTANT(),
        ],
    )
    records = [
        ("a/b %=ü", date(2026, 1, 2), Decimal("1.50"), [Row(1), None], {"x": 0.5}, None),
        (None, None, None, None, None, None),
    ]
    sink = DeltaSink(str(tmp_path), partition_by=["p", "day"])
    writer = sink.create_writer(CONTEXT, row)
    writer.write(row.to_arrow(records))
    requests = [CommitRequest(1, 0, c) for c in writer.prepare_commit()]
    commit_requests(committer(sink, type_info=row), requests, "sink")
    table = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("p")
    assert table.select(["p", "day", "price"]).to_pylist() == [
        dict(zip(("p", "day", "price"), record[:3], strict=True)) for record in records
    ]
    assert table.column("tags").to_pylist() == [[{"a": 1}, None], None]
    polars = pl.scan_delta(str(tmp_path)).filter(pl.col("day") == date(2026, 1, 2)).collect()
    assert polars.select("p", "price", "tags").rows() == [("a/b %=ü", Decimal("1.50"), [{"a": 1}, None])]
    dataset = DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    found = duckdb.from_arrow(dataset).filter("p = 'a/b %=ü'").project("day, price, map['x']").fetchall()
    assert found == [(date(2026, 1, 2), Decimal("1.50"), 0.5)]


@pytest.mark.parametrize(
    ("type_info", "options", "said"),
    [
        (Types.ROW_NAMED(["n", "s"], [Types.INT(), Types.STRING()]), {}, "column 'n' .* must be .*integer.* is .*long"),
        (Types.ROW_NAMED(["n", "x"], [Types.LONG(), Types.STRING()]), {}, "column 'x' .*does not exist"),
        (ROW, {"partition_by": ["s"]}, r"is partitioned by \[\], not by \['s'\]"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, type_info: Any, options: Any, said: str
) -> None:
    committer(DeltaSink(str(tmp_path))).abort_lingering([])
    with pytest.raises(ConfigurationError, match=said):
        committer(DeltaSink(str(tmp_path), **options), type_info=type_info).abort_lingering([])


@pytest.mark.parametrize("kind", [Types.SQL_TIME(), Types.BIG_INT(), Types.DECIMAL(40, 2), Types.BIG_DEC()])
def test_types_that_delta_does_not_have_are_refused_at_once(tmp_path: Path, kind: TypeInformation) -> None:
    with pytest.raises(ConfigurationError):
        DeltaSink(str(tmp_path)).validate(Types.ROW_NAMED(["a"], [Types.LIST(kind)]))


def test_rows_replace_rows_with_the_same_key(location: StorageLocation) -> None:
    old = Types.ROW_NAMED(["a b", "s"], [Types.LONG(), Types.STRING()])
    row = Types.ROW_NAMED(["a b", "tags", "s"], [Types.LONG(), Types.LIST(Types.INT()), Types.STRING()])

    def some(sink: DeltaSink, kind: TypeInformation, checkpoint: int, *records: Any, **changes: Any) -> CommitRequest:
        context = replace(CONTEXT, checkpoint_id=checkpoint, **changes)
        writer = sink.create_writer(context, kind)
        writer.write(kind.to_arrow(records))
        [committable] = json.loads(json.dumps(writer.prepare_commit()))
        return CommitRequest(checkpoint, context.subtask, committable)

    def put(sink: DeltaSink, kind: TypeInformation, *requests: CommitRequest, token: int = 1) -> int:
        fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
        return commit_requests(committer(sink, token, kind), fresh, "sink")

    sink = DeltaSink(location, key=["a b"], partition_by=["s"])
    first = [some(sink, old, 1, (1, "a"), (2, "a"), (1, "b")), some(sink, old, 1, (3, "b"), subtask=1)]
    put(sink, old, *first)
    late = some(sink, old, 2, (2, "c"))  # staged by the old program, committed by the new one
    with pytest.raises(ConfigurationError, match=r"'tags' .* does not exist: add it, or give DeltaSink merge_schema"):
        committer(sink, type_info=row).abort_lingering([late])
    sink = DeltaSink(location, key=["a b"], partition_by=["s"], merge_schema=True)
    committer(sink, type_info=row).abort_lingering([late])
    put(sink, row, late)
    put(sink, row, some(sink, row, 3, (3, [7], "b"), (4, None, "a")))
    assert put(sink, row, *first, token=0) == 2
    table = opened(sink).to_pyarrow_table().select(["a b", "s", "tags"]).sort_by("a b")
    found = [tuple(record.values()) for record in table.to_pylist()]
    assert found == [(1, "b", None), (2, "c", None), (3, "b", [7]), (4, "a", None)]
    assert opened(sink).version() == 4  # created, one column more, three checkpoints
    assert committer(sink, type_info=row).lingering([]) == 0
    with pytest.raises(TypeMismatchError, match="null in column 'a b', which is part of its key"):
        some(sink, row, 4, (None, None, "a"))


def test_an_attempt_that_sleeps_merges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(str(tmp_path), key=["n"])
    first, later = stage(sink, 1), stage(sink, 2, checkpoint_id=2)
    real, newer = DeltaUpsertCommitter._change, [True]

    def change(self: DeltaUpsertCommitter, *args: Any) -> Any:
        if newer:
            newer.clear()
            commit(sink, first, later, token=2)
        return real(self, *args)

    monkeypatch.setattr(DeltaUpsertCommitter, "_change", change)
    assert commit(sink, first) == 1  # its staged rows are gone, too, but it finds that they are in the table
    assert commit(sink, first, later) == 2
    lost = stage(sink, 3, checkpoint_id=3)
    committer(sink).abort_lingering([])
    with pytest.raises(CommittableLostError, match="is missing"):
        commit(sink, lost)
    assert (rows(sink), opened(sink).version()) == ([1, 2], 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": ["n"], "sort_by": ["n"]}, "leave out partition_column, sort_by"),
        ({"key": "n"}, r"such as \['n'\]"),
        ({"key": ["x"]}, "has the key 'x', but"),
        ({"key": ["d"]}, r"cannot have the key 'd', a Types.DOUBLE\(\)"),
    ],
)
def test_keys_that_cannot_work(tmp_path: Path, options: Any, said: str) -> None:
    row = Types.ROW_NAMED(["n", "d"], [Types.LONG(), Types.DOUBLE()])
    with pytest.raises(ConfigurationError, match=said):
        DeltaSink(str(tmp_path), **options).validate(row)


STEPS: list[tuple[Any, str]] = [
    (LakeWriter, "write"),
    (LakeWriter, "prepare_commit"),
    (StagedFileCommitter, "complete"),
    (DeltaCommitter, "_change"),
    (DeltaCommitter, "_swap"),
    (DeltaTarget, "has"),
    (DeltaUpsertCommitter, "_add"),
    (DeltaUpsertCommitter, "_clean_up"),
    (StagedFileCommitter, "_commit_one"),
    (LocalObjectStore, "complete_upload"),
    (LocalObjectStore, "put"),
]


@settings(max_examples=examples(25))
@given(
    step=st.sampled_from(STEPS),
    when=st.sampled_from(["before", "after"]),
    numbers=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    parallelism=st.integers(1, 2),
    key=st.sampled_from([[], ["value"]]),
)
def test_every_record_is_in_the_table_once_wherever_the_job_dies(
    tmp_path_factory: pytest.TempPathFactory,
    step: tuple[Any, str],
    when: str,
    numbers: list[int],
    parallelism: int,
    key: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("job")
    sink = DeltaSink(str(folder / "table"), key=key)
    finished = False
    with dying(step, when, numbers):
        for _ in range(12):
            env = environment(parallelism)
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
    table = DeltaTable(str(folder / "table"))
    assert sorted(table.to_pyarrow_table().column("value").to_pylist()) == list(range(9))
    sink.create_committer(CommitterInitContext("job", "sink", 2**62, EVENT)).abort_lingering([])
    assert list(sink.location.open().list_uploads()) == []
    assert list(sink.staged.location.open().list()) == []


# --- partitions -------------------------------------------------------------------------------------------------------


def days(sink: DeltaSink) -> list[tuple[str, int]]:
    table = opened(sink).to_pyarrow_table()
    return sorted(zip(table["day"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_a_partition_replaces_its_earlier_rows_in_the_same_version(location: StorageLocation) -> None:
    sink = DeltaSink(location, partition_column="day", partition_by=["s"])
    first = stage(sink, 1, partition="2026-01-01")
    other = stage(sink, 3, partition="2026-01-02", checkpoint_id=2)
    again = stage(sink, 4, partition="2026-01-01", checkpoint_id=3)
    for version, request in enumerate((first, other, again), 1):
        commit(sink, request)
        assert committer(sink).replace_partition(request.committable["partition"], request.checkpoint_id) == 0
        assert opened(sink).version() == version
    opened(sink).optimize.compact()
    slept = committer(sink, token=0)  # since it began this commit
    assert commit_requests(slept, [CommitRequest(1, 0, first.committable)], "sink") == 1
    assert slept.replace_partition("2026-01-01", 1) == 0
    assert days(sink) == [("2026-01-01", 4), ("2026-01-02", 3)]


def test_a_partition_without_rows_is_emptied_by_one_version(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), partition_column="day")
    assert committer(sink).replace_partition("a", 1) == 0  # there is no table
    commit(sink, stage(sink, 1, partition="a"), stage(sink, 2, partition="b/1", subtask=1))
    assert opened(sink).version() == 1
    assert committer(sink).replace_partition("a", 2) == 1
    assert committer(sink).replace_partition("a", 2) == 0
    assert committer(sink).replace_partition("b/1", 1) == 0  # its own rows
    assert days(sink) == [("b/1", 2)]


def test_an_older_checkpoint_never_replaces_a_newer_one(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), partition_column="day")
    slept, newer = stage(sink, 1, partition="a"), stage(sink, 2, partition="a", checkpoint_id=2)
    commit(sink, newer)
    with pytest.raises(SinkCommitError, match="newer rows of a"):
        commit(sink, slept)
    assert days(sink) == [("a", 2)]


def test_a_partition_column_needs_a_partition_and_is_not_of_the_records(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no time partitions"):
        stage(DeltaSink(str(tmp_path), partition_column="day"), 1)
    with pytest.raises(ConfigurationError, match="fills column 's' itself"):
        DeltaSink(str(tmp_path), partition_column="s").validate(ROW)
    with pytest.raises(ConfigurationError, match="cannot fill a column 'partition'"):
        DeltaSink(str(tmp_path), partition_column="partition")
    with pytest.raises(ConfigurationError, match="cannot fill in partition '__HIVE_DEFAULT_PARTITION__'"):
        stage(DeltaSink(str(tmp_path), partition_column="day"), 1, partition="__HIVE_DEFAULT_PARTITION__")


def test_owners_share_a_table(tmp_path: Path) -> None:
    mine, other = (DeltaSink(str(tmp_path)).for_owner(owner) for owner in ("shop/a b", "other"))
    commit(other, stage(other, 9))
    for checkpoint in (1, 2):
        commit(mine, stage(mine, checkpoint, checkpoint_id=checkpoint))
    assert rows(mine) == [2, 9]
    assert committer(mine).replace_partition(None, 3) == 1
    assert rows(mine) == [9]


def test_an_earlier_run_of_an_asset_commits_between_two_partitions_of_a_later_one(tmp_path: Path) -> None:
    """The later run was told that the table was restored from a backup."""
    sink = DeltaSink(str(tmp_path)).for_owner("shop")
    commit(sink, stage(sink, 1, partition="b"))
    later = committer(sink)
    commit_requests(later, [stage(sink, 3, partition="a", checkpoint_id=3)], "sink")
    commit(sink, stage(sink, 2, partition="c", checkpoint_id=2))
    assert later.replace_partition("b", 3) == 1
    assert rows(sink) == [2, 3]


def test_a_job_that_begins_anew_replaces_what_it_wrote_before(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), partition_column="day")
    frozen = committer(sink)
    for n, partition in ((1, "a"), (2, "b")):
        commit(sink, stage(sink, n, partition=partition, checkpoint_id=8 + n))
    anew = committer(sink)
    commit(sink, stage(sink, 3, partition="a", checkpoint_id=1))
    assert days(sink) == [("a", 3), ("b", 2)]
    assert frozen.replace_partition("b", 2) == 0, "an attempt from before"
    assert anew.replace_partition("b", 2) == 1
    assert (anew.replace_partition("b", 2), anew.replace_partition("a", 1), days(sink)) == (0, 0, [("a", 3)])
