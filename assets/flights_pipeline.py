"""The flights pipeline: the main job of the reference deployment."""

from __future__ import annotations

from datetime import date

from assets.flights_functions import (
    AIRPORT_DELAY,
    DELAYS,
    FLIGHT,
    FLIGHT_WEATHER,
    NEVER_DEPARTED,
    ROTATION_LEG,
    WEATHER,
    AircraftRotation,
    AirportDelayWindow,
    DelayAggregate,
    SplitDeparted,
    WeatherJoin,
)
from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows
from dagster_flinkpy.storage import StorageLocation

__all__ = ["TABLES", "build_flights_env"]

TABLES = ("rotations", "airport_delays", "weather_join", "never_departed")
"""The folders that are written below ``tables``, each by the sink ``{name}_table``."""


def build_flights_env(
    data: StorageLocation | str,
    tables: StorageLocation | str,
    delays: TwoPhaseCommittingSink,
    *,
    first_day: date | None = None,
    last_day: date | None = None,
    parallelism: int = 2,
) -> StreamExecutionEnvironment:
    """Builds the program, to be run or turned into Dagster assets, with or without daily partitions.

    An epoch reads one day.

    Args:
        data: Folder with the folders ``flights`` and ``weather``, as ``assets.demo.data.prepare`` writes them.
        tables: Folder for the tables except ``airport_delays``. Each is a folder of Parquet files.
        delays: The sink of the table ``airport_delays``.
        first_day: First day to read. Default: the first existing day.
        last_day: Last day to read. Default: the input continues in Dagster, and ends with the last existing day
            elsewhere.
        parallelism: Subtasks of each operator.
    """
    data = StorageLocation(data) if isinstance(data, str) else data
    tables = StorageLocation(tables) if isinstance(tables, str) else tables
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)

    def daily(folder: str, row_type: RowTypeInfo) -> ParquetSource:
        return ParquetSource(
            data.child(folder),
            row_type=row_type,
            since=f"{first_day}.parquet" if first_day else None,
            until=f"{last_day}.parquet" if last_day else None,
            # Two days in one epoch would be read in parallel, and the order of an aircraft's legs would be undefined.
            max_files_per_epoch=1,
            partition_format="%Y-%m-%d",
        )

    def table(name: str) -> ParquetSink:
        return ParquetSink(tables.child(name))

    # Files are in the order of the schedule, and no flight of 2013 left more than 22 hours late.
    by_departure = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_hours(24)).with_timestamp_assigner(
        "event_time_ms"
    )
    by_hour = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time_hour_ms")

    flights = env.from_source(daily("flights", FLIGHT), by_departure, "flights").uid("flights")
    weather = env.from_source(daily("weather", WEATHER), by_hour, "weather").uid("weather")

    departed = flights.process(SplitDeparted(), output_type=FLIGHT).name("departed").uid("departed")
    departed.get_side_output(NEVER_DEPARTED).sink_to(table("never_departed")).uid("never_departed_table")

    rotations = departed.key_by("tailnum").process(AircraftRotation(), output_type=ROTATION_LEG)
    rotations.name("rotations").uid("rotations").sink_to(table("rotations")).uid("rotations_table")

    airport_delays = (
        departed.key_by("origin")
        .window(TumblingEventTimeWindows.of(Time.hours(1)))
        .aggregate(DelayAggregate(), AirportDelayWindow(), accumulator_type=DELAYS, output_type=AIRPORT_DELAY)
    )
    airport_delays.name("airport_delays").uid("airport_delays")
    airport_delays.sink_to(delays).uid("airport_delays_table")

    weather_join = (
        departed.connect(weather)
        .key_by(("origin", "time_hour_ms"), ("origin", "time_hour_ms"))
        .process(WeatherJoin(), output_type=FLIGHT_WEATHER)
    )
    weather_join.name("weather_join").uid("weather_join").sink_to(table("weather_join")).uid("weather_join_table")
    return env
