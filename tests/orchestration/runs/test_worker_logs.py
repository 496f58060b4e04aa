"""What user functions log goes to the log of the Dagster run. What they print goes to the output of the step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, materialize

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import SparkResource, flink_assets
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.spark.sessions import SparkSettings, get_session


def double(value: int) -> int:
    logging.getLogger("shop").warning("doubles %d", value)
    print(f"printed by a worker: {value}")
    return value * 2


@pytest.mark.spark
def test_logs_and_prints_of_workers_reach_the_run(
    tmp_path: Path,
    instance: DagsterInstance,
    resources: dict[str, Any],
    spark_settings: SparkSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job_session, "get_session", lambda settings: get_session(spark_settings))
    env = StreamExecutionEnvironment.get_execution_environment()
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
