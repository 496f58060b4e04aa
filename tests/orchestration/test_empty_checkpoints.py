"""Nothing to read: the sensor starts no run, and a checkpoint that has changed no table is no update of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetCheckResult,
    AssetKey,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    JobDefinition,
    asset,
    asset_check,
    build_sensor_context,
    evaluate_automation_conditions,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from dagster_flinkpy.checkpoint.requests import JobRequests, Order, RequestKind
from dagster_flinkpy.common import Duration, Time, Types, WatermarkStrategy
from dagster_flinkpy.connectors import AssetSource, Materialization, ParquetSink, ParquetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SplitEnumerator
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows, TumblingProcessingTimeWindows
from dagster_flinkpy.errors import CheckpointTimeoutError, SourceReadError
from dagster_flinkpy.orchestration import build_checkpoint_sensor, build_flink_jobs, flink_assets
from dagster_flinkpy.orchestration.runs.changed_tables import recorded_checkpoint
from dagster_flinkpy.orchestration.sensors import waiting_input, waiting_look
from dagster_flinkpy.runtime.master import job as job_loop
from dagster_flinkpy.runtime.master import watchdog
from dagster_flinkpy.storage import StorageLocation, lease
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows

ROW = Types.ROW_NAMED(["key", "at", "n"], [Types.STRING(), Types.LONG(), Types.LONG()])
BY_TIME = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
SUMS, TABLE, WINDOWS = (AssetKey(["job", name]) for name in ("sums", "sums_table", "windows_table"))


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_loop.JobAttempt, "_on_spark", lambda self, job: run_rows(job))


def write(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"key": ["k"], "at": [number * 10], "n": [number]}), folder / f"{number:02}.parquet")


class Deployment:
    """Running sums of numbers in files, sums by window, and an asset that runs whenever a table was updated."""

    def __init__(self, path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.files, self._tables = path / "files", path / "tables"
        self.instance, self.resources, self.cursor = instance, resources, None
        self.window: Any = TumblingEventTimeWindows.of(Time.milliseconds(500))
        self.strategy = BY_TIME

    def program(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment().set_max_parallelism(8)
        rows = env.from_source(ParquetSource(str(self.files), row_type=ROW), self.strategy, "files").uid("files")
        sums = rows.key_by("key").sum("n").uid("sums")
        sums.sink_to(ParquetSink(str(self._tables / "sums"))).uid("sums_table")
        windows = env.from_source(ParquetSource(str(self.files), row_type=ROW), self.strategy, "also").uid("also")
        windows = windows.key_by("key").window(self.window).sum("n").uid("windows")
        windows.sink_to(ParquetSink(str(self._tables / "windows"))).uid("windows_table")
        return env

    def definitions(self) -> Definitions:
        @asset(deps=[TABLE], automation_condition=AutomationCondition.eager())
        def of_sums() -> None: ...

        @asset(deps=[WINDOWS], automation_condition=AutomationCondition.eager())
        def of_windows() -> None: ...

        assets = [*flink_assets(self.program, name="job"), of_sums, of_windows]
        return Definitions(assets, resources=self.resources)

    def run(self, *others: str, **config: Any) -> ExecuteInProcessResult:
        """Runs the job, and other assets behind it."""
        definitions = self.definitions()
        job = definitions.resolve_implicit_global_asset_job_def()
        own = [key for key in job.asset_layer.executable_asset_keys if key.path[0] == "job"]
        return job.execute_in_process(
            instance=self.instance,
            asset_selection=[*own, *map(AssetKey, others)],
            run_config={"ops": {"job": {"config": config}}},
            raise_on_error=False,
        )

    def updated(self) -> set[str]:
        """Returns what an automation sensor would start now."""
        found = evaluate_automation_conditions(self.definitions(), self.instance, cursor=self.cursor)
        self.cursor = found.cursor
        names = {key.to_user_string() for key in (AssetKey("of_sums"), AssetKey("of_windows"))}
        return {name for name in names if found.get_num_requested(AssetKey(name))}

    def stale(self) -> list[AssetKey]:
        graph = self.definitions().resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        own = [key for key in graph.get_all_asset_keys() if key.path[0] == "job"]
        return [key for key in own if resolver.get_status(key) is not StaleStatus.FRESH]

    @property
    def job(self) -> StorageLocation:
        location: StorageLocation = self.resources["checkpoint_storage"].location().child("job")
        return location

    def tick(self) -> str | None:
        """Returns why the sensor starts no run; None if it starts one."""
        sensor = build_checkpoint_sensor(flink_assets(self.program, name="job"), interval=timedelta(milliseconds=10))
        resources = {"checkpoint_storage": self.resources["checkpoint_storage"]}
        tick = sensor.evaluate_tick(build_sensor_context(self.instance, resources=resources))
        return None if tick.run_requests else tick.skip_message


@pytest.fixture
def deployment(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> Deployment:
    deployment = Deployment(tmp_path, instance, resources)
    write(deployment.files, 1)
    return deployment


NOTHING = "Job job: no source has input after the last checkpoint, and no timer is due."


# --- events -----------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_table_runs_after_rows_and_not_after_an_empty_checkpoint(deployment: Deployment) -> None:
    deployment.updated()
    assert deployment.run().success
    assert deployment.updated() == {"of_sums", "of_windows"}, "they are there now"
    instance, version = deployment.instance, deployment.instance.get_latest_data_version_record(TABLE)
    for asset_key in ("of_sums", "of_windows"):
        instance.report_runless_asset_event(_materialized(asset_key))

    empty = deployment.run()
    assert empty.success
    assert empty.asset_materializations_for_node("job") == []
    assert deployment.updated() == set()
    (observed,) = instance.fetch_observations(TABLE, limit=1).records
    assert observed.asset_observation is not None
    assert observed.asset_observation.metadata["flink/checkpoint_id"].value == 2
    assert version is not None
    data_version = version.event_log_entry.tags["dagster/data_version"]
    assert observed.event_log_entry.tags["dagster/data_version"] == data_version
    assert deployment.stale() == []

    write(deployment.files, 2)
    assert deployment.run().success
    assert deployment.updated() == {"of_sums"}, "the window holds its rows back"
    assert deployment.stale() == []
    instance.report_runless_asset_event(_materialized("of_sums"))
    assert deployment.run().success
    assert deployment.updated() == set()


def _materialized(key: str) -> Any:
    from dagster import AssetMaterialization

    return AssetMaterialization(key)


@pytest.mark.system
def test_rows_that_a_run_has_committed_and_not_recorded_are_an_update(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deployment.run().success
    write(deployment.files, 2)
    deployment.updated()
    with monkeypatch.context() as lost:
        # As if the process had died behind the commit.
        lost.setattr("dagster_flinkpy.orchestration.runs.epoch_events.EpochEvents.results", lambda self: iter(()))
        assert deployment.run().success
    assert deployment.updated() == set()
    assert deployment.run().success
    assert "of_sums" in deployment.updated(), "by a checkpoint that has read nothing itself"


@pytest.mark.system
@pytest.mark.short("rescale-config1")
@pytest.mark.parametrize(("verb", "config"), [("savepoint", {}), ("rescale", {"parallelism": 2})])
def test_so_are_they_if_a_savepoint_or_a_rescale_comes_between(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, verb: str, config: dict[str, Any]
) -> None:
    """Both observe the assets with the job's checkpoint, but record no rows."""
    assert deployment.run().success
    write(deployment.files, 2)
    deployment.updated()
    with monkeypatch.context() as lost:
        lost.setattr("dagster_flinkpy.orchestration.runs.epoch_events.EpochEvents.results", lambda self: iter(()))
        assert deployment.run().success
    jobs = build_flink_jobs(deployment.program, name="job")
    (operation,) = (each for each in jobs if isinstance(each, JobDefinition) and each.name == f"job_{verb}")
    (step,) = operation.nodes
    done = operation.execute_in_process(
        {"ops": {step.name: {"config": config}}}, deployment.instance, resources=deployment.resources
    )
    assert done.success
    assert deployment.updated() == set()
    assert deployment.run().success
    assert "of_sums" in deployment.updated()
    deployment.instance.report_runless_asset_event(_materialized("of_sums"))
    assert deployment.run().success
    assert "of_sums" not in deployment.updated()


