"""The records of the input."""

from __future__ import annotations

from dagster_flinkpy.common.typeinfo import Types

__all__ = ["FLIGHT", "WEATHER"]

_FLIGHT_FIELDS = {
    "year": Types.INT(),
    "month": Types.INT(),
    "day": Types.INT(),
    "carrier": Types.STRING(),
    "flight": Types.INT(),
    "tailnum": Types.STRING(),
    "origin": Types.STRING(),
    "dest": Types.STRING(),
    "distance": Types.INT(),
    "sched_dep_time": Types.INT(),
    "dep_time": Types.INT(),
    "dep_delay": Types.INT(),
    "sched_arr_time": Types.INT(),
    "arr_time": Types.INT(),
    "arr_delay": Types.INT(),
    "air_time": Types.INT(),
    "time_hour_ms": Types.LONG(),
    "sched_dep_ms": Types.LONG(),
    "event_time_ms": Types.LONG(),
}
FLIGHT = Types.ROW_NAMED(list(_FLIGHT_FIELDS), list(_FLIGHT_FIELDS.values()))
"""One flight. (time_hour_ms, carrier, flight) is unique.

``year`` to ``day`` and the columns ``*_time`` are local (``*_time`` as hhmm). Delays and ``air_time`` are minutes.
Columns ``*_ms`` are milliseconds since 1970, UTC: the scheduled hour, the scheduled and the actual departure. A flight
that never departed has no ``event_time_ms``.
"""

_WEATHER_FIELDS = {
    "origin": Types.STRING(),
    "year": Types.INT(),
    "month": Types.INT(),
    "day": Types.INT(),
    "hour": Types.INT(),
    "temp": Types.DOUBLE(),
    "dewp": Types.DOUBLE(),
    "humid": Types.DOUBLE(),
    "wind_dir": Types.INT(),
    "wind_speed": Types.DOUBLE(),
    "wind_gust": Types.DOUBLE(),
    "precip": Types.DOUBLE(),
    "pressure": Types.DOUBLE(),
    "visib": Types.DOUBLE(),
    "time_hour_ms": Types.LONG(),
}
WEATHER = Types.ROW_NAMED(list(_WEATHER_FIELDS), list(_WEATHER_FIELDS.values()))
"""The weather of one airport and hour. (origin, time_hour_ms) is unique."""
