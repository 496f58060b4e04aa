from __future__ import annotations

import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.runtime.task.watermark_valve import BEFORE, WatermarkValve


class Valve:
    """A valve whose channels all carry the same source."""

    def __init__(self, channels: Iterable[str], watermark: int = MIN_WATERMARK) -> None:
        self._valve = WatermarkValve(dict.fromkeys(channels, ("source",)), watermark)

    @property
    def watermark(self) -> int:
        return self._valve.watermark

    def on_watermark(self, channel: str, watermark: int, epoch: int) -> bool:
        return self._valve.on_watermark(channel, "source", watermark, epoch)

    def on_status(self, channel: str, idle: bool, epoch: int) -> bool:
        return self._valve.on_status(channel, "source", idle, epoch)

    def idle_in(self, epoch: int) -> bool:
        return self._valve.idle_in("source", epoch)


CHANNELS = ("a", "b", "c")

watermarks = st.tuples(st.sampled_from(CHANNELS), st.integers(0, 20), st.integers(0, 2))
statuses = st.tuples(st.sampled_from(CHANNELS), st.booleans(), st.integers(0, 2))


@given(events=st.lists(watermarks | statuses), restored=st.integers(0, 20))
def test_the_watermark_is_the_least_of_the_channels_that_count_and_never_goes_back(
    events: list[tuple[str, int | bool, int]], restored: int
) -> None:
    valve = Valve(CHANNELS, restored)
    newest = dict.fromkeys(CHANNELS, MIN_WATERMARK)
    idle: set[tuple[str, int]] = set()
    reached, furthest = restored, 0
    for channel, what, epoch in events:
        idle = {said for said in idle if said[0] != channel}
        furthest = max(furthest, epoch)
        if not isinstance(what, bool):
            risen = valve.on_watermark(channel, what, epoch)
            newest[channel] = max(newest[channel], what)
        else:
            risen = valve.on_status(channel, what, epoch)
            idle |= {(channel, epoch)} if what else set()
        counting = [newest[c] for c in CHANNELS if (c, furthest) not in idle]
        expected = max(reached, min(counting) if counting else max(newest.values()))
        assert valve.watermark == expected
        assert risen == (expected > reached)
        assert valve.idle_in(furthest) == (not counting)
        reached = expected


OneEpoch = dict[str, list[int]]


@st.composite
def taking_turns(draw: st.DrawFn) -> list[OneEpoch]:
    """Draws what each channel carries in each epoch, between its barriers. Empty channels are idle."""
    return [
        {
            c: sorted(draw(st.lists(st.integers(0, 30), min_size=1, max_size=3)))
            for c in draw(st.sets(st.sampled_from(CHANNELS)))
        }
        for _ in range(draw(st.integers(1, 4)))
    ]


@given(epochs=taking_turns(), seed=st.integers(0, 999), aligned=st.booleans())
def test_barriers_in_one_task_or_in_several_reach_the_same_event_time(
    epochs: list[OneEpoch], seed: int, aligned: bool
) -> None:
    """The model is a valve per epoch, as with one Spark job per epoch."""
    expected, reached, newest = [], MIN_WATERMARK, dict.fromkeys(CHANNELS, MIN_WATERMARK)
    for epoch in epochs:
        valve = Valve(CHANNELS, reached)
        for channel, watermark in newest.items():
            valve.on_watermark(channel, watermark, 0)
        for channel in CHANNELS:
            valve.on_status(channel, channel not in epoch, 0)
        for channel, brought in epoch.items():
            for watermark in brought:
                valve.on_watermark(channel, watermark, 0)
                newest[channel] = max(newest[channel], watermark)
        reached = valve.watermark
        expected.append(reached)

    order = random.Random(seed)
    valve = Valve(CHANNELS)
    queues = {c: [(i, w) for i, each in enumerate(epochs) for w in each.get(c, [None])] for c in CHANNELS}
    for position in range(len(epochs)) if aligned else [len(epochs) - 1]:
        turns = [c for c in CHANNELS for i, _ in queues[c] if i <= position]
        order.shuffle(turns)
        for channel in turns:
            i, watermark = queues[channel].pop(0)
            if watermark is None:
                valve.on_status(channel, True, i)
            else:
                valve.on_watermark(channel, watermark, i)
        assert valve.watermark == expected[position] if aligned else valve.watermark <= max(expected)


def test_a_channel_that_a_restore_left_behind_the_gate_holds_the_others_back() -> None:
    valve = Valve(CHANNELS[:2], 52)
    valve.on_watermark("a", 41, 0)
    valve.on_watermark("b", 41, 0)  # the event time of both before the rescale
    assert not valve.on_watermark("a", MAX_WATERMARK, 0)  # its input has ended, but that of the other has not
    assert valve.on_watermark("b", 66, 0)
    assert valve.watermark == 66


def test_a_channel_without_watermark_holds_the_others_back() -> None:
    valve = Valve(CHANNELS)
    assert not valve.on_watermark("a", 5, 0)
    assert not valve.on_watermark("b", 7, 0)
    assert valve.on_status("c", True, 0)
    assert valve.watermark == 5


