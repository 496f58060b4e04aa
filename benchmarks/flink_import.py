"""How fast a savepoint of Flink becomes one of this library. No Flink is needed: our exporter makes its savepoint."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import line
from dagster_flinkpy.common import Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.state_processor import read_savepoint, write_savepoint
from dagster_flinkpy.state_processor.flink_columns import DeclaredState
from dagster_flinkpy.state_processor.flink_export import ExportTarget, export_to_flink
from dagster_flinkpy.state_processor.flink_import import import_flink_savepoint
from dagster_flinkpy.state_processor.import_report import ImportTarget
from dagster_flinkpy.storage import StorageLocation

LONGS, TEXTS = 10_000_000, 1_000_000
"""Keys with a number, and keys with a text of 100 to 300 bytes."""
ROUNDS = 3


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    random = np.random.default_rng(20260101)
    _rates(Types.LONG(), pa.array([1]))  # loads modules
    longs, _ = _rates(Types.LONG(), pa.array(random.integers(0, 2**40, LONGS)))
    keys, megabytes = _rates(Types.STRING(), _texts(random))
    return [
        line("flink_import.long_keys_per_s", longs, "keys/s of CPU", bar=">= 500000", settings={"keys": LONGS}),
        line("flink_import.text_mb_per_s", megabytes, "MB/s of CPU", bar=">= 100", settings={"keys": TEXTS}),
        line("flink_import.text_keys_per_s", keys, "keys/s of CPU", settings={"keys": TEXTS}),
    ]


def _texts(random: np.random.Generator) -> pa.Array[Any]:
    offsets = np.concatenate(([0], np.cumsum(random.integers(100, 300, TEXTS)))).astype(np.int32)
    letters = random.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(TEXTS, pa.py_buffer(offsets), pa.py_buffer(letters))


def _rates(kind: TypeInformation, values: pa.Array[Any]) -> tuple[float, float]:
    """Returns keys and megabytes of Flink's savepoint per second of CPU, from its file to our savepoint: the best."""
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as folder:
        ours, flinks, imported = (StorageLocation(str(Path(folder) / name)) for name in ("ours", "flinks", "imported"))
        rows = pa.table({"key": np.arange(len(values)), "value": values})
        descriptor = ValueStateDescriptor("total", kind)
        write_savepoint().with_keyed_state("totals", descriptor, rows, key="key", value="value").write(ours)
        export_to_flink(read_savepoint(ours), flinks, [ExportTarget("totals")])
        size = sum(each.size for each in flinks.open().list())
        target = ImportTarget("totals", key_type=Types.LONG(), states=[DeclaredState("total", "VALUE", kind)])
        seconds = []
        for round_ in range(ROUNDS):
            start = time.process_time()
            import_flink_savepoint(flinks, imported.child(str(round_)), [target])
            seconds.append(time.process_time() - start)
    return len(values) / min(seconds), size / 1e6 / min(seconds)
