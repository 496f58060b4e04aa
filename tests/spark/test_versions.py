"""What takes the place of calls that older versions of PySpark do not have, tried on the one that is installed."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.spark import versions
from dagster_flinkpy.spark.versions import (
    _addresses,
    _spark_hash,
    condition_of,
    data_frame,
    frame_of_parts,
    grpc_status,
    map_in_arrow,
    to_arrow,
    with_targets,
)

pytestmark = pytest.mark.spark

TABLE = pa.table(
    {
        "text": ["a", None],
        "bytes": [b"\x00", b""],
        "number": pa.array([1, 2], pa.int32()),
        "at": pa.array([datetime(2024, 1, 2, tzinfo=timezone.utc)] * 2, pa.timestamp("us", "UTC")),
        "local": [datetime(2024, 3, 10, 2, 30), None],
        "list": [[1.5], []],
    }
)


class Older:
    """A DataFrame or session without some methods."""

    def __init__(self, newer: Any, *without: str) -> None:
        self._newer, self._without = newer, without

    def __getattr__(self, name: str) -> Any:
        if name in self._without:
            raise AttributeError(name)
        return getattr(self._newer, name)


def test_the_hash_is_that_of_spark(spark: Any) -> None:
    numbers = [*range(-50, 1000), 2**31 - 1, -(2**31)]
    frame = spark.createDataFrame([(n,) for n in numbers], "n int").select(F.hash("n"))
    assert [row[0] for row in frame.collect()] == list(map(_spark_hash, numbers))


@pytest.mark.short("1", "3")
@pytest.mark.parametrize("width", [1, 2, 3, 7, 64])
def test_each_row_goes_to_the_task_of_its_target(spark: Any, width: int) -> None:
    rows = spark.range(0, 200, 1, 2).selectExpr("cast(id as int) target")
    for frame in (with_targets(rows, width), with_targets(Older(rows, "repartitionById"), width)):
        tasks = frame.select("target", F.spark_partition_id().alias("task")).collect()
        assert sorted((row["target"], row["task"]) for row in tasks) == [(n, n % width) for n in range(200)]


class Remote:
    """A DataFrame of Spark Connect: for a name that it does not have, it asks the server for its columns."""

    def __getattr__(self, name: str) -> Any:
        assert name not in ("toArrow", "repartitionById"), f"the server was asked for the column {name}"
        raise NotImplementedError(name)


def test_what_a_version_has_is_known_without_asking_the_server() -> None:
    frame: Any = Remote()
    with pytest.raises(NotImplementedError, match="collect"):
        to_arrow(frame)
    with pytest.raises(NotImplementedError, match="repartition"):
        with_targets(frame, 2)


def test_java_starts_before_pyarrow_is_imported() -> None:
    program = "import sys; import dagster_flinkpy.spark.sessions; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_addresses_are_found_for_any_width() -> None:
    for width in range(1, 300):
        assert [_spark_hash(number) % width for number in _addresses(width)] == list(range(width))


def test_rows_are_fetched_and_given_without_arrow(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = data_frame(spark, TABLE)
    assert to_arrow(Older(frame, "toArrow")).equals(to_arrow(frame))
    monkeypatch.setattr(versions, "has_connect_server", lambda: False)
    given = data_frame(spark, TABLE)
    assert given.schema == frame.schema and given.collect() == frame.collect()


@pytest.mark.parametrize("parts", [0, 1])
def test_a_time_without_a_zone_is_no_local_time_of_the_session(spark: Any, parts: int) -> None:
    for frame in (data_frame(spark, TABLE), frame_of_parts(spark, TABLE.schema, lambda _: [], parts)):
        assert [dict(frame.dtypes)[name] for name in ("local", "at")] == ["timestamp_ntz", "timestamp"]


def test_a_profile_that_cannot_be_given_is_refused() -> None:
    def older(function: Any, schema: str) -> str:
        return schema

    frame: Any = SimpleNamespace(mapInArrow=older)
    assert map_in_arrow(frame, iter, "a int", None) == "a int"
    with pytest.raises(NoResourceAvailableError, match="need PySpark 4"):
        map_in_arrow(frame, iter, "a int", object())


def test_what_errors_say() -> None:
    code = SimpleNamespace(name="UNAVAILABLE")
    assert grpc_status(SimpleNamespace(getGrpcStatusCode=lambda: code)) == "UNAVAILABLE"  # type: ignore[arg-type]
    assert grpc_status(SimpleNamespace(code=lambda: code)) == "UNAVAILABLE"  # type: ignore[arg-type]
    assert grpc_status(RuntimeError("status = StatusCode.CANCELLED, details")) == "CANCELLED"
    assert grpc_status(RuntimeError("no")) is None
    assert condition_of(SimpleNamespace(getErrorClass=lambda: "NO_ACTIVE_SESSION")) == "NO_ACTIVE_SESSION"
    assert condition_of(SimpleNamespace(getCondition=lambda: None)) == condition_of(RuntimeError()) == ""
