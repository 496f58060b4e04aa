from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, Definitions, materialize

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import build_flink_jobs, flink_assets
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.orchestration.programs import Count
from tests.runtime.harness import run_rows


def program(table: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    source = CollectionSource(["x", "y", "x"], Types.STRING(), records_per_epoch=2)
    words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
    counts = words.blocking().key_by(lambda word: word, Types.STRING())
    counted = counts.process(Count(), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("count")
    counted.sink_to(ParquetSink(str(table))).uid("table")
    return env


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)


def rows(table: Path) -> list[Any]:
    return sorted(tuple(row.values()) for row in pq.read_table(table).to_pylist())


def test_a_region_depends_on_the_operator_before_its_blocking_edge(tmp_path: Path) -> None:
    first, second = flink_assets(program(tmp_path), name="words")
    assert [a.node_def.name for a in (first, second)] == ["words_words", "words_words_exchange_count"]
    deps = {spec.key.path[-1]: [dep.asset_key.path[-1] for dep in spec.deps] for spec in (*first.specs, *second.specs)}
    assert deps == {"words": [], "count": ["words"], "table": ["count"]}
    names = {job.name for job in build_flink_jobs(program(tmp_path), name="words")}
    assert {"words_words_savepoint", "words_words_exchange_count_savepoint"} <= names


@pytest.mark.usefixtures("without_spark")
def test_both_regions_in_one_run_and_the_second_alone(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    table = tmp_path / "table"
    assets = flink_assets(program(table), name="words")
    assert materialize(assets, instance=instance, resources=resources).success
    assert rows(table) == [("x", 1), ("y", 1)]
    assert materialize([assets[0]], instance=instance, resources=resources).success
    config = {"ops": {"words_words_exchange_count": {"config": {"parallelism": 3}}}}
    assert materialize([assets[1]], instance=instance, resources=resources, run_config=config).success
    assert rows(table) == [("x", 1), ("x", 2), ("y", 1)]
    assert (tmp_path / "checkpoints/words/exchange/words.exchange/checkpoints/0000000002.json").exists()


@pytest.mark.usefixtures("without_spark")
def test_a_selection_of_both_ends_of_a_blocking_edge_runs_both_regions_in_order(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    definitions = Definitions(flink_assets(program(tmp_path / "table"), name="words"), resources=resources)
    ends = [AssetKey(["words", uid]) for uid in ("count", "words")]
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=ends).success
    assert rows(tmp_path / "table") == [("x", 1), ("y", 1)]
    assert all(instance.get_latest_materialization_event(AssetKey(["words", uid])) for uid in ("words", "table"))


@pytest.mark.spark
def test_on_spark(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
    table = tmp_path / "table"
    config = {"ops": {name: {"config": {"epochs": 0}} for name in ("words_words", "words_words_exchange_count")}}
    run = materialize(
        flink_assets(program(table), name="words"), instance=instance, resources=resources, run_config=config
    )
    assert run.success
    assert rows(table) == [("x", 1), ("x", 2), ("y", 1)]
