"""Faults of the store under whole jobs: each record is in the table once, or an error says what to do."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import AwsStandardS3RetryStrategy
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink
from dagster_flinkpy.connectors.delta.table import storage_options
from dagster_flinkpy.connectors.iceberg.table import IcebergTarget
from dagster_flinkpy.datastream.connectors.base import CommitterInitContext, TwoPhaseCommittingSink
from dagster_flinkpy.errors import FlinkPyError, SinkCommitError, StorageError
from dagster_flinkpy.storage import StorageLocation
from tests.chaos.sink_job import Order
from tests.chaos.sink_job import left_open as left_open_of
from tests.chaos.sink_targets import RECORDS as MATRIX_RECORDS
from tests.chaos.sink_targets import TARGETS as MATRIX
from tests.chaos.sink_targets import new_place
from tests.chaos.sinks import run_once
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import EVENT, environment, events
from tests.unreliable import disturbed, unreliable

RECORDS = [(f"k{i % 3}", i, i) for i in range(24)]
VALUES = [value for _, _, value in RECORDS]


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("random.uniform", lambda *_: 0)
    monkeypatch.setattr("dagster_flinkpy.runtime.master.commits.commit_retries._sleep", lambda seconds: None)
    quick = {"backoff_config.init_backoff": "1 ms", "backoff_config.max_backoff": "2 ms", "max_retries": "4"}
    monkeypatch.setattr(
        "dagster_flinkpy.connectors.delta.table.storage_options", lambda location: storage_options(location) | quick
    )


def run(sink: TwoPhaseCommittingSink, storage: StorageLocation) -> None:
    """Runs an attempt."""
    env = environment(2)
    events(env, RECORDS, per_epoch=8).rebalance().sink_to(sink).uid("sink")
    with HarnessAttempt(env.get_job_graph(), storage) as attempt:
        while not attempt.finished:
            attempt.run_epoch()


def run_to_the_end(sink: TwoPhaseCommittingSink, storage: StorageLocation) -> list[FlinkPyError]:
    """Runs attempts until one finishes the job, and returns the errors of the others."""
    errors = []
    for _ in range(40):
        try:
            run(sink, storage)
            return errors
        except FlinkPyError as error:
            errors.append(error)
    raise AssertionError(errors)


def left_open(sink: TwoPhaseCommittingSink) -> int:
    return sink.create_committer(CommitterInitContext("job", "sink", 2**62, EVENT)).lingering([])


Make = Callable[[StorageLocation, Path], TwoPhaseCommittingSink]


class NoRetries(AwsStandardS3RetryStrategy):  # type: ignore[misc]
    """PyArrow would wait for seconds."""

    def __init__(self) -> None:
        super().__init__(max_attempts=1)


def iceberg(location: StorageLocation, folder: Path) -> IcebergSink:
    quick = {"s3.retry-strategy-impl": f"{__name__}.{NoRetries.__name__}"}
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", **quick}
    return IcebergSink("db.t", location, properties=properties)


def values_of_files(location: StorageLocation, folder: Path) -> list[int]:
    store = location.open()
    files = [pq.read_table(io.BytesIO(store.get(info.key)[0])) for info in store.list()]
    return sorted(value for file in files for value in file.column("value").to_pylist())


def values_of_delta(location: StorageLocation, folder: Path) -> list[int]:
    table = DeltaTable(location.url, storage_options=storage_options(location))
    return sorted(table.to_pyarrow_table().column("value").to_pylist())


def values_of_iceberg(location: StorageLocation, folder: Path) -> list[int]:
    catalog = IcebergTarget(iceberg(location, folder), CommitterInitContext("job", "sink", 0, EVENT)).catalog
    return sorted(catalog.load_table("db.t").scan().to_arrow().column("value").to_pylist())


TARGETS: dict[str, tuple[Make, Callable[[StorageLocation, Path], list[int]]]] = {
    "files": (lambda location, folder: ParquetSink(location, max_file_bytes=200), values_of_files),
    "delta": (lambda location, folder: DeltaSink(location), values_of_delta),
    "iceberg": (iceberg, values_of_iceberg),
}


# --- S3 that refuses requests and loses answers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("storms", "resets"), [(0.02, 0.0), (0.0, 0.2)], ids=["storms of 503", "resets"])
def test_s3_in_bad_weather(
    s3_location: StorageLocation, tmp_path: Path, name: str, storms: float, resets: float
) -> None:
    make, read = TARGETS[name]
    assert s3_location.endpoint_url is not None
    with unreliable(s3_location.endpoint_url, storms=storms, resets=resets) as endpoint:
        there = replace(s3_location, endpoint_url=endpoint)
        sink = make(there.child("table"), tmp_path)
        run_to_the_end(sink, there.child("job"))
        assert disturbed(endpoint) > 3
    calm = s3_location.child("table")
    assert read(calm, tmp_path) == VALUES
    assert left_open(make(calm, tmp_path)) == 0


def test_a_storm_that_lasts_is_an_error_that_names_the_place(s3_location: StorageLocation) -> None:
    assert s3_location.endpoint_url is not None
    with unreliable(s3_location.endpoint_url, storms=1.0) as endpoint:
        there = replace(s3_location, endpoint_url=endpoint)
        with pytest.raises(StorageError, match=r"s3://.*SlowDown"):
            run(ParquetSink(there.child("table")), there.child("job"))


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["files", "delta", "iceberg", "postgres"])
def test_a_disk_that_is_full(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk: writing fails in the middle of a file."""
    target = MATRIX[name]
    for limit in (600, 2_500):  # of data files, and of the metadata of a checkpoint or of the table
        place = new_place(StorageLocation(str(tmp_path)), request.getfixturevalue("postgres") if target.server else "")
        target.prepare(place)
        full = run_once(Order(name, place, file_bytes=limit))
        assert isinstance(full, StorageError | SinkCommitError), full
        assert re.search("File too large|disk I/O error|disk is full", str(full)), full
        assert run_once(Order(name, place)) == "finished"
        assert sorted(target.read(place)) == [value for _, _, value in MATRIX_RECORDS]
        assert left_open_of(target, place) == 0


