"""Time-partitioned jobs in Dagster. Tasks run in the harness, without Spark; everything else is real."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    DagsterInstance,
    DagsterRunStatus,
    DailyPartitionsDefinition,
    Definitions,
    ExecuteInProcessResult,
    HourlyPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    build_sensor_context,
    define_asset_job,
    evaluate_automation_conditions,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
)
from dagster._core.test_utils import create_run_for_test

from dagster_flinkpy.checkpoint.forks.fork import fork_job
from dagster_flinkpy.checkpoint.head import read_head
from dagster_flinkpy.checkpoint.offline import restore_savepoint, trigger_savepoint
from dagster_flinkpy.checkpoint.partitions import PartitionRetention
from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import BroadcastProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.errors import ConfigurationError, RestoreError
from dagster_flinkpy.orchestration import (
    FixedDelayRestart,
    FlinkAssetChecks,
    FlinkOperatorData,
    FlinkTranslator,
    build_checkpoint_sensor,
    build_restart_sensor,
    flink_assets,
)
from dagster_flinkpy.orchestration.flink_job import JOB_TAG
from dagster_flinkpy.orchestration.runs.partition_start import (
    time_partitions,
)
from dagster_flinkpy.orchestration.runs.runs_of_job import recent_runs
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage import StorageLocation
from tests.orchestration.programs import Count, word_count
from tests.runtime.harness import run_rows, spark_order
from tests.waiting import LIMIT

WEEK = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08")
KEYS = [f"2024-03-0{i}" for i in range(1, 8)]
WORDS = dict(zip(KEYS, ["abba", "cab", "", "aaaa", "bcb", "a", "b"], strict=True))
COUNTS = Types.TUPLE([Types.STRING(), Types.LONG()])
NEW_NAMES = MapStateDescriptor("new names", Types.STRING(), Types.STRING())


class Letters(PartitionedSource):
    """Reads some letters per day."""

    @property
    def produced_type(self) -> Any:
        return Types.STRING()

    def for_partition(self, partition: TimePartition) -> Source:
        return CollectionSource(list(WORDS[partition.key]), Types.STRING())

    def create_enumerator(self, restored: Any) -> Any:
        return CollectionSource([], Types.STRING()).create_enumerator(restored)

    def read(self, split: Any) -> Iterator[Any]:
        raise AssertionError("only partitions are read")


def letters(table: Path, poison: str | None = None) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_max_parallelism(8)
    stream = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
    counts = stream.key_by(lambda word: word, Types.STRING()).process(Count(poison), COUNTS).uid("count")
    counts.sink_to(ParquetSink(str(table))).uid("table")
    return env


def straight_run(days: list[str]) -> dict[str, Counter[tuple[str, int]]]:
    counts: Counter[str] = Counter()
    expected: dict[str, Counter[tuple[str, int]]] = {}
    for day in days:
        for letter in WORDS[day]:
            counts[letter] += 1
            expected.setdefault(day, Counter())[letter, counts[letter]] += 1
    return expected


class Deployment:
    """The letters as assets."""

    def __init__(
        self, tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], name: str = "letters"
    ) -> None:
        self.tmp_path, self.instance, self.resources, self.name = tmp_path, instance, resources, name

    def assets(self, poison: str | None = None, **options: Any) -> list[AssetsDefinition]:
        return flink_assets(
            letters(self.tmp_path / "table", poison), name=self.name, **{"partitions_def": WEEK, **options}
        )

    def run(
        self,
        first: str,
        last: str | None = None,
        *,
        poison: str | None = None,
        selected: Sequence[str] = (),
        **config: Any,
    ) -> ExecuteInProcessResult:
        """Runs one partition, or a range as a backfill does. Runs all assets if none is selected."""
        job = Definitions(self.assets(poison), resources=self.resources).resolve_implicit_global_asset_job_def()
        range_tags = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last or first}
        return job.execute_in_process(
            {"ops": {self.name: {"config": config}}},
            self.instance,
            partition_key=first if last is None else None,
            tags=range_tags if last else {},
            asset_selection=[AssetKey([self.name, uid]) for uid in selected] or None,
            raise_on_error=False,
        )

    def table(self) -> dict[str, Counter[tuple[str, int]]]:
        found: dict[str, Counter[tuple[str, int]]] = {}
        for file in (self.tmp_path / "table").glob("partition=*/*.parquet"):
            rows = pq.read_table(file, partitioning=None).to_pylist()
            found.setdefault(file.parent.name.partition("=")[2], Counter()).update(tuple(r.values()) for r in rows)
        return found

    def materialized(self) -> dict[str, int]:
        """Returns the latest checkpoint id of each partition of the sink's asset, from its metadata."""
        records = self.instance.fetch_materializations(
            AssetKey(["letters", "table"]), limit=100, ascending=True
        ).records
        found = {}
        for record in records:
            facts = record.asset_materialization.metadata if record.asset_materialization else {}
            if checkpoint := facts.get("flink/checkpoint_id"):
                found[str(record.partition_key)] = int(checkpoint.value)  # type: ignore[call-overload]
        return found

    def stale(self, uid: str = "letters") -> list[str]:
        definitions = Definitions(self.assets(), resources=self.resources)
        graph = definitions.get_repository_def().asset_graph
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        return [key for key in KEYS if resolver.get_status(AssetKey(["letters", uid]), key) == StaleStatus.STALE]


