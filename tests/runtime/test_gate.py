from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.runtime.gate import BarrierAligner, WatermarkValve

CHANNELS = ("a", "b", "c")

watermarks = st.tuples(st.sampled_from(CHANNELS), st.integers(0, 20))
statuses = st.tuples(st.sampled_from(CHANNELS), st.booleans())


@settings(deadline=None)
@given(events=st.lists(watermarks | statuses), restored=st.integers(0, 20))
def test_the_watermark_is_the_least_of_the_active_channels_and_never_goes_back(
    events: list[tuple[str, int | bool]], restored: int
) -> None:
    valve = WatermarkValve(CHANNELS, restored)
    newest = dict.fromkeys(CHANNELS, MIN_WATERMARK)
    idle: set[str] = set()
    reached = restored
    for channel, what in events:
        if isinstance(what, bool):
            risen = valve.on_status(channel, what)
            idle = idle | {channel} if what else idle - {channel}
        else:
            risen = valve.on_watermark(channel, what)
            newest[channel] = max(newest[channel], what)
            idle -= {channel}
        active = [newest[c] for c in CHANNELS if c not in idle]
        expected = max(reached, min(active)) if active else reached
        assert valve.watermark == expected
        assert risen == (expected > reached)
        assert valve.idle == (not active)
        reached = expected


def test_a_channel_without_watermark_holds_the_others_back() -> None:
    valve = WatermarkValve(CHANNELS)
    assert not valve.on_watermark("a", 5)
    assert not valve.on_watermark("b", 7)
    assert valve.on_status("c", True)
    assert valve.watermark == 5


@settings(deadline=None)
@given(order=st.permutations(CHANNELS))
def test_the_last_barrier_aligns(order: list[str]) -> None:
    aligner = BarrierAligner(CHANNELS, 7)
    for i, channel in enumerate(order):
        assert aligner.missing == set(order[i:])
        assert aligner.on_barrier(channel, 7) == (i == 2)
    assert aligner.aligned


def test_nothing_may_follow_a_barrier() -> None:
    aligner = BarrierAligner(CHANNELS, 7)
    aligner.check_open("a")
    aligner.on_barrier("a", 7)
    for follow in (lambda: aligner.check_open("a"), lambda: aligner.on_barrier("a", 7)):
        with pytest.raises(ValueError, match="channel a brought data behind barrier 7"):
            follow()


def test_a_barrier_of_another_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="brought barrier 6 in epoch 7"):
        BarrierAligner(CHANNELS, 7).on_barrier("a", 6)


def test_data_of_an_unknown_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="channel d"):
        BarrierAligner(CHANNELS, 7).check_open("d")
