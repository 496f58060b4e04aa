"""How fast key groups are computed, beside Arrow's own sort of the same column in the same process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.key_groups import key_groups

ROWS = 5_000_000
STRING_ROWS = 1_000_000
MAX_PARALLELISM = 128


def run() -> list[dict[str, Any]]:
    """Ratios have no unit; rates are rows per second. Each is the best of three."""
    random = np.random.default_rng(20130215)
    longs = pa.array(random.integers(-(2**63), 2**63, ROWS, dtype=np.int64))
    numbers = random.integers(0, 10_000_000, STRING_ROWS)
    ascii_strings = pa.array([f"user:{number}" for number in numbers])
    mixed_strings = pa.array([f"Ж😀:{number}" for number in numbers])

    long_seconds = _best(lambda: key_groups(longs, MAX_PARALLELISM))
    ascii_seconds = _best(lambda: key_groups(ascii_strings, MAX_PARALLELISM))
    mixed_seconds = _best(lambda: key_groups(mixed_strings, MAX_PARALLELISM))
    return [
        _metric("int64_vs_sort_indices", long_seconds / _best(lambda: pc.sort_indices(longs))),
        _metric("int64_rows_per_s", ROWS / long_seconds),
        _metric("ascii_vs_sort_indices", ascii_seconds / _best(lambda: pc.sort_indices(ascii_strings))),
        _metric("ascii_rows_per_s", STRING_ROWS / ascii_seconds),
        _metric("non_ascii_rows_per_s", STRING_ROWS / mixed_seconds),
    ]


def _best(work: Callable[[], object], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _metric(name: str, value: float) -> dict[str, Any]:
    return {"metric": f"key_groups.{name}", "value": round(value, 4)}


if __name__ == "__main__":
    for metric in run():
        print(json.dumps(metric))