def test_several_checkpoints_of_a_run_are_recorded_as_one(deployment: Deployment) -> None:
    assert deployment.run(epochs=3).success
    assert deployment.instance.get_latest_materialization_event(TABLE) is not None, "the first one had rows"


@pytest.mark.system
def test_rows_that_come_while_what_reads_the_table_is_at_work_are_an_update(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    """What the documentation recommends. Dagster's ``eager()`` forgets them."""
    words = flink_assets(word_count(tmp_path / "table", ["a", "b", "c"], per_epoch=1), name="words")
    checkpoint = Definitions(words, resources=resources).resolve_implicit_global_asset_job_def()

    @asset(deps=[["words", "table"]], automation_condition=AutomationCondition.any_deps_updated())
    def reader() -> None:
        checkpoint.execute_in_process(instance=instance)
        requested.append(tick())

    definitions = Definitions([*words, reader], resources=resources)
    cursor: Any = None

    def tick() -> int:
        nonlocal cursor
        found = evaluate_automation_conditions(definitions, instance, cursor=cursor)
        cursor = found.cursor
        return found.get_num_requested(AssetKey("reader"))

    requested = [tick()]
    checkpoint.execute_in_process(instance=instance)
    requested.append(tick())
    alone = definitions.resolve_implicit_global_asset_job_def()
    alone.execute_in_process(instance=instance, asset_selection=[AssetKey("reader")])
    checkpoint.execute_in_process(instance=instance)
    assert [*requested, tick(), tick()] == [0, 1, 1, 1, 0]


@pytest.mark.system
def test_what_reads_a_table_in_the_same_run_runs_though_the_table_has_not_changed(deployment: Deployment) -> None:
    """It may have failed before, or read something else that has changed; a step without its input is skipped."""
    assert deployment.run("of_sums").success
    again = deployment.run("of_sums")
    assert again.success
    assert [e.asset_key for e in again.asset_materializations_for_node("of_sums")] == [AssetKey("of_sums")]
    assert {e.asset_key for e in again.asset_materializations_for_node("job")} == {TABLE}, "nobody reads the others"
    assert deployment.stale() == []
    deployment.updated()
    assert deployment.run().success
    assert deployment.updated() == set(), "the materialization has the checkpoint up to which rows are recorded"
    write(deployment.files, 2)
    assert deployment.run("of_sums", epochs=3, materialize_interval=0).success, "only the first epoch has rows"
    (last,) = deployment.instance.fetch_materializations(TABLE, limit=1).records
    (reader,) = deployment.instance.fetch_materializations(AssetKey("of_sums"), limit=1).records
    assert reader.storage_id > last.storage_id
    assert deployment.stale() == []


def test_a_check_of_a_table_runs_if_only_a_checkpoint_before_the_last_has_changed_it(deployment: Deployment) -> None:
    @asset_check(asset=TABLE)
    def counted() -> AssetCheckResult:
        return AssetCheckResult(passed=True)

    job = flink_assets(deployment.program, name="job")
    definitions = Definitions(job, asset_checks=[counted], resources=deployment.resources)

    def checked(**config: Any) -> int:
        run = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=deployment.instance, run_config={"ops": {"job": {"config": config}}}
        )
        return len(run.get_asset_check_evaluations())

    assert checked(epochs=2, materialize_interval=0) == 1
    assert checked() == 0, "it would find the same"


