"""Loads the YAML of the documentation with Dagster's component loader or instance."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from dagster import AssetKey, DagsterInstance
from dagster._config import process_config
from dagster._core.instance.ref import InstanceRef
from dagster.components.testing import create_defs_folder_sandbox
from dagster_postgres import DagsterPostgresStorage

from dagster_flinkpy.orchestration.component.pipeline_component import FlinkPipelineComponent

pytestmark = pytest.mark.smoke

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_no_block_is_without_a_test() -> None:
    with_blocks = {path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md") if "```yaml" in path.read_text()}
    # The last by test_snippets.py.
    assert with_blocks == {"component.md", "how-to/alerts.md", "how-to/postgres.md", "tutorial.md"}


def test_the_pipelines_in_yaml_load() -> None:
    pipeline, sensors, single = blocks_of("component.md")
    more = {**yaml.safe_load(pipeline), **yaml.safe_load(single)}
    more["attributes"] |= {**yaml.safe_load(sensors), "name": "word_count"}
    for document, names in (
        (pipeline, {"word_count_checkpoint_sensor"}),
        (yaml.safe_dump(more), {f"word_count_{name}_sensor" for name in ("checkpoint", "restart", "savepoint")}),
    ):
        with create_defs_folder_sandbox() as sandbox:
            folder = sandbox.scaffold_component(FlinkPipelineComponent, "word_count")
            (folder / "defs.yaml").write_text(document)
            with sandbox.build_all_defs() as defs:
                assert names <= {sensor.name for sensor in defs.sensors or ()}
    table = defs.resolve_asset_graph().get(AssetKey(["word_count", "table"]))
    assert (table.owners, table.metadata["contract"]) == (["team:tables"], "v2")


def test_the_freshness_daemon_is_switched_on(tmp_path: Path) -> None:
    (block,) = blocks_of("how-to/alerts.md")
    (tmp_path / "dagster.yaml").write_text(block)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.freshness_enabled


def test_the_settings_for_postgres_are_dagsters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks_of("how-to/postgres.md")
    (tmp_path / "dagster.yaml").write_text(block)
    monkeypatch.setenv("DAGSTER_PG_USERNAME", "dagster")
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "secret")
    data = InstanceRef.from_dir(str(tmp_path)).storage_data
    assert data is not None and data.class_name == "DagsterPostgresStorage"
    outcome = process_config(DagsterPostgresStorage.config_type(), data.config_dict)
    assert outcome.success, outcome.errors
