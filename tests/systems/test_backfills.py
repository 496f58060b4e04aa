"""Backfills as the UI launches them (over GraphQL) and as the daemon runs them, with real runs.

Tasks run in the harness, without Spark. Runs are executed in this process, one after the other.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetCheckResult,
    AssetChecksDefinition,
    AssetKey,
    BackfillPolicy,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    RetryRequested,
    asset_check,
    in_process_executor,
)
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
)
from dagster._core.test_utils import create_run_for_test, create_test_daemon_workspace_context, instance_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.implementation.execution import backfill as launching
from dagster_graphql.test.utils import execute_dagster_graphql
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkAssetChecks,
    SparkResource,
    build_flink_jobs,
    flink_assets,
)
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, flink_job
from dagster_flinkpy.orchestration.runs import partitioned_run
from dagster_flinkpy.orchestration.runs.backfill_runs import continues_backfill
from dagster_flinkpy.orchestration.runs.partition_start import time_partitions
from dagster_flinkpy.orchestration.runs.runs_of_job import works_on
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage import StorageLocation
from tests.examples import examples
from tests.orchestration.programs import Count
from tests.runtime.harness import run_rows, spark_order

WEEK = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08")
KEYS = [f"2024-03-0{i}" for i in range(1, 8)]
FLIGHTS = dict(zip(KEYS, ["abba", "cab", "", "aaaa", "bcb", "a", "b"], strict=True))
WEATHER = dict(zip(KEYS, ["b", "", "cc", "ab", "", "b", "a"], strict=True))
REGION = ["flights", "weather", "departed", "delays", "joined", "table"]
SINGLE, EACH = BackfillPolicy.single_run(), BackfillPolicy.multi_run(1)
IN_PROCESS = {
    # A file per run takes a connection, and files of its own, for each event.
    "event_log_storage": {"module": "dagster._core.storage.event_log", "class": "InMemoryEventLogStorage"},
    # Otherwise each step has processes that copy its output to files.
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    },
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
}
LAUNCH = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on Error { message }
  }
}
"""
AGAIN = """
mutation($params: ReexecutionParams!) {
  reexecutePartitionBackfill(reexecutionParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on Error { message }
  }
}
"""

CHECKS = """
{
  assetNodeOrError(assetKey: {path: ["demo", "table"]}) {
    ... on AssetNode {
      assetChecksOrError { ... on AssetChecks { checks { name canExecuteIndividually } } }
    }
  }
}
"""
LAUNCH_RUN = """
mutation($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""

_definitions: list[Definitions] = []


def definitions() -> Definitions:
    """Returns the definitions that the code location of these tests loads."""
    return _definitions[-1]


class Letters(PartitionedSource):
    """Reads some letters per day.

    Args:
        days: The letters by partition key.
    """

    def __init__(self, days: dict[str, str]) -> None:
        self._days = days

    @property
    def produced_type(self) -> Any:
        return Types.STRING()

    def for_partition(self, partition: TimePartition) -> Source:
        return CollectionSource(list(self._days[partition.key]), Types.STRING())

    def create_enumerator(self, restored: Any) -> Any:
        return CollectionSource([], Types.STRING()).create_enumerator(restored)

    def read(self, split: Any) -> Iterator[Any]:
        raise AssertionError("only partitions are read")


def diamond(tables: Path, poison: str | None = None) -> StreamExecutionEnvironment:
    """Returns a program in which two sources meet in one operator, with a branch beside it."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_max_parallelism(8)
    no_time = WatermarkStrategy.no_watermarks()
    flights = env.from_source(Letters(FLIGHTS), no_time, "flights").uid("flights")
    weather = env.from_source(Letters(WEATHER), no_time, "weather").uid("weather")
    departed = flights.filter(lambda letter: letter != "c").uid("departed")
    departed.sink_to(ParquetSink(str(tables / "delays"))).uid("delays")
    letters = departed.union(weather).key_by(lambda letter: letter, Types.STRING())
    joined = letters.process(Count(poison), Types.TUPLE([Types.STRING(), Types.LONG()])).uid("joined")
    joined.sink_to(ParquetSink(str(tables / "table"))).uid("table")
    return env


def straight_run(days: Sequence[str]) -> dict[str, Counter[tuple[str, int]]]:
    counts: Counter[str] = Counter()
    expected: dict[str, Counter[tuple[str, int]]] = {}
    for day in days:
        for letter in FLIGHTS[day].replace("c", "") + WEATHER[day]:
            counts[letter] += 1
            expected.setdefault(day, Counter())[letter, counts[letter]] += 1
    return expected


