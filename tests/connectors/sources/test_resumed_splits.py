"""Sources that say so go on amid a split, after a barrier between any two batches and after a restore."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.datastream.connectors import FileSource, StreamFormat
from dagster_flinkpy.datastream.connectors.base import Source
from tests.examples import examples

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
    monkeypatch.setattr("dagster_flinkpy.connectors.files.text_content._BLOCK_BYTES", 40)
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
