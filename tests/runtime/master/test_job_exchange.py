"""Which exchange a job uses."""

from __future__ import annotations

import socket
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import (
    CheckpointError,
    NoResourceAvailableError,
    SlotLostError,
    UnsupportedEnvironmentError,
)
from dagster_flinkpy.runtime.master.deployments import job_exchange
from dagster_flinkpy.runtime.master.deployments.pipelined_region import PipelinedRegion
from dagster_flinkpy.runtime.master.failover import FailoverConfig, RestartIndividualStrategy
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.slots.slot_pool import SlotPool
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import TaskSlots
from dagster_flinkpy.storage import StorageLocation
from tests.pyspark_versions import since
from tests.runtime.harness import HarnessAttempt, collect_graph, collected, make_job
from tests.runtime.programs import COUNTED, EVENT, CountPerKey, FolderSink, environment, events
from tests.waiting import LIMIT, until

RECORDS = [(f"k{i % 3}", i, i) for i in range(12)]
TOTALS = {f"k{key}": sum(range(key, 12, 3)) for key in range(3)}


@pytest.fixture(autouse=True)
def _slots_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long slots take to start depends on what else the machine does."""
    monkeypatch.setattr(job_exchange, "_AUTO_TIMEOUT", timedelta(seconds=LIMIT))
    monkeypatch.setattr(job_exchange, "_FREE_SECONDS", float(LIMIT))


def program(folder: Path, parallelism: int) -> tuple[JobGraph, FolderSink]:
    env, sink = environment(parallelism), FolderSink(folder / "sink")
    counts = events(env, RECORDS, per_epoch=6).key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    counts.sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def said_by(folder: Path, spark: SparkSettings, parallelism: int = 2, **config: Any) -> str:
    """Runs a job, checks its rows, and returns what its progress says of the exchange."""
    graph, sink = program(folder, parallelism)
    lines: list[str] = []
    job = JobConfig("job", StorageLocation(str(folder / "store")), spark=spark, **config)
    with JobAttempt(graph, job, owner="test", on_progress=lines.append) as attempt:
        list(attempt.run_epochs())
    rows = sink.rows()
    assert [(key, number) for key, number, _ in rows] == [(key, i + 1) for key in TOTALS for i in range(4)]
    assert {key: total for key, _, total in rows} == TOTALS
    said = [line for line in lines if "execution.exchange" in line]
    assert len(said) == 1
    return said[0]


@pytest.mark.spark
def test_auto_lets_tasks_live_if_there_are_slots(tmp_path: Path, spark_settings: SparkSettings) -> None:
    assert said_by(tmp_path, spark_settings) == "job 'job': tasks live in slots (execution.exchange: pipelined)"


@pytest.mark.spark
@pytest.mark.parametrize(("had", "task_slots"), [(1, None), (2, 1)])
def test_auto_runs_spark_jobs_if_there_are_too_few_slots(
    had: int, task_slots: int | None, tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = TaskSlots({"driver": had}, had, 1)
    for name in ("slots_of_local_master", "ask_for_slots"):
        monkeypatch.setattr(f"dagster_flinkpy.runtime.master.slots.job_slots.{name}", lambda *_: few)
    said = said_by(tmp_path, spark_settings, exchange=ExchangeOptions(task_slots=task_slots))
    why = f"live tasks need 2 slots and leave one to others, and Spark has {had}"
    assert said == f"job 'job': each epoch is a Spark job (execution.exchange: spark), because {why}"


@pytest.mark.spark
@pytest.mark.parametrize("most", [None, 4])
def test_auto_lets_tasks_live_if_spark_adds_executors(
    most: int | None, tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dynamic allocation, a job that is the first one finds hardly any."""
    for name, told in (("slots_of_local_master", None), ("ask_for_slots", TaskSlots({"1": 1}, most, 1))):
        monkeypatch.setattr(f"dagster_flinkpy.runtime.master.slots.job_slots.{name}", lambda *_, told=told: told)
    assert "tasks live in slots" in said_by(tmp_path, spark_settings)


