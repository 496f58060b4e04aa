"""Runs a small program in Dagster on a real Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, Definitions, ExecuteInProcessResult

from dagster_flinkpy.checkpoint.offline import restore_savepoint
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.orchestration import build_flink_jobs, flink_assets
from dagster_flinkpy.orchestration.run_tries import FIRST_TRY_TAG
from dagster_flinkpy.storage import StorageLocation
from tests.orchestration.programs import Count, word_count

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_server")]

WORDS = ["ape", "bee", "ape", "cat"] * 10 + ["dog"] * 5


class Deployment:
    """A word count and its table."""

    def __init__(self, tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.table = tmp_path / "table"
        self._instance, self._resources = instance, resources
        self.storage = resources["checkpoint_storage"].location().child("words")

    def definitions(self, function: Count) -> Definitions:
        env = word_count(self.table, WORDS, function=function, per_epoch=20)
        return Definitions(
            flink_assets(env, name="words"), jobs=build_flink_jobs(env, name="words"), resources=self._resources
        )

    def materialize(self, function: Count | None = None, **config: Any) -> ExecuteInProcessResult:
        job = self.definitions(function or Count()).resolve_implicit_global_asset_job_def()
        return job.execute_in_process({"ops": {"words": {"config": config}}}, self._instance, raise_on_error=False)

    def run_job(self, name: str, *, first_try: str | None = None, **config: Any) -> ExecuteInProcessResult:
        job = self.definitions(Count()).resolve_job_def(name)
        [op] = job.nodes
        tags = {} if first_try is None else {FIRST_TRY_TAG: first_try}
        return job.execute_in_process({"ops": {op.name: {"config": config}}}, self._instance, tags=tags)

    def rows(self) -> list[tuple[str, int]]:
        tables = [pq.read_table(file, partitioning=None) for file in self.table.glob("**/[!._]*.parquet")]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def expected(words: list[str]) -> list[tuple[str, int]]:
    return sorted((word, n + 1) for word, count in Counter(words).items() for n in range(count))


@pytest.fixture
def deployment(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> Deployment:
    return Deployment(tmp_path, instance, resources)


def numbers(result: ExecuteInProcessResult, uid: str) -> dict[str, Any]:
    [metadata] = [
        event.materialization.metadata
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey(["words", uid])
    ]
    return {name.removeprefix("flink/"): value.value for name, value in metadata.items()}


def test_checkpoints_are_materializations_with_their_numbers(deployment: Deployment) -> None:
    first = numbers(deployment.materialize(), "table")
    assert (first["checkpoint_id"], first["records_in"], first["rows_committed"]) == (1, 20, 20)
    assert deployment.rows() == expected(WORDS[:20])
    result = deployment.materialize(epochs=0)
    count = numbers(result, "count")
    assert (count["checkpoint_id"], count["parallelism"]) == (3, 2)
    assert count["key_count"] >= 4
    assert count["state_bytes"] >= count["delta_bytes"] > 0
    assert [record.data["key_groups"] for record in count["subtasks"].records] == ["0..7", "8..15"]
    assert Path(count["checkpoint_metadata"]).is_file()
    assert deployment.rows() == expected(WORDS)
    after_the_end = deployment.materialize()
    assert after_the_end.success
    assert not after_the_end.get_asset_materialization_events()


def test_a_failing_function_leaves_the_table_and_the_next_run_resumes(deployment: Deployment) -> None:
    assert deployment.materialize(epochs=2).success
    before = deployment.rows()
    failed = deployment.materialize(Count(poison="dog"))
    assert not failed.success
    [event] = [e for e in failed.all_events if e.is_step_failure]
    metadata = event.step_failure_data.user_failure_data.metadata
    assert metadata["operator"].value == "count"
    assert metadata["subtask"].value in (0, 1)
    assert metadata["key"].value == "'dog'"
    assert "ValueError: dog is poison" in metadata["traceback"].value
    assert "process_element" in metadata["traceback"].value
    assert not failed.get_asset_materialization_events()
    assert deployment.rows() == before
    latest = CompletedCheckpointStore(deployment.storage.open()).latest()
    assert latest is not None
    assert latest.checkpoint_id == 2
    assert deployment.materialize(epochs=0).success
    assert deployment.rows() == expected(WORDS)


@pytest.mark.system
@pytest.mark.usefixtures("in_process")
def test_a_restore_that_is_tried_again_is_done_once(deployment: Deployment) -> None:
    """The run had made its checkpoint, and died before it could say so. Another run has continued meanwhile."""
    deployment.materialize()
    savepoint = deployment.run_job("words_savepoint").output_for_node("take_savepoint_of_words")
    restored = deployment.run_job("words_restore", savepoint_path=savepoint)
    assert deployment.materialize().success
    deployment.run_job("words_restore", savepoint_path=savepoint, first_try=restored.run_id)
    assert deployment.materialize(epochs=0).success
    assert deployment.rows() == expected(WORDS)


@pytest.mark.system
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("offline", [False, True])
def test_a_restore_is_done_once_whatever_has_been_restored_since(deployment: Deployment, offline: bool) -> None:
    deployment.materialize()
    savepoint = deployment.run_job("words_savepoint").output_for_node("take_savepoint_of_words")
    restored = deployment.run_job("words_restore", savepoint_path=savepoint)
    if offline:
        copied = StorageLocation(savepoint)
        restore_savepoint(deployment.storage, copied, owner="test", now_ms=current_millis(), allow_pickled_state=True)
    else:
        deployment.run_job("words_restore", savepoint_path=savepoint)
    assert deployment.materialize().success
    deployment.run_job("words_restore", savepoint_path=savepoint, first_try=restored.run_id)
    assert deployment.materialize(epochs=0).success
    assert deployment.rows() == expected(WORDS)


def test_savepoint_then_restore_at_another_parallelism(deployment: Deployment) -> None:
    deployment.materialize()
    taken = deployment.run_job("words_savepoint", format_type="NATIVE")
    savepoint = taken.output_for_node("take_savepoint_of_words")
    assert savepoint.endswith("-native")
    deployment.run_job("words_restore", savepoint_path=savepoint, parallelism=3)
    latest = CompletedCheckpointStore(deployment.storage.open()).latest()
    assert latest is not None
    assert {operator.parallelism for operator in latest.operators} == {3}
    assert numbers(deployment.materialize(epochs=0), "count")["parallelism"] == 3
    assert deployment.rows() == expected(WORDS)
