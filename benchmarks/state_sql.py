"""What ``flinkpy state sql`` costs on a large state: the lookup of a key on S3, and an aggregation of all of it.

The savepoint is written without Spark. The peer of the aggregation is DuckDB on a plain Parquet file of the same rows.
CPU time counts, too, because seconds say little on a machine that does other work. ``docs/performance.md`` says what
each line means.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import line
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.state_processor import read_savepoint, write_savepoint
from dagster_flinkpy.state_processor.sql import query_state
from dagster_flinkpy.storage import StorageLocation

KEYS, PARALLELISM, SHOPS = 10_000_000, 4, 1_000
LOOKUPS, ROUNDS = 50, 9

TOTAL = Types.ROW_NAMED(["shop", "amount"], [Types.LONG(), Types.LONG()])
LOOKUP = "select value.shop, value.amount from totals.total where key = {}"
GROUP_BY = "select value.shop, count(*), sum(value.amount) from {} group by 1 order by 1"

Lines = list[dict[str, Any]]


def run(peers: tuple[str, ...] = ()) -> Lines:
    rows = rows_of(KEYS)
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        return [*_lookups(Path(folder), rows), *_aggregation(Path(folder), rows)]


def rows_of(keys: int) -> pa.Table:
    random = np.random.default_rng(7)
    shops, amounts = random.integers(0, SHOPS, keys), random.integers(0, 10**6, keys)
    return pa.table({"key": np.arange(keys), "shop": shops, "amount": amounts})


def write_state(rows: pa.Table, location: StorageLocation) -> None:
    descriptor = ValueStateDescriptor("total", TOTAL)
    writer = write_savepoint(parallelism=PARALLELISM)
    writer.with_keyed_state("totals", descriptor, rows, key="key", value=["shop", "amount"]).write(location)


def _timed(action: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process."""
    seconds, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - seconds, time.process_time() - cpu


def _lookups(folder: Path, rows: pa.Table) -> Lines:
    from tests.servers import ministack

    with ministack(folder) as endpoint:
        options = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=endpoint, **options).create_bucket(Bucket="shop")
        location = StorageLocation("s3://shop/savepoint", endpoint, "us-east-1", "test", "test")
        write_state(rows, location)

        def look_up(key: int) -> None:
            (found,) = query_state(read_savepoint(location), LOOKUP.format(key)).to_pylist()
            assert found == rows.slice(key, 1).select(["shop", "amount"]).to_pylist()[0]

        look_up(0)  # loads modules and opens connections
        keys = np.random.default_rng(8).integers(0, KEYS, LOOKUPS).tolist()
        times = [_timed(partial(look_up, key)) for key in keys]
    seconds, cpu = (statistics.median(each) * 1000 for each in zip(*times, strict=True))
    settings = {"keys": KEYS, "parallelism": PARALLELISM, "lookups": LOOKUPS, "store": "MiniStack on this machine"}
    return [
        line("state_sql.lookup_ms", seconds, "ms, median", bar="<= 300", settings=settings),
        line("state_sql.lookup_cpu_ms", cpu, "ms of CPU, median", settings=settings),
    ]


def _aggregation(folder: Path, rows: pa.Table) -> Lines:
    location, plain = StorageLocation(str(folder / "savepoint")), folder / "plain.parquet"
    write_state(rows, location)
    stored = read_savepoint(location).state("totals", "total").to_arrow()
    pq.write_table(stored.select(["key", "value"]), plain, compression="zstd")

    def ours() -> pa.Table:
        return query_state(read_savepoint(location), GROUP_BY.format("totals.total"))

    def theirs() -> pa.Table:
        with duckdb.connect(":memory:") as connection:
            return connection.sql(GROUP_BY.format(f"'{plain}'")).to_arrow_table()

    assert ours().to_pylist() == theirs().to_pylist()
    rounds = [(*_timed(ours), *_timed(theirs)) for _ in range(ROUNDS)]
    seconds, cpu, peer_seconds, peer_cpu = (min(each) for each in zip(*rounds, strict=True))
    settings = {"keys": KEYS, "groups": SHOPS, "parallelism": PARALLELISM, "rounds": ROUNDS, "store": "local folder"}
    peer = "DuckDB on a plain Parquet file of the same rows"
    return [
        line("state_sql.group_by_seconds", seconds, "s, least", settings=settings),
        line(
            "state_sql.group_by_vs_duckdb",
            seconds / peer_seconds,
            "ratio of time",
            peer=peer,
            bar="<= 2",
            settings=settings,
        ),
        line("state_sql.group_by_cpu_vs_duckdb", cpu / peer_cpu, "ratio of CPU time", peer=peer, settings=settings),
    ]
