"""What user functions and the library log goes to the log of the Dagster run, what is printed to the step's output."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, materialize
from dagster_graphql.schema.logs.log_level import GrapheneLogLevel

from dagster_flinkpy.common import Configuration, Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext
from dagster_flinkpy.orchestration import SparkResource, flink_assets
from dagster_flinkpy.orchestration.runs.job_run import to_run
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.commits import commit_retries
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.spark.user_logs import LogEntry
from tests.runtime.harness import run_rows
from tests.runtime.programs import FolderSink


def double(value: int) -> int:
    logging.getLogger("shop").warning("doubles %d", value)
    print(f"printed by a worker: {value}")
    return value * 2


@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["pipelined", "spark"])
def test_logs_and_prints_of_workers_reach_the_run(
    exchange: str,
    tmp_path: Path,
    instance: DagsterInstance,
    resources: dict[str, Any],
    spark_settings: SparkSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    options = Configuration.from_dict({"execution.exchange": exchange})
    env = StreamExecutionEnvironment.get_execution_environment(options)
    numbers = env.from_collection([21], Types.LONG()).uid("numbers")
    numbers.rebalance().map(double, Types.LONG()).uid("double").sink_to(ParquetSink(str(tmp_path / "out"))).uid("out")
    result = materialize(
        flink_assets(env, name="shop"), instance=instance, resources={**resources, "spark": SparkResource()}
    )
    logged = [
        (entry.level, entry.user_message)
        for entry in instance.all_logs(result.run_id)
        if entry.dagster_event is None and "doubles" in entry.user_message
    ]
    assert logged == [(logging.WARNING, "[double, subtask 0, checkpoint 1] shop: doubles 21")]
    assert "printed by a worker: 21\n" in capsys.readouterr().out


class Busy(FolderSink):
    """Cannot commit at once."""

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return _Busy(super().create_committer(context))


class _Busy(Committer):
    def __init__(self, inner: Committer) -> None:
        self._inner = inner

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            if request.number_of_retries:
                self._inner.commit([request])
            else:
                request.retry_later(OSError("503 Slow Down"))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        return self._inner.abort_lingering(keep)


def test_warnings_of_the_library_are_in_the_log_of_the_run(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    monkeypatch.setattr(commit_retries, "_sleep", lambda seconds: None)
    record = Types.ROW_NAMED(["key", "time", "value"], [Types.STRING(), Types.LONG(), Types.LONG()])
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([("a", 1, 1)], record).uid("numbers").sink_to(Busy(tmp_path / "out")).uid("out")
    result = materialize(flink_assets(env, name="shop"), instance=instance, resources=resources)
    warnings = [e.user_message for e in instance.all_logs(result.run_id) if e.level == logging.WARNING]
    assert warnings == [
        "sink 'out' cannot commit its output of checkpoint 1 now (try 1 of 11); it tries again in 0.1 s: 503 Slow Down"
    ]
    assert logging.getLogger("dagster_flinkpy").handlers == []


@pytest.mark.parametrize(
    ("level", "shown"), [(20, "INFO"), (25, "INFO"), (39, "WARNING"), (50, "CRITICAL"), (70, "CRITICAL")]
)
def test_records_of_own_levels_have_one_that_dagster_shows(level: int, shown: str) -> None:
    """Dagster shows no page of a run that has a record of another one."""

    class Log:
        def log(self, level: int, text: str) -> None:
            taken.append((level, text))

    taken: list[tuple[int, str]] = []
    log: Any = Log()
    to_run(log)(LogEntry("op", 0, 7, level, "shop", "a notice"))
    assert [(GrapheneLogLevel.from_level(level).name, text) for level, text in taken] == [
        (shown, "[op, subtask 0, checkpoint 7] shop: a notice")
    ]