# --- somebody else who writes all the time ----------------------------------------------------------------------------


def test_a_delta_table_to_which_somebody_else_commits_all_the_time(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    rows = pa.table({"key": ["other"], "time": [0], "value": [-1]})
    done, commits = threading.Event(), 0

    def write() -> None:
        nonlocal commits
        while not done.is_set():
            write_deltalake(table, rows, mode="append")
            commits += 1

    write_deltalake(table, rows, mode="append")
    other = threading.Thread(target=write)
    other.start()
    try:
        run_to_the_end(DeltaSink(table), StorageLocation(str(tmp_path / "job")))
    finally:
        done.set()
        other.join()
    values = DeltaTable(table).to_pyarrow_table().column("value").to_pylist()
    assert sorted(value for value in values if value >= 0) == VALUES
    assert values.count(-1) == commits + 1 > 1


def test_an_iceberg_table_to_which_somebody_else_commits_all_the_time(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    sink = IcebergSink("db.t", str(tmp_path / "table"), properties=properties)
    sink.create_committer(CommitterInitContext("job", "sink", 0, EVENT)).abort_lingering([])  # creates the table
    rows = pa.table({"key": ["other"], "time": [0], "value": [-1]})
    done, commits = threading.Event(), 0

    def write() -> None:
        nonlocal commits
        catalog = load_catalog("default", **properties)
        while not done.is_set():
            with suppress(CommitFailedException):
                catalog.load_table("db.t").append(rows)
                commits += 1

    other = threading.Thread(target=write)
    other.start()
    try:
        run_to_the_end(sink, StorageLocation(str(tmp_path / "job")))
    finally:
        done.set()
        other.join()
    values = load_catalog("default", **properties).load_table("db.t").scan().to_arrow().column("value").to_pylist()
    assert sorted(value for value in values if value >= 0) == VALUES
    assert values.count(-1) == commits > 0
