from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.datastream.window import SlidingEventTimeWindows, TimeWindow, TumblingEventTimeWindows
from dagster_flinkpy.errors import ConfigurationError

timestamps = st.integers(-200, 200)
sizes = st.integers(1, 30)


def naive(timestamp: int, size: int, slide: int, offset: int) -> set[TimeWindow]:
    """All windows that start at offset + k * slide and hold the timestamp."""
    starts = (offset + k * slide for k in range(-300 // slide - 3, 300 // slide + 4))
    return {TimeWindow(start, start + size) for start in starts if start <= timestamp < start + size}


@settings(deadline=None)
@given(timestamp=timestamps, size=sizes, offset=st.integers(-29, 29))
def test_tumbling_windows_lie_side_by_side(timestamp: int, size: int, offset: int) -> None:
    offset = offset % size if offset >= 0 else -(-offset % size)
    windows = TumblingEventTimeWindows(size, offset).assign_windows(None, timestamp, None)
    assert set(windows) == naive(timestamp, size, size, offset)
    assert len(windows) == 1


@settings(deadline=None)
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
