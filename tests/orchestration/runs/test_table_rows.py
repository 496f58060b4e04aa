"""The number of rows of a table in the materializations; tasks run in the harness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetKey, DagsterInstance, materialize
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import CsvSink, DeltaSink, IcebergSink
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Sink
from dagster_flinkpy.datastream.connectors.collection import CollectionSource
from dagster_flinkpy.datastream.connectors.tables import RowCount
from dagster_flinkpy.orchestration import flink_assets
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows


class Words:
    """A word count of one word in each run."""

    def __init__(self, table: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.table, self.instance, self.resources = table, instance, resources

    def run(self, **config: Any) -> list[str]:
        """Runs an epoch; returns the warnings about the table."""
        assets = flink_assets(word_count(self.table, ["a", "b", "a"] * 3, per_epoch=3), name="words")
        config = {"ops": {"words": {"config": config}}}
        result = materialize(assets, instance=self.instance, resources=self.resources, run_config=config)
        assert result.success
        logged = self.instance.all_logs(result.run_id)
        return [entry.message for entry in logged if "were not counted" in entry.message]

    def count(self, uid: str = "table") -> tuple[Any, Any]:
        event = self.instance.get_latest_materialization_event(AssetKey(["words", uid]))
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
        values = (metadata.get(name) for name in ("dagster/row_count", "flink/table_files"))
        rows, files = (value and value.value for value in values)
        return rows, files


@pytest.fixture
def words(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Words:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
    return Words(tmp_path / "table", instance, resources)


def test_a_table_has_the_rows_of_all_its_files(words: Words) -> None:
    words.run()
    files = len(list(words.table.glob("*.parquet")))
    assert words.count() == (3, files)
    assert words.count("count") == (None, None), "only tables have rows"
    words.run()
    assert words.count()[0] == 6
    words.run(start_empty=True)
    assert words.count()[0] == 9, "rows stay that were committed before"
    for path in words.table.glob("*.parquet"):
        path.unlink()
    words.run()
    assert words.count()[0] == 3


@pytest.mark.system
def test_a_table_that_cannot_be_counted_has_no_number(words: Words) -> None:
    words.run()
    (words.table / "a.parquet").write_text("nothing")
    (warning,) = words.run()
    assert words.table.as_uri() in warning
    assert words.count() == (None, None)
    (words.table / "a.parquet").unlink()
    words.run()
    assert words.count()[0] == 9


@pytest.mark.system
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_with_a_log_has_the_rows_that_it_tells(
    words: Words, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{words.table.parent}/catalog.db"}
    folder = str(words.table)
    sink: Sink = DeltaSink(folder) if kind == "delta" else IcebergSink("db.t", folder, properties=catalog)

    def program(*_: object, **__: object) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        source = CollectionSource(["a", "b", "c"], Types.STRING(), records_per_epoch=1)
        env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words").sink_to(sink).uid("table")
        return env

    monkeypatch.setitem(globals(), "word_count", program)
    assert words.run() == []
    assert words.count() == (1, None)
    if kind == "delta":
        write_deltalake(folder, pa.table({"value": ["of others"]}), mode="append")
    else:
        load_catalog("default", **catalog).load_table("db.t").append(pa.table({"value": ["of others"]}))
    assert words.run() == []
    assert words.count() == (3, None)
    monkeypatch.setattr(f"dagster_flinkpy.connectors.{kind}.table.row_count", lambda sink: 1 // 0)
    (warning,) = words.run()
    assert words.table.as_uri() in warning
    assert words.count() == (None, None)


class Counted(CsvSink):
    """A sink of one's own, whose target has other rows, too."""

    def count_rows(self, known: RowCount | None = None) -> RowCount:
        return RowCount(100 if known is None else known.rows + 1)


def test_a_sink_of_ones_own_says_how_many_rows_its_table_has(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(*_: object, **__: object) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        source = CollectionSource(["a", "b", "c"], Types.STRING(), records_per_epoch=1)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "words").uid("words")
        stream.sink_to(Counted(str(words.table))).uid("table")
        return env

    monkeypatch.setitem(globals(), "word_count", program)
    words.run()
    assert words.count() == (100, None)
    words.run()
    assert words.count() == (101, None)
