from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, Definitions, ExecuteInProcessResult, materialize

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
from tests.runtime.harness import HarnessAttempt, run_rows


class Tens(Count):
    def process_element(self, word: str, context: Any) -> Any:
        for same, count in super().process_element(word, context):
            yield same, 10 * count


def program(table: Path, function: Count | None = None, retain: timedelta | None = None) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    source = CollectionSource(["x", "y", "x"], Types.STRING(), records_per_epoch=2)
    words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
    counts = words.blocking(retain).key_by(lambda word: word, Types.STRING())
    counted = counts.process(function or Count(), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("count")
    counted.sink_to(ParquetSink(str(table))).uid("table")
    return env


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)


def rows(table: Path) -> list[Any]:
    return sorted(tuple(row.values()) for row in pq.read_table(table).to_pylist())


def logs(instance: DagsterInstance, result: ExecuteInProcessResult) -> list[str]:
    return [str(entry.user_message) for entry in instance.all_logs(result.run_id)]


def test_a_program_with_blocking_edges_is_one_step_and_one_set_of_jobs(tmp_path: Path) -> None:
    (assets,) = flink_assets(program(tmp_path), name="words")
    assert assets.node_def.name == "words"
    deps = {spec.key.path[-1]: [dep.asset_key.path[-1] for dep in spec.deps] for spec in assets.specs}
    assert deps == {"words": [], "count": ["words"], "table": ["count"]}
    names = {job.name for job in build_flink_jobs(program(tmp_path), name="words")}
    assert "words_savepoint" in names
    assert all("exchange" not in name for name in names)


@pytest.mark.usefixtures("without_spark")
def test_all_regions_have_one_checkpoint(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
    table = tmp_path / "table"
    assets = flink_assets(program(table), name="words")
    first = materialize(assets, instance=instance, resources=resources)
    assert first.success
    assert "2 records read, 2 rows committed" in "".join(logs(instance, first)), "not 4"
    assert rows(table) == [("x", 1), ("y", 1)]
    config = {"ops": {"words": {"config": {"parallelism": 3}}}}
    assert materialize(assets, instance=instance, resources=resources, run_config=config).success
    assert rows(table) == [("x", 1), ("x", 2), ("y", 1)]
    checkpoints = sorted(path.parent.name for path in (tmp_path / "checkpoints/words").glob("chk-*/_metadata"))
    assert checkpoints == ["chk-1", "chk-2"]
    assert not list((tmp_path / "checkpoints/words/exchange").rglob("*.arrow"))


@pytest.mark.usefixtures("without_spark")
def test_jobs_of_an_earlier_release_are_not_left_behind_in_silence(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    """They were one for each region, with a checkpoint of its own."""
    graph = program(tmp_path / "table").get_job_graph()
    with HarnessAttempt(graph, tmp_path / "checkpoints", job_id="words.words") as former:
        former.run_epoch()
    committed = rows(tmp_path / "table")

    def run(**config: Any) -> ExecuteInProcessResult:
        return materialize(
            flink_assets(program(tmp_path / "table"), name="words"),
            instance=instance,
            resources=resources,
            run_config={"ops": {"words": {"config": config}}},
            raise_on_error=False,
        )

    (failed,) = (event for event in run().all_events if event.is_step_failure)
    assert "in the checkpoints of jobs 'words.words': regions used to be separate jobs" in str(
        failed.step_failure_data.user_failure_data.description
    )
    assert rows(tmp_path / "table") == committed
    assert run(start_empty=True).success


@pytest.mark.usefixtures("without_spark")
def test_a_selection_runs_all_regions(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
    definitions = Definitions(flink_assets(program(tmp_path / "table"), name="words"), resources=resources)
    ends = [AssetKey(["words", uid]) for uid in ("count", "words")]
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=ends).success
    assert rows(tmp_path / "table") == [("x", 1), ("y", 1)]
    assert all(instance.get_latest_materialization_event(AssetKey(["words", uid])) for uid in ("words", "table"))


@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_on_spark(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
    table = tmp_path / "table"
    config = {"ops": {"words": {"config": {"epochs": 0}}}}
    run = materialize(
        flink_assets(program(table), name="words"), instance=instance, resources=resources, run_config=config
    )
    assert run.success
    assert rows(table) == [("x", 1), ("x", 2), ("y", 1)]


@pytest.mark.system
@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_an_operator_is_recomputed_on_spark(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    table, day = tmp_path / "table", timedelta(days=1)
    old, new = program(table, retain=day), program(table, Tens(), day)
    assert materialize(flink_assets(old, name="words"), instance=instance, resources=resources).success
    assert rows(table) == [("x", 1), ("y", 1)]
    [switch] = [each for each in build_flink_jobs(new, name="words") if each.name == "words_switch"]
    recompute = {"ops": {"switch_words": {"config": {"recompute": ["count"]}}}}
    assert switch.execute_in_process(recompute, instance=instance, resources=resources).success
    assert materialize(flink_assets(new, name="words"), instance=instance, resources=resources).success
    assert rows(table) == [("x", 10), ("x", 20), ("y", 10)]
