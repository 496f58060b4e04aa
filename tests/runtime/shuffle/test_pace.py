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
    waits=st.sampled_from([0.0, 1e-4, 0.1]),
)
@settings(max_examples=examples(60))
def test_parts_are_the_batch_and_take_a_second_at_most_once_the_pace_is_known(
    sizes: list[int], cost: float, waits: float
) -> None:
    now, pace, seconds, parts = [0.0], Pace(cuts=True), list[float](), list[StreamBatch]()

    def function(part: StreamBatch) -> None:
        parts.append(part)
        now[0] += cost * len(part)
        seconds.append(cost * len(part))

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    real, batches.time = batches.time, Clock  # type: ignore[assignment]
    try:
        for size in sizes:
            batch = StreamBatch(Types.LONG(), np.full(size, NO_TIMESTAMP), column=pa.array(np.arange(size)))
            parts.clear()
            for end in pace.process(batch, function):
                assert end == sum(map(len, parts))
                if end < size:  # those behind may be slow; what comes after the batch is not counted
                    now[0] += waits * len(parts[-1])
                    seconds[-1] += waits * len(parts[-1])
                else:
                    now[0] += 5
            assert not size or pace.is_slow == (seconds[-1] >= 0.1)
            assert np.array_equal(np.concatenate([np.empty(0), *(part.column for part in parts)]), np.arange(size))
            assert all(len(part.timestamps) == len(part) > 0 for part in parts)
    finally:
        batches.time = real
    assert sum(1 < each > cost + waits for each in seconds) <= 5, "the pace is known after a few parts"
    if cost < 1e-5 and not waits:
        assert len(seconds) <= len(sizes) + 6, "fast functions get whole batches soon"


def test_batches_of_spark_jobs_stay_whole() -> None:
    pace, batch, parts = Pace(cuts=False), StreamBatch(Types.LONG(), np.zeros(1000, np.int64)), list[StreamBatch]()
    assert list(pace.process(batch, parts.append)) == [1000]
    assert parts == [batch]
