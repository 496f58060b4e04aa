"""The code location of ``benchmarks.dagster``: the flights pipeline, and an asset that does nothing."""

import os

from dagster import AssetSelection, Definitions, asset, define_asset_job

from assets.definitions import checkpoint_sensor, flights_assets
from dagster_flinkpy.orchestration import SparkResource
from resources import resources


@asset
def nothing() -> None:
    """Does nothing, to measure the cost of a run."""


spark = SparkResource(
    conf={
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{os.environ['FLINKPY_BENCH_SPARK_EVENTS']}",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
)

defs = Definitions(
    assets=[*flights_assets, nothing],
    jobs=[define_asset_job("nothing_job", AssetSelection.assets(nothing))],
    sensors=[checkpoint_sensor],
    resources={**resources, "spark": spark},
)
