"""A Spark Connect server whose workers have no network: state and tables go through a mounted directory."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.doctor import Verdict
from dagster_flinkpy.doctor.workers import look_at_workers
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.server_state import RUNTIME_DIR_VARIABLE
from dagster_flinkpy.spark.sessions import SparkSettings, open_session, stop_server
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, CountPerKey, environment, events
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


def counted(table: StorageLocation) -> JobGraph:
    env = environment(2)
    counts = events(env, RECORDS, per_epoch=8).key_by("key").process(CountPerKey(), COUNTED)
    counts.uid("count").sink_to(ParquetSink(table)).uid("sink")
    return env.get_job_graph()


def test_jobs_keep_state_and_write_tables_through_the_mounted_directory(
    locked: tuple[SparkSettings, StorageLocation],
) -> None:
    settings, storage = locked
    exchange = ExchangeOptions(mode=ExchangeMode.SPARK)
    config = JobConfig("job", storage.child("checkpoints"), settings, exchange=exchange)
    for _ in range(2):  # the second attempt restores
        with JobAttempt(counted(storage.child("table")), config, owner="test") as attempt:
            attempt.run_epoch()
            while attempt.restored is not None and not attempt.finished:
                attempt.run_epoch()
    directory = storage.child("table").local_path
    assert directory is not None
    rows = [row for file in directory.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert len(rows) == len(RECORDS)


def test_without_the_path_the_error_says_so(locked: tuple[SparkSettings, StorageLocation]) -> None:
    settings, storage = locked
    blind = StorageLocation(storage.url)
    config = JobConfig("blind", blind.child("checkpoints"), settings, exchange=ExchangeOptions(mode=ExchangeMode.SPARK))
    with (
        pytest.raises(StorageError, match="path_on_workers"),
        JobAttempt(counted(blind.child("t")), config, owner="test") as attempt,
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
    assert blind["store of workers"].verdict is Verdict.BROKEN


def _own_address() -> Any:
    return socket.gethostbyname(socket.gethostname())
