"""How fast key groups are computed, compared with Arrow's own sort of the same column in the same process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.report import line
from dagster_flinkpy.key_hashes import key_groups

ROWS = 5_000_000
STRING_ROWS = 1_000_000
MAX_PARALLELISM = 128


def run(peers: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Returns the best of three rounds of each."""
    random = np.random.default_rng(20130215)
    longs = pa.array(random.integers(-(2**63), 2**63, ROWS, dtype=np.int64))
    numbers = random.integers(0, 10_000_000, STRING_ROWS)
    ascii_strings = pa.array([f"user:{number}" for number in numbers])
    mixed_strings = pa.array([f"Ж😀:{number}" for number in numbers])

    long_seconds = _best(lambda: key_groups(longs, MAX_PARALLELISM))
    ascii_seconds = _best(lambda: key_groups(ascii_strings, MAX_PARALLELISM))
    mixed_seconds = _best(lambda: key_groups(mixed_strings, MAX_PARALLELISM))
    return [
        line(
            "key_groups.int64_vs_sort_indices",
            long_seconds / _best(lambda: pc.sort_indices(longs)),
            "ratio of time",
            peer="pyarrow.compute.sort_indices",
            bar="<= 3",
            settings={"rows": ROWS, "max_parallelism": MAX_PARALLELISM},
        ),
        line("key_groups.int64_rows_per_s", ROWS / long_seconds, "rows/s"),
        line(
            "key_groups.ascii_vs_sort_indices",
            ascii_seconds / _best(lambda: pc.sort_indices(ascii_strings)),
            "ratio of time",
            peer="pyarrow.compute.sort_indices",
            settings={"rows": STRING_ROWS, "max_parallelism": MAX_PARALLELISM},
        ),
        line("key_groups.ascii_rows_per_s", STRING_ROWS / ascii_seconds, "rows/s"),
        line("key_groups.non_ascii_rows_per_s", STRING_ROWS / mixed_seconds, "rows/s"),
    ]


def _best(work: Callable[[], object], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
