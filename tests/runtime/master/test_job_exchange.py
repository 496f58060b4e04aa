"""Which exchange a job uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import NoResourceAvailableError, SlotLostError
from dagster_flinkpy.runtime.master import job_exchange
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.pipelined_exchange import PipelinedExchange
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import TaskSlots
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import COUNTED, CountPerKey, FolderSink, environment, events

RECORDS = [(f"k{i % 3}", i, i) for i in range(12)]
TOTALS = {f"k{key}": sum(range(key, 12, 3)) for key in range(3)}


def program(folder: Path, parallelism: int) -> tuple[JobGraph, FolderSink]:
    env, sink = environment(parallelism), FolderSink(folder / "sink")
    stream = events(env, RECORDS, per_epoch=6).key_by("key")
    stream.process(CountPerKey(), COUNTED).uid("counts").sink_to(sink).uid("sink")
    return env.get_job_graph(), sink


def said_by(folder: Path, spark: SparkSettings, parallelism: int = 2, mode: ExchangeMode = ExchangeMode.AUTO) -> str:
    """Runs a job, checks its rows, and returns what its progress says of the exchange."""
    graph, sink = program(folder, parallelism)
    lines: list[str] = []
    config = JobConfig("job", StorageLocation(str(folder / "store")), spark=spark, exchange=ExchangeOptions(mode))
    with JobAttempt(graph, config, owner="test", on_progress=lines.append) as attempt:
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
def test_auto_runs_spark_jobs_if_there_are_too_few_slots(
    tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = TaskSlots({"driver": 1}, None, 1)
    for name in ("slots_of_local_master", "ask_for_slots"):
        monkeypatch.setattr(f"dagster_flinkpy.runtime.master.job_slots.{name}", lambda *_: few)
    said = said_by(tmp_path, spark_settings)
    assert said.startswith("job 'job': each epoch is a Spark job (execution.exchange: spark), because the job needs 2")


@pytest.mark.spark
@pytest.mark.parametrize("error", [NoResourceAvailableError, SlotLostError])
def test_auto_runs_spark_jobs_if_slots_do_not_start_or_do_not_reach_each_other(
    error: type[Exception], tmp_path: Path, spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deploy(*_: Any) -> None:
        raise error("a firewall is in between")

    monkeypatch.setattr(PipelinedExchange, "deploy", deploy)
    assert said_by(tmp_path, spark_settings).endswith("because a firewall is in between")


def test_pipelined_says_that_slots_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deploy(*_: Any) -> None:
        raise NoResourceAvailableError("2 of 2 slots did not start", needed=2)

    monkeypatch.setattr(job_exchange.PipelinedExchange, "deploy", deploy)
    graph, sink = program(tmp_path, 2)
    options = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), exchange=options, in_process=True)
    with pytest.raises(NoResourceAvailableError), JobAttempt(graph, config, owner="test") as attempt:
        list(attempt.run_epochs())
    assert not (tmp_path / "sink").exists() or sink.rows() == []
