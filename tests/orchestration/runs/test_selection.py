"""Selecting some assets of a region runs all of it. Tasks run in the harness, without Spark; the rest is real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetSpec,
    AutomationCondition,
    DagsterInstance,
    DataVersion,
    Definitions,
    ExecuteInProcessResult,
    MaterializeResult,
    asset,
    evaluate_automation_conditions,
)
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_TAG,
    INPUT_EVENT_POINTER_TAG_PREFIX,
    CachingStaleStatusResolver,
    StaleStatus,
)
from dagster._core.loader import LoadingContextForTest

from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkAssetChecks,
    FlinkOperatorData,
    FlinkTranslator,
    build_flink_jobs,
    flink_assets,
)
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import parts, word_count
from tests.runtime.harness import run_rows, spark_order

UIDS = ["words", "count", "table"]
SELECTIONS = [["words"], ["table"], ["words", "table"]]


class Words:
    """The word count as assets after an asset of files."""

    def __init__(self, path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.path, self.instance, self.resources = path, instance, resources
        self.automate: dict[str, AutomationCondition[Any]] = {}
        self.files = 0

    def definitions(self) -> Definitions:
        deployment = self

        class Automated(FlinkTranslator):
            def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
                condition = deployment.automate.get(data.vertex.uid)
                return super().get_asset_spec(data).replace_attributes(automation_condition=condition)

        @asset
        def files() -> MaterializeResult[Any]:
            return MaterializeResult(data_version=DataVersion(str(self.files)))

        env = word_count(self.path / "table", ["a", "b"] * 20, per_epoch=1)
        assets = flink_assets(
            env, name="words", checks=FlinkAssetChecks(), deps={"words": ["files"]}, translator=Automated()
        )
        return Definitions([files, *assets], resources=self.resources)

    def write_files(self) -> None:
        self.files += 1
        job = self.definitions().resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=self.instance, asset_selection=[AssetKey("files")]).success

    def run(self, *uids: str, **config: Any) -> ExecuteInProcessResult:
        job = self.definitions().resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            {"ops": {"words": {"config": config}}},
            self.instance,
            asset_selection=[AssetKey(["words", uid]) for uid in uids],
        )

    def latest(self, uid: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Returns tags and metadata numbers of the newest materialization, except those that differ between runs."""
        record = self.instance.get_latest_materialization_event(AssetKey(["words", uid]))
        assert record is not None
        assert record.asset_materialization is not None
        tags = dict(record.asset_materialization.tags or {})
        facts = {name: getattr(value, "value", None) for name, value in record.asset_materialization.metadata.items()}
        facts = {
            name: value
            for name, value in facts.items()
            if isinstance(value, int) and not name.endswith(("_ms", "_per_second"))
        }
        digest = tags[DATA_VERSION_TAG].partition("-")[2]
        assert digest
        tags = {name: value.replace(digest, "digest") for name, value in tags.items()}
        assert tags.pop(CODE_VERSION_TAG)  # contains the table's path
        return {k: v for k, v in tags.items() if not k.startswith(INPUT_EVENT_POINTER_TAG_PREFIX)}, facts

    def stale(self) -> list[str]:
        graph = self.definitions().get_repository_def().asset_graph
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        return [uid for uid in UIDS if resolver.get_status(AssetKey(["words", uid])) != StaleStatus.FRESH]


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))


