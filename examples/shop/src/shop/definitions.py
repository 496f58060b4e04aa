"""The Dagster code location. The folder of all data is ``$SHOP_HOME``, by default the current one."""

import os
from pathlib import Path

import dagster as dg
from dagster_flinkpy.orchestration import (
    CheckpointStorageResource,
    FlinkAssetChecks,
    SparkResource,
    build_checkpoint_sensor,
    build_flink_jobs,
    flink_assets,
)

from shop.pipeline import shop_env

HOME = Path(os.environ.get("SHOP_HOME", ".")).resolve()


def program():
    return shop_env(HOME / "data", HOME / "tables")


assets = flink_assets(program, name="shop", group_name="shop", checks=FlinkAssetChecks())
defs = dg.Definitions(
    assets=assets,
    jobs=build_flink_jobs(program, name="shop"),
    sensors=[build_checkpoint_sensor(assets, name="shop_checkpoint_sensor")],
    resources={
        "spark": SparkResource(),
        "checkpoint_storage": CheckpointStorageResource(url=str(HOME / "checkpoints")),
    },
)
