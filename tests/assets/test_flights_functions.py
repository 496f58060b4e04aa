"""Compares the functions of the flights pipeline with the oracle, in the simplest possible runtime: loops and dicts."""

from collections import defaultdict
from datetime import date
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.demo.oracle import compare_tables, expected_rows
from assets.flights_functions import (
    AIRPORT_DELAY,
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
from assets.flights_pipeline import TABLES, build_flights_env
from dagster_flinkpy.common.time import Time
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.window import TumblingEventTimeWindows

pytestmark = pytest.mark.smoke

FIRST, LAST = date(2013, 2, 1), date(2013, 2, 5)
DAY_MS = 24 * 3_600_000


class Keyed:
    """State and timers of one operator. Checks types like the real backend."""

    def __init__(self, function):
        self.function = function
        self.key = None
        self.watermark = -(2**63)
        self.timers = defaultdict(set)  # timestamp -> keys
        self.state = defaultdict(dict)  # name -> key -> value
        function.open(self)

    def get_state(self, descriptor):
        values = self.state[descriptor.name]

        def update(value):
            values[self.key] = descriptor.type_info.from_arrow(descriptor.type_info.to_arrow([value]))[0]

        return SimpleNamespace(
            value=lambda: values.get(self.key), update=update, clear=lambda: values.pop(self.key, None)
        )

    def get_map_state(self, descriptor):
        maps = self.state[descriptor.name]
        return SimpleNamespace(
            get=lambda k: maps.get(self.key, {}).get(k),
            put=lambda k, v: maps.setdefault(self.key, {}).__setitem__(k, v),
            clear=lambda: maps.pop(self.key, None),
        )

    def get_list_state(self, descriptor):
        lists = self.state[descriptor.name]

        def add(value):
            [typed] = descriptor.elem_type_info.from_arrow(descriptor.elem_type_info.to_arrow([value]))
            lists.setdefault(self.key, []).append(typed)

        return SimpleNamespace(get=lambda: lists.get(self.key, []), add=add, clear=lambda: lists.pop(self.key, None))

    # The context of a call.
    def timer_service(self):
        return self

    def get_current_key(self):
        return self.key

    def current_watermark(self):
        return self.watermark

    def register_event_time_timer(self, timestamp):
        self.timers[timestamp].add(self.key)

    def delete_event_time_timer(self, timestamp):
        self.timers[timestamp].discard(self.key)

    def call(self, process, key, value):
        self.key = key
        return list(process(value, self) or ())

    def advance(self, watermark):
        self.watermark = watermark
        out = []
        for timestamp in sorted(t for t in self.timers if t <= watermark):
            for key in sorted(self.timers.pop(timestamp)):
                self.key = key
                out += self.function.on_timer(timestamp, self) or ()
        return out


def read(data, folder, row_type, first=FIRST, last=LAST):
    for path in sorted((data.directory / folder).iterdir()):
        if str(first) <= path.stem <= str(last):
            [column] = [pq.read_table(path).to_struct_array().combine_chunks()]
            yield row_type.from_arrow(column)


def split(rows):
    """Returns departed flights, and the records of the side output."""
    out = [record for row in rows for record in SplitDeparted().process_element(row, None)]
    return [o for o in out if type(o) is not tuple], [o for o in out if type(o) is tuple]


def departed(rows):
    return split(rows)[0]


def table(row_type, rows):
    return pa.Table.from_struct_array(row_type.to_arrow(rows))


def check(data, name, row_type, rows):
    expected = expected_rows(data.directory, FIRST, LAST)[name]
    actual = table(row_type, rows)
    assert actual.schema.types == expected.schema.types
    [difference] = compare_tables({name: expected}, {name: actual})
    assert (difference.lost, difference.duplicated) == (0, 0)


@pytest.mark.parametrize("lag_days", [1, 2, 3])
def test_rotations_do_not_depend_on_how_far_the_watermark_lags(flights_data, lag_days):
    rotations, out, newest = Keyed(AircraftRotation()), [], 0
    for day in read(flights_data, "flights", FLIGHT):
        for row in departed(day):
            out += rotations.call(rotations.function.process_element, row.tailnum, row)
            newest = max(newest, row.event_time_ms)
            rotations.advance(newest - lag_days * DAY_MS - 1)
    check(flights_data, "rotations", ROTATION_LEG, out)
    assert any(rotations.state.values())
    rotations.advance(2**63 - 1)
    assert not any(rotations.state.values())
    assert not any(rotations.timers.values())


@pytest.mark.parametrize("weather_first", [True, False])
def test_weather_join_emits_each_flight_once(flights_data, weather_first):
    join, out, newest = Keyed(WeatherJoin()), [], 0
    days = zip(read(flights_data, "flights", FLIGHT), read(flights_data, "weather", WEATHER), strict=True)
    for flights, weather in days:
        inputs = [(join.function.process_element1, departed(flights)), (join.function.process_element2, weather)]
        for process, rows in reversed(inputs) if weather_first else inputs:
            for row in rows:
                out += join.call(process, (row.origin, row.time_hour_ms), row)
        newest = max(newest, *(row.event_time_ms for row in departed(flights)))
        out += join.advance(newest - DAY_MS - 1)
    out += join.advance(2**63 - 1)
    check(flights_data, "weather_join", FLIGHT_WEATHER, out)
    assert not any(join.state.values())


def test_flight_without_weather_goes_when_the_watermark_passes(flights_data):
    join = Keyed(WeatherJoin())
    row = departed(next(read(flights_data, "flights", FLIGHT)))[0]
    hour_end = row.time_hour_ms + 3_600_000
    key = (row.origin, row.time_hour_ms)
    assert join.call(join.function.process_element1, key, row) == []
    assert join.advance(hour_end - 1) == []
    [waited] = join.advance(hour_end)
    [late] = join.call(join.function.process_element1, key, row)
    assert waited == late
    assert list(waited)[-7:] == [None] * 7


def test_airport_delays(flights_data):
    windows, assigner, aggregate = {}, TumblingEventTimeWindows.of(Time.hours(1)), DelayAggregate()
    for day in read(flights_data, "flights", FLIGHT):
        for row in departed(day):
            [window] = assigner.assign_windows(row, row.event_time_ms, None)
            accumulator = windows.get((row.origin, window), aggregate.create_accumulator())
            windows[row.origin, window] = aggregate.add(row, accumulator)
    out = []
    for (origin, window), accumulator in windows.items():
        context = SimpleNamespace(window=lambda window=window: window)
        out += AirportDelayWindow().process(origin, context, [aggregate.get_result(accumulator)])
    check(flights_data, "airport_delays", AIRPORT_DELAY, out)


def test_flights_that_never_departed_go_to_the_side(flights_data):
    side = [pair for day in read(flights_data, "flights", FLIGHT) for pair in split(day)[1]]
    assert {tag for tag, _ in side} == {NEVER_DEPARTED}
    check(flights_data, "never_departed", FLIGHT, [row for _, row in side])


def test_the_program_is_a_valid_job_graph(tmp_path):
    graph = build_flights_env(
        str(tmp_path), str(tmp_path), ParquetSink(str(tmp_path)), first_day=FIRST, last_day=LAST
    ).get_job_graph()
    uids = {vertex.uid for vertex in graph.vertices}
    assert uids == {"flights", "weather", "departed", *TABLES[:3], *(f"{table}_table" for table in TABLES)}
    assert all(vertex.uid_set for vertex in graph.vertices)
