from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance, DailyPartitionsDefinition, materialize

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.connectors import ParquetSink
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration import flink_assets

NUMBERS = Types.ROW_NAMED(["n", "group"], [Types.LONG(), Types.LONG()])
TOPS = Types.ROW_NAMED(["group", "top"], [Types.LONG(), Types.LONG()])


def numbers(spark: Any) -> Any:
    """Returns all numbers, in three groups."""
    return spark.range(0, 10, 1, 3).selectExpr("id n", "id % 3 group")


def tops(df: Any) -> Any:
    """Returns the greatest number of each group."""
    return df.groupBy("group").max("n").toDF("group", "top")


def program(table: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(16)
    rows = env.from_spark(numbers, type_info=NUMBERS).uid("numbers")
    rows.transform_spark(tops, TOPS).uid("tops").sink_to(ParquetSink(str(table))).uid("table")
    return env


def test_the_operators_are_assets_like_others(tmp_path: Path) -> None:
    (assets,) = flink_assets(lambda: program(tmp_path), name="job")
    specs = {spec.key.path[-1]: spec for spec in assets.specs}
    assert set(assets.keys) == {AssetKey(["job", uid]) for uid in ("numbers", "tops", "table")}
    assert [dep.asset_key.path[-1] for dep in specs["tops"].deps] == ["numbers"]
    assert [specs[uid].description for uid in ("numbers", "tops")] == [numbers.__doc__, tops.__doc__]
    assert [specs[uid].metadata["flink/kind"] for uid in ("numbers", "tops")] == ["spark_source", "spark_transform"]


def test_the_code_version_is_that_of_the_function(tmp_path: Path) -> None:
    def version(factory: Any) -> str | None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_spark(factory, type_info=NUMBERS).uid("numbers")
        (assets,) = flink_assets(env, name="job")
        (spec,) = assets.specs
        return spec.code_version

    assert version(numbers) == version(numbers) != version(lambda spark: spark.range(3).selectExpr("id n", "id group"))


@pytest.mark.parametrize("typed", [NUMBERS, None])
def test_a_code_location_that_would_start_spark_is_told_what_to_say(typed: Any) -> None:
    def env() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_spark(numbers, type_info=typed, source_name="Numbers").uid("numbers").transform_spark(tops).uid("tops")
        return env

    name = "Spark Transform" if typed else "Numbers"
    with pytest.raises(ConfigurationError, match=f"operator '{name}': a Dagster code location loads without Spark"):
        flink_assets(env, name="job")


@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_on_spark(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
    table = tmp_path / "table"
    assets = flink_assets(lambda: program(table), name="job")
    run = materialize(assets, instance=instance, resources=resources)
    assert run.success
    assert {e.asset_key for e in run.get_asset_materialization_events()} == {k for a in assets for k in a.keys}
    rows = [(0, 9), (1, 7), (2, 8)]
    assert sorted(tuple(row.values()) for row in pq.read_table(table).to_pylist()) == rows
    again = materialize(assets, instance=instance, resources=resources)
    assert again.success
    assert len(again.get_asset_materialization_events()) == 3
    assert sorted(tuple(row.values()) for row in pq.read_table(table).to_pylist()) == sorted(rows * 2), "read again"


@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_each_run_reads_the_dataframe(tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
    """Running sums by group: each run adds the table as it is then."""
    table = tmp_path / "table"
    rows = [1]

    def now(spark: Any) -> Any:
        return spark.createDataFrame([(n, 0) for n in rows], "n long, group long")

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment().set_max_parallelism(16)
        stream = env.from_spark(now, type_info=NUMBERS).uid("numbers")
        stream.key_by("group").sum("n").uid("sums").sink_to(ParquetSink(str(table))).uid("table")
        return env

    for n in (2, 3):
        assert materialize(flink_assets(program, name="job"), instance=instance, resources=resources).success
        rows.append(n)
    assert sorted(pq.read_table(table).column("n").to_pylist()) == [1, 2, 4]


@pytest.mark.system
@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_a_partition_reads_its_part_of_the_dataframe(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    days = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-03")

    def sales(spark: Any, partition: TimePartition) -> Any:
        """Returns the numbers of a day."""
        return spark.createDataFrame([(partition.start.day, 0)], "n long, group long")

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment().set_max_parallelism(16)
        stream = env.from_spark(sales, type_info=NUMBERS).uid("numbers")
        stream.key_by("group").sum("n").uid("sums").sink_to(ParquetSink(str(tmp_path / "table"))).uid("table")
        return env

    assets = flink_assets(program, name="job", partitions_def=days)
    for key in ("2024-03-01", "2024-03-02", "2024-03-02"):
        assert materialize(assets, instance=instance, resources=resources, partition_key=key).success
    assert sorted(pq.read_table(tmp_path / "table").column("n").to_pylist()) == [1, 3]