def failure_of(result: ExecuteInProcessResult) -> str:
    (failure,) = [e for e in result.all_events if e.is_step_failure]
    return str(failure.step_failure_data.user_failure_data.description)  # type: ignore[union-attr]


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path, instance, resources)


def test_partitions_in_order_one_run_each(deployment: Deployment) -> None:
    for key in KEYS[:3]:
        assert deployment.run(key).success
    assert deployment.table() == straight_run(KEYS[:3])
    assert deployment.materialized() == dict(zip(KEYS, [1, 2, 3], strict=False))


class Renamed(BroadcastProcessFunction):
    """Replaces a letter by what a table says."""

    def process_element(self, value: str, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[str]:
        yield ctx.get_broadcast_state(NEW_NAMES).get(value) or "?"

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(NEW_NAMES).put(value[0], value[1])


def renamed(table: Path, names: dict[str, str]) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_max_parallelism(8)
    stream = env.from_source(Letters(), WatermarkStrategy.no_watermarks(), "letters").uid("letters")
    rows = env.from_collection([*names.items()], Types.TUPLE([Types.STRING(), Types.STRING()])).uid("names").static()
    found = stream.connect(rows.broadcast(NEW_NAMES)).process(Renamed(), Types.STRING()).uid("renamed")
    found.map(lambda name: (name, 1), COUNTS).sink_to(ParquetSink(str(table))).uid("table")
    return env


def test_a_static_input_is_read_by_the_first_partition_and_by_the_one_after_a_change(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = dict(zip("abc", "xyz", strict=True))
    reads: list[int] = []
    real = CollectionSource.read

    def read(source: CollectionSource, split: Any) -> Any:
        reads.append(len(source._values))
        return real(source, split)

    def use_table() -> None:
        program = renamed(tmp_path / "table", dict(names))
        options: dict[str, Any] = {"name": "letters", "partitions_def": WEEK}
        monkeypatch.setattr(deployment, "assets", lambda *_: flink_assets(program, **options))
        reads.clear()

    def expected(keys: Sequence[str]) -> dict[str, Counter[Any]]:
        return {key: Counter((names[letter], 1) for letter in WORDS[key]) for key in keys if WORDS[key]}

    monkeypatch.setattr(CollectionSource, "read", read)
    use_table()
    assert deployment.run(KEYS[0], KEYS[1]).success
    assert reads == [4, 3, 3], "the table has three rows, and so has the second day"
    use_table()
    assert deployment.run(KEYS[2]).success
    assert deployment.run(KEYS[3]).success
    assert reads == [4]
    before = expected(KEYS[:4])
    names["a"] = "new"
    use_table()
    assert deployment.run(KEYS[4]).success
    assert sorted(reads) == [3, 3]
    assert deployment.table() == before | expected(KEYS[4:5])


def test_a_backfill_in_a_single_run_goes_on_from_the_partition_before(deployment: Deployment) -> None:
    deployment.run(KEYS[0])
    assert deployment.run(KEYS[1], KEYS[6]).success
    assert deployment.table() == straight_run(KEYS)
    assert deployment.materialized() == dict(zip(KEYS, range(1, 8), strict=True))


@pytest.mark.short("selected0")
@pytest.mark.parametrize("selected", [[], ["count"]])
def test_a_backfill_of_the_past_replaces_it_and_makes_the_rest_stale(
    deployment: Deployment, selected: list[str]
) -> None:
    deployment.run(KEYS[0], KEYS[4], selected=selected)
    assert deployment.stale() == []
    again = deployment.run(KEYS[1], KEYS[2], selected=selected, parallelism=2)
    assert again.success
    assert deployment.table() == straight_run(KEYS[:5])
    assert deployment.stale() == [KEYS[3]], "what depends on the new end state; the next one follows when it has run"
    said = [e.message for e in deployment.instance.all_logs(again.run_id) if "Run them again" in (e.user_message or "")]
    assert any(f"Partitions {KEYS[3]} to {KEYS[4]}" in message for message in said)
    for key in KEYS[3:5]:
        assert deployment.run(key, selected=selected).success
    assert [deployment.stale(uid) for uid in ("letters", "count", "table")] == [[], [], []]
    assert deployment.materialized() == dict(zip(KEYS, [1, 6, 7, 8, 9], strict=False))


def outdated_by_check(deployment: Deployment) -> list[str] | None:
    """Returns what the check of the table shows on its page, or None before it has run."""
    key = AssetCheckKey(AssetKey(["letters", "table"]), "partitions_up_to_date")
    (record,) = deployment.instance.event_log_storage.get_asset_check_execution_history(key, limit=1) or [None]
    if record is None:
        return None
    evaluation = record.evaluation
    assert evaluation is not None
    named = evaluation.metadata["partitions"].value
    assert isinstance(named, list)
    assert evaluation.passed == (not named)
    return named


@pytest.mark.short("selected0")
@pytest.mark.parametrize("selected", [[], ["letters", "table"]])
def test_the_page_shows_which_partitions_to_run_again(deployment: Deployment, selected: list[str]) -> None:
    assert outdated_by_check(deployment) is None
    deployment.run(KEYS[0], KEYS[4], selected=selected)
    assert outdated_by_check(deployment) == []
    deployment.run(KEYS[1], KEYS[2], selected=selected)
    assert outdated_by_check(deployment) == KEYS[3:5]
    deployment.run(KEYS[3], selected=selected)
    assert outdated_by_check(deployment) == [KEYS[4]]
    deployment.run(KEYS[4], selected=selected)
    assert outdated_by_check(deployment) == []


def test_a_range_that_fails_tells_what_it_has_made_outdated(deployment: Deployment) -> None:
    deployment.run(KEYS[0], KEYS[4])
    assert not deployment.run(KEYS[0], KEYS[1], poison="c").success
    assert outdated_by_check(deployment) == KEYS[1:5]


def test_the_check_of_partitions_runs_alone_without_an_attempt(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.run(KEYS[0], KEYS[2])
    deployment.run(KEYS[1])
    monkeypatch.setattr(JobAttempt, "__enter__", lambda self: pytest.fail("a check starts no attempt"))
    checks = AssetSelection.checks(AssetCheckKey(AssetKey(["letters", "table"]), "partitions_up_to_date"))
    definitions = Definitions(
        deployment.assets(), resources=deployment.resources, jobs=[define_asset_job("chosen", checks)]
    )
    result = definitions.resolve_job_def("chosen").execute_in_process(instance=deployment.instance)
    [evaluation] = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.description == (
        f"Partition {KEYS[2]} was computed before an earlier partition was run again. Run them again, in order."
    )
    assert not result.get_asset_materialization_events()


def test_automation_asks_once_for_what_is_missing(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    class Automated(FlinkTranslator):
        def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
            condition = AutomationCondition.on_missing()
            return super().get_asset_spec(data).replace_attributes(automation_condition=condition)

    assets = deployment.assets(translator=Automated())
    definitions, cursor = Definitions(assets, resources=deployment.resources), None
    deployment.run(KEYS[0])
    asked = []
    for hour in range(4):
        now = datetime(2024, 3, 2 + hour // 2, 12 + hour % 2, tzinfo=timezone.utc)
        result = evaluate_automation_conditions(definitions, deployment.instance, cursor=cursor, evaluation_time=now)
        keys = [AssetKey(["letters", uid]) for uid in ("letters", "count", "table")]
        asked.append([sorted(result.get_requested_partitions(key)) for key in keys])
        cursor = result.cursor
        if result.total_requested:
            assert deployment.run(KEYS[1], selected=["count"]).success
    assert asked == [[[]] * 3, [[]] * 3, [[KEYS[1]]] * 3, [[]] * 3]


def test_missing_state_is_refused_with_what_to_run(deployment: Deployment) -> None:
    deployment.run(KEYS[0], KEYS[1])
    message = failure_of(deployment.run(KEYS[5]))
    assert f"starts from the end state of {KEYS[4]}, which is not kept" in message
    assert f"The nearest one before it that has one is {KEYS[1]}" in message
    whole = " or ".join(f'key:"letters/{uid}"' for uid in ("letters", "count", "table"))
    assert f"--select '{whole}' --partition-range {KEYS[2]}...{KEYS[4]}" in message
    assert deployment.table() == straight_run(KEYS[:2])


def test_a_run_that_starts_before_that_over_the_day_before_lets_it_go_first(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a schedule catches up: the processes of its runs start in any order."""
    day_before, *_ = [
        create_run_for_test(deployment.instance, tags={JOB_TAG: "letters", **tags}, status=DagsterRunStatus.STARTING)
        for tags in ({PARTITION_NAME_TAG: KEYS[0]}, {PARTITION_NAME_TAG: KEYS[2]}, {})
    ]

    def meanwhile(execution: ActiveExecution) -> None:
        execution._waiting_to_retry = dict.fromkeys(execution._waiting_to_retry, 0.0)
        assert deployment.run(KEYS[0]).success
        deployment.instance.report_run_canceled(day_before)

    monkeypatch.setattr(ActiveExecution, "sleep_til_ready", meanwhile)
    assert deployment.run(KEYS[1]).success
    assert deployment.table() == straight_run(KEYS[:2])


def test_start_from_a_savepoint_of_choice(deployment: Deployment) -> None:
    deployment.run(KEYS[0], KEYS[1])
    assert deployment.run(KEYS[5], restore_from="chk-2").success
    assert deployment.run(KEYS[6], start_empty=True).success
    assert deployment.table()[KEYS[5]] == Counter({("a", 4): 1})
    assert deployment.table()[KEYS[6]] == Counter({("b", 1): 1})


def test_a_run_of_a_backfill_that_is_tried_again_starts_where_the_backfill_is(deployment: Deployment) -> None:
    """The config is for the first run of the backfill. Dagster tags no run after the backfill has ended."""
    config = {"ops": {"letters": {"config": {"start_empty": True}}}}
    assets = deployment.assets()

    def run(key: str, poison: str | None = None, **tags: str) -> ExecuteInProcessResult:
        chosen = Definitions(deployment.assets(poison), resources=deployment.resources)
        return chosen.resolve_implicit_global_asset_job_def().execute_in_process(
            config, deployment.instance, partition_key=key, tags=tags, raise_on_error=False
        )

    backfill = {BACKFILL_ID_TAG: "one", JOB_TAG: "letters"}
    assert run(KEYS[0], **backfill).success
    assert not run(KEYS[1], "c", **backfill).success
    sensor = build_restart_sensor(assets, strategy=FixedDelayRestart(1, timedelta(0)))
    repository = Definitions(assets, sensors=[sensor], resources=deployment.resources).get_repository_def()
    tick = sensor.evaluate_tick(build_sensor_context(deployment.instance, repository_def=repository))
    (request,) = tick.run_requests or []
    assert request.partition_key == KEYS[1] and request.run_config == config
    assert run(KEYS[1], **request.tags).success
    assert deployment.table() == straight_run(KEYS[:2])
    assert run(KEYS[2], **backfill).success, "what was tried again counts"
    assert deployment.table() == straight_run(KEYS[:3])


def test_what_is_complete_before_a_failure_stays(deployment: Deployment) -> None:
    failed = deployment.run(KEYS[0], KEYS[3], poison="c")
    assert not failed.success
    assert deployment.materialized() == {KEYS[0]: 1}
    assert deployment.table() == straight_run(KEYS[:1])
    assert deployment.run(KEYS[1], KEYS[3]).success
    assert deployment.table() == straight_run(KEYS[:4])


def test_a_run_that_is_terminated_keeps_the_partitions_that_are_complete(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, taken = threading.Event(), list[int]()

    def interrupted(self: JobAttempt, job: Any) -> Any:
        taken.append(job.checkpoint_id)
        if len(taken) == 3:
            (run,) = deployment.instance.get_runs()
            deployment.instance.report_run_canceling(run)
            os.kill(os.getpid(), signal.SIGTERM)  # as Dagster does in the process of the run
            assert ended.wait(LIMIT), "the run waits for Spark"
        return run_rows(job, spark_order)

    with monkeypatch.context() as patch:
        patch.setattr(JobAttempt, "_on_spark", interrupted)
        try:
            assert not deployment.run(KEYS[0], KEYS[4]).success
        finally:
            ended.set()
    (run,) = deployment.instance.get_runs()
    assert run.status == DagsterRunStatus.CANCELED
    assert deployment.materialized() == {KEYS[0]: 1, KEYS[1]: 2}
    assert deployment.table() == straight_run(KEYS[:2])
    assert deployment.run(KEYS[2], KEYS[4]).success
    assert deployment.table() == straight_run(KEYS[:5])


def test_a_partition_outside_the_definition() -> None:
    with pytest.raises(ConfigurationError, match="the first is 2024-03-01, the last 2024-03-07"):
        time_partitions(WEEK, ["2024-04-01"])[0]
    assert time_partitions(WEEK, ["2024-03-03"])[0].ordinal == 2
    assert time_partitions(WEEK, ["2024-03-01"])[0] == TimePartition(
        "2024-03-01", datetime(2024, 3, 1, tzinfo=timezone.utc), datetime(2024, 3, 2, tzinfo=timezone.utc), 0
    )


def test_sources_must_know_partitions(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="source 'words'"):
        flink_assets(word_count(tmp_path, ["a"]), name="words", partitions_def=WEEK)


def test_no_checkpoint_sensor_for_partitions(tmp_path: Path) -> None:
    assets = flink_assets(letters(tmp_path), name="letters", partitions_def=WEEK)
    with pytest.raises(ConfigurationError, match="build_schedule_from_partitioned_job"):
        build_checkpoint_sensor(assets, interval=timedelta(minutes=1))


def test_policies_are_handed_on(tmp_path: Path) -> None:
    policy = BackfillPolicy.multi_run(1)
    (assets,) = flink_assets(letters(tmp_path), name="l", partitions_def=WEEK, backfill_policy=policy)
    assert assets.backfill_policy == policy


@pytest.mark.system
def test_end_states_that_are_not_kept(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = deployment.assets
    keep = PartitionRetention(every=None, last=1)
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, partition_retention=keep))
    deployment.run(KEYS[0], KEYS[3])
    message = failure_of(deployment.run(KEYS[1]))
    assert "No partition before it has one" in message
    assert f"--partition {KEYS[0]}" in message
    assert deployment.run(KEYS[0], KEYS[4]).success
    assert deployment.table() == straight_run(KEYS[:5])


def test_a_run_for_each_partition_leaves_what_the_policy_keeps(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, keep = deployment.assets, PartitionRetention(every=None, last=1)
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, partition_retention=keep))
    for key in KEYS[:4]:
        assert deployment.run(key).success
    state = next(path.parent for path in deployment.tmp_path.rglob("HEAD"))
    assert {path.name for path in state.glob("chk-*")} == {"chk-3", "chk-4"}, "its own, and what it started from"


def test_a_range_that_failed_starts_again_from_where_it_did(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, keep = deployment.assets, PartitionRetention(every=None, last=1)
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, partition_retention=keep))
    assert deployment.run(KEYS[0]).success
    assert not deployment.run(KEYS[1], KEYS[4], poison="a").success
    assert not deployment.run(KEYS[1], KEYS[4], poison="b").success
    assert deployment.run(KEYS[1], KEYS[4]).success
    assert deployment.table() == straight_run(KEYS[:5])


def test_what_fails_before_the_attempt_begins_is_told(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: JobAttempt) -> JobAttempt:
        raise RestoreError("the store is not for us")

    monkeypatch.setattr(JobAttempt, "__enter__", refused)
    assert failure_of(deployment.run(KEYS[0])) == "the store is not for us"


@pytest.mark.system
def test_a_job_that_gets_partitions_or_loses_them_is_refused(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read all of its input again."""
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    (tmp_path / "in").mkdir()
    for key in KEYS[:2]:
        pq.write_table(pa.table({"letter": [*WORDS[key]]}), tmp_path / "in" / f"{key}.parquet")

    def run(name: str, key: str | None = None, **config: Any) -> ExecuteInProcessResult:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_max_parallelism(8)
        source = ParquetSource(str(tmp_path / "in"), partition_format="%Y-%m-%d")
        read = env.from_source(source, WatermarkStrategy.no_watermarks(), "letters").uid("letters")
        letters = read.map(lambda row: row.letter, Types.STRING()).uid("letter").key_by(lambda letter: letter)
        letters.process(Count(), COUNTS).uid("count").sink_to(ParquetSink(str(tmp_path / name))).uid("table")
        options = {} if key is None else {"partitions_def": WEEK}
        definitions = Definitions(flink_assets(env, name=name, **options), resources=resources)
        job = definitions.resolve_implicit_global_asset_job_def()
        run_config = {"ops": {name: {"config": config}}}
        return job.execute_in_process(run_config, instance, partition_key=key, raise_on_error=False)

    assert run("loses", KEYS[0]).success
    said = "checkpoint 1 is the end state of partition '2024-03-01', and the job has no partitions now"
    assert said in failure_of(run("loses"))
    assert run("loses", KEYS[1]).success, "it has them back"
    told = [entry.user_message for entry in instance.all_logs(run("loses", restore_from="chk-1").run_id)]
    assert any(
        "chk-1 is the end state of partition '2024-03-01', in which sources have no positions" in t for t in told
    )
    assert run("loses", start_empty=True).success
    assert "job 'loses' has been run without partitions, up to checkpoint 4" in failure_of(run("loses", KEYS[2]))
    loses = resources["checkpoint_storage"].location().child("loses")
    savepoint = StorageLocation(trigger_savepoint(loses))
    assert restore_savepoint(loses, savepoint, owner="test", now_ms=0, allow_pickled_state=True) == 5
    assert fork_job(loses, "copy") == 6
    assert run("loses").success, "it is a job without partitions now"
    assert "job 'loses' has been run without partitions, up to checkpoint 6" in failure_of(run("loses", KEYS[2]))
    assert run("gets").success
    for key in KEYS[:2]:
        assert "job 'gets' has been run without partitions, up to checkpoint 1" in failure_of(run("gets", key))
    assert run("gets").success, "it has lost them again"
    assert run("gets", KEYS[0], start_empty=True).success
    assert run("gets", KEYS[1]).success


def test_days_of_another_time_zone_are_refused(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the same keys, but sources that read by time would read the rows of an hour twice, or never."""
    plain = deployment.assets
    assert deployment.run(KEYS[0]).success
    berlin = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08", timezone="Europe/Berlin")
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, partitions_def=berlin))
    said = failure_of(deployment.run(KEYS[1]))
    assert "was from 2024-03-01 00:00:00+00:00 to 2024-03-02 00:00:00+00:00" in said
    assert "Now '2024-03-01' is from 2024-03-01 00:00:00+01:00 to 2024-03-02 00:00:00+01:00" in said
    assert deployment.run(KEYS[1], restore_from="chk-1").success
    assert deployment.run(KEYS[2]).success


@pytest.mark.system
def test_a_backfill_of_days_before_the_old_start(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention and the warning follow the current definition."""
    plain = deployment.assets
    deployment.run(KEYS[3], KEYS[5], start_empty=True)
    short = DailyPartitionsDefinition(KEYS[3], end_date="2024-03-08")
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, partitions_def=short))
    assert deployment.run(KEYS[3], KEYS[5]).success
    keep = PartitionRetention(every=None, last=2)
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, partition_retention=keep))
    again = deployment.run(KEYS[0], KEYS[2])
    assert again.success
    said = [e.message for e in deployment.instance.all_logs(again.run_id) if "Run them again" in (e.user_message or "")]
    assert any(f"Partitions {KEYS[4]} to {KEYS[5]}" in message for message in said)
    found = read_head(deployment.resources["checkpoint_storage"].location().child("letters").open())
    assert found is not None
    assert [(kept.partition, kept.ordinal) for kept in found[0].partitions] == [
        (KEYS[2], 2),
        (KEYS[4], 4),
        (KEYS[5], 5),
    ], "the last two, and the newest"


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin"])
def test_hours_in_a_zone_with_daylight_saving_time_are_refused(tmp_path: Path, zone: str) -> None:
    hours = HourlyPartitionsDefinition("2024-03-01-00:00", timezone=zone)
    with pytest.raises(ConfigurationError, match=f"in time zone {zone}.*use timezone='UTC'"):
        flink_assets(letters(tmp_path), name="letters", partitions_def=hours)


@pytest.mark.parametrize(
    "windows",
    [
        HourlyPartitionsDefinition("2024-03-01-00:00"),
        HourlyPartitionsDefinition("2024-03-01-00:00", timezone="Asia/Kolkata"),
        DailyPartitionsDefinition("2024-03-31", timezone="Europe/Berlin"),
    ],
    ids=["UTC", "a zone that stays", "days, the first of 23 hours"],
)
def test_windows_that_names_of_files_can_tell_apart(tmp_path: Path, windows: TimeWindowPartitionsDefinition) -> None:
    assert flink_assets(letters(tmp_path), name="letters", partitions_def=windows)[0].partitions_def == windows


@pytest.mark.system
def test_what_a_failed_range_completed_becomes_stale_too(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = deployment.assets
    monkeypatch.setattr(deployment, "assets", lambda poison=None: plain(poison, deps={"letters": ["raw_letters"]}))
    deployment.run(KEYS[0], KEYS[1])
    assert not deployment.run(KEYS[2], KEYS[4], poison="b").success
    assert deployment.materialized() == dict(zip(KEYS, [1, 2, 3, 4], strict=False))
    assert deployment.stale() == []
    assert deployment.run(KEYS[1]).success
    assert deployment.stale() == [KEYS[2]]
    assert deployment.run(KEYS[2], KEYS[3]).success
    assert deployment.stale() == []


def test_runs_of_whole_jobs_are_found(deployment: Deployment) -> None:
    """The runs of a schedule have neither a tag nor an asset selection."""
    assets = deployment.assets(checks=FlinkAssetChecks())
    daily = define_asset_job("daily", AssetSelection.assets(*assets[0].keys).without_checks())
    checked = define_asset_job("checked", AssetSelection.checks(*assets[0].check_keys))
    definitions = Definitions(assets, jobs=[daily, checked], resources=deployment.resources)
    run = definitions.resolve_job_def("daily").execute_in_process(instance=deployment.instance, partition_key=KEYS[0])
    other = definitions.resolve_job_def("checked").execute_in_process(instance=deployment.instance)
    found = recent_runs(deployment.instance, "letters", list(assets[0].keys))
    assert [record.dagster_run.run_id for record in found] == [run.run_id]
    assert other.success
