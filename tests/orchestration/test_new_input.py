"""What a job reads when Dagster runs it again, and what it reports about input that arrived after its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, MetadataValue, materialize

from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Duration, Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import InputAfterEndError
from dagster_flinkpy.orchestration import flink_assets
from dagster_flinkpy.orchestration.runs import unpartitioned_run
from dagster_flinkpy.orchestration.runs.epoch_events import EpochEvents
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.master.requests import taken_requests
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import run_rows

ROW = Types.ROW_NAMED(["key", "at", "n"], [Types.STRING(), Types.LONG(), Types.LONG()])
BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")

Program = Callable[[], StreamExecutionEnvironment]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))


def write(folder: Path, number: int) -> None:
    """Writes a file with one record, ten milliseconds after the previous one."""
    folder.mkdir(exist_ok=True)
    columns = {"key": ["k"], "at": [number * 10], "n": [number]}
    pq.write_table(pa.table(columns), folder / f"{number}.parquet")


class Deployment:
    """Assets with sums of numbers in files: running sums, and sums of windows of ten milliseconds."""

    def __init__(self, path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.files, self.tables = path / "files", path / "tables"
        self._instance, self._resources = instance, resources

    def program(self, **options: Any) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment().set_max_parallelism(8)
        rows = self.read(env, "files", ParquetSource(str(self.files), row_type=ROW, **options))
        self._write(rows.key_by("key").sum("n").uid("sums"), "sums")
        windows = rows.key_by("key").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        self._write(windows.sum("n").uid("windows"), "windows")
        return env

    def read(self, env: StreamExecutionEnvironment, uid: str, source: Source) -> DataStream:
        return env.from_source(source, BY_TIME, uid).uid(uid)

    @property
    def job(self) -> StorageLocation:
        location: StorageLocation = self._resources["checkpoint_storage"].location().child("job")
        return location

    def _write(self, stream: DataStream, name: str) -> None:
        stream.sink_to(ParquetSink(str(self.tables / name))).uid(f"{name}_table")

    def run(self, program: Program, **config: Any) -> ExecuteInProcessResult:
        return materialize(
            flink_assets(program, name="job"),
            instance=self._instance,
            resources=self._resources,
            run_config={"ops": {"job": {"config": config}}},
            raise_on_error=False,
        )

    def said(self, run: ExecuteInProcessResult) -> str:
        return "\n".join(entry.user_message for entry in self._instance.all_logs(run.run_id))

    def numbers(self, table: str) -> list[int]:
        found = self.tables / table
        return sorted(pq.read_table(found).column("n").to_pylist()) if found.exists() else []


@pytest.fixture
def deployment(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> Deployment:
    deployment = Deployment(tmp_path, instance, resources)
    write(deployment.files, 1)
    return deployment


def error_of(run: ExecuteInProcessResult) -> tuple[str, str]:
    assert not run.success
    (failed,) = [event for event in run.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    error = failure.metadata["error"]
    assert isinstance(error, type(MetadataValue.text("")))
    return str(error.value), str(failure.description)


def test_a_run_reads_what_has_come_since_the_last_one(deployment: Deployment) -> None:
    assert deployment.run(deployment.program).success
    assert (deployment.numbers("sums"), deployment.numbers("windows")) == ([1], [])
    write(deployment.files, 2)
    assert deployment.run(deployment.program).success
    assert (deployment.numbers("sums"), deployment.numbers("windows")) == ([1, 3], [1]), "event time continues"
    idle = deployment.run(deployment.program)
    assert idle.success
    assert "files: nothing to read" in deployment.said(idle)
    assert deployment.numbers("sums") == [1, 3]


def test_a_run_without_a_limit_waits_for_more_input_until_it_is_told_to_end(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 3):
        write(deployment.files, number)
    epochs = 0

    class Observed(EpochEvents):
        def completed(self, epoch: CompletedEpoch, *args: Any, **kwargs: Any) -> None:
            nonlocal epochs
            epochs += 1
            super().completed(epoch, *args, **kwargs)
            if epochs == 4:
                assert not epoch.has_read, "there is nothing more"
                write(deployment.files, 4)
            elif epochs == 5:
                JobRequests(deployment.job, "a test").submit(Order(RequestKind.STOP))

    monkeypatch.setattr(unpartitioned_run, "EpochEvents", Observed)
    monkeypatch.setattr(taken_requests, "LOOK_INTERVAL", timedelta(0))
    monkeypatch.setattr(Source, "discovery_interval", timedelta(milliseconds=10))
    assert deployment.run(lambda: deployment.program(max_files_per_epoch=1), epochs=0).success
    assert deployment.numbers("sums") == [1, 3, 6, 10]
    assert epochs == 6, "the last one is that of the stop"


def test_an_input_that_is_declared_bounded_ends(deployment: Deployment) -> None:
    def bounded() -> StreamExecutionEnvironment:
        return deployment.program(bounded=True)

    assert deployment.run(bounded).success
    assert (deployment.numbers("sums"), deployment.numbers("windows")) == ([1], [1])
    nothing_new = deployment.run(bounded)
    assert nothing_new.success
    assert "The input of job job has ended; there is no checkpoint left to take." in deployment.said(nothing_new)

    write(deployment.files, 2)
    for program in (bounded, deployment.program, lambda: deployment.program(bounded=False)):
        error, description = error_of(deployment.run(program))
        assert error == "InputAfterEndError"
        assert "source 'files' has input that came after its end: 2.parquet." in description
        assert "restore_from" in description
    assert deployment.numbers("sums") == [1]

    assert deployment.run(deployment.program, start_empty=True).success
    assert deployment.numbers("sums") == [1, 1, 3]
    write(deployment.files, 3)
    assert deployment.run(deployment.program).success
    assert deployment.numbers("sums") == [1, 1, 3, 6]


def test_until_is_an_end_whatever_else_is_declared(deployment: Deployment) -> None:
    def program(until: str) -> Program:
        return lambda: deployment.program(until=until)

    assert deployment.run(program("1.parquet")).success
    assert deployment.numbers("windows") == [1]
    write(deployment.files, 2)
    assert deployment.run(program("1.parquet")).success
    assert error_of(deployment.run(program("2.parquet")))[0] == "InputAfterEndError"


def test_a_source_that_has_ended_stays_ended_beside_one_that_goes_on(deployment: Deployment, tmp_path: Path) -> None:
    lasting = tmp_path / "lasting"
    write(lasting, 1)

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        ended = deployment.read(env, "ended", ParquetSource(str(deployment.files), row_type=ROW, bounded=True))
        rows = ended.union(deployment.read(env, "lasting", ParquetSource(str(lasting), row_type=ROW)))
        deployment._write(rows.key_by("key").sum("n").uid("sums"), "sums")
        return env

    assert deployment.run(program).success
    write(lasting, 2)
    assert deployment.run(program).success
    assert deployment.numbers("sums") == [1, 2, 4]
    write(deployment.files, 2)
    write(lasting, 3)
    error, description = error_of(deployment.run(program))
    assert error == "InputAfterEndError"
    assert "source 'ended' has input that came after its end: 2.parquet." in description
    (deployment.files / "2.parquet").unlink()
    (deployment.files / "1.parquet").unlink()
    deployment.files.rmdir()  # files that were read may be deleted
    assert deployment.run(program).success
    assert deployment.numbers("sums") == [1, 2, 4, 7]


@pytest.mark.parametrize("declared", ["nothing", "monitor", "static"])
def test_text_files(deployment: Deployment, tmp_path: Path, declared: str) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "b").write_text("1\n")

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder))
        if declared == "monitor":
            files = files.monitor_continuously(Duration.of_seconds(1))
        elif declared == "static":
            files = files.process_static_file_set()
        lines = env.from_source(files.build(), WatermarkStrategy.no_watermarks(), "lines").uid("lines")
        number = Types.ROW_NAMED(["n"], [Types.LONG()])
        deployment._write(lines.map(lambda line: (int(line),), number), "lines")
        return env

    assert deployment.run(program).success
    assert deployment.run(program).success
    (folder / "a").write_text("2\n")
    run = deployment.run(program)
    if declared == "static":
        error, description = error_of(run)
        assert error == "InputAfterEndError"
        assert "/lines/a." in description
        assert deployment.numbers("lines") == [1]
    else:
        assert run.success
        assert deployment.numbers("lines") == [1, 2]


def test_a_collection_that_has_grown_after_its_end(deployment: Deployment) -> None:
    def program(*values: int) -> Program:
        def build() -> StreamExecutionEnvironment:
            env = StreamExecutionEnvironment.get_execution_environment()
            source = CollectionSource([(n,) for n in values], Types.ROW_NAMED(["n"], [Types.LONG()]))
            rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "values").uid("values")
            deployment._write(rows, "values")
            return env

        return build

    for _ in range(2):
        assert deployment.run(program(1, 2)).success
    error, description = error_of(deployment.run(program(1, 2, 3)))
    assert error == "InputAfterEndError"
    assert "source 'values' has input that came after its end: 1 record(s) of the collection." in description


def test_a_script_reads_what_is_there_and_ends(deployment: Deployment, tmp_path: Path) -> None:
    def execute(**options: Any) -> int | None:
        env = deployment.program(**options)
        env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "script"))
        return env.execute("script").last_checkpoint_id

    assert (execute(), execute()) == (1, None)
    assert (deployment.numbers("sums"), deployment.numbers("windows")) == ([1], [1])
    write(deployment.files, 2)
    for options in ({}, {"bounded": True}, {"bounded": False}):
        with pytest.raises(InputAfterEndError, match=r"'files' has input that came after its end: 2\.parquet\."):
            execute(**options)
    assert deployment.numbers("sums") == [1]
