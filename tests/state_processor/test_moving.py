"""A savepoint is moved by copying its folder, and a native savepoint by copying the folder of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.datastream import SavepointFormatType
from dagster_flinkpy.state_processor import read_savepoint, write_savepoint
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.harness import HarnessAttempt, collect_graph, collected
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

RECORDS = [(f"k{i % 5}", i, 1) for i in range(20)]


def graph() -> Any:
    stream = events(environment(2), RECORDS, per_epoch=10).key_by("key")
    return collect_graph(stream.process(CountPerKey(), COUNTED).uid("counts"))


def copy(source: Path, target: StorageLocation) -> None:
    store = target.open()
    for path in source.rglob("*"):
        if path.is_file() and ".flinkpy" not in path.parts:
            store.put(path.relative_to(source).as_posix(), path.read_bytes())


@pytest.mark.parametrize("format_type", SavepointFormatType)
def test_to_another_store(format_type: SavepointFormatType, tmp_path: Path, s3_location: StorageLocation) -> None:
    with HarnessAttempt(graph(), tmp_path) as attempt:
        attempt.run_epoch()
        url = attempt.savepoint(format_type=format_type)
    job, folder = tmp_path / "job", url.rpartition("/")[2]
    if format_type is SavepointFormatType.CANONICAL:
        copy(job / folder, s3_location.child("moved"))
        moved = s3_location.child("moved")
    else:
        copy(job, s3_location.child("elsewhere"))
        moved = s3_location.child("elsewhere").child(folder)
    counts = read_savepoint(moved).state("counts", "count")
    assert {row["key"]: row["value"] for row in counts.to_pylist()} == {f"k{i}": 2 for i in range(5)}
    assert [row["value"] for row in counts.for_keys(["k3"]).to_pylist()] == [2]
    options = {"restore_from": moved.url, "parallelism": 3, "config": {"cache_dir": str(tmp_path / "cache")}}
    with HarnessAttempt(graph(), s3_location, job_id="other", **options) as attempt:
        attempt.run_epoch()
        assert {count for _, count, _ in collected(attempt.graph, attempt.collected)} == {3, 4}
    bootstrapped = s3_location.child("bootstrapped")
    assert write_savepoint(moved).change_max_parallelism("counts", 32).write(bootstrapped) == bootstrapped.url
    assert len(read_savepoint(bootstrapped).state("counts", "sum").to_arrow()) == 5


def test_all_runs_of_a_canonical_savepoint_are_files(tmp_path: Path) -> None:
    with HarnessAttempt(graph(), tmp_path) as attempt:
        attempt.run_epoch()
        folder = attempt.savepoint(str(tmp_path / "savepoints")).rpartition("/")[2]
    assert not list((tmp_path / "job").glob("shared/*.parquet"))  # in checkpoints small ones are in the metadata
    rows = [pq.read_table(path) for path in (tmp_path / "savepoints" / folder / "shared").glob("*.parquet")]
    keys = {key for table in rows for key in table["key"].to_pylist()}
    assert keys == {f"k{i}" for i in range(5)}
