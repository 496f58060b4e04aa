from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK, TimestampAssigner
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream import ProcessFunction, StreamExecutionEnvironment
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.operators.timestamps_operator import UnitCheck
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


@pytest.mark.parametrize(
    ("time", "is_", "unit", "would_be"),
    [
        (1_700_000_000, "1970-01-20T16:13:20.001", "seconds", "2023-11-14T22:13:21.000"),
        (1_700_000_000_123_456, "55840-11-08", "microseconds", "2023-11-14T22:13:20.123"),
        (1_700_000_000_123_456_789, "53872825-", "nanoseconds", "2023-11-14T22:13:20.123"),
    ],
)
def test_times_in_another_unit_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, time: int, is_: str, unit: str, would_be: str
) -> None:
    """One, with the date both ways. The records keep their times."""
    times = [time, None, time + 1]
    assert times_of(tmp_path, pa.array(times)) == [time, NO_TIMESTAMP, time + 1]
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    said = warning.getMessage()
    assert f"the event time {time + 1:,} is {is_}" in said
    assert f"As {unit} it would be {would_be}" in said
    assert "convert it in a TimestampAssigner" in said


class Given(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value)


@pytest.mark.parametrize("strategy", [WatermarkStrategy.no_watermarks(), WatermarkStrategy.for_monotonous_timestamps()])
def test_times_of_an_assigner_are_checked_too(caplog: pytest.LogCaptureFixture, strategy: WatermarkStrategy) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1_700_000_000], Types.LONG())
    timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(Given())).uid("timed")
    assert run_local(env, timed.process(Time()))[0] == [1_700_000_000]
    assert "Operator 'timed': the event time 1,700,000,000 is 1970-01-20" in caplog.text


@pytest.mark.parametrize("times", [[0, 1, -5, 86_400_000], [1_700_000_000_000], [978_307_200_000, 4_102_444_800_000]])
def test_times_in_milliseconds_are_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, times: list[int]
) -> None:
    times_of(tmp_path, pa.array(times))
    assert not caplog.records


def test_what_an_earlier_epoch_has_warned_of_is_not_said_again(caplog: pytest.LogCaptureFixture) -> None:
    UnitCheck("a", 1_699_999_999).check(1_700_000_000)
    assert not caplog.records
    check = UnitCheck("a", MIN_WATERMARK)
    for time in (5, 1_700_000_000, 1_700_000_001):
        check.check(time)
    assert len(caplog.records) == 1


class Returned(TimestampAssigner):
    """Returns the same for each record."""

    def __init__(self, time: Any) -> None:
        self._time = time

    def extract_timestamp(self, value: Any, record_timestamp: int) -> Any:
        return self._time


def assigned(time: Any) -> list[int]:
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Returned(time))
    timed = env.from_collection([7], Types.LONG()).assign_timestamps_and_watermarks(strategy).uid("timed")
    return run_local(env, timed.process(Time()))[0]


@pytest.mark.parametrize(
    "time",
    [
        "5",
        b"5",
        None,
        True,
        np.True_,
        5.5,
        float("nan"),
        float("inf"),
        np.float32(0.5),
        np.timedelta64(5),
        2**63,
        1e300,
    ],
)
def test_an_assigner_returns_whole_numbers(time: Any) -> None:
    with pytest.raises(TypeMismatchError) as caught:
        assigned(time)
    assert f"operator 'timed': extract_timestamp() returned {time!r} for 7" in str(caught.value)


@pytest.mark.parametrize("time", [5, 5.0, np.int64(5), np.int32(5), np.uint8(5), np.float64(5)])
def test_whole_numbers_of_every_kind_are_times(time: Any) -> None:
    assert assigned(time) == [5]
