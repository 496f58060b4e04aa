"""What a blocking edge retains has no gap, and nothing that is younger than it says is missing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.edge_history import EdgeHistory
from tests.examples import examples

RETAIN = timedelta(milliseconds=10)
EPOCHS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.booleans()), max_size=20)


def output(number: int, segments: int, watermark: int | None = None) -> dict[str, Any]:
    written = [{"key": f"{number}.{i}", "subtask": 0, "bytes": 1, "rows": 1} for i in range(segments)]
    return {"checkpoint_id": number, "segments": written, "watermark": watermark, "end_of_input": False}


@given(EPOCHS)
@settings(max_examples=examples(200))
def test_all_since_a_checkpoint_is_there_or_nothing_is_said_to_be(epochs: list[tuple[int, int, bool]]) -> None:
    history, now, all_keys = EdgeHistory(), 0, dict[int, list[str]]()
    for number, (segments, passed, settled) in enumerate(epochs, start=1):
        now += passed
        history = history.grown([output(number, segments)], number, now, RETAIN, settled=settled)
        all_keys[number] = [f"{number}.{i}" for i in range(segments)]
        assert EdgeHistory.from_json(history.to_json()) == history
        for since in (0, *range(1, number + 1)):
            found = history.since(since)
            if found is not None:
                after = [key for each, keys in all_keys.items() if each > since for key in keys]
                assert [segment["key"] for each in found for segment in each["segments"]] == after
        assert all(history.since(choice) is not None for choice in history.choices)
        young = [key for each in history.outputs for key in [s["key"] for s in each["segments"]]]
        assert all(each["written_ms"] >= now - 10 for each in history.outputs)
        if history.after == 0:
            assert young == [key for keys in all_keys.values() for key in keys]
    settled_ones = {number for number, (_, _, settled) in enumerate(epochs, start=1) if settled}
    assert {*history.choices} <= settled_ones


def test_epochs_without_records_are_kept_only_if_event_time_goes_on() -> None:
    history = EdgeHistory()
    for number, watermark in enumerate((None, 5, 5, 5, 7, 7), start=1):
        history = history.grown([output(number, 0, watermark)], number, 0, RETAIN, settled=True)
    assert [each["watermark"] for each in history.outputs] == [5, 7]


def test_the_first_barrier_at_which_nothing_is_in_flight_can_be_chosen() -> None:
    history = EdgeHistory()
    for number, (segments, settled) in enumerate(((1, False), (0, False), (0, True), (0, True)), start=1):
        history = history.grown([output(number, segments)], number, 0, RETAIN, settled=settled)
    assert history.choices == [3]
    assert history.since(3) == ()


def test_nothing_is_taken_since_a_checkpoint_whose_rows_were_replaced() -> None:
    history = EdgeHistory()
    for number in range(1, 5):
        history = history.grown([output(number, 1)], number, 0, RETAIN, settled=True)
    replaced = history.replaced_since(2)
    assert replaced.choices == [1, 2]
    assert (replaced.since(2), replaced.since(3)) == (replaced.outputs[2:], None)
    assert history.replaced_since(0).choices == []