def test_a_channel_that_was_idle_counts_at_once_and_the_gate_waits_for_it() -> None:
    valve = Valve(CHANNELS[:2])
    valve.on_watermark("b", 3, 0)
    valve.on_status("b", True, 0)
    assert valve.on_watermark("a", 10, 0)
    assert not valve.on_watermark("b", 5, 0)  # active again, and behind
    assert not valve.on_watermark("a", 12, 0)
    assert valve.on_watermark("b", 12, 0)  # has caught up
    assert valve.watermark == 12


def test_idleness_ends_with_its_interval_whichever_channel_is_heard_first() -> None:
    valve = Valve(CHANNELS[:2])
    valve.on_watermark("b", 3, 0)
    valve.on_status("b", True, 0)
    assert valve.on_watermark("a", 10, 0)
    assert not valve.on_watermark("a", MAX_WATERMARK, 1)  # whether b reads in this epoch is not known yet
    assert valve.on_watermark("b", 20, 1)
    assert valve.watermark == 20
    assert valve.on_watermark("b", MAX_WATERMARK, 1)


def test_what_was_in_flight_says_nothing_of_the_interval_that_follows() -> None:
    valve = Valve(CHANNELS[:2], 10)
    valve.on_status("b", True, BEFORE)
    assert not valve.on_watermark("a", 50, 0)
    assert valve.on_status("b", True, 0)
    assert valve.watermark == 50


def test_when_all_are_idle_the_greatest_watermark_is_reached() -> None:
    valve = Valve(CHANNELS[:2])
    valve.on_watermark("a", 5, 0)
    valve.on_watermark("b", 9, 0)
    assert not valve.on_status("b", True, 0)
    assert valve.on_status("a", True, 0)
    assert (valve.watermark, valve.idle_in(0), valve.idle_in(1)) == (9, True, False)


def test_an_idle_source_is_waited_for_downstream_where_all_of_its_subtasks_are_seen() -> None:
    """Each of two subtasks reads two sources, but only the second subtask reads the first source."""
    first, second = WatermarkValve({"a": ["a"], "b": ["b"]}), WatermarkValve({"a": ["a"], "b": ["b"]})
    gate = WatermarkValve({1: ["a", "b"], 2: ["a", "b"]})
    first.on_status("a", "a", True, 0)
    first.on_watermark("b", "b", 500, 0)
    second.on_watermark("a", "a", 50, 0)
    second.on_status("b", "b", True, 0)
    for channel, valve in ((1, first), (2, second)):
        for origin in valve.origins:
            gate.on_watermark(channel, origin, valve.reached(origin), 0)
            gate.on_status(channel, origin, valve.idle_in(origin, 0), 0)
    assert (first.watermark, second.watermark, gate.watermark) == (500, 50, 50)
    gate.on_watermark(1, "a", 60, 1)  # now the first subtask reads the first source, not delayed by what it read of b
    gate.on_status(2, "a", True, 1)
    assert gate.watermark == 60


def test_a_source_that_has_ended_does_not_count_and_the_last_watermark_comes_when_all_have() -> None:
    valve = WatermarkValve({"a": ["a"], "b": ["b"]})
    valve.on_watermark("a", "a", 7, 0)
    valve.on_watermark("b", "b", MAX_WATERMARK, 0)
    assert (valve.watermark, valve.all_idle_in(0)) == (7, False)
    valve.on_status("a", "a", True, 0)
    assert (valve.watermark, valve.all_idle_in(0)) == (7, True)  # idle is not ended
    valve.on_watermark("a", "a", MAX_WATERMARK, 0)
    assert (valve.watermark, valve.all_idle_in(0)) == (MAX_WATERMARK, False)


def test_an_origin_that_is_not_known_is_ignored() -> None:
    valve = WatermarkValve({"a": ["a"]})
    assert not valve.on_watermark("a", "removed", 7, 0) and not valve.on_status("a", "removed", True, 0)
    assert valve.on_watermark("a", "a", 3, 0)


def test_a_source_has_ended_when_it_has_in_all_channels_idle_ones_too() -> None:
    valve = WatermarkValve({"a": ["source"], "b": ["source"]})
    for channel in "ab":
        valve.on_watermark(channel, "source", 59, 0)
        valve.on_status(channel, "source", True, 0)
    assert not valve.on_watermark("a", "source", MAX_WATERMARK, 0), "b may have windows, which fire at the end"
    assert (valve.watermark, valve.idle_in("source", 0)) == (59, False)
    valve.on_watermark("b", "source", MAX_WATERMARK, 0)
    assert valve.watermark == MAX_WATERMARK


def test_a_channel_is_silent_once_all_its_origins_have_ended_or_are_idle_in_the_epoch() -> None:
    valve = WatermarkValve({"a": ("x", "y"), "b": ("x",)})
    assert not valve.is_silent("a")
    valve.on_watermark("a", "x", MAX_WATERMARK, 0)
    assert not valve.is_silent("a"), "y goes on"
    valve.on_status("a", "y", True, 0)
    assert valve.is_silent("a")
    assert not valve.is_silent("b"), "x has not ended there"
    valve.on_watermark("b", "x", 7, 1)
    assert not valve.is_silent("a"), "y is idle in the epoch before"
    valve.on_status("a", "y", True, 1)
    assert valve.is_silent("a")
