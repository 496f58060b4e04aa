"""When a DataFrame is read: once, in each run, or for each partition. These tests compute no DataFrame."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.datastream.connectors.spark import PartitionedSparkSource, SparkSource
from dagster_flinkpy.datastream.operator_specs import SparkSourceSpec
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.blocking import dataframe_enumerators
from dagster_flinkpy.storage import StorageLocation

ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
DAY = datetime(2024, 3, 1, tzinfo=timezone.utc)
PARTITION = TimePartition("2024-03-01", DAY, DAY, 0)


@pytest.fixture(autouse=True)
def frames(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns what the factories made, which are not real DataFrames."""
    made: list[Any] = []

    def write(self: Any, make: Any, type_info: Any, *, rowtime: bool) -> list[dict[str, Any]]:
        made.append(make(False))
        return [{"subtask": 0, "key": "a", "bytes": 1, "rows": 1}]

    monkeypatch.setattr(dataframe_enumerators._Parts, "write", write)
    monkeypatch.setattr(dataframe_enumerators, "frame_of", lambda function, spark, uid: function(spark))
    return made


def source_of(folder: Path, factory: Any = lambda spark: "rows", *, runs: bool = True, **options: Any) -> SparkSource:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_spark(factory, type_info=ROW, **options).uid("rows")
    spec = env.get_job_graph().vertex("rows").spec
    assert isinstance(spec, SparkSourceSpec)
    source = spec.source.continuous() if runs else spec.source
    assert isinstance(source, SparkSource)
    kind = type(source)
    return kind(source.df_factory, ROW, StorageLocation(str(folder)), "rows", source.bounded)


def attempt(source: SparkSource, position: Any = None, run_id: str | None = "run 1") -> SplitEnumerator:
    enumerator = source.create_enumerator(json.loads(json.dumps(position)))
    enumerator.start(SplitEnumeratorContext("job", 1, lambda: nullcontext("spark"), run_id))
    return enumerator


def reads(enumerator: SplitEnumerator) -> bool:
    """Returns whether the next epoch reads the rows."""
    return any(enumerator.plan_epoch(2))


def test_each_run_reads_the_rows_in_its_first_epoch(tmp_path: Path, frames: list[Any]) -> None:
    source, position = source_of(tmp_path), None
    for run_id in ("run 1", "run 2", None, None):
        enumerator = attempt(source, position, run_id)
        assert [reads(enumerator), reads(enumerator)] == [True, False]
        assert not enumerator.exhausted
        position = enumerator.snapshot_state()
    assert frames == ["rows"] * 4


def test_another_try_of_a_run_does_not_read_them_again(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    first = attempt(source)
    assert reads(first)
    second = attempt(source, first.snapshot_state())
    assert not reads(second)
    third = attempt(source, second.snapshot_state())
    assert not reads(third)
    rescale = attempt(source, third.snapshot_state(), "of a rescale")
    assert not reads(attempt(source, rescale.snapshot_state()))
    assert reads(attempt(source, rescale.snapshot_state(), "run 2"))


def test_a_try_after_an_epoch_that_failed_reads_them(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    position = attempt(source).snapshot_state()
    assert reads(attempt(source, position))


@pytest.mark.parametrize(("bounded", "runs"), [(True, True), (True, False), (None, False)])
def test_a_bounded_dataframe_is_read_once(tmp_path: Path, bounded: bool | None, runs: bool) -> None:
    source = source_of(tmp_path, bounded=bounded, runs=runs)
    enumerator = attempt(source)
    assert reads(enumerator)
    assert enumerator.exhausted
    again = attempt(source, enumerator.snapshot_state(), "run 2")
    assert not reads(again)
    assert (again.exhausted, list(again.unread())) == (True, [])


def test_a_dataframe_whose_input_has_ended_cannot_be_read_again(tmp_path: Path) -> None:
    ended = json.loads((Path(__file__).parents[2] / "fixtures" / "positions" / "v1.json").read_text())["spark"]
    enumerator = attempt(source_of(tmp_path), ended)
    assert not reads(enumerator)
    assert enumerator.exhausted
    assert list(enumerator.unread()) == ["the DataFrame, which each run should read"]


def test_a_factory_with_two_arguments_gets_the_partition(tmp_path: Path, frames: list[Any]) -> None:
    source = source_of(tmp_path, lambda spark, partition: (spark, partition.key))
    assert isinstance(source, PartitionedSparkSource)
    enumerator = attempt(source.for_partition(PARTITION))
    assert reads(enumerator)
    assert enumerator.exhausted
    assert frames == [("spark", "2024-03-01")]
    with pytest.raises(ConfigurationError, match=r"'rows': the function of from_spark.* partitions_def"):
        attempt(source).plan_epoch(1)


def test_an_argument_with_a_default_is_no_partition(tmp_path: Path) -> None:
    assert not isinstance(source_of(tmp_path, lambda spark, table="t": table), PartitionedSource)
    assert not isinstance(source_of(tmp_path, dict), PartitionedSource)


def test_the_columns_of_a_partition_must_be_said() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(ConfigurationError, match="'Spark Source': declare the columns"):
        env.from_spark(lambda spark, partition: spark)
