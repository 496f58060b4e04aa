from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from assets.demo.data import FLIGHTS_SCHEMA, WEATHER_SCHEMA
from assets.demo.oracle import TABLES, TableDifference, compare, compare_tables, expected_counts, expected_rows

pytestmark = pytest.mark.smoke

HOUR = 3_600_000
DAY = date(2013, 2, 1)


def flight(number, hour, dep_delay, arr_delay, origin="JFK", dest="LAX", tailnum="N1"):
    departed = None if dep_delay is None else hour * HOUR + dep_delay * 60_000
    row = dict.fromkeys(FLIGHTS_SCHEMA.names)
    row |= {"year": 2013, "month": 2, "day": 1, "carrier": "AA", "flight": number, "tailnum": tailnum}
    row |= {"origin": origin, "dest": dest, "dep_delay": dep_delay, "arr_delay": arr_delay}
    return row | {"time_hour_ms": hour * HOUR, "sched_dep_ms": hour * HOUR, "event_time_ms": departed}


@pytest.fixture
def small(tmp_path):
    """One day of data, small enough to compute the result by hand."""
    flights = [
        flight(1, 100, 30, 20),
        flight(2, 101, 10, 40),
        flight(3, 102, 90, None, dest="EWR"),
        flight(4, 103, 50, 5, origin="EWR"),
        flight(5, 104, None, None, tailnum=None),
        flight(6, 130, -5, 0),
    ]
    hour = dict.fromkeys(WEATHER_SCHEMA.names) | {"origin": "JFK", "temp": 40.5}
    (tmp_path / "flights").mkdir()
    (tmp_path / "weather").mkdir()
    pq.write_table(pa.Table.from_pylist(flights, FLIGHTS_SCHEMA), tmp_path / "flights" / f"{DAY}.parquet")
    weather = [hour | {"time_hour_ms": h * HOUR} for h in (100, 101, 102)]
    pq.write_table(pa.Table.from_pylist(weather, WEATHER_SCHEMA), tmp_path / "weather" / f"{DAY}.parquet")
    return tmp_path


def columns(table, *names):
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def test_tables_reckoned_by_hand(small):
    rows = expected_rows(small, DAY, DAY)
    assert columns(rows["rotations"], "flight", "leg", "airport_legs", "inherited_delay") == [
        (1, 1, 1, 0),
        (2, 2, 2, 10),  # arrived 20 late, left 10 late
        (3, 3, 3, 40),  # arrived 40 late, left 90 late
        (4, 4, 1, 0),  # the previous leg came here, but its arrival time is unknown
        (6, 1, 1, 0),  # 26 hours later: a new rotation
    ]
    delays = ["origin", "window_start_ms", "window_end_ms", "flights", "mean_dep_delay", "max_dep_delay"]
    assert columns(rows["airport_delays"], *delays) == [
        ("EWR", 103 * HOUR, 104 * HOUR, 1, 50.0, 50),
        ("JFK", 100 * HOUR, 101 * HOUR, 1, 30.0, 30),
        ("JFK", 101 * HOUR, 102 * HOUR, 1, 10.0, 10),
        ("JFK", 103 * HOUR, 104 * HOUR, 1, 90.0, 90),
        ("JFK", 129 * HOUR, 130 * HOUR, 1, -5.0, -5),
    ]
    joined = dict(columns(rows["weather_join"], "flight", "temp"))
    assert joined == {1: 40.5, 2: 40.5, 3: 40.5, 4: None, 6: None}
    assert rows["never_departed"]["flight"].to_pylist() == [5]
    assert expected_counts(small, DAY, DAY) == {name: rows[name].num_rows for name in TABLES}


def test_february(flights_data):
    days = (flights_data.directory, date(2013, 2, 1), date(2013, 2, 28))
    counts = expected_counts(*days)
    assert counts == {"rotations": 23_690, "airport_delays": 1_577, "weather_join": 23_690, "never_departed": 1_261}
    rows = expected_rows(*days)
    assert {name: rows[name].num_rows for name in TABLES} == counts


def test_days_without_input_are_an_error(small):
    with pytest.raises(FileNotFoundError, match="2014-01-01"):
        expected_counts(small, date(2014, 1, 1), date(2014, 1, 2))


def test_compare_counts_lost_and_duplicated_rows(small, tmp_path_factory):
    tables = tmp_path_factory.mktemp("tables")
    expected = expected_rows(small, DAY, DAY)
    for name, rows in expected.items():
        (tables / name / "partition=x").mkdir(parents=True)
        pq.write_table(rows.slice(0, 1), tables / name / "partition=x" / "a.parquet")
        pq.write_table(rows.slice(1), tables / name / "b.parquet")
    assert compare(small, tables, DAY, DAY) == [TableDifference(n, len(t), len(t), 0, 0) for n, t in expected.items()]

    write_deltalake(tables / "delta" / "airport_delays", expected["airport_delays"].slice(1))
    [_, delays, *_] = compare(small, tables / "delta", DAY, DAY)
    assert delays == TableDifference("airport_delays", 4, 5, 1, 0)

    (tables / "never_departed" / "b.parquet").unlink()
    (tables / "never_departed" / "partition=x" / "a.parquet").unlink()
    pq.write_table(expected["rotations"].slice(1, 2), tables / "rotations" / "c.parquet")
    pq.write_table(expected["weather_join"].slice(2), tables / "weather_join" / "b.parquet")
    assert compare(small, tables, DAY, DAY) == [
        TableDifference("rotations", 7, 5, 0, 2),
        TableDifference("airport_delays", 5, 5, 0, 0),
        TableDifference("weather_join", 4, 5, 1, 0),
        TableDifference("never_departed", 0, 1, 1, 0),
    ]


def test_a_row_with_a_wrong_value_is_lost_and_too_much(small):
    rows = expected_rows(small, DAY, DAY)["rotations"]
    wrong = pa.table({name: rows[name] if name != "leg" else pa.array([9, 2, 3, 4, 1]) for name in rows.column_names})
    [difference] = compare_tables({"rotations": rows}, {"rotations": wrong})
    assert (difference.lost, difference.duplicated) == (1, 1)
