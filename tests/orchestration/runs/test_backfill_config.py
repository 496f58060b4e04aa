"""The config that Dagster's UI offers for a backfill."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from dagster import DagsterInstance
from dagster_graphql.test.utils import define_out_of_process_context, execute_dagster_graphql

from dagster_flinkpy.orchestration.run_config import FlinkRunConfig


@pytest.mark.system
def test_the_editor_for_the_config_of_a_backfill_opens_with_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "definitions.py"
    file.write_text(
        f"""
from pathlib import Path
import dagster as dg
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, flink_assets
from tests.orchestration.runs.test_partitioned_run import WEEK, letters

storage = CheckpointStorageResource(url={str(tmp_path / "checkpoints")!r})
assets = flink_assets(letters(Path({str(tmp_path)!r})), name="letters", partitions_def=WEEK)
defs = dg.Definitions(assets=assets, resources={{"spark": SparkResource(), "checkpoint_storage": storage}})
"""
    )
    query = """query($job: PipelineSelector!) {
        runConfigSchemaOrError(selector: $job) { ... on RunConfigSchema { rootDefaultYaml } }
    }"""
    with (
        DagsterInstance.local_temp(str(tmp_path)) as instance,
        define_out_of_process_context(str(file), None, instance) as context,
    ):
        job = {
            "repositoryName": "__repository__",
            "repositoryLocationName": context.code_location_names[0],
            "pipelineName": "__ASSET_JOB",
        }
        answer = execute_dagster_graphql(context, query, {"job": job})
    config = yaml.safe_load(answer.data["runConfigSchemaOrError"]["rootDefaultYaml"])["ops"]["letters"]["config"]
    defaults = {name: field.default for name, field in FlinkRunConfig.model_fields.items() if field.default is not None}
    assert config == defaults
