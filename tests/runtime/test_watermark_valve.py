from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.runtime.watermark_valve import WatermarkValve

CHANNELS = ("a", "b", "c")

watermarks = st.tuples(st.sampled_from(CHANNELS), st.integers(0, 20))
statuses = st.tuples(st.sampled_from(CHANNELS), st.booleans())


@given(events=st.lists(watermarks | statuses), restored=st.integers(0, 20))
def test_the_watermark_is_the_least_of_the_channels_that_count_and_never_goes_back(
    events: list[tuple[str, int | bool]], restored: int
) -> None:
    valve = WatermarkValve(CHANNELS, restored)
    newest = dict.fromkeys(CHANNELS, MIN_WATERMARK)
    idle: set[str] = set()
    was_idle: set[str] = set()
    reached = restored
    for channel, what in events:
        if isinstance(what, bool):
            risen = valve.on_status(channel, what)
            idle = idle | {channel} if what else idle - {channel}
            was_idle |= idle
        else:
            risen = valve.on_watermark(channel, what)
            newest[channel] = max(newest[channel], what)
            idle -= {channel}
        silent = any(newest[c] == MIN_WATERMARK for c in CHANNELS if c not in idle)
        counting = [newest[c] for c in CHANNELS if c not in idle and (newest[c] >= reached or c not in was_idle)]
        if len(idle) == len(CHANNELS):
            counting, silent = [max(newest.values())], False
        expected = reached if silent or not counting else max(reached, min(counting))
        assert valve.watermark == expected
        assert risen == (expected > reached)
        assert valve.idle == (len(idle) == len(CHANNELS))
        reached = expected


def test_a_channel_that_a_restore_left_behind_the_gate_holds_the_others_back() -> None:
    valve = WatermarkValve(CHANNELS[:2], 52)
    valve.on_watermark("a", 41)
    valve.on_watermark("b", 41)  # as far as both had come before the rescale
    assert not valve.on_watermark("a", 2**63 - 1)  # its input has ended, that of the other has not
    assert valve.on_watermark("b", 66)
    assert valve.watermark == 66


def test_a_channel_without_watermark_holds_the_others_back() -> None:
    valve = WatermarkValve(CHANNELS)
    assert not valve.on_watermark("a", 5)
    assert not valve.on_watermark("b", 7)
    assert valve.on_status("c", True)
    assert valve.watermark == 5


def test_a_channel_that_was_idle_counts_again_when_it_has_caught_up() -> None:
    valve = WatermarkValve(CHANNELS[:2])
    valve.on_watermark("b", 3)
    valve.on_status("b", True)
    valve.on_watermark("a", 10)
    assert valve.watermark == 10
    assert not valve.on_watermark("b", 5)  # active again, and behind
    assert valve.on_watermark("a", 12)
    assert valve.watermark == 12
    assert not valve.on_watermark("b", 12)  # has caught up
    assert not valve.on_watermark("a", 20)
    assert valve.on_watermark("b", 15)
    assert valve.watermark == 15


def test_when_all_are_idle_the_greatest_watermark_is_reached() -> None:
    valve = WatermarkValve(CHANNELS[:2])
    valve.on_watermark("a", 5)
    valve.on_watermark("b", 9)
    assert not valve.on_status("b", True)
    assert valve.on_status("a", True)
    assert (valve.watermark, valve.idle) == (9, True)