@asset_check(asset=["demo", "table"])
def rows_are_there() -> AssetCheckResult:
    return AssetCheckResult(passed=True)


class Location(WorkspaceLoadTarget):
    """Loads `definitions` in this process."""

    def create_origins(self) -> Sequence[InProcessCodeLocationOrigin]:
        target = LoadableTargetOrigin(executable_path=sys.executable, module_name=__name__, attribute="definitions")
        return [InProcessCodeLocationOrigin(target, location_name="demo")]


class Daemon:
    """The diamond in a code location, with the webserver's and the daemon's part in its backfills."""

    def __init__(self, path: Path, instance: DagsterInstance, workspace: WorkspaceProcessContext) -> None:
        self.path, self.instance, self.workspace = path, instance, workspace

    def deploy(self, policy: BackfillPolicy, poison: str | None = None, **options: Any) -> None:
        env = diamond(self.path, poison)
        assets = flink_assets(env, name="demo", partitions_def=WEEK, backfill_policy=policy, **options)
        checks: list[AssetChecksDefinition] = [rows_are_there]
        deployed = Definitions(assets, resources=self.resources, asset_checks=checks, executor=in_process_executor)
        _definitions.append(deployed)
        # Otherwise a run in this process would take what the previous run has loaded.
        ReconstructableJob.get_definition.cache_clear()
        ReconstructableJob.get_repository_definition.cache_clear()
        self.workspace.refresh_code_location("demo")

    def backfill(self, days: Sequence[str], uids: Sequence[str] = REGION, **config: Any) -> PartitionBackfill:
        """Launches a backfill as the UI does, and runs it to its end as the daemon does."""
        params: dict[str, Any] = {
            "assetSelection": [{"path": ["demo", uid]} for uid in uids],
            "partitionNames": list(days),
        }
        if config:
            params["runConfigData"] = {"ops": {"demo": {"config": config}}}
        return self._launched(LAUNCH, params)

    def again(self, backfill: PartitionBackfill) -> PartitionBackfill:
        """Executes a backfill again from its failure, as the UI does."""
        return self._launched(AGAIN, {"parentRunId": backfill.backfill_id, "strategy": "FROM_FAILURE"})

    def _launched(self, mutation: str, params: dict[str, Any]) -> PartitionBackfill:
        answer = execute_dagster_graphql(self.workspace.create_request_context(), mutation, {"params": params})
        (launched,) = answer.data.values()
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        backfill = self._backfill(launched["backfillId"])
        for _ in range(3 * len(KEYS)):
            errors = list(execute_backfill_iteration(self.workspace, logging.getLogger("backfills")))
            assert not any(errors), errors
            backfill = self._backfill(backfill.backfill_id)
            if backfill.status != BulkActionStatus.REQUESTED:
                break
        return backfill

    def run(self, day: str, **config: Any) -> None:
        """Runs one partition, as *Materialize* in the UI does."""
        job = definitions().resolve_implicit_global_asset_job_def()
        run_config = {"ops": {"demo": {"config": config}}}
        assert job.execute_in_process(run_config, self.instance, partition_key=day).success

    def job(self, verb: str, **config: Any) -> Any:
        """Runs one of the jobs of `build_flink_jobs`, and returns its result."""
        jobs = {job.name: job for job in build_flink_jobs(diamond(self.path), name="demo")}
        op = next(iter(jobs[f"demo_{verb}"].nodes)).name
        result = jobs[f"demo_{verb}"].execute_in_process(
            {"ops": {op: {"config": config}}}, self.instance, resources=self.resources
        )
        return result.output_for_node(op)

    @property
    def resources(self) -> dict[str, Any]:
        storage = CheckpointStorageResource(url=str(self.path / "checkpoints"))
        return {"spark": SparkResource(), "checkpoint_storage": storage}

    def _backfill(self, backfill_id: str) -> PartitionBackfill:
        backfill = self.instance.get_backfill(backfill_id)
        assert backfill is not None
        return backfill

    def runs(self, backfill: PartitionBackfill) -> list[DagsterRun]:
        """Returns the runs of a backfill, oldest first."""
        records = self.instance.get_run_records(ascending=True)
        runs = [record.dagster_run for record in records]
        return [run for run in runs if run.tags.get(BACKFILL_ID_TAG) == backfill.backfill_id]

    def said(self, run: DagsterRun) -> str:
        failures = []
        for entry in self.instance.all_logs(run.run_id):
            event = entry.dagster_event
            if event and event.is_step_failure and event.step_failure_data.user_failure_data:
                failures.append(str(event.step_failure_data.user_failure_data.description))
        return "\n".join([*(entry.message for entry in self.instance.all_logs(run.run_id)), *failures])

    def table(self) -> dict[str, Counter[tuple[str, int]]]:
        found: dict[str, Counter[tuple[str, int]]] = {}
        for file in (self.path / "table").glob("partition=*/*.parquet"):
            rows = pq.read_table(file, partitioning=None).to_pylist()
            found.setdefault(file.parent.name.partition("=")[2], Counter()).update(tuple(r.values()) for r in rows)
        return found

    def materialized(self, uid: str) -> set[str]:
        return self.instance.get_materialized_partitions(AssetKey(["demo", uid]))

    def parallelism(self) -> Any:
        record = self.instance.get_latest_materialization_event(AssetKey(["demo", "joined"]))
        assert record is not None
        assert record.asset_materialization is not None
        return record.asset_materialization.metadata["flink/parallelism"].value


