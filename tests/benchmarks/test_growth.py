from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import growth


def test_uniform_keys_are_equally_frequent() -> None:
    assert set(Counter(growth.uniform(np.arange(3_000), 100).tolist()).values()) == {30}


def test_the_second_key_of_zipf_is_less_frequent_by_the_exponent() -> None:
    counts = Counter(growth.zipf(np.arange(200_000), 1_000).tolist())
    assert counts[1] / counts[0] == pytest.approx(2**-growth.ZIPF, rel=0.05)
    assert max(counts) < 1_000


@pytest.mark.parametrize("value_bytes", [0, 100])
def test_files_have_all_events(tmp_path: Path, value_bytes: int) -> None:
    folder = growth.write_events(tmp_path / "events", 1_003, 10, keyed=growth.strings, value_bytes=value_bytes)
    events = pq.read_table(folder)
    assert events.num_rows == 1_003
    assert {len(key) for key in events["key"].to_pylist()} == {16}
    assert not value_bytes or {len(value) for value in events["value"].to_pylist()} == {value_bytes}


def test_sizes_that_do_not_grow_are_refused() -> None:
    for sizes in ([1_000], [1_000, 1_000], [2_000, 1_000]):
        with pytest.raises(ValueError, match="ascending"):
            growth.run(sizes=sizes)