def test_what_reads_the_table_of_a_job_that_has_ended_runs(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    table = AssetKey(["words", "table"])

    @asset(deps=[table])
    def reader() -> None: ...

    definitions = Definitions(
        [*flink_assets(word_count(tmp_path / "table", ["a"]), name="words"), reader], resources=resources
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    for known in (instance, instance, DagsterInstance.ephemeral()):
        with known if known is not instance else nullcontext():
            run = job.execute_in_process(instance=known)
            assert len(run.asset_materializations_for_node("reader")) == 1
    first, second = instance.fetch_materializations(table, limit=2).records
    assert first.asset_materialization is not None
    assert second.asset_materialization is not None
    assert first.asset_materialization.metadata == second.asset_materialization.metadata
    assert first.event_log_entry.tags["dagster/data_version"] == second.event_log_entry.tags["dagster/data_version"]


@pytest.mark.system
def test_an_asset_source_reads_no_table_again_that_has_not_changed(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    def copies() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        row = Types.ROW_NAMED(["checkpoint"], [Types.LONG()])
        source = AssetSource(["words", "table"], _checkpoint_of, row, bounded=False)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "read").uid("read")
        stream.sink_to(ParquetSink(str(tmp_path / "copy"))).uid("copy")
        return env

    words = word_count(tmp_path / "table", ["a", "b"], per_epoch=1)
    both = [*flink_assets(words, name="words"), *flink_assets(copies, name="copies")]
    job = Definitions(both, resources=resources).resolve_implicit_global_asset_job_def()
    for _ in range(4):
        assert job.execute_in_process(instance=instance).success
    assert sorted(pq.read_table(tmp_path / "copy").column(0).to_pylist()) == [1, 2]
    assert recorded_checkpoint(instance, AssetKey(["copies", "read"])) == 4, "its step was not skipped"


def _checkpoint_of(materialization: Materialization) -> list[tuple[int]]:
    return [(materialization.metadata["flink/checkpoint_id"],)]


# --- the sensor -------------------------------------------------------------------------------------------------------


def test_no_input_no_run(deployment: Deployment) -> None:
    assert deployment.tick() is None, "there is a file"
    assert deployment.run().success
    assert deployment.tick() == NOTHING
    write(deployment.files, 2)
    assert deployment.tick() is None


def test_a_checkpoint_that_is_not_known_to_be_committed_is_work(deployment: Deployment) -> None:
    assert deployment.run().success
    store = deployment.job.open()
    leader = lease.acquire(store, "a run that dies", timedelta(0), 0, above=0, led_by="")
    lease.release(store, leader, committed=0)
    assert deployment.tick() is None


def test_a_checkpoint_that_is_not_recorded_is_work_where_its_run_is_known(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deployment.run().success
    write(deployment.files, 2)
    with monkeypatch.context() as lost:
        lost.setattr("dagster_flinkpy.orchestration.runs.epoch_events.EpochEvents.results", lambda self: iter(()))
        assert deployment.run().success
    assert deployment.tick() is None
    here = deployment.instance
    with DagsterInstance.ephemeral() as deployment.instance:
        assert deployment.tick() == NOTHING, "or two instances would start runs in turn, for ever"
    deployment.instance = here
    assert deployment.run().success
    assert deployment.tick() == NOTHING


def test_a_request_that_waits_is_work(deployment: Deployment) -> None:
    assert deployment.run().success
    store = deployment.job.open()
    leader = lease.acquire(
        store, "a run that dies", timedelta(minutes=1), waiting_look.current_millis(), above=0, led_by=""
    )
    JobRequests(deployment.job, "a test").submit(Order(RequestKind.SAVEPOINT))
    lease.release(store, leader)
    assert deployment.tick() is None


def test_processing_time_windows_are_work_when_they_are_due(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.window = TumblingProcessingTimeWindows.of(Time.hours(1))
    assert deployment.run().success
    assert deployment.tick() == NOTHING
    now = waiting_look.current_millis() + 2 * 3_600_000
    monkeypatch.setattr(waiting_look, "current_millis", lambda: now)
    assert deployment.tick() is None


def test_event_time_of_idle_sources_is_work_once(deployment: Deployment) -> None:
    deployment.strategy = BY_TIME.with_idleness(Duration.of_seconds(1))
    assert deployment.run().success
    assert deployment.tick() is None, "the next epoch has only idle sources"
    assert deployment.run().success
    assert deployment.tick() == NOTHING


def test_jobs_whose_sources_hang_share_the_time_of_a_tick(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]

    class Hanging:
        def __init__(self, most: timedelta) -> None:
            self._most = most

        def run(self, *_: object) -> None:
            clock[0] += self._most.total_seconds()
            raise CheckpointTimeoutError("no answer")

        def close(self) -> None: ...

    monkeypatch.setattr(watchdog, "Watchdog", Hanging)
    monkeypatch.setattr(waiting_look.time, "monotonic", lambda: clock[0])
    jobs = [each for i in range(9) for each in flink_assets(deployment.program, name=f"job{i}")]
    resources = {"checkpoint_storage": deployment.resources["checkpoint_storage"]}
    sensor = build_checkpoint_sensor(jobs, interval=timedelta(seconds=1))
    tick = sensor.evaluate_tick(build_sensor_context(deployment.instance, resources=resources))
    assert len(tick.run_requests or ()) == 9
    assert clock[0] < 1060


def test_a_source_that_cannot_say_counts_as_having_input(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deployment.run().success
    (kind,) = {type(enumerator) for enumerator in _enumerators(deployment)}

    def broken(self: SplitEnumerator, parallelism: int) -> bool:
        raise SourceReadError("no answer")

    hangs = threading.Event()
    answers: list[Callable[..., Any]] = [lambda *_: None, broken, lambda *_: hangs.wait()]
    monkeypatch.setattr(waiting_look, "_TIMEOUT", timedelta(milliseconds=50))
    monkeypatch.setattr("dagster_flinkpy.runtime.master.watchdog._GRACE_SECONDS", 0.01)
    for answer in answers:
        with monkeypatch.context() as asked:
            asked.setattr(kind, "has_input", answer)
            assert deployment.tick() is None
    hangs.set()


def _enumerators(deployment: Deployment) -> Iterator[SplitEnumerator]:
    for vertex in deployment.program().get_job_graph().sources:
        yield waiting_input.create_enumerator(vertex.uid, vertex.spec, None)
