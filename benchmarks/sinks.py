"""What transactions cost: rows written, prepared and committed by a sink, beside the same rows written without any.

- Files: the Parquet, CSV and JSON-lines sinks beside PyArrow's writers (JSON: a loop of ``json.dumps``). The peers
  write one file and do not wait for the disk.
- Delta Lake and Iceberg beside our Parquet sink.
- PostgreSQL, staged and prepared, beside a ``COPY`` of the same rows as CSV, in one transaction.

One subtask writes an epoch. Both sides of a ratio take turns, each in a folder of its own that is deleted afterwards,
and the ratio is the median over the rounds. Other work may share the machine, so each ratio of time has one of CPU time
of this process beside it.
"""

from __future__ import annotations

import io
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from benchmarks.report import line
from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import CsvSink, DeltaSink, IcebergSink, JsonLinesSink, ParquetSink, PostgresSink
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitterInitContext,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests

ROWS, BATCH, ROUNDS = 2_000_000, 8192, 7
ROW = Types.ROW_NAMED(["id", "name", "day", "amount"], [Types.LONG(), Types.STRING(), Types.SQL_DATE(), Types.DOUBLE()])
BARS = {
    "parquet": ">= 0.8",
    "csv": ">= 0.8",
    "json": ">= 0.8",
    "delta": ">= 0.9",
    "iceberg": ">= 0.9",
    "postgres": ">= 0.7",
    "postgres_prepared": ">= 0.7",
}
_SHARES = {"json": 20, "postgres": 4, "postgres_prepared": 4}
"""These write only a part of the rows: they are slower."""


def batches(rows: int) -> list[pa.StructArray]:
    """Returns the rows as the runtime gives them to a writer."""
    random = np.random.default_rng(0)
    columns = [
        pa.array(np.arange(rows)),
        pa.array([f"customer {n}" for n in random.integers(0, 100_000, rows)]),
        pa.array(random.integers(20_000, 20_100, rows).astype(np.int32)).cast(pa.date32()),
        pa.array(random.random(rows).round(6)),
    ]
    whole = pa.StructArray.from_arrays(columns, fields=list(ROW.arrow_type))
    return [whole.slice(start, BATCH) for start in range(0, rows, BATCH)]


def _record_batches(column: list[pa.StructArray]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_struct_array(batch) for batch in column]


def transactional(sink: TwoPhaseCommittingSink) -> Callable[[list[pa.StructArray]], None]:
    """Returns what writes rows in both phases."""
    context = WriterInitContext("bench", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")
    committer = sink.create_committer(CommitterInitContext("bench", "sink", 1, ROW))
    committer.abort_lingering([])

    def write(column: list[pa.StructArray]) -> None:
        writer = sink.create_writer(context, ROW)
        for batch in column:
            writer.write(batch)
        commit_requests(committer, [CommitRequest(1, 0, c) for c in writer.prepare_commit()], "sink")

    return write


def bare_parquet(folder: Path) -> Callable[[list[pa.StructArray]], None]:
    def write(column: list[pa.StructArray]) -> None:
        with pq.ParquetWriter(folder / "bare.parquet", pa.schema(ROW.arrow_type), compression="zstd") as writer:
            group: list[pa.RecordBatch] = []
            for batch in _record_batches(column):
                group.append(batch)
                if len(group) == 16:  # groups of 131,072 rows, as ours
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))

    return write


def bare_csv(folder: Path) -> Callable[[list[pa.StructArray]], None]:
    def write(column: list[pa.StructArray]) -> None:
        with csv.CSVWriter(str(folder / "bare.csv"), pa.schema(ROW.arrow_type)) as writer:
            for batch in _record_batches(column):
                writer.write_batch(batch)

    return write


def bare_json(folder: Path) -> Callable[[list[pa.StructArray]], None]:
    def write(column: list[pa.StructArray]) -> None:
        with (folder / "bare.json").open("w") as file:
            for batch in column:
                file.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())

    return write


