"""The functions of the flights pipeline, written like PyFlink functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from assets.records import FLIGHT, WEATHER
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.functions import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from dagster_flinkpy.datastream.window import TimeWindow

__all__ = [
    "AIRPORT_DELAY",
    "FLIGHT",
    "FLIGHT_WEATHER",
    "NEVER_DEPARTED",
    "ROTATION_LEG",
    "WEATHER",
    "AircraftRotation",
    "AirportDelayWindow",
    "DelayAggregate",
    "SplitDeparted",
    "WeatherJoin",
]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

NEVER_DEPARTED = OutputTag("never_departed", FLIGHT)


class SplitDeparted(ProcessFunction):
    """Emits flights that departed. The others go to the side output ``NEVER_DEPARTED``."""

    def process_element(self, value: Row, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value.event_time_ms is None:
            yield NEVER_DEPARTED, value
        else:
            yield value


ROTATION_LEG = Types.ROW_NAMED(
    [
        "tailnum",
        "time_hour_ms",
        "carrier",
        "flight",
        "origin",
        "dest",
        "event_time_ms",
        "dep_delay",
        "arr_delay",
        "leg",
        "airport_legs",
        "inherited_delay",
    ],
    [
        Types.STRING(),
        Types.LONG(),
        Types.STRING(),
        Types.INT(),
        Types.STRING(),
        Types.STRING(),
        Types.LONG(),
        Types.INT(),
        Types.INT(),
        Types.INT(),
        Types.INT(),
        Types.INT(),
    ],
)


class AircraftRotation(KeyedProcessFunction):
    """Follows an aircraft from leg to leg, keyed by tail number.

    A rotation is a sequence of legs, in order of arrival, until the aircraft has not flown for 24 hours. ``leg`` counts
    its legs and ``airport_legs`` those from the same airport, from 1. ``inherited_delay`` is the part of the departure
    delay that the previous leg explains: the smaller of its arrival delay and this departure delay. The previous leg
    must connect to this one: it ended where this one starts; or it started there, and the flight back is not in the
    data, which only has departures from New York.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        last_leg = Types.ROW_NAMED(
            ["leg", "origin", "dest", "arr_delay", "closes_ms"],
            [Types.INT(), Types.STRING(), Types.STRING(), Types.INT(), Types.LONG()],
        )
        self._last_leg = runtime_context.get_state(ValueStateDescriptor("last_leg", last_leg))
        self._legs = runtime_context.get_map_state(
            MapStateDescriptor("legs_per_airport", Types.STRING(), Types.INT()),
        )

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        timers = ctx.timer_service()
        last = self._last_leg.value()
        if last is not None and value.event_time_ms >= last.closes_ms:
            # The watermark is behind this flight, so the timer has not fired yet.
            timers.delete_event_time_timer(last.closes_ms)
            self._close_rotation()
            last = None

        leg, inherited, closes = 1, 0, value.event_time_ms + DAY_MS
        if last is not None:
            leg = last.leg + 1
            closes = max(closes, last.closes_ms)  # flights may arrive slightly out of order
            if value.origin in (last.origin, last.dest) and last.arr_delay is not None:
                inherited = max(0, min(last.arr_delay, value.dep_delay))
            timers.delete_event_time_timer(last.closes_ms)
        timers.register_event_time_timer(closes)
        self._last_leg.update(Row(leg, value.origin, value.dest, value.arr_delay, closes))

        airport_legs = (self._legs.get(value.origin) or 0) + 1
        self._legs.put(value.origin, airport_legs)
        yield Row(
            value.tailnum,
            value.time_hour_ms,
            value.carrier,
            value.flight,
            value.origin,
            value.dest,
            value.event_time_ms,
            value.dep_delay,
            value.arr_delay,
            leg,
            airport_legs,
            inherited,
        )

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        self._close_rotation()

    def _close_rotation(self) -> None:
        self._last_leg.clear()
        self._legs.clear()


DELAYS = Types.TUPLE([Types.LONG(), Types.LONG(), Types.INT()])
"""Accumulator of :class:`DelayAggregate`: flights, sum of their delays, longest delay."""

AIRPORT_DELAY = Types.ROW_NAMED(
    ["origin", "window_start_ms", "window_end_ms", "flights", "mean_dep_delay", "max_dep_delay"],
    [Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.INT()],
)


