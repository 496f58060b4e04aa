"""Batches of slow functions are cut, so that others have their turn."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Time, Types
from dagster_flinkpy.datastream import AsyncDataStream, AsyncFunction
from dagster_flinkpy.runtime.shuffle import batch as batches
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, Pace, StreamBatch
from tests.examples import examples
from tests.runtime.harness import collect_graph, run_job
from tests.runtime.programs import EVENT, environment, events

RECORDS = [("a" * 1000, i, i) for i in range(12)]  # more than the first buffers hold


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
    pace.waits = lambda: waits > 0

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
                now[0] += waits * len(parts[-1])  # those behind may have no room
                seconds[-1] += waits * len(parts[-1])
            assert np.array_equal(np.concatenate([np.empty(0), *(part.column for part in parts)]), np.arange(size))
            assert all(len(part.timestamps) == len(part) > 0 for part in parts)
    finally:
        batches.time = real
    assert sum(1 < each > cost + waits for each in seconds) <= 5, "the pace is known after a few parts"
    if cost < 1e-5 and not waits:
        assert len(seconds) <= len(sizes) + 6, "fast functions get whole batches soon"


@pytest.mark.parametrize("rate", [1_000, 1_000_000])
def test_a_source_sends_at_once_what_its_receivers_take_in_a_second(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have room for some records, so that parts which they are not waited for are no sign that they are fast."""
    now, sent, parts, slow = [0.0], [0.0], list[int](), list[bool]()
    monkeypatch.setattr(batches, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))

    def function(part: StreamBatch) -> None:
        parts.append(len(part))
        sent[0] = max(sent[0], now[0] * rate) + len(part)
        now[0] += 1e-6 * len(part)

    def left() -> float:
        return sent[0] - now[0] * rate - 300

    pace = Pace(cuts=True)
    pace.waits = lambda: left() > 0
    batch = StreamBatch(Types.LONG(), np.zeros(8192, np.int64), column=pa.array(np.arange(8192)))
    for _ in range(12):
        for _ in pace.process(batch, function):
            now[0] += max(left(), 0) / rate
            slow.append(pace.is_slow)
    if rate == 1_000:
        assert max(parts[-40:]) <= rate
        assert all(slow[-40:]), "a barrier comes amid a batch"
    else:
        assert parts[-3:] == [8192] * 3
        assert not any(slow)


def test_batches_of_spark_jobs_stay_whole() -> None:
    pace, batch, parts = Pace(cuts=False), StreamBatch(Types.LONG(), np.zeros(1000, np.int64)), list[StreamBatch]()
    assert list(pace.process(batch, parts.append)) == [1000]
    assert parts == [batch]


class AllAtOnce(AsyncFunction):
    """Answers when it was asked about all records."""

    def open(self, runtime_context: Any) -> None:
        self._asked, self._all = 0, asyncio.Event()

    async def async_invoke(self, value: Any) -> list[Any]:
        self._asked += 1
        if self._asked == len(RECORDS):
            self._all.set()
        await asyncio.wait_for(self._all.wait(), 10)
        return [value]


@pytest.mark.parametrize("chained", [True, False])
def test_live_tasks_call_an_asynchronous_function_for_as_many_records_as_its_capacity(
    chained: bool, tmp_path: Path
) -> None:
    stream = events(environment(1).set_buffer_timeout(-1), RECORDS, batch_size=len(RECORDS)).map(
        lambda event: event, EVENT
    )
    stream = stream if chained else stream.rebalance()
    asked = AsyncDataStream.ordered_wait(stream, AllAtOnce(), Time.seconds(60), len(RECORDS), EVENT).uid("ask")
    found = run_job(collect_graph(asked), tmp_path, live=True)
    assert [row.value for row in found] == [value for _, _, value in RECORDS]


@pytest.mark.parametrize("chained", [True, False])
def test_live_tasks_give_functions_of_batches_more_than_a_record(chained: bool, tmp_path: Path) -> None:
    stream = events(environment(1).set_buffer_timeout(-1), RECORDS, batch_size=len(RECORDS))
    stream = stream if chained else stream.rebalance()
    rows = Types.ROW_NAMED(["rows"], [Types.LONG()])
    sizes = stream.map_batch(lambda batch: pa.table({"rows": [batch.num_rows] * batch.num_rows}), rows).uid("sizes")
    found = run_job(collect_graph(sizes), tmp_path, live=True)
    assert [row.rows for row in found] == [len(RECORDS)] * len(RECORDS)


@pytest.mark.parametrize("seconds", [0.2, 5.0])
def test_parts_are_not_smaller_than_what_is_to_be_kept_together(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of a model take as long for many records as for one."""
    now, parts = [0.0], list[int]()
    monkeypatch.setattr(batches, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))

    def function(part: StreamBatch) -> None:
        parts.append(len(part))
        now[0] += seconds

    pace, batch = Pace(cuts=True), StreamBatch(Types.LONG(), np.zeros(1000, np.int64), column=pa.array(np.arange(1000)))
    pace.keep_together(50)
    assert list(pace.process(batch, function))[-1] == 1000
    if seconds > 1:
        assert parts == [50] * 20
    else:
        assert parts[0] == 50
        assert all(one < other for one, other in pairwise(parts[:-1])), "they take no longer"