def ranges(runs: Sequence[DagsterRun]) -> list[tuple[str, str]]:
    """Returns the first and last partition of each run."""
    found = []
    for run in runs:
        one = run.tags.get(PARTITION_NAME_TAG)
        tags = run.tags.get(ASSET_PARTITION_RANGE_START_TAG), run.tags.get(ASSET_PARTITION_RANGE_END_TAG)
        first, last = (one, one) if one else tags
        assert first is not None
        assert last is not None
        found.append((first, last))
    return found


def selected(run: DagsterRun) -> set[str]:
    return {key.path[-1] for key in run.asset_selection or ()}


@pytest.fixture(scope="module")
def empty_instance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an instance that has its tables, which take Dagster long to make. Each test has a copy."""
    folder = tmp_path_factory.mktemp("instance")
    with instance_for_test(overrides=IN_PROCESS, temp_dir=str(folder)):
        return folder


@pytest.fixture
def daemon(tmp_path: Path, empty_instance: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    # Dagster's ids repeat themselves when hypothesis seeds the random numbers.
    monkeypatch.setattr(launching, "make_new_backfill_id", lambda: uuid.uuid4().hex[:8])
    _definitions.append(Definitions())
    shutil.copytree(empty_instance, tmp_path, dirs_exist_ok=True)
    with (
        instance_for_test(overrides=IN_PROCESS, temp_dir=str(tmp_path)) as instance,
        create_test_daemon_workspace_context(Location(), instance) as workspace,
    ):
        yield Daemon(tmp_path, instance, workspace)
    _definitions.clear()


@pytest.mark.smoke
@pytest.mark.parametrize(("policy", "runs"), [(SINGLE, 1), (EACH, 3)], ids=["single", "each"])
def test_a_backfill_of_a_program_whose_sources_meet(daemon: Daemon, policy: BackfillPolicy, runs: int) -> None:
    days = KEYS[:4]
    daemon.deploy(policy)
    assert daemon.backfill(days[:1]).status == BulkActionStatus.COMPLETED_SUCCESS
    backfill = daemon.backfill(days[1:])
    assert backfill.status == BulkActionStatus.COMPLETED_SUCCESS
    assert ranges(daemon.runs(backfill)) == ([(days[1], days[3])] if runs == 1 else [(key, key) for key in days[1:]])
    for run in daemon.runs(backfill):
        # Dagster requests the other assets of later partitions when their sources are done, and finds them done, too.
        whole = selected(run) == set(REGION)
        assert whole or (selected(run) == {"flights", "weather"} and run.run_id != daemon.runs(backfill)[0].run_id)
        assert ("runs the whole job" in daemon.said(run)) is not whole
        assert ("Asset check 'rows_are_there' on 'demo/table' passed" in daemon.said(run)) is whole
    assert f"Partition {days[1]} starts from the end state of {days[0]}" in daemon.said(daemon.runs(backfill)[0])
    assert daemon.table() == straight_run(days)
    assert all(daemon.materialized(uid) == set(days) for uid in REGION)


@pytest.mark.parametrize("policy", [SINGLE, EACH], ids=["single", "each"])
def test_a_backfill_of_tables(daemon: Daemon, policy: BackfillPolicy) -> None:
    """Sinks depend on the sources directly, for the operators between them are no assets."""
    tables = ["flights", "weather", "table"]
    daemon.deploy(policy, show="tables", checks=FlinkAssetChecks())
    assert daemon.backfill(KEYS[:3], tables).status == BulkActionStatus.COMPLETED_SUCCESS
    assert daemon.table() == straight_run(KEYS[:3])
    assert all(daemon.materialized(uid) == set(KEYS[:3]) for uid in tables)
    event = daemon.instance.get_latest_materialization_event(AssetKey(["demo", "table"]))
    assert event is not None
    assert event.asset_materialization is not None
    assert {"joined/state_bytes", "joined/records_in", "flink/operators"} <= event.asset_materialization.metadata.keys()


def test_a_check_is_run_alone_from_the_page(daemon: Daemon) -> None:
    daemon.deploy(SINGLE, show="tables", checks=FlinkAssetChecks())
    daemon.backfill(KEYS[:2], ["flights", "weather", "table"])
    request = daemon.workspace.create_request_context()
    node = execute_dagster_graphql(request, CHECKS).data["assetNodeOrError"]
    offered = {check["name"]: check["canExecuteIndividually"] for check in node["assetChecksOrError"]["checks"]}
    assert {"restore_drill", "partitions_up_to_date"} < offered.keys()
    assert set(offered.values()) == {"CAN_EXECUTE"}
    chosen = [{"assetKey": {"path": ["demo", "table"]}, "name": "restore_drill"}]
    location = {"repositoryLocationName": "demo", "repositoryName": "__repository__", "pipelineName": "__ASSET_JOB"}
    params = {"selector": {**location, "assetSelection": [], "assetCheckSelection": chosen}}
    answer = execute_dagster_graphql(request, LAUNCH_RUN, {"params": params}).data["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    run = daemon.instance.get_run_by_id(answer["run"]["runId"])
    assert run is not None
    assert run.is_success
    assert "the same at parallelism" in daemon.said(run)
    assert "Partition" not in daemon.said(run), "it has read none"
    assert not works_on(daemon.instance, run, "demo", [AssetKey(["demo", "table"])])


@pytest.mark.parametrize("policy", [SINGLE, EACH], ids=["single", "each"])
def test_a_backfill_starts_from_a_savepoint_at_another_parallelism(daemon: Daemon, policy: BackfillPolicy) -> None:
    """Its run config says where the whole backfill starts: a run for the second partition continues from the first."""
    daemon.deploy(policy)
    daemon.backfill(KEYS[:1])
    savepoint = daemon.job("savepoint")
    daemon.backfill(KEYS[1:2])
    backfill = daemon.backfill(KEYS[2:4], restore_from=savepoint, parallelism=3)
    assert backfill.status == BulkActionStatus.COMPLETED_SUCCESS
    assert backfill.run_config == {"ops": {"demo": {"config": {"restore_from": savepoint, "parallelism": 3}}}}
    after_the_first = straight_run([KEYS[0], *KEYS[2:4]])
    assert daemon.table() == {**straight_run(KEYS[:2]), **{key: after_the_first[key] for key in KEYS[2:4]}}
    assert daemon.parallelism() == 3
    assert daemon.backfill(KEYS[3:5], start_empty=True).status == BulkActionStatus.COMPLETED_SUCCESS
    assert {key: daemon.table()[key] for key in KEYS[3:5]} == straight_run(KEYS[3:5])


def test_the_config_is_not_for_a_later_run_when_the_record_of_the_first_is_deleted(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deploy(EACH)
    daemon.backfill(KEYS[:1])

    def deleting(instance: DagsterInstance, run: DagsterRun, *arguments: Any, **options: Any) -> bool:
        for other in instance.get_runs():
            if other.is_finished and other.tags.get(BACKFILL_ID_TAG) == run.tags[BACKFILL_ID_TAG]:
                instance.delete_run(other.run_id)
        return continues_backfill(instance, run, *arguments, **options)

    monkeypatch.setattr(partitioned_run, "continues_backfill", deleting)
    daemon.backfill(KEYS[2:5], ["table"], start_empty=True)  # Dagster starts all of its runs at once
    assert daemon.table() == {**straight_run(KEYS[:1]), **straight_run(KEYS[2:5])}


@pytest.mark.parametrize("policy", [SINGLE, EACH], ids=["single", "each"])
@pytest.mark.parametrize("uids", [["joined"], ["flights", "table"]], ids="-".join)
def test_a_backfill_of_some_assets_is_one_of_the_region_in_order(
    daemon: Daemon, policy: BackfillPolicy, uids: list[str]
) -> None:
    daemon.deploy(policy)
    backfill = daemon.backfill(KEYS[:3], uids)
    assert backfill.status == BulkActionStatus.COMPLETED_SUCCESS
    assert all("runs the whole job demo of 6 assets" in daemon.said(run) for run in daemon.runs(backfill))
    assert daemon.table() == straight_run(KEYS[:3])
    assert all(daemon.materialized(uid) == set(KEYS[:3]) for uid in REGION)


@pytest.mark.parametrize("policy", [SINGLE, EACH], ids=["single", "each"])
def test_a_backfill_without_state_to_start_from_is_refused_with_what_to_run(
    daemon: Daemon, policy: BackfillPolicy
) -> None:
    daemon.deploy(policy)
    daemon.backfill(KEYS[:1])
    refused = daemon.backfill(KEYS[3:5])
    assert refused.status == BulkActionStatus.COMPLETED_FAILED
    (run,) = daemon.runs(refused)
    assert f"The nearest one before it that has one is {KEYS[0]}" in daemon.said(run)
    assert f"--partition-range {KEYS[1]}...{KEYS[2]}" in daemon.said(run)
    assert daemon.table() == straight_run(KEYS[:1])
    daemon.backfill(KEYS[1:3])
    assert daemon.backfill(KEYS[3:5]).status == BulkActionStatus.COMPLETED_SUCCESS
    assert daemon.table() == straight_run(KEYS[:5])


def test_nothing_follows_a_partition_that_failed(daemon: Daemon) -> None:
    daemon.deploy(EACH, poison="b")
    failed = daemon.backfill(KEYS[:3], ["joined"])
    assert failed.status == BulkActionStatus.COMPLETED_FAILED
    first, second, _ = daemon.runs(failed)
    assert f"comes after {KEYS[0]}, which run {first.run_id} of this backfill has not completed" in daemon.said(second)
    assert daemon.table() == {}


@pytest.mark.parametrize("policy", [SINGLE, EACH], ids=["single", "each"])
def test_a_backfill_that_is_executed_again_from_its_failure_goes_on_where_it_was(
    daemon: Daemon, policy: BackfillPolicy
) -> None:
    """Dagster gives the new backfill the config of the old one, which is for its first partition."""
    daemon.deploy(policy, poison="c")
    failed = daemon.backfill(KEYS[:4], start_empty=True)
    assert failed.status == BulkActionStatus.COMPLETED_FAILED
    assert daemon.table() == straight_run(KEYS[:2])
    daemon.deploy(policy)
    again = daemon.again(failed)
    assert ranges(daemon.runs(again))[0][0] == KEYS[2]
    assert again.status == BulkActionStatus.COMPLETED_SUCCESS
    assert daemon.table() == straight_run(KEYS[:4])


def test_a_backfill_with_a_gap_goes_on_behind_it_from_what_is_there(daemon: Daemon) -> None:
    daemon.deploy(SINGLE)
    daemon.backfill(KEYS)
    backfill = daemon.backfill([KEYS[1], KEYS[4], KEYS[5]])
    assert ranges(daemon.runs(backfill)) == [(KEYS[1], KEYS[1]), (KEYS[4], KEYS[5])]
    assert daemon.table() == straight_run(KEYS)
    last = daemon.said(daemon.runs(backfill)[1])
    assert f"Partitions {KEYS[2]} to {KEYS[6]} were computed before an earlier one was run again" in last


@pytest.mark.parametrize("policy", [SINGLE, EACH], ids=["single", "each"])
def test_the_config_of_a_backfill_says_where_it_starts_and_not_where_it_goes_on_behind_a_gap(
    daemon: Daemon, policy: BackfillPolicy
) -> None:
    daemon.deploy(policy)
    daemon.backfill(KEYS[:1])
    savepoint = daemon.job("savepoint")
    daemon.backfill(KEYS[1:5])
    days = [KEYS[1], KEYS[2], KEYS[4]]
    assert daemon.backfill(days, restore_from=savepoint).status == BulkActionStatus.COMPLETED_SUCCESS
    assert daemon.table() == straight_run(KEYS[:5])
    assert daemon.backfill(days, start_empty=True).status == BulkActionStatus.COMPLETED_SUCCESS
    assert daemon.table() == {**straight_run(KEYS[:5]), **straight_run(KEYS[1:3])}


def test_a_file_that_comes_late_is_read_when_its_partition_runs_again(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deploy(SINGLE)
    daemon.backfill(KEYS[:4])
    monkeypatch.setitem(FLIGHTS, KEYS[1], "caba")
    daemon.backfill(KEYS[1:2])
    expected = straight_run(KEYS[:4])
    assert daemon.table()[KEYS[1]] == expected[KEYS[1]]
    assert daemon.table() != expected, "later partitions are as they were"
    daemon.backfill(KEYS[2:4])
    assert daemon.table() == expected


@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_sequence_of_runs_backfills_and_rescales_equals_one_straight_run(
    daemon: Daemon, data: st.DataObject
) -> None:
    """Compares with an oracle that reads the days in order, at parallelism 1."""
    days, done = KEYS[: examples(7)], 0
    with tempfile.TemporaryDirectory() as folder:
        daemon.path = Path(folder)
        for _ in range(data.draw(st.integers(1, 3), "steps")):
            what = data.draw(st.sampled_from(["run", "backfill", "rescale"] if done else ["run", "backfill"]), "what")
            if what == "rescale":
                daemon.job("rescale", parallelism=data.draw(st.integers(1, 3), "parallelism"))
                continue
            first = data.draw(st.integers(0, min(done, len(days) - 1)), "first")
            config = data.draw(st.sampled_from([{}, {"parallelism": 2}, {"parallelism": 3}]), "config")
            if what == "run":
                last = first
                daemon.deploy(SINGLE)
                daemon.run(days[first], **config)
            else:
                last = data.draw(st.integers(first, len(days) - 1), "last")
                daemon.deploy(data.draw(st.sampled_from([SINGLE, EACH]), "policy"))
                uids = data.draw(st.sampled_from([REGION, ["weather"], ["table"]]), "selection")
                assert (
                    daemon.backfill(days[first : last + 1], uids, **config).status == BulkActionStatus.COMPLETED_SUCCESS
                )
            done = max(done, last + 1)
        if done < len(days):
            assert daemon.backfill(days[done:]).status == BulkActionStatus.COMPLETED_SUCCESS
        assert daemon.table() == straight_run(days)


# --- turns ------------------------------------------------------------------------------------------------------------


def backfill_runs(instance: DagsterInstance, *statuses: DagsterRunStatus) -> list[DagsterRun]:
    """Creates the runs of one backfill, one per partition."""
    tags = {BACKFILL_ID_TAG: "b", JOB_TAG: "demo"}
    return [
        create_run_for_test(instance, status=status, tags={**tags, PARTITION_NAME_TAG: key})
        for key, status in zip(KEYS, statuses, strict=False)
    ]


def test_runs_of_a_backfill_go_in_order_of_their_partitions(instance: DagsterInstance, tmp_path: Path) -> None:
    job = flink_job(diamond(tmp_path), "demo")
    store = StorageLocation(str(tmp_path / "checkpoints")).open()
    done, first, mine, _later = backfill_runs(
        instance, DagsterRunStatus.SUCCESS, DagsterRunStatus.NOT_STARTED, *[DagsterRunStatus.STARTED] * 2
    )
    said: list[str] = []

    def goes_on(run: DagsterRun, ordinal: int, pool: str | None = None) -> bool:
        first_day = time_partitions(WEEK, [KEYS[ordinal]])[0]
        return continues_backfill(
            instance, run, job, [], WEEK, first_day, store, pool=pool, log=said.append, sleep=sleep
        )

    def sleep(seconds: float) -> None:
        finished = DagsterEvent(DagsterEventType.RUN_SUCCESS.value, first.job_name)
        instance.report_dagster_event(finished, first.run_id)

    assert not goes_on(done, 0)
    assert goes_on(first, 1)
    with pytest.raises(RetryRequested):
        goes_on(mine, 2, pool="slots")
    assert goes_on(mine, 2)
    assert said == [f"Waiting for run {first.run_id} of the same backfill, which comes first: {KEYS[1]}"] * 2
    assert not goes_on(create_run_for_test(instance, tags={PARTITION_NAME_TAG: KEYS[2], JOB_TAG: "demo"}), 2)