@pytest.fixture
def words(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> Words:
    deployment = Words(tmp_path, instance, resources)
    deployment.write_files()
    return deployment


def said(instance: DagsterInstance, result: ExecuteInProcessResult) -> list[str]:
    entries = instance.all_logs(result.run_id)
    return [entry.user_message for entry in entries if "runs the whole job" in (entry.user_message or "")]


@pytest.mark.short("words")
@pytest.mark.parametrize("selected", SELECTIONS, ids="-".join)
def test_a_selection_materializes_the_region_as_a_run_of_all_does(
    words: Words, tmp_path: Path, selected: list[str]
) -> None:
    with DagsterInstance.ephemeral() as other:
        storage = CheckpointStorageResource(url=str(tmp_path / "whole/checkpoints"), num_retained=2)
        whole = Words(tmp_path / "whole", other, {**words.resources, "checkpoint_storage": storage})
        whole.write_files()
        for run in (words.run(*UIDS), whole.run(*UIDS), words.run(*selected), whole.run(*UIDS)):
            assert run.success
        for uid in UIDS:
            assert words.latest(uid) == whole.latest(uid), uid
    assert words.stale() == []


@pytest.mark.system
@pytest.mark.short("words")
@pytest.mark.parametrize("selected", SELECTIONS, ids="-".join)
def test_what_is_stale_is_told_after_a_run_of_any_selection(words: Words, selected: list[str]) -> None:
    words.run(*selected)
    assert words.stale() == []
    words.write_files()
    assert words.stale() == ["words"]
    words.run(*selected)
    assert words.stale() == []


def test_the_log_says_that_a_selection_runs_its_region(words: Words) -> None:
    (line,) = said(words.instance, words.run("count"))
    assert line == (
        "The selection words/count runs the whole job words of 3 assets, because state and barriers belong to "
        "the job. So these are materialized as well: words/words, words/table."
    )
    assert said(words.instance, words.run(*UIDS)) == []


@pytest.mark.system
def test_nothing_is_materialized_where_the_input_has_ended(words: Words) -> None:
    assert words.run("count", epochs=0).success
    ended = words.run("count")
    assert ended.success
    events = words.instance.all_logs(ended.run_id)
    assert not [entry for entry in events if entry.dagster_event and entry.dagster_event.is_step_materialization]


@pytest.mark.parametrize(
    ("selected", "ran"),
    [(["a"], {"a"}), (["b_table"], {"b"}), (["a_table", "b"], {"a", "b"}), (["a", "a_table"], {"a"})],
)
def test_each_job_of_which_anything_is_selected_runs(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], selected: list[str], ran: set[str]
) -> None:
    assets = [each for name in "ab" for each in flink_assets(parts(tmp_path, name), name=f"both_{name}")]
    job = Definitions(assets, resources=resources).resolve_implicit_global_asset_job_def()
    keys = [AssetKey([f"both_{uid[0]}", uid]) for uid in selected]
    assert job.execute_in_process(instance=instance, asset_selection=keys).success
    made = {key for key in instance.all_asset_keys() if instance.get_latest_materialization_event(key)}
    assert made == {AssetKey([f"both_{name}", uid]) for name in ran for uid in (name, f"{name}_table")}


def test_checks_of_selected_assets_look_at_the_new_checkpoint(words: Words) -> None:
    words.run(*UIDS)
    result = words.run("count")
    checks = result.get_asset_check_evaluations()
    assert {check.check_name for check in checks} == {
        "snapshot_integrity",
        "restore_drill",
        "checkpoint_trend",
        "state_evolution",
        "event_time",
    }
    assert {check.asset_key.path[-1] for check in checks} == {"count"}
    assert all(check.passed and check.metadata["flink/checkpoint_id"].value == 2 for check in checks)


@pytest.mark.system
def test_jobs_go_on_from_a_run_of_a_selection(words: Words) -> None:
    assert words.run("table").success
    env = word_count(words.path / "table", ["a", "b"] * 20, per_epoch=1)
    jobs = {job.name: job for job in build_flink_jobs(env, name="words")}
    savepoint = jobs["words_savepoint"].execute_in_process(instance=words.instance, resources=words.resources)
    rescaled = jobs["words_rescale"].execute_in_process(
        {"ops": {"rescale_words": {"config": {"parallelism": 3}}}}, words.instance, resources=words.resources
    )
    assert rescaled.output_for_node("rescale_words") == 2
    assert words.run("words").success
    assert words.latest("count")[1]["flink/parallelism"] == 3
    path = savepoint.output_for_node("take_savepoint_of_words")
    assert words.run("count", restore_from=path).success
    assert words.latest("table")[1]["flink/rows_committed"] == 1


@pytest.mark.parametrize(
    ("automated", "expected"),
    [(UIDS, UIDS), (["table"], []), (["words"], ["words"]), (["words", "table"], ["words"])],
)
def test_automation_asks_once_for_what_is_new(words: Words, automated: list[str], expected: list[str]) -> None:
    """Assets that a run materialized besides its selection are not requested again."""
    words.automate = dict.fromkeys(automated, AutomationCondition.eager())
    result = evaluate_automation_conditions(words.definitions(), words.instance)
    words.run(*UIDS)
    result = evaluate_automation_conditions(words.definitions(), words.instance, cursor=result.cursor)
    assert result.total_requested == 0
    words.write_files()
    result = evaluate_automation_conditions(words.definitions(), words.instance, cursor=result.cursor)
    asked = [uid for uid in UIDS if result.get_num_requested(AssetKey(["words", uid]))]
    assert asked == expected
    if asked:
        words.run(*asked)
    result = evaluate_automation_conditions(words.definitions(), words.instance, cursor=result.cursor)
    assert result.total_requested == 0
