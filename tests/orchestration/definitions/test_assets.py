from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetDep,
    AssetKey,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    ConfigurableResource,
    DagsterInstance,
    DailyPartitionsDefinition,
    ExecuteInProcessResult,
    Failure,
    FreshnessPolicy,
    MetadataValue,
    RetryPolicy,
    TableColumn,
    TableColumnDep,
    TableColumnLineage,
    TableMetadataValue,
    TableSchema,
    TimeWindowPartitionMapping,
    asset,
    build_asset_context,
    materialize,
)
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet
from pydantic import ValidationError

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.serialization import Encoder
from dagster_flinkpy.connectors import AssetSource, ParquetSink, ParquetSource
from dagster_flinkpy.datastream import KeyedMultipleInputProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.file_system import FileSink
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    FencedError,
    MissingUidError,
    UserFunctionError,
)
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkOperatorData,
    FlinkTranslator,
    OperatorAttributes,
    SparkResource,
    build_checkpoint_sensor,
    build_flink_asset_specs,
    flink_assets,
)
from dagster_flinkpy.orchestration.run_config import FlinkRunConfig
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import job as runtime_job
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.orchestration.programs import FakeAttempt, parts, word_count
from tests.runtime.harness import run_rows

WORDS = TableSchema([TableColumn("f0", "string"), TableColumn("f1", "int64")])


def test_one_asset_per_operator(tmp_path: Path) -> None:
    env = word_count(tmp_path, ["a"]).enable_checkpointing(60_000)
    [assets] = flink_assets(env, name="words", group_name="demo")
    specs = {spec.key: spec for spec in assets.specs}
    words, count, table = (AssetKey(["words", uid]) for uid in ("words", "count", "table"))
    assert list(specs) == [words, count, table]
    assert {key: [dep.asset_key for dep in spec.deps] for key, spec in specs.items()} == {
        words: [],
        count: [words],
        table: [count],
    }
    assert [spec.kinds for spec in specs.values()] == [{"flink", "spark"}] * 2 + [{"flink", "spark", "parquet"}]
    assert specs[count].description == "Counts how often each word was seen so far."
    assert specs[count].group_name == "demo"
    assert len({spec.code_version for spec in specs.values()}) == 3
    of_words = [TableColumnDep(words, "value")]
    metadata = {name: value for name, value in specs[count].metadata.items() if name != "dagster/code_references"}
    assert metadata == {
        "flink/job_id": "words",
        "flink/uid": "count",
        "flink/kind": "keyed_process",
        "flink/parallelism": 2,
        "flink/max_parallelism": 16,
        "flink/checkpoint_interval_ms": 60_000,
        "dagster/column_schema": WORDS,
        "dagster/column_lineage": TableColumnLineage({"f0": of_words, "f1": of_words}),
    }
    assert assets.can_subset


class Joined(KeyedMultipleInputProcessFunction):
    def get_inputs(self) -> list[Any]:
        return [print] * 3


def test_an_operator_of_several_inputs_is_one_asset_that_depends_on_each() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    one, two, three = (
        env.from_collection(["a"], Types.STRING()).uid(uid).key_by(lambda word: word) for uid in ("one", "two", "three")
    )
    one.connect(two, three).process(Joined(), Types.STRING()).uid("joined")
    *_, joined = build_flink_asset_specs(env, name="words")
    assert [dep.asset_key.path[-1] for dep in joined.deps] == ["one", "two", "three"]
    assert joined.metadata["flink/kind"] == "keyed_multiple_input_process"


def test_the_program_may_be_a_function(tmp_path: Path) -> None:
    [assets] = flink_assets(lambda: word_count(tmp_path, ["a"]), name="words")
    assert len(assets.specs) == 3


def test_decorates_the_function_that_builds_the_program(tmp_path: Path) -> None:
    @flink_assets(name="words", group_name="demo", pool="words")
    def words() -> StreamExecutionEnvironment:
        return word_count(tmp_path, ["a"])

    [assets] = words
    assert len(assets.specs) == 3
    assert {spec.group_name for spec in assets.specs} == {"demo"}
    assert assets.op.pool == "words"


