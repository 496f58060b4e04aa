"""How fast files are read in one process, compared with PyArrow's readers, which use all cores, on the same files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from benchmarks.report import line
from dagster_flinkpy.common import Types
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.datastream.formats.json_lines import JsonLinesReaderFormat

ROWS = 2_000_000
COLUMNS = Types.ROW_NAMED(
    ["id", "carrier", "delay", "distance", "day"],
    [Types.LONG(), Types.STRING(), Types.DOUBLE(), Types.INT(), Types.SQL_TIMESTAMP()],
)


def run(peers: tuple[str, ...] = (), rows: int = ROWS) -> list[dict[str, Any]]:
    """Returns the best of three rounds of each."""
    schema = pa.schema(list(COLUMNS.arrow_type))
    with tempfile.TemporaryDirectory() as folder:
        csv, json = Path(folder) / "rows.csv", Path(folder) / "rows.json"
        _write(rows, csv, json)
        convert = pa_csv.ConvertOptions(column_types=schema)
        parse = pa_json.ParseOptions(explicit_schema=schema)
        cases: list[tuple[str, StreamFormat, Path, Callable[[], object]]] = [
            (
                "csv",
                CsvReaderFormat.for_row_type(COLUMNS),
                csv,
                lambda: pa_csv.read_csv(csv, convert_options=convert),
            ),
            (
                "json",
                JsonLinesReaderFormat.for_row_type(COLUMNS),
                json,
                lambda: pa_json.read_json(json, parse_options=parse),
            ),
        ]
        lines = []
        for name, text, path, peer in cases:
            ours, theirs = _best(lambda text=text, path=path: _read(text, path, rows)), _best(peer)  # type: ignore[misc]
            lines += [
                line(
                    f"sources.{name}_vs_pyarrow",
                    theirs / ours,
                    "ratio of rate",
                    peer=f"pyarrow.{name}.read_{name}",
                    bar=">= 0.7",
                    settings={"rows": rows, "bytes": path.stat().st_size},
                ),
                line(f"sources.{name}_rows_per_s", rows / ours, "rows/s"),
            ]
        return lines


def _write(rows: int, csv: Path, json: Path) -> None:
    random = np.random.default_rng(16)
    table = pa.table(
        {
            "id": np.arange(rows),
            "carrier": pa.array(np.array(["AA", "DL", "UA", "WN"])[random.integers(0, 4, rows)]),
            "delay": np.round(random.normal(10, 30, rows), 2),
            "distance": pa.array(random.integers(50, 4000, rows), pa.int32()),
            "day": pa.array(random.integers(1_350_000_000, 1_360_000_000, rows), pa.timestamp("s")),
        }
    )
    pa_csv.write_csv(table, csv)
    columns = [column.cast(pa.string()).to_pylist() for column in table.columns]
    with json.open("w") as file:
        file.writelines(
            f'{{"id": {a}, "carrier": "{b}", "delay": {c}, "distance": {d}, "day": "{e}"}}\n'
            for a, b, c, d, e in zip(*columns, strict=True)
        )


def _read(text: StreamFormat, path: Path, rows: int) -> None:
    source = FileSource.for_record_stream_format(text, str(path)).build()
    ((split,),) = source.create_enumerator(None).plan_epoch(1)
    found = sum(len(column) for column, _ in source.read(split))
    assert found == rows, found


def _best(work: Callable[[], object], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