class DelayAggregate(AggregateFunction):
    """Computes number, mean and maximum of departure delays, in minutes."""

    def create_accumulator(self) -> tuple[int, int, int | None]:
        return 0, 0, None

    def add(self, value: Row, accumulator: tuple[int, int, int | None]) -> tuple[int, int, int | None]:
        return self.merge(accumulator, (1, value.dep_delay, value.dep_delay))

    def get_result(self, accumulator: tuple[int, int, int | None]) -> tuple[int, float, int | None]:
        flights, total, longest = accumulator
        return flights, total / flights, longest

    def merge(
        self, acc_a: tuple[int, int, int | None], acc_b: tuple[int, int, int | None]
    ) -> tuple[int, int, int | None]:
        longest = [delay for delay in (acc_a[2], acc_b[2]) if delay is not None]
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1], max(longest, default=None)


class AirportDelayWindow(ProcessWindowFunction[Any, Any, Any, TimeWindow]):
    """Adds the airport and the hour to the delays of a window."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[Any]
    ) -> Iterator[Row]:
        window = context.window()
        for flights, mean, longest in elements:
            yield Row(key, window.start, window.end, flights, mean, longest)


JOINED_FROM_FLIGHT = ["time_hour_ms", "origin", "carrier", "flight", "tailnum", "dest", "event_time_ms", "dep_delay"]
JOINED_FROM_WEATHER = ["temp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib"]


def _fields(row_type: Any, names: list[str]) -> list[Any]:
    return [row_type.field_types[row_type.field_names.index(name)] for name in names]


_FLIGHT_PART = Types.ROW_NAMED(JOINED_FROM_FLIGHT, _fields(FLIGHT, JOINED_FROM_FLIGHT))
_WEATHER_PART = Types.ROW_NAMED(JOINED_FROM_WEATHER, _fields(WEATHER, JOINED_FROM_WEATHER))

FLIGHT_WEATHER = Types.ROW_NAMED(
    [*JOINED_FROM_FLIGHT, *JOINED_FROM_WEATHER], [*_FLIGHT_PART.field_types, *_WEATHER_PART.field_types]
)


class WeatherJoin(KeyedCoProcessFunction):
    """Emits each flight once, with the weather of its scheduled hour, keyed by (origin, time_hour_ms).

    A flight waits for the weather until the watermark passes the end of the hour, and is then emitted without it. The
    weather is kept a little longer than a day, for late flights: no delay in the data is longer than 22 hours.
    """

    KEEP_WEATHER_MS = 25 * HOUR_MS

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting = runtime_context.get_list_state(ListStateDescriptor("waiting_flights", _FLIGHT_PART))
        self._weather = runtime_context.get_state(ValueStateDescriptor("weather", _WEATHER_PART))

    def process_element1(self, value: Row, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        flight = [value[name] for name in JOINED_FROM_FLIGHT]
        weather = self._weather.value()
        timers = ctx.timer_service()
        hour_end = value.time_hour_ms + HOUR_MS
        if weather is not None or timers.current_watermark() >= hour_end:
            yield _joined(flight, weather)
        else:
            self._waiting.add(Row(*flight))
            timers.register_event_time_timer(hour_end)

    def process_element2(self, value: Row, ctx: KeyedCoProcessFunction.Context) -> Iterator[Row]:
        weather = Row(*[value[name] for name in JOINED_FROM_WEATHER])
        self._weather.update(weather)
        ctx.timer_service().register_event_time_timer(value.time_hour_ms + HOUR_MS + self.KEEP_WEATHER_MS)
        yield from self._flights_with(weather)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Row]:
        _, time_hour_ms = ctx.get_current_key()
        if timestamp == time_hour_ms + HOUR_MS:
            yield from self._flights_with(self._weather.value())
        else:
            self._weather.clear()

    def _flights_with(self, weather: Row | None) -> Iterator[Row]:
        for flight in self._waiting.get():
            yield _joined(flight, weather)
        self._waiting.clear()


def _joined(flight: Iterable[Any], weather: Row | None) -> Row:
    return Row(*flight, *(weather or [None] * len(JOINED_FROM_WEATHER)))
