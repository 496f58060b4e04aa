"""Transactions of plain assets, in runs of Dagster."""

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from dagster._core.definitions.reconstruct import ReconstructableRepository

from dagster_flinkpy.cli import main
from dagster_flinkpy.connectors import CsvSink, DeltaSink, ParquetSink, PostgresSink
from dagster_flinkpy.errors import ConfigurationError, FencedError, TypeMismatchError
from dagster_flinkpy.orchestration import (
    DeltaSinkResource,
    FileSinkResource,
    IcebergSinkResource,
    PostgresSinkResource,
    TwoPhaseCommitSinkResource,
    build_transaction_checks,
    build_transactions_job,
)
from tests.orchestration.outputs.targets import Delta, Files, Iceberg, Postgres, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = dg.StaticPartitionsDefinition(["x", "y", "z"])


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


class Deployment:
    """A target as a resource ``tables``, with an instance that remembers runs."""

    def __init__(self, kind: str, folder: Path, postgres: str | None = None) -> None:
        self.kind, self.url = kind, str(folder)
        self.instance = dg.DagsterInstance.ephemeral()
        self.target: Target
        self.tables: TwoPhaseCommitSinkResource
        self.table = "t"
        if kind == "postgres":
            assert postgres is not None
            self.tables = PostgresSinkResource(url=self.url, conninfo=postgres)
            self.target = Postgres(self.tables.location(), postgres)
            self.table = f"{self.target.schema}.t"
        elif kind == "delta":
            self.tables = DeltaSinkResource(url=self.url)
            self.target = Delta(self.tables.location())
        elif kind == "iceberg":
            folder.mkdir(parents=True, exist_ok=True)
            catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
            self.tables = IcebergSinkResource(url=self.url, catalog="test", properties=catalog)
            self.target = Iceberg(self.tables.location())
            self.table = self.target.table
        else:
            self.tables = FileSinkResource(url=self.url)
            self.target = Files(self.tables.location())

    def run(self, *assets: Any, **options: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            assets, instance=self.instance, resources={"tables": self.tables}, raise_on_error=False, **options
        )

    def rows(self) -> list[Any]:
        return self.target.rows()


