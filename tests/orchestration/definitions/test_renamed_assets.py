"""Assets whose keys Dagster has changed after `flink_assets` has made them. Tasks run in the harness, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    ExecuteInProcessResult,
    asset,
    load_assets_from_modules,
)

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import AssetSource
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import FlinkAssetChecks, flink_assets
from tests.orchestration.programs import word_count
from tests.orchestration.runs.test_partitioned_run import failure_of, letters

pytestmark = pytest.mark.usefixtures("in_process")


@asset
def files() -> None:
    """What the job reads."""


def run(
    assets: Sequence[AssetsDefinition],
    instance: DagsterInstance,
    resources: dict[str, Any],
    *selected: str,
    partition_key: str | None = None,
) -> ExecuteInProcessResult:
    """Runs assets from a module that is loaded with a prefix."""
    module = ModuleType("team")
    module.files, module.assets = files, assets  # type: ignore[attr-defined]
    defs = Definitions(load_assets_from_modules([module], key_prefix="team"), resources=resources)
    job = defs.resolve_implicit_global_asset_job_def()
    keys = [AssetKey(["team", *key.split("/")]) for key in selected]
    return job.execute_in_process(
        instance=instance, asset_selection=keys, partition_key=partition_key, raise_on_error=False
    )


def materialized(instance: DagsterInstance) -> set[str]:
    return {key.to_user_string() for key in instance.get_asset_keys() if instance.get_latest_materialization_event(key)}


@pytest.mark.parametrize("selected", [["count"], ["words", "count", "table"]])
def test_they_are_materialized_and_checked_under_their_new_keys(
    selected: list[str], tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    env = word_count(tmp_path / "table", ["a", "b"] * 20)
    assets = flink_assets(env, name="words", checks=FlinkAssetChecks(), deps={"words": ["files"]})
    assert run(assets, instance, resources, "files").success
    result = run(assets, instance, resources, *(f"words/{uid}" for uid in selected))
    assert result.success
    assert materialized(instance) == {"team/files", "team/words/words", "team/words/count", "team/words/table"}
    checked = {each.asset_key.path[-1] for each in result.get_asset_check_evaluations()}
    assert checked == set(selected)
    read = instance.get_latest_materialization_event(AssetKey(["team", "words", "words"]))
    assert read is not None
    assert read.asset_materialization is not None
    assert "dagster/input_event_pointer/team/files" in (read.asset_materialization.tags or {})


@pytest.mark.parametrize("selected", [["table"], ["letters", "count", "table"]])
def test_so_are_partitions(
    selected: list[str], tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    days = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-08")
    assets = flink_assets(letters(tmp_path / "table"), name="letters", partitions_def=days)
    keys = [f"letters/{uid}" for uid in selected]
    result = run(assets, instance, resources, *keys, partition_key="2024-03-01")
    assert result.success
    assert materialized(instance) == {"team/letters/letters", "team/letters/count", "team/letters/table"}
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.asset_key == AssetKey(["team", "letters", "table"])


def test_a_source_of_an_asset_that_has_another_key_is_refused(
    instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = AssetSource("files", lambda materialization: [], Types.ROW_NAMED(["id"], [Types.LONG()]))
    env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows").print().uid("out")
    result = run(flink_assets(env, name="rows"), instance, resources, "rows/rows")
    assert "'rows' reads asset 'files', whose key in this code location is 'team/files'" in failure_of(result)