def test_owners_tags_and_upstream_assets(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "owners": ["team:data"],
        "tags": {"tier": "gold"},
        "deps": {"words": [["raw", "words"], AssetKey("more")]},
    }
    [assets] = flink_assets(word_count(tmp_path, ["a"]), name="words", **options)
    words, count, _ = assets.specs
    assert [dep.asset_key for dep in words.deps] == [AssetKey(["raw", "words"]), AssetKey("more")]
    assert [dep.asset_key for dep in count.deps] == [words.key]
    assert all((spec.owners, spec.tags["tier"]) == (["team:data"], "gold") for spec in assets.specs)
    specs = build_flink_asset_specs(word_count(tmp_path, ["a"]), name="words", **options)
    assert [(s.key, s.deps, s.owners, s.tags, s.metadata) for s in specs] == [
        (s.key, s.deps, s.owners, s.tags, s.metadata) for s in assets.specs
    ]


def test_attributes_of_all_assets_and_of_single_ones(tmp_path: Path) -> None:
    hourly, daily = (FreshnessPolicy.time_window(timedelta(hours=hours)) for hours in (1, 24))
    eager, on_cron = AutomationCondition.eager(), AutomationCondition.on_cron("@daily")
    options: dict[str, Any] = {
        "owners": ["team:data"],
        "tags": {"tier": "gold"},
        "freshness_policy": hourly,
        "automation_condition": eager,
        "operators": {
            "table": OperatorAttributes(
                group_name="tables",
                owners=["a@b.example"],
                tags={"pii": "no"},
                metadata={"contract": "v2"},
                freshness_policy=daily,
                automation_condition=on_cron,
            )
        },
    }
    retry = RetryPolicy(max_retries=2)
    [assets] = flink_assets(word_count(tmp_path, ["a"]), name="words", group_name="demo", retry_policy=retry, **options)
    words, _, table = assets.specs
    assert (words.group_name, words.owners, words.tags["tier"]) == ("demo", ["team:data"], "gold")
    assert (words.freshness_policy, words.automation_condition) == (hourly, eager)
    assert (table.group_name, table.owners, table.tags["tier"], table.tags["pii"]) == (
        "tables",
        ["a@b.example"],
        "gold",
        "no",
    )
    assert (table.metadata["contract"], table.metadata["flink/uid"]) == ("v2", "table")
    assert (table.freshness_policy, table.automation_condition) == (daily, on_cron)
    assert assets.op.retry_policy == retry
    *_, alone = build_flink_asset_specs(word_count(tmp_path, ["a"]), name="words", group_name="demo", **options)
    assert (alone.owners, alone.freshness_policy, alone.automation_condition) == (["a@b.example"], daily, on_cron)


