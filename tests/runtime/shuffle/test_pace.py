"""Batches of slow functions are cut, so that others have their turn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Types
from dagster_flinkpy.runtime.shuffle import batch as batches
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, Pace, StreamBatch
from tests.examples import examples


@given(
    sizes=st.lists(st.integers(0, 2500), min_size=1, max_size=6),
    cost=st.one_of(st.just(0.0), st.floats(1e-6, 0.3), st.just(2.0)),
)
@settings(max_examples=examples(60))
def test_parts_are_the_batch_and_take_a_second_at_most_once_the_pace_is_known(sizes: list[int], cost: float) -> None:
    now, pace, seconds = [0.0], Pace(), list[float]()

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    real, batches.time = batches.time, Clock  # type: ignore[assignment]
    try:
        for size in sizes:
            batch = StreamBatch(Types.LONG(), np.full(size, NO_TIMESTAMP), column=pa.array(np.arange(size)))
            parts = []
            for part in pace.parts(batch):
                parts.append(part)
                now[0] += cost * len(part)
                seconds.append(cost * len(part))
            assert np.array_equal(np.concatenate([np.empty(0), *(part.column for part in parts)]), np.arange(size))
            assert all(len(part.timestamps) == len(part) > 0 for part in parts)
    finally:
        batches.time = real
    assert sum(1 < each > cost for each in seconds) <= 5, "the pace is known after a few parts"
    if cost < 1e-5:
        assert len(seconds) <= len(sizes) + 2, "fast functions get whole batches soon"
