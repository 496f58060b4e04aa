"""Jobs on a Spark cluster. Its processes are killed while one runs; the tables must be those of a run without trouble.

Only the death of the driver takes another attempt; everything else is mended inside the run.
"""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream import SlotSharingGroup
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.storage import StorageLocation
from tests.chaos.cluster import Cluster, ancestor, running_cluster
from tests.chaos.job import EPOCHS, TABLES, attempt, caught, order
from tests.runtime.harness import collect_graph, collected
from tests.runtime.programs import environment

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

ROOT = Path(__file__).parents[2]
LONG = Types.LONG()
_KILLS = int(os.environ.get("CHAOS", "0"))
"""How many drivers are killed at a random write. ``make chaos`` sets it; ``make test-system`` leaves it at 0."""
_WRITES = range(1, 41)
"""The driver's writes to the store in a straight run, without those at its end."""
_PATIENCE_SECONDS = 600


def committed(location: StorageLocation) -> dict[str, list[Any]]:
    """Returns what readers of the tables see."""
    found = {}
    for table in TABLES:
        store = location.child(table).open()
        files = [pq.read_table(io.BytesIO(store.get(info.key)[0])) for info in store.list() if info.key[0] != "."]
        found[table] = sorted(tuple(row.values()) for file in files for row in file.to_pylist())
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The tables of a run in one process, which nothing disturbs."""
    folder = tmp_path_factory.mktemp("straight")
    location = StorageLocation(str(folder))
    with attempt(location, folder, "none", None) as running:
        assert len(list(running.run_epochs())) == EPOCHS
    return committed(location)


class Chaos:
    """A job on a cluster, with what its trap has caught.

    Args:
        folder: Contains the job's tables and checkpoints, and the files of its trap.
        cluster: Runs the job.
    """

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.location, self.folder, self.cluster = StorageLocation(str(folder)), folder, cluster

    def let_go(self) -> None:
        """Lets tasks in the trap continue."""
        (self.folder / "go").touch()

    def run(self, point: str = "none", then: Callable[[CompletedEpoch], None] = lambda epoch: None) -> None:
        """Runs the job to its end, in one attempt."""
        with attempt(self.location, self.folder, point, self.cluster.settings) as running:
            while not running.finished:
                for epoch in running.run_epochs():
                    then(epoch)

    def run_beside(self, point: str) -> Future[None]:
        """Runs the job on a thread."""
        done: Future[None] = Future()

        def work() -> None:
            try:
                self.run(point)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=work, daemon=True).start()
        return done


@pytest.fixture
def chaos(tmp_path: Path, cluster: Cluster) -> Iterator[Chaos]:
    made = Chaos(tmp_path, cluster)
    yield made
    made.let_go()


def test_a_python_worker_is_killed_in_mid_epoch(chaos: Chaos, expected: dict[str, list[Any]]) -> None:
    job = chaos.run_beside("record")
    os.kill(caught(chaos.folder, job), signal.SIGKILL)  # Spark runs the task again
    job.result(_PATIENCE_SECONDS)
    assert committed(chaos.location) == expected


def test_an_executor_is_killed_in_mid_snapshot(chaos: Chaos, expected: dict[str, list[Any]]) -> None:
    job = chaos.run_beside("snapshot")
    os.kill(
        ancestor(caught(chaos.folder, job), "CoarseGrainedExecutorBackend"), signal.SIGKILL
    )  # its tasks run on the other one
    job.result(_PATIENCE_SECONDS)
    assert committed(chaos.location) == expected


def test_a_driver_is_killed_while_its_tasks_go_on(chaos: Chaos, expected: dict[str, list[Any]]) -> None:
    ordered = order(chaos.location, chaos.folder, "record", chaos.cluster.settings)
    command = [sys.executable, "-m", "tests.chaos.job", ordered]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "1\n"
        caught(chaos.folder)
        driver.kill()
    chaos.let_go()  # what it has left on Spark goes on beside the next attempt
    chaos.run()
    assert committed(chaos.location) == expected


@pytest.mark.parametrize("write", sorted(random.Random(_KILLS).sample(_WRITES, _KILLS)))
def test_a_driver_is_killed_anywhere(chaos: Chaos, expected: dict[str, list[Any]], write: int) -> None:
    ordered = order(chaos.location, chaos.folder, "none", chaos.cluster.settings, write)
    killed = subprocess.run([sys.executable, "-m", "tests.chaos.job", ordered], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    chaos.run()
    assert committed(chaos.location) == expected


def test_the_connect_server_is_killed_between_checkpoints(chaos: Chaos, expected: dict[str, list[Any]]) -> None:
    def replace_server(epoch: CompletedEpoch) -> None:
        if epoch.checkpoint_id == 2:
            chaos.cluster.kill_server()
            chaos.cluster.start_server()

    chaos.run(then=replace_server)  # the master opens another session, and runs the epoch again
    assert committed(chaos.location) == expected


@pytest.mark.skipif(not _KILLS, reason="a part of make chaos")
def test_a_spark_worker_is_killed_in_mid_epoch(chaos: Chaos, expected: dict[str, list[Any]]) -> None:
    job = chaos.run_beside("record")
    os.kill(ancestor(caught(chaos.folder, job), "deploy.worker.Worker"), signal.SIGKILL)
    job.result(_PATIENCE_SECONDS)
    assert committed(chaos.location) == expected
    chaos.cluster.start_worker()


# --- slots of groups whose tasks have more cores than others; two executors have two cores each ---


def with_cores(cores: float, parallelism: int = 3) -> JobGraph:
    def cores_of_this_task(value: Any) -> int:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return int(context.cpus())

    group = SlotSharingGroup.builder("large").set_cpu_cores(cores).set_task_heap_memory_mb(64).build()
    numbers = environment(parallelism).from_collection([1, 2, 3, 4], LONG).uid("numbers")
    return collect_graph(
        numbers.rebalance()
        .map(cores_of_this_task, LONG)
        .uid("large")
        .slot_sharing_group(group)
        .set_parallelism(parallelism)
    )


def slots_attempt(
    graph: JobGraph, folder: Path, cluster: Cluster, said: list[str], mode: ExchangeMode = ExchangeMode.SPARK
) -> JobAttempt:
    config = JobConfig("slots", StorageLocation(str(folder)), cluster.settings, exchange=ExchangeOptions(mode))
    return JobAttempt(graph, config, owner="test", on_progress=said.append)


def test_tasks_of_a_group_have_the_cores_of_its_slots(cluster: Cluster, tmp_path: Path) -> None:
    said: list[str] = []
    with slots_attempt(with_cores(1.5), tmp_path, cluster, said) as running:
        running.run_epoch()
        assert collected(running.graph, running.collected) == [2] * 4
    assert any(line.startswith("job 'slots' needs 7 slots, and Spark has ") for line in said), (
        "one, and six of the group"
    )


def test_slots_of_live_tasks_have_the_cores_of_their_group(cluster: Cluster, tmp_path: Path) -> None:
    with slots_attempt(with_cores(1.5, 1), tmp_path, cluster, [], ExchangeMode.PIPELINED) as running:
        running.run_epoch()
        assert collected(running.graph, running.collected) == [2] * 4


@pytest.mark.parametrize("mode", [ExchangeMode.SPARK, ExchangeMode.PIPELINED])
def test_no_executor_has_as_many_cores(cluster: Cluster, tmp_path: Path, mode: ExchangeMode) -> None:
    with (
        slots_attempt(with_cores(64, 1), tmp_path, cluster, [], mode) as running,
        pytest.raises(NoResourceAvailableError, match="no executor of Spark has as many cores"),
    ):
        running.run_epoch()
