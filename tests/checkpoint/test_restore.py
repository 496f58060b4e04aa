from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import OperatorState, SubtaskState
from dagster_flinkpy.checkpoint.restore import RestoreTarget, assign, reassign_key_groups, repartition_operator_state
from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.errors import RestoreError, StateSchemaError
from dagster_flinkpy.key_groups import KeyGroupRange, compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import DistributionMode, KeyedSnapshot, OperatorStateHandle
from tests.checkpoint.samples import keyed, metadata, operator, source


def spec(uid: str = "count", parallelism: int = 2, max_parallelism: int = 8, **more: bool) -> RestoreTarget:
    return RestoreTarget(uid, parallelism, max_parallelism, **more)


COUNT = metadata(5, operator())


# --- keyed state ------------------------------------------------------------------------------------------------------


def test_the_same_parallelism_passes_everything_through() -> None:
    plan = assign(metadata(), [spec("flights"), spec()])
    assert [s.keyed for s in plan.operators["count"].subtasks] == [s.keyed for s in operator().subtasks]
    flights = plan.operators["flights"]
    assert [s.operator_state for s in flights.subtasks] == [s.operator_state for s in source().subtasks]
    assert flights.coordinator_state == {"next": 3}
    assert flights.restored
    assert plan.checkpoint_id == 1


def test_rescaling_cuts_and_joins_in_order_of_the_old_subtasks() -> None:
    plan = assign(COUNT, [spec(parallelism=3)])
    new = [s.keyed for s in plan.operators["count"].subtasks]
    assert [n and (n.key_groups.start, n.key_groups.end) for n in new] == [(0, 2), (3, 5), (6, 7)]
    zero, one = (keyed(f"count-{i}", index=i).tables[0].runs[0] for i in range(2))
    assert new[1] is not None
    assert [(r.path, r.key_groups.start, r.key_groups.end, r.rows) for r in new[1].tables[0].runs] == [
        (zero.path, 3, 3, 2),
        (one.path, 4, 5, 4),
    ]


@given(
    maximum=st.integers(1, 200),
    old=st.integers(1, 40),
    new=st.integers(1, 40),
    missing=st.sets(st.integers(0, 39)),
)
def test_each_key_group_goes_to_its_owner_once(maximum: int, old: int, new: int, missing: set[int]) -> None:
    old, new = min(old, maximum), min(new, maximum)
    ranges = [compute_key_group_range_for_operator_index(maximum, old, i) for i in range(old)]
    snapshots = [None if i in missing else KeyedSnapshot(r, ()) for i, r in enumerate(ranges)]
    parts = reassign_key_groups(snapshots, maximum, new)
    for subtask, located in enumerate(parts):
        own = compute_key_group_range_for_operator_index(maximum, new, subtask)
        given_groups = [(i, g) for i, p in located for g in range(p.key_groups.start, p.key_groups.end + 1)]
        assert given_groups == [
            (i, g) for i, r in enumerate(ranges) if i not in missing for g in range(r.start, r.end + 1) if g in own
        ]


def test_a_subtask_without_keyed_state_stays_without() -> None:
    stored = replace(operator(), subtasks=(operator().subtasks[1],))
    plan = assign(metadata(5, stored), [spec(parallelism=4)])
    assert [s.keyed is None for s in plan.operators["count"].subtasks] == [True, True, False, False]


def test_many_subtasks_are_planned_by_looking_at_neighbours_only() -> None:
    """Quadratic work would be 6 million intersections. The test counts them instead of measuring time."""
    old, new, maximum = 2000, 3000, 32768
    touched = 0

    class Counting(KeyedSnapshot):
        def restrict(self, key_groups: KeyGroupRange) -> KeyedSnapshot | None:
            nonlocal touched
            touched += 1
            return super().restrict(key_groups)

    snapshots = [Counting(compute_key_group_range_for_operator_index(maximum, old, i), ()) for i in range(old)]
    parts = reassign_key_groups(snapshots, maximum, new)
    assert touched == sum(map(len, parts)) < old + new


# --- validation -------------------------------------------------------------------------------------------------------


