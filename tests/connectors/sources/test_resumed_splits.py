"""Sources that say so go on amid a split, after a barrier between any two batches and after a restore."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types, WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream.connectors import FileSource, StreamFormat
from dagster_flinkpy.datastream.connectors.base import Source
from tests.examples import examples
from tests.runtime.harness import collect_graph, run_job
from tests.runtime.programs import environment

COUNT = 200
ROWS = Types.ROW_NAMED(["n"], [Types.LONG()])


def parquet(folder: Path) -> Source:
    pq.write_table(pa.table({"n": pa.array(range(COUNT), pa.int64())}), folder / "a.parquet", row_group_size=30)
    return ParquetSource(str(folder), row_type=ROWS, bounded=True, batch_rows=7)


def lines(folder: Path) -> Source:
    (folder / "a.txt").write_text("".join(f"{n}\n" for n in range(COUNT)))
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder)).build()


def packed_lines(folder: Path) -> Source:
    (folder / "a.txt.gz").write_bytes(gzip.compress("".join(f"{n}\n" for n in range(COUNT)).encode()))
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder)).build()


@pytest.mark.parametrize("create", [parquet, lines, packed_lines])
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(st.integers(1, 4), max_size=12), parallelism=st.lists(st.integers(1, 3), min_size=13, max_size=13)
)
def test_each_record_is_read_once(
    create: Callable[[Path], Source],
    batches: list[int],
    parallelism: list[int],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dagster_flinkpy.connectors.files.text_reader._BLOCK_BYTES", 40)
    source, found = create(tmp_path_factory.mktemp("in")), list[int]()
    assert source.resumes_splits
    enumerator = source.create_enumerator(None)
    for most, subtasks in zip([*batches, COUNT], parallelism, strict=False):
        back = []
        for split in (split for share in enumerator.plan_epoch(subtasks) for split in share):
            reached, number = split.advanced(split.offset, finished=True), 0
            for column, offset, *_ in source.read(split):
                found += [int(each["n"] if isinstance(each, dict) else each) for each in column.to_pylist()]
                number, reached = number + 1, split.advanced(offset, finished=False)
                if number == most:
                    break
            back.append(reached if number == most else split.advanced(split.offset, finished=True))
        enumerator.on_epoch_read(back)
        if any(not split.finished for split in back):
            assert not enumerator.exhausted
        enumerator = source.create_enumerator(json.loads(json.dumps(enumerator.snapshot_state())))
        rest = [f"the rest of {split.split_id}" for split in back if not split.finished]
        assert list(enumerator.unread()) == rest, "a job that has ended says what it would not read any more"
    assert found == list(range(COUNT))
    assert enumerator.plan_epoch(1) == [[]]
    assert enumerator.exhausted
    assert list(enumerator.unread()) == []


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    most=st.integers(1, 30),
    batch_rows=st.integers(1, 20),
    parallelism=st.integers(1, 2),
    fails=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_rows_after_a_stop_are_kept_for_the_next_epoch(
    rows: list[int],
    most: int,
    batch_rows: int,
    parallelism: int,
    fails: list[bool],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("in")
    for number, count in enumerate(rows):
        numbers = pa.array(range(100 * number, 100 * number + count), pa.int64())
        pq.write_table(pa.table({"n": numbers}), folder / f"{number}.parquet", row_group_size=15)
    source = ParquetSource(str(folder), row_type=ROWS, bounded=True, batch_rows=batch_rows, max_records_per_epoch=most)
    enumerator, found, epoch = source.create_enumerator(None), list[int](), 0
    subtasks = [source.for_subtask() for _ in range(parallelism)]
    while not enumerator.exhausted:
        plan = enumerator.plan_epoch(parallelism)
        for _ in range(1 + fails[epoch % len(fails)]):  # another try starts from the same splits
            read = [
                row["n"]
                for own, share in zip(subtasks, plan, strict=True)
                for split in share
                for column, _ in own.read(split)
                for row in column.to_pylist()
            ]
            assert len(read) <= most
            again = [
                row["n"] for share in plan for split in share for c, _ in source.read(split) for row in c.to_pylist()
            ]
            assert read == again
        found += read
        enumerator.on_epoch_read([split.advanced(0, finished=True) for share in plan for split in share])
        epoch += 1
    assert sorted(found) == [n for number, count in enumerate(rows) for n in range(100 * number, 100 * number + count)]


def test_epochs_of_live_tasks_read_a_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": pa.array(range(COUNT), pa.int64())}), folder / "a.parquet", row_group_size=80)
    source = ParquetSource(str(folder), row_type=ROWS, max_records_per_epoch=30, batch_rows=7)
    groups, iter_batches = list[int](), pq.ParquetFile.iter_batches

    def noted(file: pq.ParquetFile, *args: Any, **kwargs: Any) -> Any:
        groups.extend(kwargs["row_groups"])
        return iter_batches(file, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    env = environment(1)
    records = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows").map(lambda row: row.n)
    assert run_job(collect_graph(records), tmp_path / "job", live=True) == list(range(COUNT))
    assert groups == [0, 1, 2]
