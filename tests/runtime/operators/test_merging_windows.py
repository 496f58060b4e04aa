"""Sessions merge in the same way as if all windows of the key were compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.common import Time, Types
from dagster_flinkpy.datastream.window import CountTrigger, EventTimeSessionWindows, MergingWindowAssigner, TimeWindow
from dagster_flinkpy.runtime.operators.windows import general_windower
from dagster_flinkpy.runtime.operators.windows.general_windower import MergingWindowSet
from dagster_flinkpy.testing import OperatorTestHarness
from tests.examples import examples


class _Map(dict[Any, Any]):
    """The part of MapState that the set needs."""

    def put(self, key: Any, value: Any) -> None:
        self[key] = value

    def remove(self, key: Any) -> None:
        del self[key]


class _All(EventTimeSessionWindows):
    """The same sessions, but without the knowledge that only neighbours merge."""

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        super().merge_windows(windows, callback)


def _same(window: Any) -> Any:
    return window


def run(kind: type[EventTimeSessionWindows], steps: list[tuple[int, int, bool, bool]]) -> Any:
    assigner, state, log = kind(1), _Map(), []
    windows = MergingWindowSet(assigner, state, _same, TimeWindow._make)
    for start, length, retires, reloads in steps:
        result = windows.add(TimeWindow(start, start + length), lambda *merge: log.append(_sorted(*merge)))
        log.append((result, windows.state_window(result)))
        if retires:
            windows.retire(result)
        log.append(sorted(state.items()))
        if reloads:
            windows = MergingWindowSet(assigner, state, _same, TimeWindow._make)
    return log


def _sorted(result: Any, merged: list[Any], state_window: Any, state_windows: list[Any]) -> Any:
    return result, sorted(merged), sorted([state_window, *state_windows])


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.booleans(), st.booleans()), max_size=30))
def test_only_what_touches_is_looked_at(steps: list[tuple[int, int, bool, bool]]) -> None:
    found, expected = run(EventTimeSessionWindows, steps), run(_All, steps)
    # Which of the merged windows keeps the contents depends on the order of the comparisons.
    assert _without_state_windows(found) == _without_state_windows(expected)


def _without_state_windows(log: list[Any]) -> list[Any]:
    return [
        [window for window, _ in entry] if isinstance(entry, list) else entry[:2] if len(entry) == 3 else entry[:1]
        for entry in log
    ]


def test_a_session_keeps_the_contents_of_one_it_merged() -> None:
    log = run(EventTimeSessionWindows, [(0, 5, False, False), (20, 5, False, True), (4, 17, False, False)])
    assert log[-1] == [(TimeWindow(0, 25), log[-1][0][1])]
    assert log[-1][0][1] in (TimeWindow(0, 5), TimeWindow(20, 25))


def test_many_sessions_of_a_key_are_not_read_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Counted(MergingWindowSet):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(general_windower, "MergingWindowSet", Counted)
    monkeypatch.setattr(general_windower, "_MANY_WINDOWS", 5)

    def pairs(stream: Any) -> Any:
        windows = stream.key_by(lambda v: 0, Types.LONG()).window(
            EventTimeSessionWindows.with_gap(Time.milliseconds(2))
        )
        return windows.trigger(CountTrigger.of(2)).reduce(lambda a, b: a + b)

    with OperatorTestHarness.for_stream(pairs, input_type=Types.LONG()) as harness:
        for time in range(0, 200, 10):
            harness.process_element(time, time)
        before = len(made)
        harness.process_watermark(55)  # Some sessions end, and are forgotten.
        for time in range(60, 200, 10):
            harness.process_element(time, time)
        assert harness.output == [2 * time for time in range(60, 200, 10)]
        assert len(made) == before < 10
        assert len(made[-1]) == 14
