"""Assets downstream of a job load its tables. The job runs in the harness."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetIn,
    AssetsDefinition,
    AssetSelection,
    AssetSpec,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    ExecuteInProcessResult,
    WeeklyPartitionsDefinition,
    asset,
    define_asset_job,
)
from deltalake import write_deltalake
from pyspark.sql import DataFrame

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import DeltaSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.orchestration import (
    FlinkTableIOManager,
    SparkResource,
    build_flink_asset_specs,
    flink_assets,
)
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows, spark_order

TABLE = AssetIn(["words", "table"], input_manager_key="tables")


class Deployment:
    """A word count, and an asset downstream of its table."""

    def __init__(self, folder: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.folder, self.instance = folder, instance
        self.resources = {**resources, "tables": FlinkTableIOManager()}
        self.words = flink_assets(word_count(folder / "table", ["to", "be", "to"], per_epoch=2), name="words")

    def run(self, *assets: AssetsDefinition, with_job: bool = True) -> ExecuteInProcessResult:
        definitions = Definitions([*self.words, *assets], resources=self.resources)
        selection = None if with_job else [key for each in assets for key in each.keys]
        job = definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(instance=self.instance, asset_selection=selection, raise_on_error=False)


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path, instance, resources)


def failure(result: ExecuteInProcessResult) -> str:
    [failed] = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data
    return f"{data.user_failure_data and data.user_failure_data.description} {data.error and data.error.to_string()}"


def test_a_table_is_what_the_input_is_annotated_as(deployment: Deployment) -> None:
    @asset(ins={"rows": TABLE})
    def as_arrow(rows: pa.Table) -> list[Any]:
        assert isinstance(rows, pa.Table)
        return rows.to_pylist()

    @asset(ins={"rows": TABLE})
    def as_pandas(rows: pd.DataFrame) -> list[Any]:
        assert isinstance(rows, pd.DataFrame)
        return rows.to_dict("records")

    @asset(ins={"rows": TABLE})
    def as_polars(rows: pl.DataFrame) -> list[Any]:
        assert isinstance(rows, pl.DataFrame)
        return rows.to_dicts()

    @asset(ins={"rows": AssetIn(["words", "table"], input_manager_key="tables", metadata={"columns": ["f1"]})})
    def one_column(rows) -> list[Any]:  # type: ignore[no-untyped-def]
        return rows.to_pylist()

    assets = (as_arrow, as_pandas, as_polars, one_column)
    result = deployment.run(*assets)
    assert result.success
    for name in ("as_arrow", "as_pandas", "as_polars"):
        rows = sorted((row["f0"], row["f1"]) for row in result.output_for_node(name))
        assert rows == [("be", 1), ("to", 1)]
    assert result.output_for_node("one_column") == [{"f1": 1}, {"f1": 1}]
    assert deployment.run().success, "the second epoch"
    again = deployment.run(*assets, with_job=False)
    assert sorted(row["f1"] for row in again.output_for_node("as_arrow")) == [1, 1, 2]


def test_a_table_without_rows_has_its_columns(deployment: Deployment) -> None:
    @asset(ins={"rows": TABLE})
    def behind(rows: pa.Table) -> list[Any]:
        return [rows.num_rows, *map(str, rows.schema.types)]

    result = deployment.run(behind, with_job=False)
    assert result.output_for_node("behind") == [0, "string", "int64"]


def test_partitions_on_which_a_partition_depends(tmp_path: Path, instance: DagsterInstance) -> None:
    record = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])
    for day, rows in {"2024-01-01": ["a"], "2024-01-02": ["b", "c"], "2024-01-09": ["z"]}.items():
        folder = tmp_path / f"partition={day}"
        folder.mkdir()
        pq.write_table(pa.table({"word": rows}), folder / "words.table.1.parquet")  # without the newer column `count`
        (folder / "_SUCCESS").touch()
    days, weeks = DailyPartitionsDefinition("2023-12-31"), WeeklyPartitionsDefinition("2023-12-31")
    facts = {"dagster/uri": tmp_path.as_uri(), "flink/record_type": json.dumps(record.to_json())}
    table = AssetSpec("table", metadata=facts, partitions_def=days)
    ins = {"rows": AssetIn("table", input_manager_key="tables")}

    @asset(ins=ins, partitions_def=days)
    def daily(rows: pa.Table) -> list[Any]:
        return rows.to_pylist()

    @asset(ins=ins, partitions_def=weeks)
    def weekly(rows: pa.Table) -> list[Any]:
        return rows["word"].to_pylist()

    @asset(ins=ins)
    def all_days(rows: pa.Table) -> list[Any]:
        return sorted(rows["word"].to_pylist())

    manager = FlinkTableIOManager()
    jobs = [define_asset_job(f"of_{name}", AssetSelection.assets(name)) for name in ("daily", "weekly", "all_days")]
    definitions = Definitions([table, daily, weekly, all_days], jobs=jobs, resources={"tables": manager})

    def loaded(name: str, partition: str | None = None) -> list[Any]:
        job = definitions.resolve_job_def(f"of_{name}")
        found: list[Any] = job.execute_in_process(instance=instance, partition_key=partition).output_for_node(name)
        return found

    assert loaded("daily", "2024-01-02") == [{"word": "b", "count": None}, {"word": "c", "count": None}]
    assert loaded("daily", "2024-01-03") == []
    assert loaded("weekly", "2023-12-31") == ["a", "b", "c"]
    assert loaded("all_days") == ["a", "b", "c", "z"]


@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_spark_reads_a_table(tmp_path: Path, instance: DagsterInstance) -> None:
    record = Types.ROW_NAMED(["word"], [Types.STRING()])
    for i, words in enumerate((["a", "b"], ["c"])):
        pq.write_table(pa.table({"word": words}), tmp_path / f"{i}.parquet")
    facts = {"dagster/uri": tmp_path.as_uri(), "flink/record_type": json.dumps(record.to_json())}

    @asset(ins={"rows": AssetIn("table", input_manager_key="tables")})
    def words(rows: DataFrame) -> list[str]:
        return sorted(row.word for row in rows.collect())

    manager = FlinkTableIOManager(spark=SparkResource())
    definitions = Definitions([AssetSpec("table", metadata=facts), words], resources={"tables": manager})
    job = definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance).output_for_node("words") == ["a", "b", "c"]


class Delta:
    """A table of Delta Lake in the metadata of `flink_assets`, and what a downstream asset loads of it."""

    def __init__(self, sink: DeltaSink, instance: DagsterInstance) -> None:
        self.sink, self.instance = sink, instance
        self.days = DailyPartitionsDefinition("2023-12-31")

    def load(self, annotation: type, partition: str | None = None, **metadata: Any) -> Any:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([], PRICE).uid("prices").sink_to(self.sink).uid("table")
        (spec,) = (s for s in build_flink_asset_specs(env, name="shop") if s.key.path[-1] == "table")
        days = None if partition is None else self.days
        found: list[Any] = []

        def behind(rows: Any) -> None:
            found.append(rows)

        behind.__annotations__["rows"] = annotation
        ins = {"rows": AssetIn(["shop", "table"], input_manager_key="tables", metadata=metadata)}
        made = asset(ins=ins, partitions_def=days)(behind)
        manager = FlinkTableIOManager(spark=SparkResource())
        definitions = Definitions([spec.replace_attributes(partitions_def=days), made], resources={"tables": manager})
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=self.instance, partition_key=partition).success
        return found[0]


PRICE = Types.ROW_NAMED(["item", "price", "at"], [Types.STRING(), Types.DECIMAL(10, 2), Types.INSTANT()])
NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)


def test_a_table_of_delta_lake(tmp_path: Path, instance: DagsterInstance) -> None:
    delta = Delta(DeltaSink(str(tmp_path)), instance)
    empty = delta.load(pa.Table)
    assert (empty.num_rows, empty.column_names) == (0, ["item", "price", "at"])
    write_deltalake(str(tmp_path), pa.table({"item": ["a"], "price": [Decimal("1.50")]}))  # without the newer column
    assert delta.load(pa.Table).to_pylist() == [{"item": "a", "price": Decimal("1.50"), "at": None}]
    rows = pa.table({"item": ["b"], "price": [Decimal("2.00")], "at": [NOON]})
    write_deltalake(str(tmp_path), rows, mode="append", schema_mode="merge")
    assert delta.load(pl.DataFrame).sort("item")["at"].to_list() == [None, NOON]
    assert sorted(delta.load(pd.DataFrame)["item"]) == ["a", "b"]
    assert delta.load(pa.Table, columns=["price"]).column_names == ["price"]


def test_partitions_of_a_table_of_delta_lake(tmp_path: Path, instance: DagsterInstance) -> None:
    delta = Delta(DeltaSink(str(tmp_path), partition_column="day"), instance)
    rows = {"day": ["2024-01-01", "2024-01-02"], "item": ["a", "b"], "price": [Decimal("1.50")] * 2, "at": [NOON] * 2}
    write_deltalake(str(tmp_path), pa.table(rows), partition_by=["day"])
    loaded = delta.load(pa.Table, "2024-01-02")
    assert loaded.to_pylist() == [{"item": "b", "price": Decimal("1.50"), "at": NOON}]
    assert delta.load(pa.Table, "2024-01-03").num_rows == 0


@pytest.mark.spark
@pytest.mark.usefixtures("one_server")
def test_a_table_of_delta_lake_as_a_spark_data_frame(tmp_path: Path, instance: DagsterInstance) -> None:
    write_deltalake(str(tmp_path), pa.table({"item": ["a"], "price": [Decimal("1.50")], "at": [NOON]}))
    (row,) = Delta(DeltaSink(str(tmp_path)), instance).load(DataFrame).select("item", "price").collect()
    assert tuple(row) == ("a", Decimal("1.50"))


@pytest.mark.parametrize(
    ("upstream", "annotation", "says"),
    [
        ("table", dict, "annotate the input as pyarrow.Table"),
        ("count", pa.Table, "is not the table of a ParquetSink"),
        ("table", DataFrame, "give it one, as in FlinkTableIOManager(spark=SparkResource())"),
    ],
)
def test_what_cannot_be_loaded(deployment: Deployment, upstream: str, annotation: type, says: str) -> None:
    def behind(rows: Any) -> None:
        pass

    behind.__annotations__["rows"] = annotation
    made = asset(ins={"rows": AssetIn(["words", upstream], input_manager_key="tables")})(behind)
    assert says in failure(deployment.run(made, with_job=False))


def test_it_stores_nothing(deployment: Deployment) -> None:
    @asset(io_manager_key="tables")
    def rows() -> int:
        return 1

    assert "only loads tables" in failure(deployment.run(rows, with_job=False))
