"""Computes what the flights pipeline must have committed, with DuckDB and a loop over the daily files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

__all__ = ["TABLES", "TableDifference", "compare", "compare_tables", "expected_counts", "expected_rows"]

TABLES = ("rotations", "airport_delays", "weather_join", "never_departed")

_HOUR_MS = 3_600_000

_WEATHER_JOIN = """
    SELECT f.time_hour_ms, f.origin, f.carrier, f.flight, f.tailnum, f.dest, f.event_time_ms, f.dep_delay,
           w.temp, w.humid, w.wind_speed, w.wind_gust, w.precip, w.pressure, w.visib
    FROM flights f LEFT JOIN weather w USING (origin, time_hour_ms)
    WHERE f.event_time_ms IS NOT NULL
"""

_AIRPORT_DELAYS = f"""
    SELECT origin, event_time_ms // {_HOUR_MS} * {_HOUR_MS} AS window_start_ms,
           event_time_ms // {_HOUR_MS} * {_HOUR_MS} + {_HOUR_MS} AS window_end_ms,
           count(*) AS flights, sum(dep_delay)::DOUBLE / count(*) AS mean_dep_delay, max(dep_delay) AS max_dep_delay
    FROM flights WHERE event_time_ms IS NOT NULL GROUP BY ALL
"""

_NEVER_DEPARTED = "SELECT * FROM flights WHERE event_time_ms IS NULL"


@dataclass(frozen=True)
class TableDifference:
    """How a committed table differs from the expected one. Whole rows are compared, as multisets."""

    table: str
    committed: int
    """Number of committed rows."""
    expected: int
    """Number of expected rows."""
    lost: int
    """Number of expected rows that are missing."""
    duplicated: int
    """Number of rows that are unexpected, or occur too often."""


def expected_counts(data_dir: str | Path, first_day: date, last_day: date) -> dict[str, int]:
    """Returns the number of rows of each table after the days from ``first_day`` to ``last_day``."""
    with _input(data_dir, first_day, last_day) as db:
        departed = _one(db, "SELECT count(*) FROM flights WHERE event_time_ms IS NOT NULL")
        return {
            "rotations": departed,
            "airport_delays": _one(db, f"SELECT count(*) FROM ({_AIRPORT_DELAYS})"),
            "weather_join": _one(db, f"SELECT count(*) FROM ({_WEATHER_JOIN})"),
            "never_departed": _one(db, f"SELECT count(*) FROM ({_NEVER_DEPARTED})"),
        }


def expected_rows(data_dir: str | Path, first_day: date, last_day: date) -> dict[str, pa.Table]:
    """Returns all rows of each table after the days from ``first_day`` to ``last_day``."""
    with _input(data_dir, first_day, last_day) as db:
        return {
            "rotations": _rotations(db),
            "airport_delays": db.sql(_AIRPORT_DELAYS).to_arrow_table(),
            "weather_join": db.sql(_WEATHER_JOIN).to_arrow_table(),
            "never_departed": db.sql(_NEVER_DEPARTED).to_arrow_table(),
        }


def compare(data_dir: str | Path, tables_dir: str | Path, first_day: date, last_day: date) -> list[TableDifference]:
    """Compares the committed tables with the expected ones.

    Args:
        data_dir: The input.
        tables_dir: Contains the tables: folders of Parquet files, or Delta Lake tables.
        first_day: The first day that was read.
        last_day: The last day that was read.
    """
    committed = {table: _committed(Path(tables_dir) / table) for table in TABLES}
    return compare_tables(expected_rows(data_dir, first_day, last_day), committed)


def _committed(folder: Path) -> pa.Table | None:
    if (folder / "_delta_log").exists():
        return DeltaTable(folder).to_pyarrow_table()
    files = sorted(str(path) for path in folder.glob("**/[!._]*.parquet"))
    with duckdb.connect() as db:
        return db.read_parquet(files).to_arrow_table() if files else None


def compare_tables(expected: Mapping[str, pa.Table], committed: Mapping[str, pa.Table | None]) -> list[TableDifference]:
    """Compares tables by name. None means that nothing was committed."""
    return [_difference(name, rows, committed.get(name)) for name, rows in expected.items()]


def _difference(name: str, expected: pa.Table, committed: pa.Table | None) -> TableDifference:
    if committed is None:
        committed = expected.slice(0, 0)
    with duckdb.connect() as db:
        db.register("expected", expected)
        db.register("committed", committed)
        columns = ", ".join(f'"{column}"' for column in expected.column_names)
        lost, duplicated = _row(
            db,
            f"""
            SELECT coalesce(sum(greatest(surplus, 0)), 0)::BIGINT, coalesce(sum(greatest(-surplus, 0)), 0)::BIGINT
            FROM (SELECT sum(n) AS surplus FROM (SELECT {columns}, 1 AS n FROM expected
                                                 UNION ALL SELECT {columns}, -1 FROM committed) GROUP BY {columns})
            """,
        )
    return TableDifference(name, committed.num_rows, expected.num_rows, lost, duplicated)


def _input(data_dir: str | Path, first_day: date, last_day: date) -> duckdb.DuckDBPyConnection:
    db = duckdb.connect()
    for folder in ("flights", "weather"):
        files = sorted((Path(data_dir) / folder).glob("*.parquet"))
        days = [str(path) for path in files if str(first_day) <= path.stem <= str(last_day)]
        if not days:
            raise FileNotFoundError(f"no files from {first_day} to {last_day} in {Path(data_dir) / folder}")
        db.read_parquet(days).create_view(folder)
    return db


def _rotations(db: duckdb.DuckDBPyConnection) -> pa.Table:
    """Folds the flights of each aircraft, in the order of files and rows."""
    columns = "tailnum, time_hour_ms, carrier, flight, origin, dest, event_time_ms, dep_delay, arr_delay"
    flights = db.sql(
        f"SELECT {columns} FROM flights WHERE event_time_ms IS NOT NULL "
        "ORDER BY year, month, day, sched_dep_ms, carrier, flight, origin"
    ).fetchall()
    rotations: dict[str, list[tuple[Any, ...]]] = {}
    legs = []
    for flight in flights:
        tailnum, _, _, _, origin, _, departed, dep_delay, _ = flight
        rotation = rotations.setdefault(tailnum, [])
        if rotation and departed - max(before[6] for before in rotation) >= 24 * _HOUR_MS:
            rotation.clear()
        inherited = 0
        if rotation:
            before = rotation[-1]
            if origin in (before[4], before[5]) and before[8] is not None:
                inherited = max(0, min(before[8], dep_delay))
        rotation.append(flight)
        legs.append((*flight, len(rotation), sum(leg[4] == origin for leg in rotation), inherited))
    types = [pa.string(), pa.int64(), pa.string(), pa.int32(), pa.string(), pa.string(), pa.int64()] + [pa.int32()] * 5
    names = [*columns.split(", "), "leg", "airport_legs", "inherited_delay"]
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*legs, strict=True), types, strict=True)]
    return pa.table(arrays, names=names)


def _row(db: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    [row] = db.execute(query).fetchall()
    return tuple(row)


def _one(db: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(_row(db, query)[0])