def bare_copy(conninfo: str) -> Callable[[list[pa.StructArray]], None]:
    def write(column: list[pa.StructArray]) -> None:
        options = csv.WriteOptions(include_header=False)
        with (
            psycopg.connect(conninfo) as connection,
            connection.cursor().copy("COPY bare (id, name, day, amount) FROM STDIN (FORMAT csv)") as copy,
        ):
            for batch in _record_batches(column):
                out = io.BytesIO()
                csv.write_csv(batch, out, options)
                copy.write(out.getvalue())

    return write


def _pairs(folder: Path, conninfo: str) -> dict[str, tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Returns, by name, the peer's name and what makes our writer and the peer's."""

    def fresh() -> str:
        return str(folder / uuid.uuid4().hex)

    def catalog() -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{folder}/{uuid.uuid4().hex}.db"}

    def postgres(**options: Any) -> Callable[[], Any]:
        staging = {} if options else {"staging": fresh()}

        def make() -> Any:
            with psycopg.connect(conninfo, autocommit=True) as connection:
                for table in ("ours", "bare"):
                    columns = "id bigint, name text, day date, amount double precision"
                    connection.execute(f"DROP TABLE IF EXISTS {table}".encode())
                    connection.execute(f"CREATE TABLE {table} ({columns})".encode())
                connection.execute("DROP TABLE IF EXISTS flinkpy_commits")
            return transactional(PostgresSink(conninfo, "ours", **staging, **options))

        return make

    def parquet() -> Any:
        return transactional(ParquetSink(fresh()))

    return {
        "parquet": ("PyArrow", parquet, lambda: bare_parquet(folder)),
        "csv": ("PyArrow", lambda: transactional(CsvSink(fresh())), lambda: bare_csv(folder)),
        "json": ("json.dumps", lambda: transactional(JsonLinesSink(fresh())), lambda: bare_json(folder)),
        "delta": ("our Parquet sink", lambda: transactional(DeltaSink(fresh())), parquet),
        "iceberg": (
            "our Parquet sink",
            lambda: transactional(IcebergSink("db.t", fresh(), properties=catalog())),
            parquet,
        ),
        "postgres": ("COPY", postgres(), lambda: bare_copy(conninfo)),
        "postgres_prepared": ("COPY", postgres(prepare_transactions=True), lambda: bare_copy(conninfo)),
    }


def _seconds(write: Callable[[list[pa.StructArray]], None], column: list[pa.StructArray]) -> tuple[float, float]:
    start, cpu = time.perf_counter(), time.process_time()
    write(column)
    return time.perf_counter() - start, time.process_time() - cpu


def _once(name: str, conninfo: str, column: list[pa.StructArray], *, ours: bool) -> tuple[str, tuple[float, float]]:
    """Returns the peer's name, and how long one of both takes. Neither finds files of the other or of its own."""
    with tempfile.TemporaryDirectory() as folder:
        peer, make, make_bare = _pairs(Path(folder), conninfo)[name]
        return peer, _seconds(make() if ours else make_bare(), column)


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    from tests.servers import postgres

    whole, lines = batches(ROWS), []
    with postgres() as conninfo:
        for name in BARS:
            column = whole[: len(whole) // _SHARES.get(name, 1)]
            ours, bare = [], []
            for number in range(ROUNDS + 1):
                peer, mine = _once(name, conninfo, column, ours=True)
                theirs = _once(name, conninfo, column, ours=False)[1]
                if number:  # the first round warms up
                    ours.append(mine)
                    bare.append(theirs)
            rows = sum(len(batch) for batch in column)
            settings = {"rows": rows, "rounds": ROUNDS}
            rate = rows / statistics.median(wall for wall, _ in ours)
            lines.append(line(f"sinks.{name}_rows_per_s", rate, "rows/s", settings=settings))
            for unit, index, bar in (("time", 0, BARS[name]), ("CPU time", 1, "")):
                ratio = statistics.median(b[index] / a[index] for a, b in zip(ours, bare, strict=True))
                metric = f"sinks.{name}_vs_{peer.split()[-1].lower() if index == 0 else 'bare_cpu'}"
                lines.append(line(metric, ratio, f"ratio of rate by {unit}", peer=peer, bar=bar, settings=settings))
    return lines