@pytest.mark.short("told by others")
@since("4.0", "server that runs share")
@pytest.mark.spark
@pytest.mark.parametrize("told", [True, False], ids=["told by others", "on a server elsewhere"])
def test_jobs_on_one_server_do_not_starve_each_other(
    told: bool, tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not told:
        monkeypatch.setattr(job_exchange, "kept_slots", lambda _: None)
    graph, sink = program(tmp_path / "first", 2)
    config = JobConfig("first", StorageLocation(str(tmp_path / "store")), spark=spark_settings)
    with JobAttempt(graph, config, owner="test") as first:
        first.run_epoch()  # from now on its tasks have two of the three slots
        monkeypatch.setattr(job_exchange, "_FREE_SECONDS", 2.0)
        monkeypatch.setattr(job_exchange, "_AUTO_TIMEOUT", timedelta(seconds=5))
        for parallelism in (1, 2):
            said = said_by(tmp_path / str(parallelism), spark_settings, parallelism)
            assert "each epoch is a Spark job (execution.exchange: spark), because" in said
            assert said.endswith("no slot would be left to others") or not told
        list(first.run_epochs())
    assert sum(number == 1 for _, number, _ in sink.rows()) == len(TOTALS)


@pytest.mark.spark
def test_auto_runs_spark_jobs_if_single_tasks_are_retried(tmp_path: Path, spark_settings: SparkSettings) -> None:
    individual = FailoverConfig(failover=RestartIndividualStrategy())
    assert said_by(tmp_path, spark_settings, failover=individual).endswith("the failover strategy retries single tasks")


@pytest.mark.spark
def test_tasks_do_not_live_where_spark_copies_slow_tasks(
    tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it does not say how many slots it has, as with spark.default.parallelism."""
    for name, told in (("slots_of_local_master", None), ("ask_for_slots", None), ("copies_slow_tasks", True)):
        monkeypatch.setattr(f"dagster_flinkpy.runtime.master.slots.job_slots.{name}", lambda _, told=told: told)
    assert "(execution.exchange: spark), because Spark would start copies" in said_by(tmp_path, spark_settings)
    with pytest.raises(UnsupportedEnvironmentError, match=r"unset spark\.speculation\.task\.duration\.threshold"):
        said_by(tmp_path / "asked", spark_settings, exchange=ExchangeOptions(ExchangeMode.PIPELINED))


@pytest.mark.spark
def test_auto_decides_again_after_a_rescale(tmp_path: Path, spark_settings: SparkSettings) -> None:
    env, sink, lines = environment(1), FolderSink(tmp_path / "sink"), list[str]()
    counts = events(env, RECORDS, per_epoch=3).key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    counts.sink_to(sink).uid("sink")
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), spark=spark_settings)
    with JobAttempt(env.get_job_graph(), config, owner="test", on_progress=lines.append) as attempt:
        for parallelism in (2, 1, 3):
            attempt.run_epoch()
            attempt._rescale(parallelism)
        attempt.run_epoch()
    assert {key: total for key, _, total in sink.rows()} == TOTALS
    assert [line for line in lines if "execution.exchange" in line] == [
        "job 'job': tasks live in slots (execution.exchange: pipelined)",
        "job 'job': tasks live in slots, 2 in a process (execution.exchange: pipelined)",
    ]


def test_a_rescale_does_not_miss_the_slots_that_it_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = SlotPool.release

    def release_and_wait(pool: SlotPool, names: Collection[str]) -> None:
        slots = [pool._slots[name] for name in names]
        release(pool, names)
        until(lambda: all(slot.is_over for slot in slots), "slots have not ended")

    monkeypatch.setattr(SlotPool, "release", release_and_wait)
    env, sink = environment(2), FolderSink(tmp_path / "sink")
    counts = events(env, RECORDS, per_epoch=3).blocking().key_by("key").process(CountPerKey(), COUNTED).uid("counts")
    counts.sink_to(sink).uid("sink")
    with HarnessAttempt(env.get_job_graph(), tmp_path, live=True) as attempt:
        attempt.run_epoch()
        attempt._rescale(1)  # the tasks of the second region are still in both of its slots
        list(attempt.run_epochs())
    assert {key: total for key, _, total in sink.rows()} == TOTALS


@pytest.mark.spark
def test_auto_spares_a_run_of_one_epoch_the_start_of_slots_if_nothing_is_exchanged(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    graph = collect_graph(events(environment(1), RECORDS, per_epoch=6).map(lambda event: event, EVENT).uid("same"))
    config, lines = JobConfig("job", StorageLocation(str(tmp_path)), spark=spark_settings), list[str]()
    with JobAttempt(graph, config, owner="test", on_progress=lines.append) as attempt:
        list(attempt.run_epochs(1))
        assert len(collected(graph, attempt.collected)) == 6
        list(attempt.run_epochs())
        assert len(collected(graph, attempt.collected)) == 6
    assert [line for line in lines if "execution.exchange" in line] == [
        "job 'job': the epoch is a Spark job (execution.exchange: spark), because the run takes no other one, and "
        "exchanges no records",
        "job 'job': tasks live in slots (execution.exchange: pipelined)",
    ]


@pytest.mark.spark
@pytest.mark.parametrize("error", [NoResourceAvailableError, SlotLostError])
def test_auto_runs_spark_jobs_if_slots_do_not_start_or_do_not_reach_each_other(
    error: type[Exception], tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deploy(*_: Any) -> None:
        raise error("a firewall is in between")

    monkeypatch.setattr(PipelinedRegion, "request", deploy)
    assert said_by(tmp_path, spark_settings).endswith("because a firewall is in between")


@pytest.mark.spark
@pytest.mark.parametrize(("parallelism", "options"), [(3, ExchangeOptions()), (2, ExchangeOptions(task_slots=2))])
def test_slots_share_a_process_if_spark_has_too_few_or_the_job_says_so(
    parallelism: int, options: ExchangeOptions, tmp_path: Path, spark_settings: SparkSettings
) -> None:
    said = said_by(tmp_path, spark_settings, parallelism, exchange=options)
    assert said == "job 'job': tasks live in slots, 2 in a process (execution.exchange: pipelined)"


@pytest.mark.spark
def test_pipelined_ends_if_spark_has_fewer_cores_than_slots_that_share_no_process(
    tmp_path: Path, spark_settings: SparkSettings
) -> None:
    graph, sink = program(tmp_path, 4)
    options = ExchangeOptions(ExchangeMode.PIPELINED, slot_request_timeout=timedelta(seconds=5), task_slots=1)
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), spark=spark_settings, exchange=options)
    with (
        pytest.raises(NoResourceAvailableError, match="of 4 slots did not start within 5 s") as raised,
        JobAttempt(graph, config, owner="test") as attempt,
    ):
        list(attempt.run_epochs())
    assert raised.value.needed == 4
    assert sink.rows() == sink.staged() == []
    always = ExchangeOptions(ExchangeMode.PIPELINED)
    again = said_by(tmp_path / "again", spark_settings, exchange=always)  # the cores are free
    assert "tasks live in slots" in again


def test_slots_that_are_threads_of_this_process_share_none(tmp_path: Path) -> None:
    said = said_by(tmp_path, SparkSettings(), 8, exchange=ExchangeOptions(ExchangeMode.PIPELINED), in_process=True)
    assert said == "job 'job': tasks live in slots (execution.exchange: pipelined)"


def test_pipelined_says_that_slots_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deploy(*_: Any) -> None:
        raise NoResourceAvailableError("2 of 2 slots did not start", needed=2)

    monkeypatch.setattr(PipelinedRegion, "request", deploy)
    graph, sink = program(tmp_path, 2)
    options = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), exchange=options, in_process=True)
    with pytest.raises(NoResourceAvailableError), JobAttempt(graph, config, owner="test") as attempt:
        list(attempt.run_epochs())
    assert not (tmp_path / "sink").exists() or sink.rows() == []


def test_the_master_knows_how_many_records_its_tasks_have_read(tmp_path: Path) -> None:
    graph, _ = program(tmp_path, 2)
    with HarnessAttempt(graph, tmp_path, live=True) as attempt:
        assert attempt._deployed.master._records() == 0
        attempt.run_epoch()
        read = attempt._deployed.master._records()
        assert read > 0
        attempt.run_epoch()
        assert attempt._deployed.master._records() > read


def test_a_lane_that_goes_on_after_the_end_asks_for_no_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = program(tmp_path, 1)
    with HarnessAttempt(graph, tmp_path, live=True) as attempt:
        deployed = attempt._deployed
    monkeypatch.setattr(job_exchange, "start_here", lambda descriptor: pytest.fail("nobody would end it"))
    with pytest.raises(CheckpointError, match="has ended"):
        attempt._exchange.run(make_job(graph, tmp_path), deployed.regions.sessions[0], deployed.slots)


def test_a_second_interrupt_ends_the_slots_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise this process, if it is that of a notebook, would keep them for ever."""
    graph, _ = program(tmp_path, 1)
    with pytest.raises(KeyboardInterrupt, match="second"), HarnessAttempt(graph, tmp_path, live=True) as attempt:
        attempt.run_epoch()
        monkeypatch.setattr(PipelinedRegion, "cancel", lambda _: (_ for _ in ()).throw(KeyboardInterrupt("second")))
        raise KeyboardInterrupt("first")
    pool = attempt._exchange._pool
    assert pool is not None
    assert pool._watcher is not None
    assert all(slot.is_over for slot in pool._processes)
    assert not pool._watcher.is_alive()


@pytest.mark.parametrize(
    "master",
    ["spark://127.0.0.1:7077,127.0.0.2:7077", "k8s://https://127.0.0.1:6443", "k8s://https://127.0.0.1", "yarn"],
)
def test_the_address_of_the_driver_towards_each_kind_of_cluster(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.0.1")
    assert job_exchange.host_of_driver(SparkSettings(mode="classic", master=master)) == "127.0.0.1"
