"""The Spark that runs the pipelines, and the storage of their state."""

from pathlib import Path

import dagster as dg
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource

PROJECT = Path(__file__).parents[3]


@dg.definitions
def resources() -> dg.Definitions:
    return dg.Definitions(
        resources={
            "spark": SparkResource(),
            "checkpoint_storage": CheckpointStorageResource(url=str(PROJECT / "checkpoints")),
        }
    )
