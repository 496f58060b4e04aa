"""Stored state on a real Spark: bootstrap, a job that continues from it, and its state as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.runtime.master import job_session
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.spark.sessions import SparkSettings, get_session
from dagster_flinkpy.state_processor import read_savepoint, write_savepoint
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def one_server(spark_settings: SparkSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(job_session, "get_session", lambda settings, **_: get_session(spark_settings))
    yield


def test_state_of_a_data_frame_is_seen_by_a_job_and_read_again(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(100).selectExpr("concat('k', id) as user", "cast(1 as int) as n", "id * 10 as total")
    savepoint = write_savepoint(max_parallelism=16, parallelism=2)
    for name, column in (("count", "n"), ("sum", "total")):
        descriptor = ValueStateDescriptor(name, Types.LONG())
        savepoint.with_keyed_state("counts", descriptor, frame, key="user", value=column)
    path = savepoint.write(str(tmp_path / "savepoint"))

    stream = events(environment(2), [("k7", 1, 5), ("k7", 2, 6), ("new", 3, 7)])
    graph = collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts"))
    config = JobConfig("job", StorageLocation(str(tmp_path)))
    with JobAttempt(graph, config, owner="test", restore_from=path) as attempt:
        attempt.run_epoch()
        records = collected(attempt.graph, attempt.collected)
    first, *others = sorted(records)
    assert first in [("k7", 2, 75), ("k7", 2, 76)], "two subtasks read the two records"
    assert others == [("k7", 3, 81), ("new", 1, 7)]

    total = read_savepoint(str(tmp_path / "job")).state("counts", "sum")
    rows = total.to_spark(spark)
    assert dict(rows.dtypes)["key_group"] == "int"
    assert rows.count() == 101
    assert rows.where("key = 'k7'").first()["value"] == 81
    one = total.for_keys(["k9", "new"]).to_spark(spark)
    assert {row["key"]: row["value"] for row in one.collect()} == {"k9": 90, "new": 7}
    assert total.for_keys([]).to_spark(spark).count() == 0
