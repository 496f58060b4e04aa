"""A job does not read the rows that it writes, and says so if it writes them elsewhere than before."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.locations.input_conflicts import check_input_conflicts
from dagster_flinkpy.common import Configuration, Types, WatermarkStrategy
from dagster_flinkpy.connectors import CsvSink, DeltaSink, ParquetSink, ParquetSource, PostgresChangeSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import FileSource
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError, HeadLostError
from dagster_flinkpy.spark.user_logs import LogEntry
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt

ROW = Types.ROW_NAMED(["id"], [Types.LONG()])


def graph(source: Any, sink: Any) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    rows.sink_to(sink).uid("table")
    return env.get_job_graph()


def text(path: Any) -> FileSource:
    return FileSource.for_record_stream_format(CsvReaderFormat.for_row_type(ROW), path).build()


def at(url: str, endpoint: str) -> StorageLocation:
    return StorageLocation(url, endpoint_url=endpoint)


def parquet(location: Any, **options: Any) -> ParquetSource:
    return ParquetSource(location, row_type=ROW, **options)


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        (parquet("data"), ParquetSink("data")),
        (parquet("data"), ParquetSink("data/clean")),
        (parquet("data"), DeltaSink("data/table")),
        (parquet("data", pattern="clean/*.parquet"), ParquetSink("data/clean")),
        (text("data"), CsvSink("data/clean")),
        (text(at("s3://b/data", "http://one")), CsvSink(at("s3://b/data/clean", "http://one"))),
    ],
)
def test_a_sink_that_writes_where_a_source_reads_is_refused(source: Any, sink: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"sink 'table' writes into .*data.*, where source 'rows' finds its"):
        check_input_conflicts(graph(source, sink), "job")


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        (parquet("data"), ParquetSink("data-clean")),
        (parquet("data/in"), ParquetSink("data")),
        (parquet("data"), ParquetSink("data/_clean")),
        (parquet("data"), CsvSink("data")),
        (parquet("data", pattern="in/*.parquet"), ParquetSink("data/clean")),
        (parquet("data", until="2026.parquet"), ParquetSink("data")),
        (text(at("s3://b/data", "http://one")), CsvSink(at("s3://b/data", "http://other"))),
        (text("data/one.csv"), CsvSink("data")),
    ],
)
def test_another_place_is_not(source: Any, sink: Any) -> None:
    check_input_conflicts(graph(source, sink), "job")


def test_a_link_to_the_input_is_no_other_place(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(ConfigurationError, match="read its own rows as new ones"):
        check_input_conflicts(graph(parquet(str(tmp_path / "data")), ParquetSink(str(tmp_path / "link/clean"))), "job")


def test_such_a_program_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id\n1\n")
    env = StreamExecutionEnvironment.get_execution_environment(Configuration().set_boolean("execution.local", True))
    rows = env.from_source(text(str(tmp_path)), WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    rows.sink_to(CsvSink(str(tmp_path / "clean"))).uid("table")
    with pytest.raises(ConfigurationError, match="read its own rows as new ones"):
        env.execute("job")
    assert [file.name for file in tmp_path.rglob("*.csv")] == ["rows.csv"]


def test_a_sink_that_writes_elsewhere_than_before_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()

    def run(table: str) -> list[str]:
        told: list[LogEntry] = []
        program = graph(parquet(str(tmp_path / "rows"), bounded=False), ParquetSink(str(tmp_path / table)))
        with HarnessAttempt(program, tmp_path / "checkpoints", on_log=told.append) as attempt:
            attempt.run_epoch()
        return [entry.text for entry in told if entry.level == logging.WARNING]

    assert run("prod") == []
    (text,) = run("dev")
    assert (
        f"Sink 'table' wrote to file://{tmp_path}/prod up to checkpoint 1, and writes to file://{tmp_path}/dev" in text
    )
    assert "share these checkpoints" in text
    assert run("dev") == []


@pytest.mark.parametrize("sink", [ParquetSink, DeltaSink], ids=["files", "table"])
def test_a_folder_that_is_older_than_the_rows_is_refused(sink: Any, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()

    def run(job: str, number: int | None = None, **options: Any) -> None:
        if number is not None:
            pq.write_table(pa.table({"id": [number]}), tmp_path / "rows" / f"{number}.parquet")
        program = graph(parquet(str(tmp_path / "rows"), bounded=False), sink(str(tmp_path / "table")))
        with HarnessAttempt(program, tmp_path / job, **options) as attempt:
            attempt.run_epoch()

    def ids() -> list[int]:
        return sorted(pq.read_table([str(each) for each in (tmp_path / "table").rglob("*.parquet")])["id"].to_pylist())

    run("jobs", 1)
    shutil.copytree(tmp_path / "jobs", tmp_path / "backup")
    run("jobs", 2)
    run("jobs", 3)
    with pytest.raises(HeadLostError, match=r"sink 'table' has committed checkpoint [23] .* only begun those up to 1"):
        run("backup")
    assert ids() == [1, 2, 3]
    run("backup", restore_from="chk-1")
    run("backup", 4)
    assert ids() == [1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("options", [{}, {"start_empty": True}, {"restore_from": "chk-1"}], ids=str)
def test_a_copy_of_a_job_does_not_write_beside_it(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    said: list[str] = []

    def run(job_id: str, number: int, table: str, **options: Any) -> None:
        pq.write_table(pa.table({"id": [number]}), tmp_path / "rows" / f"{number}.parquet")
        program = graph(parquet(str(tmp_path / "rows"), bounded=False), ParquetSink(str(tmp_path / table)))
        with HarnessAttempt(program, tmp_path / "jobs", job_id=job_id, on_progress=said.append, **options) as attempt:
            attempt.run_epoch()

    def ids(table: str) -> list[int]:
        return sorted(pq.read_table(tmp_path / table)["id"].to_pylist())

    run("one", 1, "table")
    shutil.copytree(tmp_path / "jobs" / "one", tmp_path / "jobs" / "two")
    run("one", 2, "table")
    with pytest.raises(ConfigurationError, match="as sink 'table' of job 'one' does, of which job 'two' is a copy"):
        run("two", 3, "table", **options)
    assert ids("table") == [1, 2]
    assert not any("is a copy" in line for line in said)
    run("two", 3, "other", **options)
    assert [line for line in said if "so the folder of job 'two' is a copy of that job's" in line]
    said.clear()
    run("two", 4, "other")
    assert not any("is a copy" in line for line in said), "it has checkpoints of its own now"


def test_who_restores_the_savepoint_of_another_job_is_told_of_the_rows_that_stay(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows" / "1.parquet")
    said: list[str] = []

    def attempt(job_id: str, **options: Any) -> HarnessAttempt:
        program = graph(parquet(str(tmp_path / "rows"), bounded=False), ParquetSink(str(tmp_path / f"of_{job_id}")))
        return HarnessAttempt(program, tmp_path / "jobs", job_id=job_id, on_progress=said.append, **options)

    with attempt("one") as one:
        one.run_epoch()
        savepoint = one.savepoint()
    with attempt("two") as two:
        two.run_epoch()
    assert not [line for line in said if "those stay" in line]
    with attempt("two", restore_from=savepoint):
        pass
    assert [line for line in said if "sink 'table' has rows up to checkpoint 1: those stay" in line]


def test_a_job_whose_folder_was_renamed_goes_on(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    said: list[str] = []
    for number, job_id in enumerate(["one", "two", "two"]):
        pq.write_table(pa.table({"id": [number]}), tmp_path / "rows" / f"{number}.parquet")
        program = graph(parquet(str(tmp_path / "rows"), bounded=False), ParquetSink(str(tmp_path / "table")))
        with HarnessAttempt(program, tmp_path / "jobs", job_id=job_id, on_progress=said.append) as attempt:
            attempt.run_epoch()
        if job_id == "one":
            (tmp_path / "jobs" / "one").rename(tmp_path / "jobs" / "two")
    assert sorted(pq.read_table(tmp_path / "table")["id"].to_pylist()) == [0, 1, 2]
    assert len([line for line in said if "was completed by job 'one'" in line]) == 1


def test_a_job_begins_anew_in_another_folder_with_greater_ids(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "rows" / "1.parquet")
    ids = []
    for job, start_empty in [("one", False), ("one", False), ("other", True), ("other", False)]:
        program = graph(parquet(str(tmp_path / "rows"), bounded=False), ParquetSink(str(tmp_path / "table")))
        with HarnessAttempt(program, tmp_path / job, start_empty=start_empty) as attempt:
            ids.append(attempt.run_epoch().checkpoint_id)
    assert ids == [1, 2, 2, 3]


def test_sources_with_the_same_replication_slot_are_refused() -> None:
    """What one of them had read, the server deleted, and the other one failed for good at its second epoch."""

    def program(*conninfo_and_slot: tuple[str, str]) -> JobGraph:
        env = StreamExecutionEnvironment.get_execution_environment()
        for number, (conninfo, slot) in enumerate(conninfo_and_slot):
            source = PostgresChangeSource(conninfo, f"t{number}", slot, publication="both", row_type=ROW)
            env.from_source(source, WatermarkStrategy.no_watermarks(), "t").uid(f"t{number}").print()
        return env.get_job_graph()

    with pytest.raises(ConfigurationError, match="sources 't0' and 't1' read from the same replication slot, 'a'"):
        check_input_conflicts(program(("postgresql://u:x@db/shop", "a"), ("host=db dbname=shop user=v", "a")), "job")
    check_input_conflicts(program(("postgresql://db/shop", "a"), ("postgresql://db/shop", "b")), "job")
    check_input_conflicts(program(("postgresql://shard1/shop", "a"), ("postgresql://shard2/shop", "a")), "job")
    check_input_conflicts(program(("what is this", "a")), "job")  # the source says so when it connects
    for servers in (("service=one", "service=two"), ("postgresql:///shop?host=/one", "postgresql:///shop?host=/two")):
        check_input_conflicts(program(*((server, "a") for server in servers)), "job")
