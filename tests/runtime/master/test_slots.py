"""Slots against what Flink's own tests establish (``SchedulerSlotSharingTest``, ``ScheduleWithCoLocationHintTest``,
``SharedSlotsTest``, ``SlotSharingGroupAssignmentTest``)."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.slots.slots import (
    CoLocationConstraint,
    CoLocationGroup,
    Locality,
    ScheduledUnit,
    Scheduler,
    SimpleSlot,
    SlotSharingGroup,
    TaskManager,
    preferred_locations,
)
from tests.examples import examples


class Cluster:
    """Task managers t1, t2, ... and one slot-sharing group; operators with names in capitals have their own group."""

    def __init__(self, *slots: int) -> None:
        self.task_managers = [TaskManager(f"t{i + 1}", number) for i, number in enumerate(slots)]
        self.scheduler = Scheduler(self.task_managers)
        self.group = SlotSharingGroup("shared")
        self.constraints: dict[str, CoLocationConstraint] = {}
        self.slots: dict[str, SimpleSlot] = {}

    def get(self, task: str, *, at: str | None = None, on: str | None = None) -> SimpleSlot:
        """Allocates a slot for a task such as ``a0``, at a preferred task manager and under a constraint."""
        uid, index = task[0], int(task[1:])
        group = SlotSharingGroup(task) if uid.isupper() else self.group
        constraint = None
        if on is not None:
            constraint = self.constraints.setdefault(on, CoLocationConstraint(CoLocationGroup("together")))
        preferred = () if at is None else (at,)
        slot = self.scheduler.allocate_slot(ScheduledUnit(Subtask(uid, index), group, constraint, preferred))
        self.slots[task] = slot
        return slot

    def release(self, *tasks: str) -> None:
        for task in tasks:
            self.slots.pop(task).release()

    def run(self, story: str) -> None:
        """Plays steps: ``a0``, ``a0@t1`` (preferred), ``a0+c`` (constraint), ``-a0`` (release), ``!a0`` (refused).

        It also checks ``a0=t1`` (where it is), ``slots=2``, ``free=2`` and ``a:1`` (slots left for operator a).
        """
        for step in story.split():
            if step.startswith("-"):
                self.release(step[1:])
            elif "=" in step:
                what, value = step.split("=")
                assert str(self._value(what)) == value, f"{step} in {story!r}"
            elif ":" in step:
                operator, count = step.split(":")
                assert self.group.assignment.number_available(operator) == int(count), f"{step} in {story!r}"
            else:
                found = re.fullmatch(r"(!?)(\w\d+)(?:@(\w+))?(?:\+(\w+))?", step)
                assert found is not None, step
                refused, task, at, on = found.groups()
                if not refused:
                    self.get(task, at=at, on=on)
                    continue
                with pytest.raises(NoResourceAvailableError):
                    self.get(task, at=at, on=on)

    def _value(self, what: str) -> Any:
        if what == "slots":
            return self.group.assignment.number_of_slots
        return self.scheduler.available if what == "free" else self.slots[what].location


STORIES = {
    "one operator": (
        (2, 2),
        "a0 a1 a2 a3 slots=4 !a4 -a2 a4 -a0 -a1 -a3 a5 a6 a7 -a4 -a5 -a6 -a7 free=4 slots=0",
        (0, 0, 8),
    ),
    "two operators share": (
        (2, 2),
        "a0 a1 a2 a3 !a4 b0 b1 b2 b3 !b4 -a0 -a3 slots=4 a:2 b:0 !b4 a4 slots=4 a:1 b:0 -b1 b4 "
        "-a1 -a2 -a4 -b0 -b2 -b3 -b4 slots=0 free=4",
        (0, 0, 10),
    ),
    "the group is empty in between": (
        (2, 2),
        "a0 a1 a2 a3 slots=4 a:0 b:4 -a0 -a1 -a2 -a3 slots=0 a:0 b:0 b0 b1 b2 b3 slots=4 a:4 b:0 "
        "-b0 -b1 -b2 -b3 slots=0 a:0 b:0 free=4",
        (0, 0, 8),
    ),
    "shared and not shared": (
        (3, 2),
        "a0 a1 b0 b1 A0 A1 A2 !A3 !a2 free=0 -A1 a2 b2 !A3 -a0 -b0 A3 -A0 -A2 -A3 -a1 -a2 -b1 -b2 free=5",
        (0, 0, 10),
    ),
    "both operators where they prefer to be": (
        (2, 2),
        "a0@t1 a1@t2 slots=2 b0@t1 b1@t2 slots=2 free=2 b0=t1 b1=t2",
        (4, 0, 0),
    ),
    "a new local slot rather than a shared one elsewhere": (
        (2, 2),
        "a0@t1 a1@t1 slots=2 b0@t2 b1@t2 slots=4 free=0 b0=t2 b1=t2",
        (4, 0, 0),
    ),
    "elsewhere if all local slots are taken": (
        (2, 2),
        "a0@t1 a1@t1 b0@t1 b1@t1 b2@t1 b3@t1 slots=4 free=0 b0=t1 b1=t1 b2=t2 b3=t2",
        (4, 2, 0),
    ),
    "co-located from the start": (
        (2, 2, 2),
        "a0+c a1+d a2+e b0+c b1+d b2+e a3+f b3+f slots=4 free=2 -a0 -a1 -a2 -b0 -b1 -b2 -a3 -b3 free=6",
        (4, 0, 4),
    ),
    "a constraint keeps its place when its slot was released": (
        (1, 1),
        "a0+c b0+c A0 a0=t1 A0=t2 free=0 -a0 -b0 -A0 x0+c x0=t1",
        (2, 0, 2),
    ),
    "a constraint whose place is taken": ((1, 1), "a0+c a0=t1 -a0 A0 A1 !b0+c", (0, 0, 3)),
    "co-location in slots that others opened": (
        (1, 1, 1, 1),
        "a0 a2 a1 a3 b0+c b2+d b1+e b3+f x1+d x2+e x3+f x0+c y0 y1 y2 y3 slots=4 free=0",
        (4, 0, 12),
    ),
    "a constraint outweighs preferences": (
        (1, 1),
        "a0@t1 a1@t2 b0@t1+c b1@t1+d x0@t2+c x1@t1+d b0=t1 b1=t2 x0=t1 x1=t2",
        (5, 1, 0),
    ),
    "released in between": (
        (1, 1),
        "a0@t1+c a1@t2+d -a0 -a1 free=2 b0@t2+c b1@t1+d b0=t1 b1=t2 -b0 -b1 free=2",
        (4, 0, 0),
    ),
    "released in between, and nothing local is left": (
        (1, 1),
        "a0@t1+c a1@t2+d -a0 -a1 A0 A1 !b0@t2+c -A0 -A1 free=2",
        (2, 0, 2),
    ),
    "out of order": (
        (1, 1),
        "a0@t1+c b0@t1+d b1@t1+c a1@t1+d a0=t1 b1=t1 b0=t2 a1=t2 -a0 -a1 -b0 -b1 free=2",
        (3, 1, 0),
    ),
    "others follow co-location": (
        (1, 1),
        "a0@t1+c a1@t2+d b0@t1 b1@t1 b0=t1 b1=t2 slots=2 -a0 -a1 -b0 -b1 free=2",
        (3, 1, 0),
    ),
}


@pytest.mark.parametrize(("slots", "story", "localities"), STORIES.values(), ids=STORIES)
def test_flinks_stories(slots: tuple[int, ...], story: str, localities: tuple[int, int, int]) -> None:
    cluster = Cluster(*slots)
    cluster.run(story)
    counted = cluster.scheduler.assignments
    assert tuple(counted[each] for each in Locality) == localities


# S1 is what the group has for the task, S3 what a task manager has. Both are of operator b, which prefers t1.
CASES = {
    "S1 is local: no S3 is asked for": ("a0@t1", "t1", Locality.LOCAL, 1),
    "S1 is None, S3 is used": ("", "t1", Locality.LOCAL, 1),
    "S1 is elsewhere, S3 is local: S1 is released": ("a0@t2", "t1", Locality.LOCAL, 2),
    "S1 is elsewhere, S3 is not local: S3 is released": ("A0@t1 a0@t2", "t2", Locality.NON_LOCAL, 1),
    "S1 is elsewhere, there is no S3": ("A0@t1 A1@t2 a0@t2", "t2", Locality.NON_LOCAL, 1),
}


@pytest.mark.parametrize(("before", "where", "locality", "slots"), CASES.values(), ids=CASES)
def test_cases_s1_to_s3(before: str, where: str, locality: Locality, slots: int) -> None:
    cluster = Cluster(1, 2)
    cluster.run(before)
    taken = sum(name[0].isupper() for name in cluster.slots)
    slot = cluster.get("b0", at="t1")
    assert (slot.location, slot.locality) == (where, locality)
    assert cluster.group.assignment.number_of_slots == slots
    assert cluster.scheduler.available == 3 - taken - slots, "the slot that was not used is free again"
    assert cluster.group.assignment.number_available("b") == slots - 1, "and operator b can use it"


def test_neither_s1_nor_s3() -> None:
    cluster = Cluster(1)
    cluster.run("a0 b0")
    with pytest.raises(NoResourceAvailableError, match=r"subtask b\[1\] of slot-sharing group 'shared'") as e:
        cluster.get("b1")
    assert (e.value.needed, e.value.had) == (2, 1)
    cluster.release("a0", "b0")
    assert cluster.scheduler.available == 1


def test_a_shared_slot_is_released_with_all_that_is_in_it() -> None:
    cluster = Cluster(1)
    cluster.run("a0 b0 x0+c y0+c")
    root = cluster.slots["y0"].parent.root
    assert sorted(root.tasks()) == [("a", 0), ("b", 0), ("x", 0), ("y", 0)]
    root.release()
    assert not any(slot.alive for slot in cluster.slots.values())
    assert (cluster.scheduler.available, root.tasks()) == (1, [])
    root.release()
    cluster.slots["a0"].release()
    assert cluster.scheduler.available == 1, "a slot is given back once"


def test_an_operator_takes_shared_slots_of_the_task_managers_in_turn() -> None:
    cluster = Cluster(2, 2)
    cluster.run("a0@t1 a1@t1 a2@t2 a3@t2")
    assert [cluster.get(f"b{i}").location for i in range(4)] in (["t1", "t2"] * 2, ["t2", "t1"] * 2)


PREFERENCES = {
    "no inputs": ([], None, ()),
    "one input": ([["t1", "t2", "t1"]], None, ("t1", "t2")),
    "the input with the fewest": ([["t1", "t2"], ["t3"]], None, ("t3",)),
    "an input that does not run yet": ([[], ["t1", "t2"]], None, ("t1", "t2")),
    "eight": ([[f"t{i}" for i in range(8)]], None, tuple(f"t{i}" for i in range(8))),
    "more than eight": ([[f"t{i}" for i in range(9)]], None, ()),
    "where its state is": ([["t1"]], "t9", ("t9",)),
}


@pytest.mark.parametrize(("inputs", "prior", "expected"), PREFERENCES.values(), ids=PREFERENCES)
def test_preferred_locations(inputs: list[list[str]], prior: str | None, expected: tuple[str, ...]) -> None:
    assert preferred_locations(inputs, prior) == expected


TASKS = [f"{operator}{i}" for operator in "abA" for i in range(4)]
MOVES = st.tuples(st.sampled_from(TASKS), st.sampled_from([None, "t1", "t2"]), st.sampled_from([None, "c", "d", "e"]))


@settings(max_examples=examples(300), deadline=None)
@given(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.lists(st.one_of(MOVES, st.sampled_from(TASKS)), max_size=40))
def test_whatever_is_allocated_and_released(slots: tuple[int, int], moves: list[Any]) -> None:
    cluster = Cluster(*slots)
    constraint_of: dict[str, str | None] = {}
    for move in moves:
        if isinstance(move, str):
            if move in cluster.slots:
                cluster.release(move)
        elif move[0] not in cluster.slots:
            task, at, on = move
            on = None if task[0] != "b" else on  # operator b is co-located, or not, by subtask
            if any(constraint_of.get(other) == on for other in cluster.slots if on and other[0] == "b"):
                continue  # a constraint is that of one subtask of an operator
            had = cluster.scheduler.available
            try:
                cluster.get(task, at=at, on=on)
                constraint_of[task] = on
            except NoResourceAvailableError:
                assert cluster.scheduler.available == had, "a refusal takes nothing"
        _check(cluster)
    cluster.release(*list(cluster.slots))
    assert cluster.scheduler.available == sum(slots), "released slots are free again"


def _check(cluster: Cluster) -> None:
    per_slot = cluster.group.assignment.tasks_by_slot()
    own = sum(name[0].isupper() for name in cluster.slots)
    assert all(per_slot), "a slot without a subtask goes back to its task manager"
    assert len(per_slot) + own + cluster.scheduler.available == cluster.scheduler.number_of_slots
    shared = [task for tasks in per_slot for task in tasks]
    assert sorted(shared) == sorted((n[0], int(n[1:])) for n in cluster.slots if n[0].islower())
    for tasks in per_slot:
        # Operator b is in two groups here: subtasks with and without a constraint.
        assert all(count == 1 for uid, count in Counter(task.uid for task in tasks).items() if uid != "b")
    roots = [(s.location, s.parent.root.number, s.task.uid, s.parent.root.assignment) for s in cluster.slots.values()]
    places = {(where, number, assignment) for where, number, _, assignment in roots}
    assert len(places) == len({(where, number) for where, number, _ in places}), "one slot, one group"
