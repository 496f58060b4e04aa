"""An upstream asset as a source, in process."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    DagsterInstance,
    Definitions,
    MaterializeResult,
    MetadataValue,
    TableColumn,
    TableRecord,
    TableSchema,
    asset,
)

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import AssetSource, Materialization, ParquetSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import SourceLag, SplitEnumerator, SplitEnumeratorContext
from dagster_flinkpy.errors import ConfigurationError, SourceReadError, TypeMismatchError
from dagster_flinkpy.orchestration import flink_assets
from dagster_flinkpy.orchestration.runs.asset_enumerator import assets_from
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.runtime.harness import run_rows, spark_order

ROW = Types.ROW_NAMED(["id", "run"], [Types.LONG(), Types.STRING()])


def load(materialization: Materialization) -> pa.Table:
    table = pq.read_table(materialization.metadata["path"])
    return table.append_column("run", pa.array([materialization.run_id] * len(table)))


def orders(folder: Path, numbers: list[int]) -> AssetsDefinition:
    @asset(name="orders")
    def made(context: AssetExecutionContext) -> MaterializeResult[Any]:
        path = folder / f"{context.run_id}.parquet"
        pq.write_table(pa.table({"id": numbers}), path)
        return MaterializeResult(metadata={"path": str(path), "rows": len(numbers)})

    return made


def job(folder: Path) -> list[AssetsDefinition]:
    env = StreamExecutionEnvironment.get_execution_environment()
    source = env.from_source(AssetSource("orders", load, ROW), WatermarkStrategy.no_watermarks(), "orders")
    source.uid("read").sink_to(ParquetSink(str(folder / "table"))).uid("table")
    return flink_assets(env, name="shop")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))


@pytest.mark.usefixtures("in_process")
def test_each_materialization_of_an_upstream_asset_is_read_once(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    numbers = [1, 2]
    definitions = Definitions([orders(tmp_path, numbers), *job(tmp_path)], resources=resources)
    graph = definitions.resolve_asset_graph()
    assert AssetKey("orders") in graph.get(AssetKey(["shop", "read"])).parent_keys

    def run(*keys: list[str]) -> str:
        chosen = [AssetKey(key) for key in keys]
        result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=chosen
        )
        return str(result.run_id)

    shop = (["shop", "read"], ["shop", "table"])
    first = run(["orders"])
    last = run(["orders"])
    run(*shop)
    rows = pq.read_table(tmp_path / "table").to_pylist()
    assert rows == [{"id": 1, "run": last}, {"id": 2, "run": last}], "the first epoch reads the latest"
    assert first != last
    run(*shop)
    assert len(pq.read_table(tmp_path / "table")) == 2
    numbers[:] = [3]
    runs = [run(["orders"]), run(["orders"])]
    run(*shop)
    rows = pq.read_table(tmp_path / "table").to_pylist()
    assert sorted((row["id"], row["run"]) for row in rows[2:]) == sorted((3, each) for each in runs)


@pytest.mark.usefixtures("in_process")
def test_an_asset_that_is_only_observed_is_named(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    job_of = Definitions(job(tmp_path), resources=resources).resolve_implicit_global_asset_job_def()

    def warnings() -> list[str]:
        run_id = job_of.execute_in_process(instance=instance).run_id
        return [entry.user_message for entry in instance.all_logs(run_id) if entry.level == logging.WARNING]

    assert warnings() == [], "it may be materialized later"
    instance.report_runless_asset_event(AssetObservation("orders"))
    (warning,) = warnings()
    assert warning.startswith("Asset orders was observed, but never materialized.")


@pytest.mark.usefixtures("in_process")
def test_metadata_that_is_no_json_is_left_out(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any]
) -> None:
    path = tmp_path / "orders.parquet"
    pq.write_table(pa.table({"id": [7]}), path)
    columns = TableSchema([TableColumn("n", "int")])
    table = MetadataValue.table([TableRecord({"n": 1})], columns)
    metadata = {"path": str(path), "table": table, "columns": MetadataValue.table_schema(columns)}
    instance.report_runless_asset_event(AssetMaterialization("orders", metadata=metadata))
    Definitions(job(tmp_path), resources=resources).resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance
    )
    assert pq.read_table(tmp_path / "table")["id"].to_pylist() == [7]


class Orders:
    """Materializations of an asset, and the enumerator of a source that reads it."""

    def __init__(self, instance: DagsterInstance) -> None:
        self.instance = instance
        self.source = AssetSource(["shop", "orders"], lambda m: [(1, m.run_id)], ROW, bounded=False)
        self.enumerator = self.create(None)

    def create(self, restored: Any) -> SplitEnumerator:
        enumerator = self.source.create_enumerator(restored)
        enumerator.start(SplitEnumeratorContext("job", 1, None, run_id="run"))  # type: ignore[arg-type]
        return enumerator

    def add(self, partition: str | None = None, version: str | None = None) -> None:
        tags = None if version is None else {"dagster/data_version": version}
        event = AssetMaterialization(["shop", "orders"], partition=partition, tags=tags, metadata={"n": 1})
        self.instance.report_runless_asset_event(event)

    def plan(self) -> list[Any]:
        return [split for share in self.enumerator.plan_epoch(2) for split in share]

    def read(self) -> list[tuple[str | None, str | None]]:
        splits = self.plan()
        assert self.plan() == splits, "what was planned is pinned"
        found = [Materialization.of_split(split) for split in splits]
        self.enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])
        self.enumerator = self.create(json.loads(json.dumps(self.enumerator.snapshot_state())))
        return sorted((each.partition_key, each.data_version) for each in found)  # type: ignore[type-var]


@pytest.fixture
def shop(instance: DagsterInstance) -> Any:
    with assets_from(instance):
        yield Orders(instance)


def test_each_partition_is_read_once(shop: Orders) -> None:
    assert shop.read() == []
    shop.add("a", "1")
    shop.add("b", "1")
    shop.add("a", "2")
    assert shop.read() == [("a", "2"), ("b", "1")]
    shop.add("a", "2")
    shop.add("c", "1")
    assert shop.read() == [("c", "1")], "the same data version is the same rows"
    shop.add("b", "2")
    with pytest.raises(SourceReadError, match=r"partition 'b' of asset shop/orders was materialized again"):
        shop.plan()
    assert shop.enumerator.unread()


def test_runs_side_by_side_read_from_their_own_instances(instance: DagsterInstance) -> None:
    """Two threads of a process work for runs of one id, as the tries of a run have it. One ends before the other."""
    with DagsterInstance.ephemeral() as other:
        there, ended = threading.Event(), threading.Event()

        def run() -> list[Any]:
            with assets_from(other):
                shop = Orders(other)
                shop.add("theirs", "1")
                there.set()
                found = shop.read()
            ended.set()
            return found

        with ThreadPoolExecutor(1) as threads, assets_from(instance):
            mine = Orders(instance)
            mine.add("mine", "1")
            theirs = threads.submit(run)
            there.wait()
            ended.wait()
            assert mine.read() == [("mine", "1")]
            assert theirs.result() == [("theirs", "1")]


def test_an_epoch_reads_so_many_materializations(shop: Orders) -> None:
    shop.source = AssetSource(
        ["shop", "orders"], lambda m: [(1, m.run_id)], ROW, bounded=True, max_materializations_per_epoch=2
    )
    shop.enumerator = shop.create(None)
    for partition, version in (("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"), ("d", "1")):
        shop.add(partition, version)
    shop.plan()
    assert (shop.enumerator.lag(), shop.enumerator.exhausted) == (SourceLag(versions=2), False)
    assert shop.read() == [("b", "1"), ("c", "1")]
    shop.add("d", "2")
    assert shop.read() == [("a", "2"), ("d", "2")], "nothing of them was read before"
    shop.plan()
    assert (shop.enumerator.lag(), shop.enumerator.exhausted) == (SourceLag(versions=0), True)


def test_without_data_versions_a_partition_counts_as_changed(shop: Orders) -> None:
    shop.add("a")
    assert shop.read() == [("a", None)]
    shop.add("a")
    with pytest.raises(SourceReadError, match="materialized again"):
        shop.plan()


def test_a_partition_that_is_materialized_while_it_is_read_fails_the_epoch(shop: Orders) -> None:
    shop.add("a", "1")
    splits = shop.plan()
    position = json.loads(json.dumps(shop.enumerator.snapshot_state()))
    shop.add("a", "1")
    shop.enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])
    shop.enumerator = shop.create(position)
    assert shop.plan() == splits, "a replay reads the pinned materialization"
    shop.add("a", "2")
    with pytest.raises(SourceReadError, match="while the source read it"):
        shop.enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])


def test_an_event_that_appears_behind_newer_ones_is_read(shop: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.add()
    fetch = DagsterInstance.fetch_materializations
    shop.read()
    shop.add()
    [hidden] = fetch(shop.instance, AssetKey(["shop", "orders"]), 1).records
    shop.add()

    def without(*args: Any, **options: Any) -> Any:
        result = fetch(shop.instance, *args, **options)
        kept = [record for record in result.records if record.storage_id != hidden.storage_id]
        return type(result)(records=kept, cursor=result.cursor, has_more=result.has_more)

    monkeypatch.setattr(DagsterInstance, "fetch_materializations", lambda self, *a, **o: without(*a, **o))
    assert len(shop.read()) == 1
    monkeypatch.setattr(DagsterInstance, "fetch_materializations", fetch)
    assert len(shop.read()) == 1
    assert shop.read() == []


def test_the_numbers_of_another_instance_begin_anew(shop: Orders) -> None:
    for _ in range(3):
        shop.add()
    shop.read()
    with DagsterInstance.ephemeral() as other, assets_from(other):
        shop.instance = other
        assert shop.read() == []
        shop.add()
        shop.add()
        assert len(shop.read()) == 2
        assert shop.read() == []
        shop.add()
        assert len(shop.read()) == 1


def test_a_wiped_asset_is_read_on(shop: Orders) -> None:
    shop.add("a", "1")
    shop.read()
    shop.instance.wipe_assets([AssetKey(["shop", "orders"])])
    assert shop.read() == []
    shop.add("b", "1")
    assert shop.read() == [("b", "1")]
    shop.add("a", "2")
    with pytest.raises(SourceReadError, match="partition 'a' of asset shop/orders was materialized again"):
        shop.plan()


def test_a_position_in_one_asset_is_none_in_another(shop: Orders) -> None:
    """What the other one had been materialized before was never read, and nobody said so."""
    shop.instance.report_runless_asset_event(AssetMaterialization(["shop", "others"], metadata={"n": 1}))
    shop.add()
    assert shop.read() == [(None, None)]
    state = shop.enumerator.snapshot_state()
    others = AssetSource(["shop", "others"], lambda m: [(1, m.run_id)], ROW, bounded=False)
    with pytest.raises(
        ValueError, match=r"it is of asset \['shop', 'orders'\], but the source reads \['shop', 'others'\]"
    ):
        others.create_enumerator(state)


def test_the_state_of_an_older_version_has_no_times_and_no_asset(shop: Orders) -> None:
    shop.add("a", "1")
    shop.read()
    state = shop.enumerator.snapshot_state()
    del state["times"], state["asset"]
    shop.enumerator = shop.create(state)
    assert shop.read() == []
    shop.add("b", "1")
    assert shop.read() == [("b", "1")]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"run": ["x"], "id": pa.array([7], pa.int32())}),
        pa.record_batch({"id": [7], "run": ["x"]}),
        pd.DataFrame({"id": [7], "run": ["x"]}),
        [(7, "x")],
    ],
)
def test_rows_may_be_tables_frames_or_rows(shop: Orders, rows: Any) -> None:
    shop.add()
    [split] = shop.plan()
    source = AssetSource("a", lambda m: rows, ROW)
    assert [(column.to_pylist(), end) for column, end in source.read(split)] == [([{"id": 7, "run": "x"}], 1)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pa.table({"id": [1]}), r"load\(\) of asset a returned has no column 'run'"),
        (
            pa.table({"id": ["x"], "run": ["x"]}),
            r"load\(\) of asset a returned: column 'id' is string, which does not become Types.LONG\(\)",
        ),
        (5, "returned int: return a pyarrow.Table"),
    ],
)
def test_rows_that_do_not_fit_are_refused(shop: Orders, rows: Any, message: str) -> None:
    shop.add()
    [split] = shop.plan()
    with pytest.raises((SourceReadError, TypeMismatchError), match=message):
        list(AssetSource("a", lambda m: rows, ROW).read(split))


def test_arguments_are_checked() -> None:
    assert AssetSource(AssetKey(["a", "b"]), load, ROW).asset_key == ("a", "b")  # type: ignore[arg-type]
    for key, function, row_type in (("", load, ROW), ("a", "load", ROW), ("a", load, Types.LONG())):
        with pytest.raises(ConfigurationError, match=r"AssetSource\(\)"):
            AssetSource(key, function, row_type)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be at least 1"):
        AssetSource("a", load, ROW, max_materializations_per_epoch=0)
