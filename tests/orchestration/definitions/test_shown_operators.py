"""Which operators are assets, and where the numbers and checks of the others are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    TableColumnDep,
    TableColumnLineage,
    TableMetadataValue,
    materialize,
)
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph

from dagster_flinkpy.checkpoint import verify
from dagster_flinkpy.common import Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError, StorageError
from dagster_flinkpy.orchestration import (
    FlinkAssetChecks,
    build_checkpoint_sensor,
    build_flink_asset_specs,
    build_flink_jobs,
    flink_assets,
)
from dagster_flinkpy.orchestration.dagster_internals import TableMetadataSet
from dagster_flinkpy.orchestration.definitions.shown_operators import Show, ShownOperators
from dagster_flinkpy.orchestration.flink_job import flink_job
from dagster_flinkpy.runtime.master import job as runtime_job
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage import StorageLocation
from tests.orchestration.programs import Count, FakeAttempt, word_count
from tests.runtime.harness import run_rows, spark_order
from tests.runtime.programs import EVENT, event_time

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
MODES: list[Show] = ["operators", "tables"]


def source(env: StreamExecutionEnvironment, uid: str) -> DataStream:
    return env.from_source(CollectionSource(["x"], Types.STRING()), WatermarkStrategy.no_watermarks(), uid).uid(uid)


def sink(stream: DataStream, uid: str) -> None:
    stream.sink_to(ParquetSink(f"/tmp/none/{uid}")).uid(uid)


def fan() -> StreamExecutionEnvironment:
    """A counts and a copies table of one stream, with operators without uid in between, and something printed."""
    env = StreamExecutionEnvironment.get_execution_environment()
    words = source(env, "words").filter(bool).map(str.lower, Types.STRING()).uid("lower").filter(bool)
    counts = words.key_by(lambda word: word, Types.STRING()).process(Count(), PAIR).uid("counts")
    sink(counts, "counts_table")
    sink(words, "copies")
    counts.map(str, Types.STRING()).print()
    return env


def blocked() -> StreamExecutionEnvironment:
    """Three regions; that in the middle has neither source nor sink."""
    env = StreamExecutionEnvironment.get_execution_environment()
    first = source(env, "words").map(str.lower, Types.STRING()).uid("lower").blocking()
    middle = first.map(str.upper, Types.STRING()).uid("upper").map(str, Types.STRING()).uid("text")
    sink(middle.blocking().filter(bool).uid("some"), "table")
    return env


def graph(definitions: Iterable[AssetsDefinition]) -> dict[str, list[str]]:
    """The assets, and what each depends on."""
    specs = [spec for each in definitions for spec in each.specs]
    return {spec.key.path[-1]: [dep.asset_key.path[-1] for dep in spec.deps] for spec in specs}


def hidden(env: StreamExecutionEnvironment, show: Show) -> dict[str, list[str]]:
    """By asset, the operators whose numbers it shows."""
    found = ShownOperators(flink_job(env, "job").graph, show).hidden
    return {uid: [vertex.uid for vertex in them] for uid, them in found.items()}


def test_operators_with_a_uid_are_assets() -> None:
    assert graph(flink_assets(fan(), name="job")) == {
        "words": [],
        "lower": ["words"],
        "counts": ["lower"],
        "counts_table": ["counts"],
        "copies": ["lower"],
    }
    assert hidden(fan(), "operators") == {
        "words": [],
        "lower": ["filter"],
        "counts": ["filter_2", "map", "print"],
        "counts_table": [],
        "copies": ["filter_2"],
    }


def test_tables_are_sources_and_sinks() -> None:
    expected = {"words": [], "counts_table": ["words"], "copies": ["words"]}
    assert graph(flink_assets(fan(), name="job", show="tables")) == expected
    specs = build_flink_asset_specs(fan(), name="job", show="tables")
    assert [spec.key.path[-1] for spec in specs] == list(expected)
    assert hidden(fan(), "tables") == {
        "words": ["map", "print"],
        "counts_table": ["filter", "lower", "filter_2", "counts"],
        "copies": ["filter", "lower", "filter_2"],
    }


def test_ends_of_blocking_edges_are_hidden() -> None:
    operators = {"words": [], "lower": ["words"], "upper": ["lower"], "text": ["upper"], "some": ["text"]}
    assert graph(flink_assets(blocked(), name="job")) == {**operators, "table": ["some"]}
    tables = flink_assets(blocked(), name="job", show="tables")
    assert graph(tables) == {"words": [], "table": ["words"]}
    assert hidden(blocked(), "operators") == {
        "words": [],
        "lower": [],
        "upper": ["lower.exchange", "lower.exchange.upper"],
        "text": [],
        "some": ["text.exchange", "text.exchange.some"],
        "table": [],
    }
    between = hidden(blocked(), "tables")["table"]
    assert {"lower", "upper", "text", "some"} <= {*between}, "the sink shows all that is between it and the source"


def test_columns_pass_through_hidden_operators(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    sink(source(env, "words").filter(bool).filter(bool), "copies")
    sink(source(env, "others").map(str.lower, Types.STRING()).filter(bool), "changed")
    specs = {s.key.path[-1]: s for s in build_flink_asset_specs(env, name="job")}
    of_words = TableColumnDep(AssetKey(["job", "words"]), "value")
    lineage = {uid: TableMetadataSet.extract(spec.metadata).column_lineage for uid, spec in specs.items()}
    assert lineage["copies"] == TableColumnLineage({"value": [of_words]})
    of_others = TableColumnDep(AssetKey(["job", "others"]), "value")
    assert lineage["changed"] == TableColumnLineage({"value": [of_others]})


def test_the_code_version_covers_hidden_operators() -> None:
    def versions(function: Any) -> dict[str, str | None]:
        env = StreamExecutionEnvironment.get_execution_environment()
        sink(source(env, "words").map(function, Types.STRING()), "table")
        return {spec.key.path[-1]: spec.code_version for spec in build_flink_asset_specs(env, name="job")}

    lower, upper = versions(lambda word: word.lower()), versions(lambda word: word.upper())
    assert lower == versions(lambda word: word.lower())
    assert lower["words"] == upper["words"]
    assert lower["table"] != upper["table"]


@pytest.mark.parametrize("show", MODES)
def test_the_first_assets_of_a_region_depend_on_their_earlier_partition(show: Show) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    row = Types.ROW_NAMED(["word"], [Types.STRING()])
    files = ParquetSource("/tmp/none", row_type=row, partition_format="%Y-%m-%d")
    words = env.from_source(files, WatermarkStrategy.no_watermarks(), "words").uid("words")
    sink(words.filter(bool).uid("some").map(lambda r: r, row), "table")
    days = DailyPartitionsDefinition("2024-01-01")
    deps = graph(flink_assets(env, name="job", show=show, partitions_def=days))
    assert deps["words"] == ["words"]
    assert "table" not in deps["table"]
    (assets,) = flink_assets(env, name="job", show=show, partitions_def=days)
    assert {key.asset_key.path[-1] for key in assets.check_keys} == {"table"}


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="show='all': use 'operators' or 'tables'"):
        flink_assets(fan(), name="job", show="all")  # type: ignore[call-overload]


# --- checks -----------------------------------------------------------------------------------------------------------


def checked(assets: AssetsDefinition) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key in assets.check_keys:
        found.setdefault(key.asset_key.path[-1], set()).add(key.name)
    return found


STATE = {"snapshot_integrity", "restore_drill", "checkpoint_trend", "state_evolution"}
LAST = {"event_time", "lag", "lingering_transactions", "same_rows"}


def test_a_hidden_operator_is_checked_at_the_asset_that_shows_it() -> None:
    (operators,) = flink_assets(fan(), name="job", checks=FlinkAssetChecks())
    assert checked(operators) == {
        "counts": {*STATE, "event_time", "lag"},
        "counts_table": LAST,
        "copies": LAST,
        "lower": {"event_time"},
        "words": {"source_lag"},
    }
    (tables,) = flink_assets(fan(), name="job", show="tables", checks=FlinkAssetChecks())
    assert checked(tables) == {
        "words": {"event_time", "lag", "source_lag"},
        "counts_table": {*STATE, *LAST},
        "copies": LAST,
    }


def test_each_check_can_run_alone() -> None:
    """What must run with others, Dagster's page does not offer alone."""
    (assets,) = flink_assets(fan(), name="job", checks=FlinkAssetChecks())
    nodes = AssetGraph.from_assets([assets])
    assert all(nodes.get_execution_set_identifier(key) is None for key in assets.check_keys)
    assert len(assets.check_keys) == 16


