"""How often sources look for input while tasks live: parts for other sources, and barriers, come more often."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_flinkpy.common import Duration, Types
from dagster_flinkpy.connectors import ParquetSource
from dagster_flinkpy.connectors.sources import split_enumerators
from dagster_flinkpy.datastream.connectors.base import Source
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.errors import ConfigurationError


def lines(folder: Path) -> Source:
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder))
    return files.monitor_continuously(Duration.of_minutes(60)).build()


def rows(folder: Path) -> Source:
    row_type = Types.ROW_NAMED(["n"], [Types.LONG()])
    return ParquetSource(str(folder), row_type=row_type, bounded=False, discovery_interval=timedelta(minutes=60))


@pytest.mark.parametrize("declare", [lines, rows])
def test_a_folder_without_new_files_is_listed_after_the_interval_only(
    declare: Callable[[Path], Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(split_enumerators.time, "monotonic", lambda: now)
    enumerator = declare(tmp_path).create_enumerator(None)

    def found() -> int:
        ((*splits,),) = enumerator.plan_part(1)
        enumerator.on_epoch_read([split.advanced(1, finished=True) for split in splits])
        return len(splits)

    def write(name: str) -> None:
        pq.write_table(pa.table({"n": [1]}), tmp_path / f"{name}.parquet")

    write("1")
    assert [found(), found()] == [1, 0]
    write("2")
    assert found() == 0
    now += 3599
    assert found() == 0
    now += 1
    assert [found(), found()] == [1, 0]
    write("3")
    ((split,),) = enumerator.plan_epoch(1)  # that of a run, which reads what is there
    assert "3.parquet" in split.split_id


@pytest.mark.parametrize("interval", [timedelta(0), 5])
def test_an_interval_is_a_time(interval: timedelta) -> None:
    with pytest.raises(ConfigurationError, match=r"discovery_interval.* of ParquetSource\(\)"):
        ParquetSource("/in", discovery_interval=interval)
