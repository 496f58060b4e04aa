"""What it takes to fork a job with 10M keys: time, and how many bytes are written.

The state is that of the ``state_sql`` benchmark. The store is MiniStack's S3 on this machine, and a local folder.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3

from benchmarks.report import line
from benchmarks.state_sql import KEYS, PARALLELISM, Lines, rows_of, write_state
from dagster_flinkpy.checkpoint.offline import restore_savepoint
from dagster_flinkpy.state_processor import dispose_job, fork_job
from dagster_flinkpy.storage import StorageLocation

FORKS = 9


def run(peers: tuple[str, ...] = ()) -> Lines:
    from tests.servers import ministack

    rows, found = rows_of(KEYS), []
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder, ministack(Path(folder)) as endpoint:
        options = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=endpoint, **options).create_bucket(Bucket="shop")
        s3 = StorageLocation("s3://shop/jobs", endpoint, "us-east-1", "test", "test")
        for name, storage in (("s3", s3), ("local", StorageLocation(f"{folder}/jobs"))):
            savepoint, job = storage.child("savepoint"), storage.child("orders")
            write_state(rows, savepoint)
            restore_savepoint(job, savepoint, owner="benchmark", now_ms=0)
            found += _forks(name, storage, job)
    return found


def _forks(name: str, storage: StorageLocation, job: StorageLocation) -> Iterator[dict[str, Any]]:
    def stored() -> int:
        return sum(info.size for info in storage.open().list() if not info.key.startswith("savepoint/"))

    seconds, before = [], stored()
    for number in range(FORKS):
        began = time.perf_counter()
        fork_job(job, f"fork_{number}")
        seconds.append(time.perf_counter() - began)
    written = (stored() - before) / FORKS
    for number in range(FORKS):
        dispose_job(storage.child(f"fork_{number}"))
    settings = {"keys": KEYS, "parallelism": PARALLELISM, "forks": FORKS, "bytes": before}
    yield line(f"forks.{name}_seconds", statistics.median(seconds), "s, median", bar="<= 1", settings=settings)
    yield line(f"forks.{name}_written", 100 * written / before, "% of the job's bytes", bar="<= 1", settings=settings)