def test_a_max_parallelism_that_is_not_set_is_taken_over() -> None:
    plan = assign(COUNT, [spec(max_parallelism=128)])
    assert plan.operators["count"].max_parallelism == 8


def test_a_max_parallelism_that_is_set_has_to_be_the_stored_one() -> None:
    assert assign(COUNT, [spec(max_parallelism=8, max_parallelism_set=True)])
    with pytest.raises(RestoreError, match=r"'count' sets max parallelism 128, .* 8 key groups.*Set it to 8"):
        assign(COUNT, [spec(max_parallelism=128, max_parallelism_set=True)])


def test_the_parallelism_must_not_be_over_the_stored_maximum() -> None:
    with pytest.raises(RestoreError, match=r"'count' has parallelism 9, .* max parallelism 8. Lower the parallelism"):
        assign(COUNT, [spec(parallelism=9, max_parallelism=128)])


def test_state_without_an_operator_fails_unless_it_may_be_left_behind() -> None:
    with pytest.raises(
        RestoreError, match=r"operator 'count', but the job has no .*'flights'.*allow_non_restored_state"
    ):
        assign(metadata(), [spec("flights")])
    plan = assign(metadata(), [spec("flights")], allow_non_restored_state=True)
    assert list(plan.operators) == ["flights"]


def test_records_that_are_in_flight_to_an_operator_that_is_gone_are_no_state() -> None:
    stateless = OperatorState("map", "Map", 1, 8, subtasks=(SubtaskState(0, channel_state=({"buffer": 1},)),))
    with pytest.raises(RestoreError, match=r"in-flight records .*aligned_checkpoints\(False\).* to lose these"):
        assign(metadata(5, stateless), [spec()])


def test_an_operator_without_any_state_may_go() -> None:
    empty = OperatorState("map", "Map", 2, 8, subtasks=(SubtaskState(0, watermark=3),))
    assert list(assign(metadata(5, empty, operator()), [spec()]).operators) == ["count"]


def test_an_operator_without_any_state_does_not_bind_the_max_parallelism() -> None:
    empty = OperatorState("map", "Map", 2, 8, ())
    plan = assign(metadata(5, empty), [spec("map", 16, 128, max_parallelism_set=True)])
    assert plan.operators["map"].max_parallelism == 128


def test_a_new_operator_starts_empty() -> None:
    plan = assign(COUNT, [spec(), spec("new", 3, 64)])
    new = plan.operators["new"]
    assert not new.restored
    assert (new.max_parallelism, [s.keyed for s in new.subtasks]) == (64, [None] * 3)


def test_an_operator_that_became_stateless_is_like_one_that_is_gone() -> None:
    with pytest.raises(RestoreError, match="'count', but the job's operator with this uid keeps no state"):
        assign(COUNT, [spec(stateful=False)])
    plan = assign(COUNT, [spec(stateful=False)], allow_non_restored_state=True)
    assert plan.operators["count"].subtasks[0].keyed is None


def test_committables_and_splits_do_not_make_an_operator_stateful() -> None:
    sink = OperatorState("sink", "Sink", 1, 8, subtasks=(SubtaskState(0, committables=({"path": "x"},)),))
    assert assign(metadata(5, sink), [spec("sink", 1, stateful=False)]).operators["sink"].restored


def test_each_subtask_gets_all_in_flight_data_with_whose_it_was_if_the_parallelism_changes() -> None:
    unaligned = replace(operator(), subtasks=(SubtaskState(0, channel_state=({"buffer": 1},)),))
    kept = assign(metadata(5, unaligned), [spec()]).operators["count"].subtasks[0]
    assert kept.channel_state == ({"buffer": 1},)
    rescaled = assign(metadata(5, unaligned), [spec(parallelism=3)]).operators["count"].subtasks
    assert [each.channel_state for each in rescaled] == [({"buffer": 1, "rescaled": [[0, 2]]},)] * 3
    again = [SubtaskState(each.index, channel_state=each.channel_state) for each in rescaled]
    twice = assign(metadata(6, replace(operator(parallelism=3), subtasks=tuple(again))), [spec(parallelism=2)])
    owners = [part["rescaled"] for part in twice.operators["count"].subtasks[0].channel_state]
    assert owners == [[[0, 2], [0, 3]], [[0, 2], [1, 3]], [[0, 2], [2, 3]]]


