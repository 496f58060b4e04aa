"""Limits of an epoch: an epoch ends amid a file, and the next one reads on there."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import DeltaSource, IcebergSource, ParquetSink, ParquetSource
from dagster_flinkpy.connectors.sources.split_enumerators import OpenSplits, RowMeter
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.datastream.connectors.file_system import FileSource
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.testing import run_local
from tests.examples import examples
from tests.runtime.harness import HarnessAttempt
from tests.runtime.programs import environment


def measure(split: SourceSplit) -> tuple[int, int]:
    """Splits say how many rows they have, of 10 bytes each."""
    return split.properties["rows"], split.properties["rows"] * 10


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.lists(st.integers(0, 30), max_size=12),
    most=st.one_of(st.none(), st.integers(1, 40)),
    size=st.one_of(st.none(), st.integers(1, 400)),
    parallelism=st.integers(1, 4),
)
def test_each_row_is_read_once_and_in_order_within_the_limits(
    rows: Sequence[int], most: int | None, size: int | None, parallelism: int
) -> None:
    limits, splits = EpochLimits(most, size), OpenSplits(EpochLimits(most, size), RowMeter(measure))
    for number, count in enumerate(rows):
        splits.open(str(number), {"rows": count})
    read: dict[int, list[int]] = {number: [] for number in range(len(rows))}
    epochs = 0
    while len(splits):
        shares = splits.shares(parallelism)
        taken = 0
        for subtask, share in enumerate(shares):
            assert [s.properties["number"] for s in share] == sorted({s.properties["number"] for s in share})
            for split in share:
                number = split.properties["number"]
                assert number % parallelism == subtask
                stop = split.properties.get("stop", rows[number])
                read[number] += range(split.offset, stop)
                taken += stop - split.offset
        ahead = [split.properties["number"] for share in shares for split in share if "stop" in split.properties]
        assert len({number % parallelism for number in ahead}) == len(ahead), "a subtask stops in its last split"
        assert most is None or taken <= most
        assert size is None or taken <= max(size // 10, 1)
        full = [n for n in (most, None if size is None else max(size // 10, 1)) if n is not None]
        left = len(splits.left())
        assert not left or taken == min(full), "what is allowed is read"
        splits.take_back([SourceSplit(s.split_id, s.properties, s.offset, finished=True) for b in shares for s in b])
        assert splits.rest == bool(len(splits))
        assert len(splits) == left
        restored = OpenSplits(limits, RowMeter(measure), rows=int)
        restored.restore(json.loads(json.dumps(splits.to_json())))
        splits, epochs = restored, epochs + 1
    assert read == {number: list(range(count)) for number, count in enumerate(rows)}


def epochs_of(source: Source, parallelism: int = 2) -> tuple[list[list[int]], list[Any]]:
    """Reads all epochs, each after a restore. Returns the rows and the lag of each."""
    enumerator, epochs, lags = source.create_enumerator(None), [], []
    while not enumerator.exhausted:
        rows, finished = [], []
        for share in enumerator.plan_epoch(parallelism):
            for split in share:
                rows += [row["n"] for column, _ in source.read(split) for row in column.to_pylist()]
                finished.append(split.advanced(split.offset, finished=True))
        enumerator.on_epoch_read(finished)
        lags.append(enumerator.lag())
        epochs.append(rows)
        enumerator = _restored(source, enumerator)
    return epochs, lags


def _restored(source: Source, enumerator: SplitEnumerator) -> SplitEnumerator:
    return source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))


def table(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def test_a_parquet_file_is_read_in_parts(tmp_path: Path) -> None:
    pq.write_table(table(*range(95)), tmp_path / "1.parquet", row_group_size=10)
    pq.write_table(table(*range(95, 110)), tmp_path / "2.parquet")
    epochs, lags = epochs_of(ParquetSource(tmp_path.as_posix(), max_records_per_epoch=25, batch_rows=7), 1)
    assert [len(rows) for rows in epochs] == [25, 25, 25, 25, 10]
    assert [row for rows in epochs[:3] for row in rows] == list(range(75))
    assert sorted(row for rows in epochs for row in rows) == list(range(110))
    assert [lag.files for lag in lags] == [2, 2, 2, 1, 0]
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total > lags[0].bytes > lags[1].bytes > lags[2].bytes > lags[3].bytes > lags[4].bytes == 0
    halves, _ = epochs_of(ParquetSource(tmp_path.as_posix(), max_bytes_per_epoch=total // 2 + 1), 1)
    assert [row for rows in halves for row in rows] == list(range(110))
    assert len(halves) in (2, 3)


def test_files_of_later_epochs_are_not_opened(tmp_path: Path) -> None:
    for number in range(30):
        pq.write_table(table(number), tmp_path / f"{number:02}.parquet")
    enumerator = ParquetSource(tmp_path.as_posix(), max_records_per_epoch=2).create_enumerator(None)
    assert sum(map(len, enumerator.plan_epoch(1))) == 2
    position = enumerator.snapshot_state()
    assert len(position["open"]) < 10
    lag = enumerator.lag()
    assert lag is not None
    assert lag.files == 28


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_data_file_of_a_table_is_read_in_parts(tmp_path: Path, kind: str) -> None:
    from deltalake import write_deltalake

    folder = str(tmp_path / "t")
    if kind == "delta":
        write_deltalake(folder, table(*range(20)))
        source: Source = DeltaSource(folder, bounded=False, max_records_per_epoch=8)
    else:
        properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "type": "sql"}
        catalog = SqlCatalog("default", uri=properties["uri"])
        catalog.create_namespace("db")
        opened = catalog.create_table("db.t", schema=table().schema, location=f"file://{folder}")
        opened.append(table(*range(20)))
        source = IcebergSource("db.t", folder, properties=properties, bounded=False, max_records_per_epoch=8)
    enumerator = source.create_enumerator(None)
    plan = enumerator.plan_epoch(1)
    assert [[s.properties["stop"] for s in share] for share in plan] == [[8]]
    if kind == "delta":
        write_deltalake(folder, table(*range(20, 23)), mode="append")
        write_deltalake(folder, table(*range(23, 26)), mode="append")
    else:
        opened.append(table(*range(20, 23)))
        opened.append(table(*range(23, 26)))
    enumerator.on_epoch_read([split.advanced(0, finished=True) for split in plan[0]])
    enumerator = _restored(source, enumerator)
    rows, versions = [list(range(8))], []
    for _ in range(3):
        [share] = enumerator.plan_epoch(1)
        rows.append([row["n"] for split in share for column, _ in source.read(split) for row in column.to_pylist()])
        enumerator.on_epoch_read([split.advanced(0, finished=True) for split in share])
        versions.append(enumerator.lag())
        enumerator = _restored(source, enumerator)
    assert rows == [list(range(8)), list(range(8, 16)), list(range(16, 24)), [24, 25]]
    assert [(lag.files, lag.versions) for lag in versions if lag] == [(2, 1), (1, 0), (0, 0)]


def test_a_job_with_limits_reads_all_and_ends(tmp_path: Path) -> None:
    pq.write_table(table(*range(50)), tmp_path / "1.parquet", row_group_size=10)
    env = StreamExecutionEnvironment.get_execution_environment()
    source = ParquetSource(tmp_path.as_posix(), max_records_per_epoch=20)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows").map(lambda row: row.n)
    assert run_local(env, rows) == [list(range(50))]


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_job_that_restarts_reads_on_amid_files(tmp_path: Path, epochs: int) -> None:
    """Each attempt has another parallelism."""
    (tmp_path / "in").mkdir()
    pq.write_table(table(*range(40)), tmp_path / "in" / "1.parquet", row_group_size=10)
    lines = "n\n" + "".join(f"{n}\n" for n in range(40, 64))
    (tmp_path / "lines.csv.gz").write_bytes(gzip.compress(lines.encode()))
    row = Types.ROW_NAMED(["n"], [Types.LONG()])
    for attempts in range(12):
        env = environment(1 + attempts % 3)
        rows = ParquetSource(str(tmp_path / "in"), row_type=row, max_records_per_epoch=7)
        csv = FileSource.for_record_stream_format(CsvReaderFormat.for_row_type(row), str(tmp_path / "lines.csv.gz"))
        text = csv.set_max_bytes_per_epoch(23).build()
        first = env.from_source(rows, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
        second = env.from_source(text, WatermarkStrategy.no_watermarks(), "text").uid("text")
        first.union(second).sink_to(ParquetSink(str(tmp_path / "out"))).uid("out")
        with HarnessAttempt(env.get_job_graph(), tmp_path / "job") as attempt:
            if attempt.finished:
                break
            list(attempt.run_epochs(epochs))
    assert attempts == 6 // epochs
    assert sorted(pq.read_table(tmp_path / "out")["n"].to_pylist()) == list(range(64))


def test_limits_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"max_bytes_per_epoch=0 of ParquetSource\(\) must be at least 1"):
        ParquetSource(tmp_path.as_posix(), max_bytes_per_epoch=0)
    with pytest.raises(ConfigurationError, match=r"max_records_per_epoch of DeltaSource\(\)"):
        DeltaSource(tmp_path.as_posix(), max_records_per_epoch="many")  # type: ignore[arg-type]
