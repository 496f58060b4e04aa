"""Slices of a collection, which epochs may read in part."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.collection import SliceEnumerator


def read(split: SourceSplit, share: float) -> tuple[range, SourceSplit]:
    """Returns what is read of a split, and the split after it."""
    start, end = split.offset, split.properties["end"]
    offset = start + round((end - start) * share)
    return range(start, offset), replace(split, offset=offset, finished=offset == end)


@given(
    total=st.integers(0, 60),
    per_epoch=st.none() | st.integers(1, 20),
    epochs=st.lists(
        st.tuples(
            st.integers(1, 4),
            st.lists(st.floats(0, 1), min_size=4, max_size=4),
            st.sampled_from(["read", "restored", "failed"]),
        ),
        max_size=8,
    ),
)
def test_each_record_is_read_once_and_those_of_a_slice_in_order(
    total: int, per_epoch: int | None, epochs: list[tuple[int, list[float], str]]
) -> None:
    enumerator = SliceEnumerator(total, per_epoch, None)
    found: list[int] = []
    of_slice: dict[str, list[int]] = {}
    for parallelism, shares, ends in [*epochs, *[(2, [1.0] * 4, "read")] * (total + 1)]:
        before = enumerator.snapshot_state()
        planned = enumerator.plan_epoch(parallelism)
        assert len(planned) == parallelism
        for each in planned:
            assert each == sorted(each, key=lambda split: split.offset), "event time goes with the records"
        amount = sum(split.properties["end"] - split.offset for each in planned for split in each)
        if per_epoch is not None:
            assert amount <= max(per_epoch, sum(end - start for start, end in rest_of(before)))
        if ends == "failed":  # another attempt begins from the last checkpoint
            enumerator = SliceEnumerator(total, per_epoch, json.loads(json.dumps(before)))
            continue
        back = []
        for each, share in zip(planned, shares, strict=False):
            for split in each:
                numbers, after = read(split, share)
                found += numbers
                of_slice.setdefault(split.split_id, []).extend(numbers)
                back.append(after)
        at_end = enumerator.exhausted
        enumerator.on_epoch_read(back)
        if not all(split.finished for split in back):
            assert not enumerator.exhausted
        elif at_end:
            assert enumerator.exhausted
        if ends == "restored":
            enumerator = SliceEnumerator(total, per_epoch, json.loads(json.dumps(enumerator.snapshot_state())))
    assert enumerator.exhausted
    assert sorted(found) == list(range(total))
    assert all(numbers == sorted(numbers) for numbers in of_slice.values())
    assert enumerator.snapshot_state() == {"next": total, "ended": True}


def rest_of(state: dict[str, object]) -> list[tuple[int, int]]:
    rest = state.get("rest", [])
    assert isinstance(rest, list)
    return [(split["offset"], split["properties"]["end"]) for split in rest]


def test_an_earlier_release_refuses_a_position_with_a_rest() -> None:
    enumerator = SliceEnumerator(10, None, None)
    [[split]] = enumerator.plan_epoch(1)
    enumerator.on_epoch_read([split.advanced(3, finished=False)])
    assert "next" not in enumerator.snapshot_state()
    [[rest]] = SliceEnumerator(10, None, enumerator.snapshot_state()).plan_epoch(3)[:1]
    assert (rest.offset, rest.properties["end"]) == (3, 10)


def test_a_position_that_has_slices_in_another_order_goes_on_with_the_first() -> None:
    """That of a checkpoint of before they were put in order."""
    rest = [SourceSplit(f"{at}-{at + 10}", {"end": at + 10, "subtask": at // 10}, at + 3).to_json() for at in (10, 0)]
    [planned] = SliceEnumerator(20, None, {"after": 20, "rest": rest, "ended": False}).plan_epoch(1)
    assert [split.offset for split in planned] == [3, 13]


@pytest.mark.parametrize("per_epoch", [None, 5])
def test_only_slices_without_a_limit_are_assigned_late(per_epoch: int | None) -> None:
    assert SliceEnumerator(10, per_epoch, None).assigns_late == (per_epoch is None)