# --- the rest ---------------------------------------------------------------------------------------------------------


def with_watermarks(*watermarks: int | None) -> CheckpointMetadata:
    subtasks = tuple(SubtaskState(i, watermark=w) for i, w in enumerate(watermarks))
    return metadata(5, OperatorState("count", "Count", len(watermarks), 8, subtasks, 1))


@pytest.mark.parametrize(
    ("old", "least"), [((5, 3, 9), 3), ((5, None, 9), None), ((None,), None), ((-(2**63), 7), -(2**63))]
)
def test_the_watermark_is_the_least_of_all(old: tuple[int | None, ...], least: int | None) -> None:
    plan = assign(with_watermarks(*old), [spec(parallelism=2)])
    assert [s.watermark for s in plan.operators["count"].subtasks] == [least, least]


def test_parts_of_one_operator_state_are_joined() -> None:
    handles = [OperatorStateHandle("seen", DistributionMode.SPLIT_DISTRIBUTE, (i, i + 10)) for i in range(3)]
    plan = assign(metadata(5, source(parallelism=3)), [spec("flights", 2)])
    assert [s.operator_state for s in plan.operators["flights"].subtasks] == [
        (replace(handles[0], partitions=(0, 10, 1)),),
        (replace(handles[0], partitions=(11, 2, 12)),),
    ]


TWO = tuple(Types.ROW_NAMED(names, [Types.LONG(), Types.LONG()]) for names in (["a", "b"], ["b", "a"]))


@pytest.mark.parametrize(("mode", "parallelism"), [("UNION", 2), ("SPLIT_DISTRIBUTE", 1)])
def test_parts_of_one_operator_state_with_two_types_are_not_joined(mode: str, parallelism: int) -> None:
    """A partition does not say its type, so the fields of one of them would be read as those of the other."""
    parts = [OperatorStateHandle("s", DistributionMode(mode), (i,), {"value": t.to_json()}) for i, t in enumerate(TWO)]
    subtasks = tuple(SubtaskState(i, operator_state=(part,)) for i, part in enumerate(parts))
    stored = metadata(5, OperatorState("count", "Count", 2, 8, subtasks))
    with pytest.raises(
        StateSchemaError, match=r"'s' has .* of Types.ROW_NAMED\(\['a', 'b'\].* in initialize_state\(\)"
    ):
        assign(stored, [spec(parallelism=parallelism)])
    alike = tuple(SubtaskState(i, operator_state=(parts[0],)) for i in range(2))
    (first, *_) = (
        assign(
            replace(stored, operators=(replace(stored.operators[0], subtasks=alike),)), [spec(parallelism=parallelism)]
        )
        .operators["count"]
        .subtasks
    )
    assert first.operator_state == (replace(parts[0], partitions=(0, 0)),)


def test_broadcast_state_is_given_once_even_where_flink_gives_two_copies() -> None:
    copy = OperatorStateHandle("rules", DistributionMode.BROADCAST, ("a", "b"))
    subtasks = (SubtaskState(1, operator_state=(copy,)), SubtaskState(2, operator_state=(copy,)))
    plan = assign(metadata(5, OperatorState("count", "Count", 3, 8, subtasks)), [spec(parallelism=3)])
    assert [s.operator_state for s in plan.operators["count"].subtasks] == [(copy,)] * 3


@given(st.lists(st.lists(st.integers()), min_size=1, max_size=6), st.integers(1, 6))
def test_split_partitions_are_dealt_evenly_and_none_is_lost(old: list[list[int]], parallelism: int) -> None:
    handles = [[OperatorStateHandle("s", DistributionMode.SPLIT_DISTRIBUTE, tuple(p))] for p in old]
    new = repartition_operator_state(handles, parallelism)
    sizes = [sum(len(h.partitions) for _, h in subtask) for subtask in new]
    assert [p for subtask in new for _, h in subtask for p in h.partitions] == [p for ps in old for p in ps]
    if parallelism != len(old):
        assert max(sizes) - min(sizes) <= 1