# --- runs -------------------------------------------------------------------------------------------------------------


def windows(table: Path) -> StreamExecutionEnvironment:
    """Two operators with state, one behind the other, and a late record in the second epoch."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    records = [("a", 10, 1), ("b", 30_000, 1), ("a", 20, 1), ("a", 31_000, 1), ("b", 32_000, 1), ("b", 50_000, 1)]
    events = env.from_source(CollectionSource(records, EVENT, records_per_epoch=2), event_time(), "events")
    latest = events.uid("events").set_parallelism(1).key_by("key").reduce(lambda a, b: b).uid("latest")
    windows = latest.key_by("key").window(TumblingEventTimeWindows.of(Time.seconds(10)))
    windows.reduce(lambda a, b: b).uid("windows").filter(bool).sink_to(ParquetSink(str(table))).uid("table")
    return env


class Deployment:
    def __init__(self, folder: Path, instance: DagsterInstance, resources: dict[str, Any], show: Show) -> None:
        self.folder, self.instance, self.resources, self.show = folder, instance, resources, show

    def definitions(self, **options: Any) -> Definitions:
        checks = FlinkAssetChecks(**options)
        assets = flink_assets(windows(self.folder), name="job", show=self.show, checks=checks)
        return Definitions(assets, resources=self.resources)

    def run(self, *, checks: bool = True, epochs: int = 1, **options: Any) -> Any:
        definitions = self.definitions(**options)
        config = {"ops": {"job": {"config": {"epochs": epochs}}}}
        assets = None if checks else list(definitions.resolve_asset_graph().materializable_asset_keys)
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(config, self.instance, raise_on_error=False, asset_selection=assets)

    def numbers(self, uid: str) -> dict[str, Any]:
        event = self.instance.get_latest_materialization_event(AssetKey(["job", uid]))
        assert event is not None
        assert event.asset_materialization is not None
        return dict(event.asset_materialization.metadata)


@pytest.fixture
def tables(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path / "table", instance, resources, "tables")


def test_the_numbers_of_hidden_operators_are_in_the_table(tables: Deployment) -> None:
    assert tables.run(epochs=2).success
    facts = tables.numbers("table")
    table = facts["flink/operators"]
    assert isinstance(table, TableMetadataValue)
    rows = {row.data["operator"]: row.data for row in table.records}
    assert list(rows) == ["latest", "windows", "Filter"], "one without uid has its name"
    assert {row["parallelism"] for row in rows.values()} == {2}
    assert (rows["windows"]["late_records_dropped"], rows["latest"]["late_records_dropped"]) == (1, None)
    assert rows["latest"]["state_bytes"] > 0
    assert rows["Filter"]["state_bytes"] is None
    plotted = {name: entry.value for name, entry in facts.items() if not name.startswith(("flink/", "dagster/"))}
    assert set(plotted) == {
        *(f"latest/{n}" for n in ("records_in", "records_out", "key_count", "state_bytes", "delta_bytes")),
        *(f"windows/{n}" for n in ("records_in", "records_out", "key_count", "state_bytes", "delta_bytes")),
        "windows/late_records_dropped",
    }
    assert plotted["windows/late_records_dropped"] == 1
    assert plotted["latest/state_bytes"] == rows["latest"]["state_bytes"]
    assert "flink/operators" not in tables.numbers("events")


def test_checks_run_in_the_step_of_the_operators(tables: Deployment) -> None:
    result = tables.run()
    assert {event.step_key for event in result.all_events if event.step_key} == {"job"}
    found = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert set(found) == {*STATE, *LAST, "late_records", "source_lag"}
    assert all(each.passed for each in found.values())
    assert not found.pop("same_rows").metadata, "it is not about a checkpoint"
    assert {each.metadata["flink/checkpoint_id"].value for each in found.values()} == {1}
    drill = found["restore_drill"]
    assert drill.description is not None
    assert [line.partition(":")[0] for line in drill.description.splitlines()] == ["latest", "windows"]
    assert {"latest/rows", "windows/rows"} < drill.metadata.keys()


def test_a_check_runs_alone_and_reads_no_input(tables: Deployment) -> None:
    assert tables.run(epochs=2).success
    (key,) = (k for k in tables.definitions().resolve_asset_graph().asset_check_keys if k.name == "late_records")
    assert key == AssetCheckKey(AssetKey(["job", "table"]), "late_records")
    job = tables.definitions(max_late_records=0).resolve_implicit_global_asset_job_def()
    alone = job.get_subset(asset_selection=set(), asset_check_selection={key})
    result = alone.execute_in_process(instance=tables.instance)
    (found,) = result.get_asset_check_evaluations()
    assert (found.passed, found.metadata["flink/checkpoint_id"].value) == (False, 2)
    assert "1 records came too late" in (found.description or "")
    assert not result.get_asset_materialization_events()


def test_a_checkpoint_stays_complete_when_a_check_of_its_step_fails(
    tables: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Any:
        raise StorageError("503 SlowDown")

    monkeypatch.setattr(verify, "verify_checkpoint", fails)
    result = tables.run()
    assert not result.success
    assert {event.asset_key.path[-1] for event in result.get_asset_materialization_events()} == {"events", "table"}
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert "This says nothing about the checkpoint" in failed.step_failure_data.user_failure_data.description


def test_transactions_of_the_run_itself_are_not_those_of_a_run_at_work(tables: Deployment) -> None:
    assert tables.run().success
    StorageLocation(str(tables.folder)).open().create_upload("job.table.0000000009.00000.1-dead.parquet")
    result = tables.run()
    (found,) = (e for e in result.get_asset_check_evaluations() if e.check_name == "lingering_transactions")
    assert found.passed, "the run has aborted them when it began"
    assert found.description == "No transaction is open."


def test_the_trend_of_a_hidden_operator_is_that_of_its_own_numbers(tables: Deployment) -> None:
    assert tables.run().success
    key = AssetKey(["job", "table"])
    for delta in (*[1000] * 6, 9000):
        facts = {"flink/duration_ms": 100, "flink/delta_bytes": 0, "latest/delta_bytes": delta}
        tables.instance.report_runless_asset_event(AssetMaterialization(key, metadata=facts))
    job = tables.definitions().resolve_implicit_global_asset_job_def()
    chosen = {AssetCheckKey(key, "checkpoint_trend")}
    alone = job.get_subset(asset_selection=set(), asset_check_selection=chosen)
    result = alone.execute_in_process(instance=tables.instance)
    (found,) = result.get_asset_check_evaluations()
    assert not found.passed
    assert "latest: duration_ms 100 ms, median of 7 before 100; delta_bytes 9,000 bytes" in (found.description or "")


@pytest.mark.parametrize("show", MODES)
def test_sensors_and_jobs_work_on_the_assets_that_there_are(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    monkeypatch.setattr(runtime_job, "JobAttempt", FakeAttempt.factory())
    env = word_count(tmp_path, ["a"]).enable_checkpointing(60_000)
    assets = flink_assets(env, name="words", show=show)
    assert materialize(assets, instance=instance, resources=resources).success
    jobs = build_flink_jobs(env, name="words", show=show)
    definitions = Definitions(assets, jobs=jobs, sensors=[build_checkpoint_sensor(assets)], resources=resources)
    assert definitions.resolve_job_def("words_checkpoint").asset_layer.selected_asset_keys == set(assets[0].keys)
    config = {"ops": {"rescale_words": {"config": {"parallelism": 3}}}}
    result = definitions.resolve_job_def("words_rescale").execute_in_process(config, instance)
    observed = [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]
    observations = {e.asset_key: e.event_specific_data.asset_observation for e in observed}
    assert set(observations) == set(assets[0].keys)
    table = observations[AssetKey(["words", "table"])].metadata
    assert ("count/state_bytes" in table) == (show == "tables")
