"""Late records and metrics of user functions, from the tasks to Dagster and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import (
    AssetKey,
    AssetSelection,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    TableMetadataValue,
    define_asset_job,
)

from dagster_flinkpy.cli import main
from dagster_flinkpy.common import Row, Time, Types, WatermarkStrategy
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import FlinkAssetChecks, flink_assets
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.runtime.harness import run_rows, spark_order

EVENT = Types.ROW_NAMED(["key", "time"], [Types.STRING(), Types.LONG()])
EVENTS = [("c", 1), ("b", 25_000), ("c", 30_000), ("b", 5_000), ("c", 6_000), ("b", 31_000)]
WINDOW = AssetKey(["visits", "window"])


class OfRow(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value.time)


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group()
        self.seen = group.counter("seen")
        self.times = group.add_group("event").distribution("time")
        self.last = 0
        group.gauge("last", lambda: self.last)

    def map(self, value: Any) -> Any:
        self.seen.inc()
        self.times.update(value.time)
        self.last = value.time
        return value


def visits(table: Path, events: list[tuple[str, int]]) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_max_parallelism(16)
    source = CollectionSource([Row(*event) for event in events], EVENT, records_per_epoch=3)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(OfRow())
    events = env.from_source(source, strategy, "events").uid("events")
    measured = events.key_by("key").map(Measured(), EVENT).set_parallelism(2).uid("measured")
    windows = measured.key_by("key").window(TumblingEventTimeWindows.of(Time.seconds(10)))
    counts = windows.reduce(lambda a, b: b).uid("window")
    counts.sink_to(ParquetSink(str(table))).uid("table")
    return env


class Deployment:
    """The job, its checks, and the folder of its checkpoints."""

    def __init__(self, folder: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.folder, self.instance, self.resources = folder, instance, resources
        self.env = visits(folder / "table", EVENTS)
        self.checkpoints = folder / "checkpoints" / "visits"

    def run(self, checks: FlinkAssetChecks | None = None, **config: Any) -> ExecuteInProcessResult:
        definitions = Definitions(flink_assets(self.env, name="visits", checks=checks), resources=self.resources)
        job = definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process({"ops": {"visits": {"config": config}}}, self.instance)
        assert result.success
        return result

    def metadata(self, uid: str) -> dict[str, Any]:
        event = self.instance.get_latest_materialization_event(AssetKey(["visits", uid]))
        assert event is not None
        assert event.asset_materialization is not None
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}

    def subtasks(self, uid: str) -> list[Any]:
        event = self.instance.get_latest_materialization_event(AssetKey(["visits", uid]))
        assert event is not None
        assert event.asset_materialization is not None
        table = event.asset_materialization.metadata["flink/subtasks"]
        assert isinstance(table, TableMetadataValue)
        return list(table.records)

    def check(self, **options: Any) -> tuple[bool, str]:
        assets = flink_assets(self.env, name="visits", checks=FlinkAssetChecks(**options))
        mine = [key for each in assets for key in each.check_keys if key.name == "late_records"]
        definitions = Definitions(
            assets,
            resources=self.resources,
            jobs=[define_asset_job("chosen", AssetSelection.checks(*mine))],
        )
        result = definitions.resolve_job_def("chosen").execute_in_process(instance=self.instance)
        (found,) = result.get_asset_check_evaluations()
        assert found.asset_key == WINDOW
        return found.passed, found.description or ""

    def describe(self, *arguments: str) -> list[list[str]]:
        result = CliRunner().invoke(main, ["savepoint", "describe", str(self.checkpoints), *arguments])
        assert result.exit_code == 0, result.output
        return [line.split() for line in result.output.splitlines()]


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path, instance, resources)


def test_numbers_of_the_epoch_are_metadata(deployment: Deployment) -> None:
    deployment.run(epochs=2)
    assert deployment.metadata("window")["flink/late_records_dropped"] == 2
    measured = deployment.metadata("measured")
    assert "flink/late_records_dropped" not in measured
    own = {name: value for name, value in measured.items() if "/" not in name}
    assert own == {
        "seen": 3,
        "event.time.count": 3,
        "event.time.sum": 42_000,
        "event.time.min": 5_000,
        "event.time.max": 31_000,
        "event.time.mean": 14_000,
        "event.time.p50": pytest.approx(6_000, rel=0.032),
        "event.time.p95": 31_000,
        "event.time.p99": 31_000,
        "last": 31_000,
    }
    assert sorted(record.data["seen"] for record in deployment.subtasks("measured")) == [1, 2]
    assert [record.data["late_records_dropped"] for record in deployment.subtasks("window")] == [2]
    (single,) = (record.data for record in deployment.subtasks("measured") if record.data["seen"] == 1)
    assert single["event.time.p99"] == 6_000, "each subtask has its own percentiles"
    rows = deployment.describe()
    assert ["window", "late_records_dropped", "2"] in rows
    assert ["measured", "event.time.sum", "42,000"] in rows
    by_subtask = {row[0]: row[1:] for row in deployment.describe("--uid", "measured") if row}
    assert sorted(by_subtask["seen"]) == ["1", "2"], "each key has its own subtask"


def test_the_check_of_late_records(deployment: Deployment) -> None:
    deployment.run(epochs=1)
    assert deployment.check(max_late_records=0)[0]
    deployment.run(epochs=1)
    assert deployment.check()[0], "without a limit it only tells"
    assert deployment.check(max_late_records=2)[0]
    passed, description = deployment.check(max_late_records=1)
    assert not passed
    assert "2 records came too late" in description
    assert "side_output_late_data()" in description


def test_late_records_of_epochs_without_a_materialization_are_not_forgotten(deployment: Deployment) -> None:
    deployment.env = visits(deployment.folder / "table", [*EVENTS, ("c", 60_000), ("b", 61_000), ("c", 62_000)])
    result = deployment.run(FlinkAssetChecks(max_late_records=1), epochs=3)
    assert deployment.metadata("window")["flink/late_records_dropped"] == 2
    (late,) = (each for each in result.get_asset_check_evaluations() if each.check_name == "late_records")
    assert not late.passed
    assert "2 records came too late for any window since the event before" in str(late.description)
    assert deployment.check(max_late_records=2)[0]
    assert not deployment.check(max_late_records=1)[0]
    assert ["window", "late_records_dropped", "0"] in deployment.describe(), "the last epoch"


def test_without_a_materialization_the_last_epoch_counts(deployment: Deployment) -> None:
    deployment.run(epochs=2)
    deployment.instance.wipe_assets([WINDOW])
    passed, description = deployment.check(max_late_records=1)
    assert not passed
    assert "in the last epoch" in description


def test_a_limit_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_late_records=-1"):
        FlinkAssetChecks(max_late_records=-1)
