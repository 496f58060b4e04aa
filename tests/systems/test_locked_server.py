"""A Spark Connect server whose workers have no network: all goes through a mounted directory, or the driver."""

from __future__ import annotations

import random
import re
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import KeyedProcessFunction, RuntimeContext
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.doctor import Verdict
from dagster_flinkpy.doctor.workers import look_at_workers
from dagster_flinkpy.errors import FlinkPyError, UserFunctionError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE
from dagster_flinkpy.spark.sessions import SparkSettings, open_session, stop_server
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, environment, events
from tests.spark.locked_daemon import DIRECTORY, MOUNTED

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not all(map(shutil.which, ("unshare", "mount")))
        or subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode != 0,
        reason="nobody but root can make networks here",
    ),
]
RECORDS = [(f"k{i % 4}", i * 10, i) for i in range(24)]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkSettings, StorageLocation]]:
    """Returns the settings of the server, and the directory that driver and workers see at different paths."""
    folder = tmp_path_factory.mktemp("locked")
    directory, mounted = folder / "of driver", folder / "of workers"
    directory.mkdir()
    mounted.mkdir()
    conf = {
        "spark.driver.memory": "512m",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "tests.spark.locked_daemon",
    }
    settings = SparkSettings(master="local[2]", conf=conf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNTIME_DIR_VARIABLE, str(folder))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.setenv(DIRECTORY, str(directory))
        patch.setenv(MOUNTED, str(mounted))
        yield settings, StorageLocation(str(directory), path_on_workers=str(mounted))
        stop_server(settings)


def counted(table: StorageLocation, parallelism: int = 2) -> JobGraph:
    env = environment(parallelism)
    counts = events(env, RECORDS, per_epoch=8).key_by("key").process(CountPerKey(), COUNTED)
    counts.uid("count").sink_to(ParquetSink(table)).uid("sink")
    return env.get_job_graph()


def config_of(name: str, settings: SparkSettings, storage: StorageLocation, **options: Any) -> JobConfig:
    return JobConfig(name, storage, settings, exchange=ExchangeOptions(mode=ExchangeMode.SPARK), **options)


def rows_of(table: StorageLocation) -> list[Any]:
    store = table.open()
    files = [store.get(each.key)[0] for each in store.list() if each.key.endswith(".parquet")]
    return [tuple(row.values()) for file in files for row in pq.read_table(pa.BufferReader(file)).to_pylist()]


EXPECTED = sorted(
    (key, n + 1, sum(value for _, _, value in of_key[: n + 1]))
    for key in {key for key, _, _ in RECORDS}
    for of_key in [[record for record in RECORDS if record[0] == key]]
    for n in range(len(of_key))
)


def test_jobs_keep_state_and_write_tables_through_the_mounted_directory(
    locked: tuple[SparkSettings, StorageLocation],
) -> None:
    settings, storage = locked
    config, said = config_of("job", settings, storage.child("checkpoints")), list[str]()
    for _ in range(2):  # the second attempt restores
        with JobAttempt(counted(storage.child("table")), config, owner="test", on_progress=said.append) as attempt:
            attempt.run_epoch()
            while attempt.restored is not None and not attempt.finished:
                attempt.run_epoch()
    assert sorted(rows_of(storage.child("table"))) == EXPECTED
    assert not [line for line in said if "driver" in line]


