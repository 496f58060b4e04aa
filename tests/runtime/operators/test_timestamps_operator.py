from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP
from dagster_flinkpy.testing.local_run import run_local


class Time(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        time = ctx.timestamp()
        yield NO_TIMESTAMP if time is None else time


def times_of(folder: Path, column: pa.Array) -> list[int]:
    """Returns the event times of records whose field in a Parquet file is this column."""
    pq.write_table(pa.table({"at": column}), folder / "a.parquet")
    env = StreamExecutionEnvironment.get_execution_environment()
    by_field = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    return run_local(env, env.from_source(ParquetSource(str(folder), bounded=True), by_field, "at").process(Time()))[0]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_of_a_parquet_file_are_event_times(tmp_path: Path, zone: str | None) -> None:
    micros = [-1_000_001, -1, 0, 999, 1_000, None, 1_700_000_000_123_999]
    column = pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone))
    expected = [NO_TIMESTAMP if each is None else each // 1000 for each in micros]
    assert times_of(tmp_path, column) == expected


def test_a_date_is_no_event_time(tmp_path: Path) -> None:
    with pytest.raises(TypeMismatchError, match=r"'at' is .*SQL_DATE.*an integer, the milliseconds"):
        times_of(tmp_path, pa.array([1], pa.date32()))