@pytest.fixture(params=["files", "delta", "iceberg", "postgres"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return Deployment(request.param, tmp_path, server)


@pytest.fixture
def files(tmp_path: Path) -> Deployment:
    return Deployment("files", tmp_path)


def facts(result: dg.ExecuteInProcessResult, node: str) -> dict[str | None, dict[str, Any]]:
    """Returns the metadata of the materializations of a step, by partition."""
    events = result.asset_materializations_for_node(node)
    return {event.partition: {name: value.value for name, value in event.metadata.items()} for event in events}


def failure(result: dg.ExecuteInProcessResult) -> tuple[str, str]:
    """Returns the type and the message of the error of a run."""
    [event] = [event for event in result.all_events if event.is_step_failure]
    found = event.step_failure_data.user_failure_data
    return found.metadata["error"].value, found.description


# --- runs -------------------------------------------------------------------------------------------------------------


def test_an_asset_that_fails_is_retried_and_runs_again_has_its_rows_once(deployment: Deployment) -> None:
    fails = [True]

    @dg.asset(key=["a"], retry_policy=dg.RetryPolicy(max_retries=1))
    def orders(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, deployment.table) as transaction:
            transaction.write(numbers(1))
            assert deployment.rows() == [] or context.retry_number != 0
            transaction.write(numbers(2, 3))
            if fails:
                fails.pop()
                raise ValueError("not yet")

    result = deployment.run(orders)
    assert result.success
    assert deployment.rows() == [("a", None, 1), ("a", None, 2), ("a", None, 3)]
    found = facts(result, "a")[None]
    assert (found["dagster/row_count"], found["dagster/table_name"]) == (3, deployment.table)
    assert [column.name for column in found["dagster/column_schema"].columns] == ["n"]
    sink = deployment.tables.sink(deployment.table)
    assert (found["dagster/uri"], {found["dagster/storage_kind"]}) == (sink.uri(), sink.kinds())


def test_partitions_of_a_run_are_replaced(deployment: Deployment) -> None:
    written = {"x": [1], "y": [2], "z": [3]}

    @dg.asset(key=["a"], partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def orders(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, deployment.table) as transaction:
            for partition in transaction.partitions:
                transaction.write(numbers(*written[partition]), partition=partition)

    tags = {"dagster/asset_partition_range_start": "x", "dagster/asset_partition_range_end": "z"}
    result = deployment.run(orders, tags=tags)
    assert result.success
    assert {key: each["dagster/partition_row_count"] for key, each in facts(result, "a").items()} == {
        "x": 1,
        "y": 1,
        "z": 1,
    }
    written.update(x=[10, 11], y=[], z=[30])
    for key in ("x", "y", "x"):
        assert deployment.run(orders, partition_key=key).success
    assert deployment.rows() == [("a", "x", 10), ("a", "x", 11), ("a", "z", 3)]


def test_an_asset_that_a_test_calls_directly_writes_what_a_run_does(files: Deployment) -> None:
    written = [1, 2]

    @dg.asset(key=["a"])
    def orders(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, files.table) as transaction:
            transaction.write(numbers(*written))

    @dg.asset(key=["b"], partitions_def=DAYS)
    def days(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, files.table) as transaction:
            transaction.write(numbers(3))

    for _ in range(2):
        orders(dg.build_asset_context(), files.tables)
        days(dg.build_asset_context(partition_key="x"), files.tables)
        assert files.rows() == [("a", None, each) for each in written] + [("b", "x", 3)]
        written.pop()
    assert files.tables.lingering(files.instance) == []


def test_two_tables_of_a_multi_asset(files: Deployment) -> None:
    @dg.multi_asset(specs=[dg.AssetSpec("a"), dg.AssetSpec("b", partitions_def=None)])
    def both(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> Any:
        for key in ("a", "b"):
            with tables.transaction(context, "t", asset_key=key) as transaction:
                transaction.write(numbers(len(key)))
            yield dg.MaterializeResult(asset_key=key)

    result = files.run(both)
    assert [event.metadata["dagster/row_count"].value for event in result.asset_materializations_for_node("both")] == [
        1,
        1,
    ]
    assert files.rows() == [("a", None, 1), ("b", None, 1)]


def test_the_run_that_began_last_counts(files: Deployment) -> None:
    @dg.asset
    def inner(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(2))

    @dg.asset(name="inner", retry_policy=dg.RetryPolicy(max_retries=3))
    def outer(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(1))
            assert files.run(inner).success

    result = files.run(outer)
    kind, message = failure(result)
    assert (kind, files.rows()) == (FencedError.__name__, [("inner", None, 2)])
    assert "a newer one over the same partitions has begun" in message
    assert not any(event.is_step_up_for_retry for event in result.all_events)


@pytest.mark.parametrize(
    ("asset_key", "write", "error", "message"),
    [
        ("b", {}, ConfigurationError, "the step does not have asset 'b'"),
        (None, {"rows": [1]}, TypeMismatchError, "cannot write builtins.list"),
        (None, {"rows": numbers(1), "partition": "x"}, ConfigurationError, "does not have partition 'x'"),
        (None, {"rows": pa.table({"n": pa.nulls(2)})}, TypeMismatchError, "column 'n' has type null"),
        (None, {"rows": pd.DataFrame({"n": [1, "a"]})}, TypeMismatchError, "values of several types"),
        (None, {"rows": pa.table({"n": pa.array([1], pa.duration("s"))})}, ConfigurationError, "column 'n'"),
    ],
)
def test_what_cannot_be_written_is_named(
    files: Deployment, asset_key: str | None, write: dict[str, Any], error: type[Exception], message: str
) -> None:
    @dg.asset
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t", asset_key=asset_key) as transaction:
            transaction.write(**write)

    kind, found = failure(files.run(a))
    assert kind == error.__name__
    assert message in found
    assert (files.rows(), files.target.staged()) == ([], 0)


def test_an_asset_that_another_one_would_be_taken_for_is_refused(files: Deployment) -> None:
    @dg.asset(key=["x", "a"])
    def two(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(1))

    @dg.multi_asset(outs={"out": dg.AssetOut(key="x/a")})  # @asset refuses such a key
    def one(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> Any:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(2))
        yield dg.Output(None, "out")

    assert files.run(two).success
    kind, message = failure(files.run(one))
    assert (kind, files.rows()) == ("ConfigurationError", [("x%2Fa", None, 1)])
    assert "would be those of asset AssetKey(['x', 'a']), too" in message
    with pytest.raises(ConfigurationError, match="has a '/' inside a part of its key"):
        build_transaction_checks(["x/a"], resource_key="tables")


def location_of(name: str) -> dg.Definitions:
    @dg.asset(name=name)
    def written(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(1))

    job = dg.define_asset_job("write", [written], executor_def=dg.in_process_executor)
    tables = FileSinkResource(url=dg.EnvVar("TABLES"))
    return dg.Definitions([written], jobs=[job], resources={"tables": tables})


def before() -> dg.Definitions:
    return location_of("before")


def now() -> dg.Definitions:
    return location_of("now")


def test_a_table_of_an_asset_that_is_gone_is_warned_of_once(
    files: Deployment, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have another name now, and then its rows would stay."""

    def warnings(name: str) -> int:
        job = ReconstructableRepository.for_module(__name__, name).get_reconstructable_job("write")
        with dg.instance_for_test() as instance, dg.execute_job(job, instance) as result:
            assert result.success
        return capfd.readouterr().err.count("If that is a former name of this asset")

    monkeypatch.setenv("TABLES", files.url)
    assert [warnings(name) for name in ("before", "now", "now")] == [0, 1, 0]
    assert sorted(files.rows()) == [("before", None, 1), ("now", None, 1)]


def test_other_columns_than_before_are_refused(files: Deployment) -> None:
    @dg.asset
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(1))
            transaction.write(pa.table({"m": [1]}))

    assert failure(files.run(a))[0] == "TypeMismatchError"


def test_a_run_with_several_partitions_has_to_say_which(files: Deployment) -> None:
    @dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t") as transaction:
            transaction.write(numbers(1))

    tags = {"dagster/asset_partition_range_start": "x", "dagster/asset_partition_range_end": "y"}
    assert failure(files.run(a, tags=tags)) == (
        "ConfigurationError",
        "the run has 2 partitions, so write() needs one: partition='x'",
    )


# --- data frames ------------------------------------------------------------------------------------------------------

VALUES = {
    "n": [1, 2],
    "s": ["a", None],
    "d": [Decimal("1.50"), None],
    "t": [datetime(2024, 1, 2, 3, tzinfo=timezone.utc), None],
}
TABLE = pa.table(
    VALUES, pa.schema({"n": "int64", "s": "string", "d": pa.decimal128(10, 2), "t": pa.timestamp("us", "UTC")})
)


def read_back(postgres: Deployment) -> list[Any]:
    assert isinstance(postgres.target, Postgres)
    return postgres.target.execute(f"SELECT n, s, d, t FROM {postgres.table} ORDER BY n")


def write(deployment: Deployment, *frames: Any) -> None:
    @dg.asset
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, deployment.table) as transaction:
            for frame in frames:
                transaction.write(frame)

    assert deployment.run(a).success


def test_data_frames_of_each_kind(tmp_path: Path, postgres: str) -> None:
    deployment = Deployment("postgres", tmp_path, postgres)
    expected = list(zip(*VALUES.values(), strict=True))
    frames = [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        TABLE.to_pandas(),
        pl.from_arrow(TABLE),
    ]
    for frame in frames:
        write(deployment, frame)
        assert read_back(deployment) == expected
    write(deployment, TABLE.slice(0, 1), TABLE.to_pandas().iloc[1:])
    assert read_back(deployment) == expected


@pytest.mark.system
@pytest.mark.spark
def test_the_tasks_of_spark_stage_the_rows_of_a_dataframe(tmp_path: Path, postgres: str, spark: "SparkSession") -> None:
    frame = spark.range(6).selectExpr("id AS n", "CAST(id AS STRING) AS s").repartition(3)
    deployment = Deployment("files", tmp_path)

    @dg.asset
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        before = deployment.rows()
        with tables.transaction(context, "t") as transaction:
            transaction.write(frame)
            assert deployment.rows() == before

    for _ in range(2):
        result = deployment.run(a)
        assert facts(result, "a")[None]["dagster/row_count"] == 6
        assert [n for _, _, n in deployment.rows()] == list(range(6))
    files = [info.key for info in deployment.target.location.child("t").open().list()]
    assert len(files) > 1, "each task writes a file"


# --- resources --------------------------------------------------------------------------------------------------------


def test_sinks_for_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path)
    sink: Any = FileSinkResource(url=url).sink("t", partition_by=["day"])
    assert isinstance(sink, ParquetSink)
    assert sink.partition_by == ("day",)
    assert isinstance(FileSinkResource(url=url, file_format="csv").sink("t"), CsvSink)
    delta = DeltaSinkResource(url=url).sink("t", partition_column="day")
    assert isinstance(delta, DeltaSink)
    assert delta.location == DeltaSinkResource(url=url).table("t")
    monkeypatch.setenv("DATABASE", "host=db dbname=shop")
    rows = PostgresSinkResource(url=url, conninfo=dg.EnvVar("DATABASE")).sink("sales.t", key=["id"])
    assert isinstance(rows, PostgresSink)
    assert (rows.uri(), rows.key) == ("postgresql://db/shop/sales.t", ("id",))


# --- what dead runs leave ---------------------------------------------------------------------------------------------


def test_the_check_and_the_job(files: Deployment) -> None:
    @dg.asset
    def a() -> None: ...

    @dg.asset
    def b() -> None: ...

    checks = build_transaction_checks(["a", "b"], resource_key="tables")
    ending = build_transactions_job(["tables"])
    defs = dg.Definitions([a, b], asset_checks=[checks], jobs=[ending], resources={"tables": files.tables})

    def check() -> dict[str, bool]:
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=files.instance)
        return {each.asset_key.to_user_string(): each.passed for each in result.get_asset_check_evaluations()}

    assert check() == {"a": True, "b": True}
    files.target.stage({None: [1]})
    assert check() == {"a": False, "b": True}
    assert defs.resolve_job_def("end_lingering_transactions").execute_in_process(instance=files.instance).success
    assert (check(), files.target.staged()) == ({"a": True, "b": True}, 0)
    with pytest.raises(ConfigurationError, match="keys of the assets"):
        build_transaction_checks([], resource_key="tables")


def test_a_transaction_of_a_run_that_is_alive_does_not_linger(files: Deployment) -> None:
    @dg.asset
    def a(context: dg.AssetExecutionContext, tables: dg.ResourceParam[Any]) -> None:
        with tables.transaction(context, "t"):
            assert tables.lingering(context.instance) == []
            assert tables.end_lingering(context.instance) == []

    assert files.run(a).success


def test_the_command_lists_and_aborts(files: Deployment) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["transactions", *arguments])

    assert f"no open transactions in {files.url}" in run("list", files.url).output
    for options in ([], ["--json"]):
        misspelt = run("list", f"{files.url}s", *options)
        assert misspelt.exit_code == 1
        assert "there is no folder" in misspelt.output
    files.target.stage({"x": [1], "y": [2]}, "shop/a")
    files.target.stage({None: [1]}, "b")
    shown = run("list", files.url).output
    assert "shop/a" in shown
    assert "x, y" in shown
    [other, listed] = json.loads(run("list", files.url, "--json").output)
    assert other["partitions"] is None
    assert {key: listed[key] for key in ("table", "asset", "transaction", "partitions", "run", "state")} == {
        "table": "t",
        "asset": "shop/a",
        "transaction": 1,
        "partitions": ["x", "y"],
        "run": "run",
        "state": "open",
    }
    assert "no such transaction" in run("abort", files.url, "--asset", "c", "--table", "t").output
    aborted = run("abort", files.url, "--asset", "shop/a", "--table", "t", "--transaction", "1", "--json")
    assert json.loads(aborted.output) == [listed]
    assert run("abort", files.url, "--asset", "b", "--table", "t").output == "aborted: 1\n"
    assert json.loads(run("list", files.url, "--json").output) == []
    assert files.target.staged() == 0