def test_partitioned_assets_take_a_backfill_policy_and_a_retry_policy(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ParquetSource(str(tmp_path), row_type=Types.ROW_NAMED(["a"], [Types.LONG()]), partition_format="%Y-%m-%d")
    env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    days, policy = DailyPartitionsDefinition("2024-01-01"), BackfillPolicy.multi_run(7)
    retry = RetryPolicy(max_retries=2)
    [assets] = flink_assets(env, name="job", partitions_def=days, backfill_policy=policy, retry_policy=retry)
    assert (assets.backfill_policy, assets.op.retry_policy) == (policy, retry)


def test_refuses_attributes_of_what_is_no_asset(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'count', which is not an asset of the job.*\['table', 'words'\]"):
        flink_assets(
            word_count(tmp_path, ["a"]), name="words", show="tables", operators={"count": OperatorAttributes()}
        )


def test_specs_of_all_parts(tmp_path: Path) -> None:
    both = parts(tmp_path, "a", "b")
    specs = build_flink_asset_specs(both, name="both")
    assert [spec.key.path[-1] for spec in specs] == ["a", "a_table", "b", "b_table"]
    days = DailyPartitionsDefinition("2024-01-01")
    with pytest.raises(ConfigurationError, match="'a'"):
        build_flink_asset_specs(both, name="both", partitions_def=days)


def test_refuses_dependencies_of_what_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'count', which is not a source of the program. Its sources are \['words'\]"
    ):
        flink_assets(word_count(tmp_path, ["a"]), name="words", deps={"count": ["raw"]})


def test_a_source_reads_whatever_dagsters_own_deps_take(tmp_path: Path) -> None:
    @asset
    def raw() -> None: ...

    given = [raw, AssetSpec("spec"), AssetDep("dep"), ("sales", "orders"), "name"]
    specs = flink_assets(word_count(tmp_path, ["a"]), name="words", deps={"words": given})[0].specs
    (source,) = (spec for spec in specs if spec.key.path[-1] == "words")
    found = sorted(dep.asset_key.to_user_string() for dep in source.deps)
    assert found == ["dep", "name", "raw", "sales/orders", "spec"]


def test_a_dependency_of_a_source_keeps_its_partition_mapping(tmp_path: Path) -> None:
    before = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    raw = AssetDep("raw", partition_mapping=before)
    [plain] = flink_assets(word_count(tmp_path, ["a"]), name="words", deps={"words": [raw, "other"]})
    assert [*plain.get_asset_spec(AssetKey(["words", "words"])).deps] == [raw, AssetDep("other")]
    env = StreamExecutionEnvironment.get_execution_environment()
    source = AssetSource("raw", lambda materialization: [], Types.ROW_NAMED(["id"], [Types.LONG()]))
    env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows").print().uid("out")
    [reading] = flink_assets(env, name="rows", deps={"rows": [raw]})
    assert [*reading.get_asset_spec(AssetKey(["rows", "rows"])).deps] == [raw], "what it reads is named with a mapping"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"deps": {"words": "raw"}}, r"deps of 'words' needs a list of assets, such as \['raw'\]"),
        ({"deps": ["raw"]}, "deps needs a dict from the uid of a source to assets"),
        ({"checks": True}, r"checks needs FlinkAssetChecks\(...\), not True"),
    ],
    ids=["a name, whose letters would be assets", "a list", "checks"],
)
def test_arguments_of_another_kind_are_refused(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        flink_assets(word_count(tmp_path, ["a"]), name="words", **arguments)


def test_a_sensor_of_a_program_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"build_checkpoint_sensor needs what flink_assets\(...\) returned, not"
    ):
        build_checkpoint_sensor(lambda: word_count(tmp_path, ["a"]))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["spark", "checkpoint_storage"])
