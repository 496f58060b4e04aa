"""Others change what is beneath the DataFrame of `from_spark`: before and after it runs, and between two tries.

Each job ends with the rows that were there when the DataFrame ran, each once, or with an error of the library; when the
act is undone, it goes on to them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.errors import FlinkPyError, InputTypeError, StorageError, UserFunctionError
from dagster_flinkpy.runtime.blocking.dataframe_enumerators import SparkSourceEnumerator
from dagster_flinkpy.spark.sessions import SparkSettings, open_session
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import environment

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_server")]

ROW = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])
FIRST = pa.table({"id": [1, 2], "name": ["a", "b"]})
SECOND = pa.table({"id": [3], "name": ["c"]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    folder.mkdir()
    pq.write_table(FIRST, folder / "1.parquet")
    return folder


def job(table: Path) -> Any:
    path = str(table)
    stream = environment().from_spark(lambda spark: spark.read.parquet(path), type_info=ROW).uid("rows")
    return collect_graph(stream)


def ids(graph: Any, folder: Path) -> list[int]:
    """Runs an attempt to its end, and returns what it has collected."""
    found: list[int] = []
    with HarnessAttempt(graph, folder) as attempt:
        while not attempt.finished:
            attempt.run_epoch()
            found += [row.id for row in collected(attempt.graph, attempt.collected)]
    return sorted(found)


def replaces(content: pa.Table) -> Callable[[Path], None]:
    return lambda table: pq.write_table(content, table / "1.parquet")


def appends(table: Path) -> None:
    pq.write_table(SECOND, table / "2.parquet")


WITHOUT_COLUMN = replaces(pa.table({"id": [1, 2]}))
OTHER_TYPE = replaces(pa.table({"id": ["1", "x"], "name": ["a", "b"]}))


@pytest.mark.parametrize(
    "act",
    [shutil.rmtree, appends, replaces(SECOND), OTHER_TYPE],
    ids=["deletes", "appends", "overwrites", "other type"],
)
def test_what_happens_after_the_dataframe_ran_changes_nothing(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    plan, acts = SparkSourceEnumerator.plan_epoch, [act]

    def planned(self: SparkSourceEnumerator, parallelism: int) -> Any:
        splits = plan(self, parallelism)
        while acts:
            acts.pop()(table)
        return splits

    monkeypatch.setattr(SparkSourceEnumerator, "plan_epoch", planned)
    graph = job(table)
    assert ids(graph, tmp_path) == [1, 2]
    assert ids(graph, tmp_path) == []  # another run does not read it again


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (shutil.rmtree, UserFunctionError, "PATH_NOT_FOUND"),
        (WITHOUT_COLUMN, InputTypeError, "no column 'name'"),
        (OTHER_TYPE, InputTypeError, "'id'"),
        (lambda table: (table / "1.parquet").write_bytes(b"rubbish"), UserFunctionError, "'rows'"),
    ],
    ids=["deletes", "drops a column", "other type", "rubbish"],
)
def test_what_happens_before_it_runs_is_an_error_until_it_is_undone(
    table: Path, tmp_path: Path, act: Callable[[Path], None], error: type[FlinkPyError], message: str
) -> None:
    graph, kept = job(table), tmp_path / "kept"
    shutil.copytree(table, kept)
    act(table)
    for _ in range(2):
        with pytest.raises(error, match=message):
            ids(graph, tmp_path)
    shutil.rmtree(table, ignore_errors=True)
    shutil.copytree(kept, table)
    assert ids(graph, tmp_path) == [1, 2]


def test_a_column_more_is_left_out_and_a_dataframe_of_a_failed_epoch_runs_again(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = job(table)

    def fails(*_: Any) -> None:
        raise StorageError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr("dagster_flinkpy.runtime.master.job.CompletedCheckpointStore.write_metadata", fails)
        with pytest.raises(FlinkPyError, match="the store is away"):
            ids(graph, tmp_path)
    replaces(FIRST.append_column("more", pa.array([0, 0])))(table)
    appends(table)
    assert ids(graph, tmp_path) == [1, 2, 3]


def test_a_view_that_is_replaced_is_read_as_it_is_then(
    table: Path, tmp_path: Path, spark_settings: SparkSettings
) -> None:
    def rows(spark: Any) -> Any:
        return spark.table("global_temp.of_somebody")

    graph = collect_graph(environment().from_spark(rows, type_info=ROW).uid("rows"))
    with open_session(spark_settings) as spark:
        spark.read.parquet(str(table)).select("id").createOrReplaceGlobalTempView("of_somebody")
    with pytest.raises(InputTypeError, match="no column 'name'"):
        ids(graph, tmp_path)
    with open_session(spark_settings) as spark:
        spark.read.parquet(str(table)).createOrReplaceGlobalTempView("of_somebody")
    assert ids(graph, tmp_path) == [1, 2]
