from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.shared_state_registry import SharedStateEntry, SharedStateRegistry
from dagster_flinkpy.errors import CheckpointError


def test_a_file_lives_as_long_as_the_last_checkpoint_that_names_it() -> None:
    registry = SharedStateRegistry()
    registry.register_all(1, ["base", "one"])
    registry.register_all(2, ["two"], placeholders=["base"])
    assert registry.entry("base") == SharedStateEntry(created_by=1, last_used=2)
    assert registry.unregister_unused([2]) == {"one"}
    assert registry.unregister_unused([3]) == {"base", "two"}
    assert registry.unregister_unused([9]) == set()
    assert registry.unknown([1, 2, 3]) == [3]


def test_a_checkpoint_that_is_kept_for_long_keeps_its_files_and_no_later_ones() -> None:
    registry = SharedStateRegistry()
    registry.register_all(1, ["base", "one"])
    registry.register_all(2, ["two"], placeholders=["base"])
    registry.register_all(3, ["three"], placeholders=["base", "two"])
    registry.register_all(4, ["all"])
    assert registry.unregister_unused([1, 4]) == {"two", "three"}
    registry.register_all(5, [], placeholders=["one"])  # 1 was restored
    assert registry.unregister_unused([5]) == {"base", "all"}


def test_an_unknown_placeholder_is_refused_and_nothing_registered() -> None:
    registry = SharedStateRegistry()
    registry.register_all(1, ["base"])
    registry.unregister_unused([2])
    with pytest.raises(CheckpointError, match="checkpoint 2 names state file base"):
        registry.register_all(2, ["two"], placeholders=["base"])
    assert "two" not in registry


@given(checkpoints=st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.booleans()), min_size=1, max_size=12))
def test_nothing_that_is_retained_goes_and_nothing_else_stays(checkpoints: list[tuple[set[str], bool]]) -> None:
    registry = SharedStateRegistry()
    named: dict[int, set[str]] = {}
    retained: list[int] = []
    written: set[str] = set()
    deleted: set[str] = set()
    for checkpoint_id, (names, keep) in enumerate(checkpoints, start=1):
        # Files of the previous checkpoint may be named again; all others are new.
        before = named.get(checkpoint_id - 1, set())
        kept = {path for path in before if path[0] in names}
        new = {f"{name}{checkpoint_id}" for name in names} - {path[0] + str(checkpoint_id) for path in kept}
        named[checkpoint_id] = kept | new
        written |= new
        registry.register_all(checkpoint_id, new, placeholders=kept)
        if retained and not keep:
            retained.pop()
        retained.append(checkpoint_id)
        deleted |= registry.unregister_unused(retained)
        needed = set().union(*(named[i] for i in retained))
        assert not deleted & needed
        assert deleted == written - needed


def test_a_file_is_as_old_as_its_name_says() -> None:
    """An attempt registers only the latest checkpoint. It has not read an older, unclaimed one that names the file."""
    path = f"shared/1-2-{'0' * 64}.parquet"
    registry = SharedStateRegistry()
    registry.register_all(5, {path})
    registry.register_all(6, ())
    assert registry.unregister_unused({3, 6}) == set()
    assert registry.unregister_unused({6}) == {path}


def test_retained_checkpoints_are_not_looked_through_for_each_file() -> None:
    registry = SharedStateRegistry()
    for checkpoint_id in range(100):
        registry.register_all(checkpoint_id, {str(checkpoint_id)})

    class Counted(list[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            for checkpoint_id in super().__iter__():
                self.looks += 1
                yield checkpoint_id

    retained = Counted(range(1, 100))
    assert registry.unregister_unused(retained) == {"0"}
    assert retained.looks == 99