def test_a_resource_of_another_kind_is_named(tmp_path: Path, key: str) -> None:
    """A project may have a resource called ``spark`` already."""

    class Theirs(ConfigurableResource[Any]):
        app: str = "orders"

    resources = {"spark": SparkResource(), "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "jobs"))}
    assets = flink_assets(word_count(tmp_path, ["a"]), name="words")
    result = materialize(assets, resources={**resources, key: Theirs()}, raise_on_error=False)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    assert failed.step_failure_data.user_failure_data is not None
    said = str(failed.step_failure_data.user_failure_data.description)
    assert f"resource {key!r} must be a " in said and "but is a Theirs" in said and f"{key}_resource_key=..." in said


def test_a_misspelt_field_of_a_resource_is_refused() -> None:
    misspelt: Any = {"config": {}, "retained": 1}
    with pytest.raises(ValidationError, match="config"):
        SparkResource(config=misspelt["config"])
    with pytest.raises(ValidationError, match="retained"):
        CheckpointStorageResource(url="/jobs", retained=misspelt["retained"])


def test_columns_come_from_declared_types_and_pass_through_sinks(tmp_path: Path) -> None:
    [assets] = flink_assets(word_count(tmp_path, ["a"]), name="words")
    words, count, table = (TableMetadataSet.extract(spec.metadata) for spec in assets.specs)
    assert words.column_schema == TableSchema([TableColumn("value", "string")])
    assert table.column_schema == count.column_schema == WORDS
    assert words.column_lineage is None
    key = AssetKey(["words", "count"])
    assert table.column_lineage == TableColumnLineage({c: [TableColumnDep(key, c)] for c in ("f0", "f1")})


def test_what_is_pickled_has_no_columns(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(CollectionSource(["a"], Types.STRING()), WatermarkStrategy.no_watermarks(), "a").uid("a")
    stream.filter(bool).uid("some").map(str).uid("pickled")
    stream.union(env.from_collection(["b"], Types.STRING()).uid("b")).sink_to(ParquetSink(str(tmp_path))).uid("table")
    assets = flink_assets(env, name="words")
    columns = {s.key.path[-1]: TableMetadataSet.extract(s.metadata) for each in assets for s in each.specs}
    assert columns["pickled"] == TableMetadataSet()
    of_a, of_b = (TableColumnDep(AssetKey(["words", uid]), "value") for uid in ("a", "b"))
    assert columns["some"].column_lineage == TableColumnLineage({"value": [of_a]})
    assert columns["table"].column_lineage == TableColumnLineage({"value": [of_a, of_b]})


def test_where_text_files_are(tmp_path: Path) -> None:
    """They are no table: nothing says that they can be loaded as one."""
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection(["a"], Types.STRING()).uid("words")
    for uid, path in {"local": str(tmp_path / "a b"), "s3": "s3://bucket/words"}.items():
        words.sink_to(FileSink.for_row_format(path, Encoder.simple_string_encoder()).build()).uid(uid)
    [assets] = flink_assets(env, name="words")
    found = {s.metadata["flink/uid"]: s.metadata for s in assets.specs}
    assert found["local"]["dagster/uri"] == (tmp_path / "a b").as_uri()
    assert found["s3"]["dagster/uri"] == "s3://bucket/words"
    assert "flink/record_type" not in found["local"]


def test_columns_pass_through_a_blocking_edge(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    words = env.from_collection(["a"], Types.STRING()).uid("words")
    words.blocking().sink_to(ParquetSink(str(tmp_path))).uid("table")
    _, table = (spec for each in flink_assets(env, name="words") for spec in each.specs)
    of_words = TableColumnDep(AssetKey(["words", "words"]), "value")
    assert TableMetadataSet.extract(table.metadata).column_lineage == TableColumnLineage({"value": [of_words]})


def test_parts_that_no_edge_joins_are_one_step(tmp_path: Path) -> None:
    [assets] = flink_assets(parts(tmp_path, "a", "b"), name="both")
    assert assets.node_def.name == "both"
    assert {s.metadata["flink/job_id"] for s in assets.specs} == {"both"}
    assert assets.keys == {AssetKey(["both", uid]) for uid in ("a", "a_table", "b", "b_table")}


def test_translator_changes_keys_and_dependencies(tmp_path: Path) -> None:
    class Upper(FlinkTranslator):
        def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
            spec = super().get_asset_spec(data).replace_attributes(key=AssetKey(data.vertex.uid.upper()))
            return spec if data.upstream else spec.replace_attributes(deps=["files"])

    [assets] = flink_assets(word_count(tmp_path, ["a"]), name="words", translator=Upper())
    deps = {spec.key.to_user_string(): [d.asset_key.to_user_string() for d in spec.deps] for spec in assets.specs}
    assert deps == {"WORDS": ["files"], "COUNT": ["WORDS"], "TABLE": ["COUNT"]}


def test_refuses_a_stateful_operator_without_uid(tmp_path: Path) -> None:
    env = word_count(tmp_path, ["a"])
    env.from_collection(["b"])
    with pytest.raises(MissingUidError, match="Collection Source"):
        flink_assets(env, name="words")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b"])
def test_refuses_a_name_that_is_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="job name"):
        flink_assets(word_count(tmp_path, ["a"]), name=name)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance, resources: dict[str, Any]) -> Any:
    """Returns a function that materializes the word count with a fake attempt."""

    def execute(config: dict[str, Any] | None = None, **fake: Any) -> ExecuteInProcessResult:
        monkeypatch.setattr(runtime_job, "JobAttempt", FakeAttempt.factory(**fake))
        return materialize(
            flink_assets(word_count(tmp_path, ["a"]), name="words"),
            instance=instance,
            resources=resources,
            run_config={"ops": {"words": {"config": config or {}}}},
            raise_on_error=False,
        )

    return execute


def test_checkpoints_at_the_interval(run: Any) -> None:
    assert run({"epochs": 0, "periodic": True}, epochs=4).success
    [attempt] = FakeAttempt.made
    assert attempt.periodic == 4
    assert run({"epochs": 2}, epochs=4).success
    assert FakeAttempt.made[0].periodic == 0


def test_a_checkpoint_materializes_all_operators(run: Any, instance: DagsterInstance, tmp_path: Path) -> None:
    result = run()
    events = result.get_asset_materialization_events()
    assert [e.asset_key.path[-1] for e in events] == ["words", "count", "table"]
    metadata = events[2].materialization.metadata
    assert metadata["flink/checkpoint_id"] == MetadataValue.int(42)
    assert metadata["flink/rows_committed"] == MetadataValue.int(6)
    assert metadata["flink/watermark"] == MetadataValue.timestamp(1_360_000_000.0)
    assert metadata["flink/checkpoint_metadata"] == MetadataValue.url("s3://bucket/words/chk-42/_metadata")
    assert metadata["flink/parallelism"] == MetadataValue.int(2)
    assert {"flink/key_count", "flink/state_bytes", "flink/delta_bytes", "flink/duration_ms", "flink/attempt"} < set(
        metadata
    )
    table = metadata["flink/subtasks"]
    assert isinstance(table, TableMetadataValue)
    assert [record.data["key_groups"] for record in table.records] == ["0..7", "-"]
    record = instance.get_latest_data_version_record(AssetKey(["words", "count"]))
    assert record is not None
    assert record.asset_materialization is not None
    assert record.asset_materialization.tags is not None
    assert re.fullmatch("42-[0-9a-f]{12}", record.asset_materialization.tags["dagster/data_version"])
    [attempt] = FakeAttempt.made
    assert attempt.exited
    assert attempt.config.storage.url == (tmp_path / "checkpoints").as_uri()
    assert attempt.config.checkpointing.num_retained == 2
    assert result.run_id in attempt.options["owner"]
    assert "flink/rows_committed" not in events[1].materialization.metadata


@pytest.mark.parametrize(("epochs", "last"), [(2, 43), (0, 46), (99, 46)])
def test_several_epochs_are_one_materialization(run: Any, epochs: int, last: int) -> None:
    events = run({"epochs": epochs}, epochs=5).get_asset_materialization_events()
    assert [e.materialization.metadata["flink/checkpoint_id"].value for e in events] == [last] * 3


def test_a_run_takes_as_many_checkpoints_as_its_config_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    jobs: list[int] = []

    def on_harness(attempt: runtime_job.JobAttempt, job: EpochJob) -> list[WireRow]:
        jobs.append(job.checkpoint_id)
        return run_rows(job)

    monkeypatch.setattr(runtime_job.JobAttempt, "_on_spark", on_harness)
    result = materialize(
        flink_assets(word_count(tmp_path / "table", ["a", "b", "a", "a", "b"], per_epoch=1), name="words"),
        instance=instance,
        resources=resources,
        run_config={"ops": {"words": {"config": {"epochs": 4}}}},
    )
    assert jobs == [1, 2, 3, 4]
    events = result.get_asset_materialization_events()
    assert {e.materialization.metadata["flink/checkpoint_id"].value for e in events} == {4}
    rows = pq.read_table(tmp_path / "table").to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_the_last_watermark_is_no_time(run: Any) -> None:
    events = run(epochs=1).get_asset_materialization_events()
    assert events[0].materialization.metadata["flink/watermark"] == MetadataValue.text("end of input")


def test_run_config_reaches_the_attempt(run: Any) -> None:
    result = run({"parallelism": 3, "restore_from": "chk-7", "allow_non_restored_state": True})
    options = FakeAttempt.made[0].options
    assert (options["parallelism"], options["restore_from"], options["allow_non_restored_state"]) == (3, "chk-7", True)
    assert options["run_id"] == result.run_id


def test_uids_whose_state_may_stay_behind_reach_the_attempt(run: Any) -> None:
    run({"allow_non_restored_state": ["old", "older"]})
    assert FakeAttempt.made[0].options["allow_non_restored_state"] == ["old", "older"]


@pytest.mark.parametrize("wrong", ["old", [1], 1])
def test_what_is_no_list_of_uids_is_refused(wrong: Any) -> None:
    with pytest.raises(Failure) as raised:
        FlinkRunConfig(allow_non_restored_state=wrong)
    assert "give true, false or a list of uids" in str(raised.value.description)


@pytest.mark.parametrize(
    ("stopped", "why"), [(False, "input of job words has ended"), (True, "Restore a savepoint to continue it")]
)
def test_after_the_end_of_input_nothing_is_materialized(
    run: Any, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, stopped: bool, why: str
) -> None:
    monkeypatch.setattr(FakeAttempt, "stopped", stopped)
    result = run(epochs=0)
    assert result.success
    assert not result.get_asset_materialization_events()
    assert any(why in entry.user_message for entry in instance.all_logs(result.run_id))


def test_a_failing_function_is_shown_part_by_part(run: Any) -> None:
    error = UserFunctionError(
        "process_element of operator 'count', subtask 1, key 'x', raised ValueError: no",
        operator="count",
        subtask=1,
        key="'x'",
        user_traceback="Traceback ...\nValueError: no",
    )
    result = run(error=error)
    assert not result.success
    assert not result.get_asset_materialization_events()
    [failed] = [e for e in result.all_events if e.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure.description == "process_element of operator 'count', subtask 1, key 'x', raised ValueError: no"
    assert failure.metadata["operator"] == MetadataValue.text("count")
    assert failure.metadata["subtask"] == MetadataValue.int(1)
    assert failure.metadata["key"] == MetadataValue.text("'x'")
    assert "ValueError: no" in failure.metadata["traceback"].value
    assert failed.step_failure_data.error.cause.cls_name == "UserFunctionError"


def test_other_errors_are_failures_too(run: Any) -> None:
    result = run(error=FencedError("run b took over\nat noon"))
    [failed] = [e for e in result.all_events if e.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure.description == "run b took over"
    assert failure.metadata["error"] == MetadataValue.text("FencedError")
    assert "at noon" in failure.metadata["traceback"].value


def test_errors_that_are_not_of_the_library_stay_as_they_are(run: Any) -> None:
    result = run(error=ZeroDivisionError("oops"))
    [failed] = [e for e in result.all_events if e.is_step_failure]
    assert failed.step_failure_data.user_failure_data is None


def test_a_retry_cannot_help_a_fenced_run() -> None:
    from dagster_flinkpy.orchestration.failure import as_failure

    assert isinstance(as_failure(FencedError("x")), Failure)
    assert not as_failure(FencedError("x")).allow_retries
    assert not as_failure(CommittableLostError("x")).allow_retries
    assert as_failure(UserFunctionError("x")).allow_retries


def test_assets_that_are_called_directly_say_how_to_run_them(tmp_path: Path, resources: dict[str, Any]) -> None:
    (assets,) = flink_assets(word_count(tmp_path / "table", ["a"]), name="words")
    with pytest.raises(Failure, match=r"'words' need a run, .* run them with dagster.materialize\(assets"):
        assets(build_asset_context(resources=resources), FlinkRunConfig())
