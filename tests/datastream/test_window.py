from __future__ import annotations

from datetime import timedelta
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    TumblingEventTimeWindows,
)
from dagster_flinkpy.errors import ConfigurationError

timestamps = st.integers(-200, 200)
sizes = st.integers(1, 30)


def naive(timestamp: int, size: int, slide: int, offset: int) -> set[TimeWindow]:
    """Returns all windows that start at offset + k * slide and contain the timestamp."""
    starts = (offset + k * slide for k in range(-300 // slide - 3, 300 // slide + 4))
    return {TimeWindow(start, start + size) for start in starts if start <= timestamp < start + size}


@given(timestamp=timestamps, size=sizes, offset=st.integers(-29, 29))
def test_tumbling_windows_lie_side_by_side(timestamp: int, size: int, offset: int) -> None:
    offset = offset % size if offset >= 0 else -(-offset % size)
    windows = TumblingEventTimeWindows(size, offset).assign_windows(None, timestamp, None)
    assert set(windows) == naive(timestamp, size, size, offset)
    assert len(windows) == 1


@given(timestamp=timestamps, size=sizes, slide=sizes, offset=st.integers(-29, 29))
def test_sliding_windows_are_all_that_hold_the_timestamp(timestamp: int, size: int, slide: int, offset: int) -> None:
    offset = offset % slide if offset >= 0 else -(-offset % slide)
    windows = SlidingEventTimeWindows(size, slide, offset).assign_windows(None, timestamp, None)
    assert len(windows) == len(set(windows))
    assert set(windows) == naive(timestamp, size, slide, offset)


def test_sizes_are_given_as_any_span_of_time() -> None:
    assert TumblingEventTimeWindows.of(Time.hours(1)) == TumblingEventTimeWindows(3_600_000)
    assert SlidingEventTimeWindows.of(timedelta(minutes=1), Duration.of_seconds(10), Time.seconds(1)) == (
        SlidingEventTimeWindows(60_000, 10_000, 1_000)
    )


@pytest.mark.parametrize(("size", "offset"), [(0, 0), (-1, 0), (10, 10), (10, -10)])
def test_tumbling_windows_that_cannot_be_are_refused(size: int, offset: int) -> None:
    with pytest.raises(ConfigurationError, match=f"window size {size} ms"):
        TumblingEventTimeWindows(size, offset)


@pytest.mark.parametrize(("size", "slide", "offset"), [(0, 1, 0), (1, 0, 0), (10, 5, 5), (10, 5, -5)])
def test_sliding_windows_that_cannot_be_are_refused(size: int, slide: int, offset: int) -> None:
    with pytest.raises(ConfigurationError, match=f"slide {slide} ms"):
        SlidingEventTimeWindows(size, slide, offset)


def test_the_last_timestamp_of_a_window_is_before_its_end() -> None:
    assert TimeWindow(0, 10).max_timestamp() == 9


def test_windows_are_shown_as_by_pyflink() -> None:
    shown = [str(window) for window in (TimeWindow(0, 10), CountWindow(3), GlobalWindow.get())]
    assert shown == ["TimeWindow(start=0, end=10)", "CountWindow(id=3)", "GlobalWindow"]


class Merges(MergingWindowAssigner.MergeCallback):
    def __init__(self) -> None:
        self.merged: dict[TimeWindow, set[TimeWindow]] = {}

    def merge(self, to_be_merged, merge_result):
        self.merged[merge_result] = set(to_be_merged)


@given(windows=st.lists(st.builds(lambda start, size: TimeWindow(start, start + size), st.integers(0, 50), sizes)))
def test_windows_that_overlap_or_touch_merge(windows: list[TimeWindow]) -> None:
    merges = Merges()
    TimeWindow.merge_windows(windows, merges)
    merged = {part for parts in merges.merged.values() for part in parts}
    left = [*merges.merged, *(window for window in set(windows) if window not in merged)]
    assert not any(a.intersects(b) for a in left for b in left if a is not b)
    assert {t for w in windows for t in range(w.start, w.end + 1)} == {
        t for w in left for t in range(w.start, w.end + 1)
    }
    for result, parts in merges.merged.items():
        assert len(parts) > 1
        assert (result.start, result.end) == (min(p.start for p in parts), max(p.end for p in parts))


class Counted:
    """The state of one key."""

    def __init__(self) -> None:
        self._count: int | None = None

    def get_runtime_context(self) -> Any:
        return self

    def get_state(self, descriptor: Any) -> Any:
        return self

    def value(self) -> int | None:
        return self._count

    def update(self, value: int) -> None:
        self._count = value


@given(size=st.integers(1, 6), slide=st.integers(1, 6))
def test_count_windows_begin_each_slide_and_hold_so_many_records(size: int, slide: int) -> None:
    context, assigner = Counted(), CountSlidingWindowAssigner.of(size, slide)
    held: dict[int, list[int]] = {}
    for i in range(30):
        for window in assigner.assign_windows(None, 0, context):
            held.setdefault(window.id, []).append(i)
    assert held == {k: list(range(k * slide, min(k * slide + size, 30))) for k in range(-(-30 // slide))}


def test_tumbling_count_windows_follow_each_other() -> None:
    context, assigner = Counted(), CountTumblingWindowAssigner.of(2)
    assert [assigner.assign_windows(None, 0, context) for _ in range(5)] == [[CountWindow(i)] for i in (0, 0, 1, 1, 2)]


@pytest.mark.parametrize(
    ("window", "serializer"),
    [
        (TimeWindow(-5, 2**62), TimeWindowSerializer()),
        (CountWindow(7), CountWindowSerializer()),
        (GlobalWindow.get(), GlobalWindowSerializer()),
    ],
)
def test_windows_are_read_as_they_were_written(window: Any, serializer: Any) -> None:
    stream = BytesIO()
    serializer.serialize(window, stream)
    stream.seek(0)
    assert serializer.deserialize(stream) == window
    assert stream.read() == b""