class Remembers(KeyedProcessFunction):
    """Keeps a text per key that is too large for metadata, and checks it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        text = random.Random(value.key).randbytes(200_000).hex()
        assert self._text.value() == (text if self._count.value() else None)
        self._text.update(text)
        self._count.update((self._count.value() or 0) + 1)
        yield ctx.get_current_key(), self._count.value(), value.value


def remembered(table: StorageLocation, parallelism: int) -> JobGraph:
    env = environment(parallelism)
    stream = events(env, RECORDS, per_epoch=8).blocking()
    counts = stream.key_by("key").process(Remembers(), COUNTED)
    counts.uid("count").sink_to(ParquetSink(table)).uid("sink")
    return env.get_job_graph()


@pytest.mark.smoke
@pytest.mark.parametrize("store", ["a directory", "S3"])
def test_without_a_way_to_the_store_state_segments_and_tables_go_through_the_driver(
    store: str, locked: tuple[SparkSettings, StorageLocation], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings, storage = locked
    if store == "S3":
        blind: StorageLocation = request.getfixturevalue("s3_location")
    else:
        blind = StorageLocation(storage.url).child("blind")
    table, said = blind.child("table"), list[str]()
    # The second attempt restores, without the copies that workers have of state.
    for parallelism in (2,) if store == "S3" else (2, 3):
        config = config_of("job", settings, blind.child("checkpoints"), cache_dir=str(tmp_path / str(parallelism)))
        graph = remembered(table, parallelism)
        with JobAttempt(graph, config, owner="test", on_progress=said.append) as attempt:
            attempt.run_epoch()
            while (store == "S3" or attempt.restored is not None) and not attempt.finished:
                attempt.run_epoch()
    assert sorted(rows_of(table)) == sorted((key, n, value) for key, n, value in _numbered())
    job = blind.child("checkpoints").child("job").open()
    assert [each.key for each in job.list("shared/")]
    assert not list(table.open().list_uploads())
    assert [line for line in said if "workers have no way to the store" in line]
    assert [line for line in said if "path_on_workers" in line and re.search(r"(sent|stored) (?!0\.0)\d+\.\d MB", line)]


def _numbered() -> Iterator[tuple[str, int, int]]:
    seen = Counter[str]()
    for key, _, value in RECORDS:
        seen[key] += 1
        yield key, seen[key], value


def test_data_frames_go_through_the_driver(locked: tuple[SparkSettings, StorageLocation]) -> None:
    settings, storage = locked
    blind = StorageLocation(storage.url).child("frames")
    env = environment(2)
    numbers = env.from_spark(lambda spark: spark.range(0, 50, 1, 4), type_info=Types.ROW_NAMED(["id"], [Types.LONG()]))
    doubled = numbers.uid("numbers").transform_spark(
        lambda frame: frame.selectExpr("id * 2 AS id"), Types.ROW_NAMED(["id"], [Types.LONG()])
    )
    doubled.uid("doubled").sink_to(ParquetSink(blind.child("table"))).uid("sink")
    config = config_of("job", settings, blind.child("checkpoints"))
    with JobAttempt(env.get_job_graph(), config, owner="test") as attempt:
        while not attempt.finished:
            attempt.run_epoch()
    assert sorted(rows_of(blind.child("table"))) == [(2 * i,) for i in range(50)]


def test_nothing_is_stored_of_an_epoch_that_fails(locked: tuple[SparkSettings, StorageLocation]) -> None:
    settings, storage = locked
    blind = StorageLocation(storage.url).child("fails")

    def fails(value: Any) -> Any:
        if value.value == 7:
            raise ValueError("seven")
        return value

    env = environment(2)
    events(env, RECORDS).map(fails, EVENT).uid("map").sink_to(ParquetSink(blind.child("table"))).uid("sink")
    with (
        pytest.raises(UserFunctionError, match="seven"),
        JobAttempt(env.get_job_graph(), config_of("job", settings, blind.child("j")), owner="test") as attempt,
    ):
        attempt.run_epoch()
    table = blind.child("table").open()
    assert not list(table.list()) and not list(table.list_uploads())


def test_a_file_that_was_not_sent_cannot_be_read(locked: tuple[SparkSettings, StorageLocation]) -> None:
    settings, storage = locked
    blind = StorageLocation(storage.url).child("sources")
    blind.child("in").open().put("a.txt", b"a\nb\n")
    env = environment(2)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), blind.child("in").url).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    lines.sink_to(ParquetSink(blind.child("table"))).uid("sink")
    with (
        pytest.raises(FlinkPyError, match=r"from_spark\(\)"),
        JobAttempt(env.get_job_graph(), config_of("job", settings, blind.child("j")), owner="test") as attempt,
    ):
        attempt.run_epoch()


def test_the_doctor_sees_it(locked: tuple[SparkSettings, StorageLocation]) -> None:
    settings, storage = locked
    with open_session(settings) as session:
        found = {each.what: each for each in look_at_workers(session, _own_address(), storage)}
        blind = {each.what: each for each in look_at_workers(session, _own_address(), StorageLocation(storage.url))}
    assert found["store of workers"].verdict is Verdict.FINE
    assert f"in the directory {storage.path_on_workers}, which they have mounted" in found["store of workers"].detail
    assert found["network"].verdict is Verdict.WARNING
    assert "workers do not reach the driver" in found["network"].detail
    assert blind["store of workers"].verdict is Verdict.WARNING
    assert "through the driver" in blind["store of workers"].detail


def _own_address() -> Any:
    return socket.gethostbyname(socket.gethostname())
