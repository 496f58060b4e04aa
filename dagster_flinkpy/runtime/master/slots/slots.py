"""Task slots and how tasks share them (Flink: ``Instance``, ``Scheduler``, ``SlotSharingGroupAssignment``).

A task manager is a Spark executor, and its slots are the tasks that it runs at once. A slot that a task manager gives
to a slot-sharing group is a :class:`SharedSlot`. It holds at most one subtask of each operator of the group, each in a
:class:`SimpleSlot`. Subtasks that must run together have a :class:`CoLocationConstraint`, and a shared slot for
themselves inside the first one.

Nothing here waits or knows Spark: requests come one by one, and are granted or refused at once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.errors import NoResourceAvailableError

__all__ = [
    "CoLocationConstraint",
    "CoLocationGroup",
    "Locality",
    "ScheduledUnit",
    "Scheduler",
    "SharedSlot",
    "SimpleSlot",
    "SlotSharingGroup",
    "SlotSharingGroupAssignment",
    "TaskManager",
    "preferred_locations",
]

MAX_DISTINCT_LOCATIONS = 8
"""An input that comes from more task managers than this gives no preference (Flink: ``ExecutionVertex``)."""


class Locality(Enum):
    """Whether a task got a slot where it prefers to be (Flink: ``Locality``)."""

    LOCAL = auto()
    NON_LOCAL = auto()
    UNCONSTRAINED = auto()
    """It has no preference."""


class TaskManager:
    """A process with task slots (Flink: ``Instance``; Spark: executor).

    Args:
        resource_id: The id of the executor.
        number_of_slots: How many tasks it runs at once.
    """

    def __init__(self, resource_id: str, number_of_slots: int) -> None:
        self.resource_id = resource_id
        self.number_of_slots = number_of_slots
        self._free = list(range(number_of_slots))

    @property
    def available(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def allocate(self, assignment: SlotSharingGroupAssignment) -> SharedSlot:
        """Gives free slots to a slot-sharing group: as many as one of its shared slots takes."""
        numbers, self._free = self._free[: assignment.width], self._free[assignment.width :]
        return SharedSlot(self, numbers[0], assignment, numbers=numbers)

    def give_back(self, slot: SharedSlot) -> None:
        """Takes slots back, which become the last ones to be given away."""
        self._free += slot.numbers


class SharedSlot:
    """A slot that is divided further (Flink: ``SharedSlot``).

    Args:
        task_manager: Where it is.
        number: Its number in the task manager, or in the shared slot around it.
        assignment: The slots of its slot-sharing group.
        parent: The shared slot around it, if it is that of a co-location constraint.
        group: The co-location group, if it is in another shared slot.
        numbers: The numbers of all slots of the task manager that it takes. Default: its own.
    """

    def __init__(
        self,
        task_manager: TaskManager,
        number: int,
        assignment: SlotSharingGroupAssignment,
        parent: SharedSlot | None = None,
        group: Hashable | None = None,
        numbers: Sequence[int] = (),
    ) -> None:
        self.task_manager, self.number = task_manager, number
        self.numbers = tuple(numbers) or (number,)
        self.assignment, self.parent, self.group = assignment, parent, group
        self.sub_slots: list[SharedSlot | SimpleSlot] = []
        self.alive = True

    @property
    def root(self) -> SharedSlot:
        """The slot of the task manager that it is in."""
        return self if self.parent is None else self.parent.root

    def tasks(self) -> list[Subtask]:
        """Returns the subtasks in it."""
        found: list[Subtask] = []
        for sub_slot in self.sub_slots:
            found += sub_slot.tasks() if isinstance(sub_slot, SharedSlot) else [sub_slot.task]
        return found

    def release(self) -> None:
        """Releases it and everything in it."""
        for sub_slot in list(self.sub_slots):
            sub_slot.release()
        if self.alive:
            self.assignment.dispose(self)


class SimpleSlot:
    """The slot of one subtask (Flink: ``SimpleSlot``).

    Args:
        task: The subtask.
        parent: The shared slot that it is in.
        locality: Whether the subtask is where it prefers to be.
        group: The operator; None if the parent is the slot of a co-location constraint.
    """

    def __init__(self, task: Subtask, parent: SharedSlot, locality: Locality, group: Hashable | None) -> None:
        self.task, self.parent, self.locality, self.group = task, parent, locality, group
        self.alive = True

    @property
    def location(self) -> str:
        """The id of the task manager."""
        return self.parent.task_manager.resource_id

    def release(self) -> None:
        """Releases the slot. The last subtask of a shared slot also releases that one."""
        if self.alive:
            self.alive = False
            self.parent.assignment.remove(self)


@dataclass(frozen=True)
class CoLocationGroup:
    """Operators whose subtasks with the same number run in the same slot (Flink: ``CoLocationGroup``)."""

    name: str


class CoLocationConstraint:
    """Where the subtasks with one number of a co-location group run (Flink: ``CoLocationConstraint``).

    The first slot settles the task manager for good. When the slot is released, the next one is at the same place.
    """

    def __init__(self, group: CoLocationGroup) -> None:
        self.group = group
        self.shared_slot: SharedSlot | None = None

    @property
    def location(self) -> str | None:
        """The id of the task manager; None before the first slot."""
        return None if self.shared_slot is None else self.shared_slot.task_manager.resource_id

    @property
    def assigned_and_alive(self) -> bool:
        """Whether it has a slot now."""
        return self.shared_slot is not None and self.shared_slot.alive


class SlotSharingGroupAssignment:
    """The slots of a slot-sharing group, and which of them each operator can still use.

    (Flink: ``SlotSharingGroupAssignment``)

    Args:
        width: How many slots of a task manager one of its slots takes, because its tasks have several cores.
    """

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self._slots: dict[SharedSlot, None] = {}
        self._available: dict[Hashable, OrderedDict[str, list[SharedSlot]]] = {}
        """The slots without a subtask of an operator or co-location group, by task manager. The next task manager is
        the first one."""

    @property
    def number_of_slots(self) -> int:
        """How many slots of task managers the group has."""
        return len(self._slots)

    def number_available(self, group: Hashable) -> int:
        """Returns how many of the slots can take one more subtask of an operator, or co-location group."""
        available = self._available.get(group)
        return len(self._slots) if available is None else sum(len(slots) for slots in available.values())

    def tasks_by_slot(self) -> list[list[Subtask]]:
        """Returns the subtasks of each slot."""
        return [slot.tasks() for slot in self._slots]

    def get_slot_for_task(
        self, task: Subtask, preferred: Sequence[str], constraint: CoLocationConstraint | None = None
    ) -> SimpleSlot | None:
        """Allocates a slot for a subtask in the slots that the group already has.

        Returns:
            The slot; one that is not at a preferred location if there is no other. None if no slot is free for the
            operator, or none where the constraint requires it.
        """
        if constraint is None:
            found = self._take(task.uid, preferred)
            return None if found is None else self._sub_slot(task, found[0], found[1], task.uid)
        if constraint.assigned_and_alive:
            assert constraint.shared_slot is not None
            return self._sub_slot(task, constraint.shared_slot, Locality.LOCAL, None)
        bound = constraint.location is not None
        found = self._take(constraint.group, [str(constraint.location)] if bound else preferred, local_only=bound)
        return None if found is None else self._constrained(task, found[0], found[1], constraint)

    def add_shared_slot(
        self, slot: SharedSlot, task: Subtask, locality: Locality, constraint: CoLocationConstraint | None = None
    ) -> SimpleSlot:
        """Adds a slot of a task manager to the group, with its first subtask."""
        group: Hashable = task.uid if constraint is None else constraint.group
        self._slots[slot] = None
        for other, available in self._available.items():
            if other != group:
                available.setdefault(slot.task_manager.resource_id, []).append(slot)
        self._available.setdefault(group, OrderedDict())
        if constraint is None:
            return self._sub_slot(task, slot, locality, group)
        return self._constrained(task, slot, locality, constraint)

    def _take(
        self, group: Hashable, preferred: Sequence[str], *, local_only: bool = False
    ) -> tuple[SharedSlot, Locality] | None:
        available = self._available.get(group)
        if available is None:
            available = self._available[group] = OrderedDict()
            for slot in self._slots:
                available.setdefault(slot.task_manager.resource_id, []).append(slot)
        for location in preferred:
            if location in available:
                return self._pop(available, location), Locality.LOCAL
        if not available or (preferred and local_only):
            return None
        return self._pop(available, next(iter(available))), Locality.NON_LOCAL if preferred else Locality.UNCONSTRAINED

    @staticmethod
    def _pop(available: OrderedDict[str, list[SharedSlot]], location: str) -> SharedSlot:
        slots = available.pop(location)
        slot = slots.pop()
        if slots:
            available[location] = slots  # at the end, so the task managers take turns
        return slot

    def _sub_slot(self, task: Subtask, parent: SharedSlot, locality: Locality, group: Hashable | None) -> SimpleSlot:
        slot = SimpleSlot(task, parent, locality, group)
        parent.sub_slots.append(slot)
        return slot

    def _constrained(
        self, task: Subtask, slot: SharedSlot, locality: Locality, constraint: CoLocationConstraint
    ) -> SimpleSlot:
        together = SharedSlot(slot.task_manager, len(slot.sub_slots), self, slot, constraint.group)
        slot.sub_slots.append(together)
        return self._sub_slot(task, together, locality, None)

    def remove(self, slot: SimpleSlot) -> None:
        """Removes the slot of a subtask. Its operator can use the shared slot again, unless that one is empty now."""
        self._remove_from_parent(slot, slot.parent, slot.group)

    def dispose(self, slot: SharedSlot) -> None:
        """Gives a shared slot without subtasks back to the slot around it, or to the task manager."""
        slot.alive = False
        if slot.parent is not None:
            self._remove_from_parent(slot, slot.parent, slot.group)
            return
        slot.task_manager.give_back(slot)
        self._slots.pop(slot, None)
        location = slot.task_manager.resource_id
        for available in self._available.values():
            left = [other for other in available.get(location, ()) if other is not slot]
            if left:
                available[location] = left
            else:
                available.pop(location, None)

    def _remove_from_parent(self, slot: SharedSlot | SimpleSlot, parent: SharedSlot, group: Hashable | None) -> None:
        parent.sub_slots.remove(slot)
        if not parent.sub_slots:
            if parent.alive:
                self.dispose(parent)
        elif group is not None:
            self._available[group].setdefault(parent.task_manager.resource_id, []).append(parent)


@dataclass
class SlotSharingGroup:
    """Operators whose subtasks may share slots (Flink: ``SlotSharingGroup``)."""

    name: str
    width: int = 1
    """How many slots of a task manager one of its slots takes."""
    assignment: SlotSharingGroupAssignment = field(init=False)

    def __post_init__(self) -> None:
        self.assignment = SlotSharingGroupAssignment(self.width)


@dataclass(frozen=True)
class ScheduledUnit:
    """A subtask that needs a slot (Flink: ``ScheduledUnit``)."""

    task: Subtask
    group: SlotSharingGroup
    constraint: CoLocationConstraint | None = None
    preferred: Sequence[str] = ()
    """The ids of the task managers where it should run, best first."""


class Scheduler:
    """Gives slots to subtasks (Flink: ``Scheduler``).

    Args:
        task_managers: The task managers, in the order in which they registered.
    """

    def __init__(self, task_managers: Iterable[TaskManager] = ()) -> None:
        self._task_managers = OrderedDict((each.resource_id, each) for each in task_managers)
        self.assignments: Counter[Locality] = Counter()
        """How many subtasks got a slot, by locality."""

    @property
    def number_of_slots(self) -> int:
        """How many slots all task managers have."""
        return sum(each.number_of_slots for each in self._task_managers.values())

    @property
    def available(self) -> int:
        """How many slots no group has."""
        return sum(each.available for each in self._task_managers.values())

    def allocate_slot(self, unit: ScheduledUnit) -> SimpleSlot:
        """Returns a slot for a subtask: one that its group has, or a new one if that is not where it prefers to be.

        Raises:
            NoResourceAvailableError: There is no slot, or none where its co-location constraint requires it.
        """
        assignment, constraint = unit.group.assignment, unit.constraint
        shared = assignment.get_slot_for_task(unit.task, unit.preferred, constraint)
        to_use = shared
        if shared is None or shared.locality is Locality.NON_LOCAL:
            new = self._new_slot(unit)
            if new is not None and (shared is None or new.locality is Locality.LOCAL):
                to_use, unused = new, shared
            else:
                to_use, unused = shared, new
            if unused is not None:
                unused.release()
        if to_use is None:
            raise self._no_resource(unit)
        if constraint is not None:
            constraint.shared_slot = to_use.parent
        self.assignments[to_use.locality] += 1
        return to_use

    def _new_slot(self, unit: ScheduledUnit) -> SimpleSlot | None:
        """Flink: ``Scheduler.getNewSlotForSharingGroup``."""
        bound = None if unit.constraint is None else unit.constraint.location
        preferred = unit.preferred if bound is None else [bound]
        locality = Locality.LOCAL if preferred else Locality.UNCONSTRAINED
        found = next((self._task_managers[p] for p in preferred if self._has_slots(p, unit)), None)
        if found is None and bound is None:
            locality = Locality.NON_LOCAL if preferred else Locality.UNCONSTRAINED
            found = next((self._task_managers[p] for p in self._task_managers if self._has_slots(p, unit)), None)
        if found is None:
            return None
        self._task_managers.move_to_end(found.resource_id)  # so the task managers take turns
        assignment = unit.group.assignment
        return assignment.add_shared_slot(found.allocate(assignment), unit.task, locality, unit.constraint)

    def _has_slots(self, resource_id: str, unit: ScheduledUnit) -> bool:
        found = self._task_managers.get(resource_id)
        return found is not None and found.available >= unit.group.width

    def _no_resource(self, unit: ScheduledUnit) -> NoResourceAvailableError:
        where = "" if unit.constraint is None or unit.constraint.location is None else f" on {unit.constraint.location}"
        had = self.number_of_slots
        return NoResourceAvailableError(
            f"no slot is free{where} for subtask {unit.task.uid}[{unit.task.subtask}] of slot-sharing group "
            f"{unit.group.name!r}: all {had} are taken",
            needed=had + 1,
            had=had,
        )


def preferred_locations(inputs: Iterable[Iterable[str]], prior: str | None = None) -> tuple[str, ...]:
    """Returns where a subtask should run (Flink: ``ExecutionVertex.getPreferredLocations``).

    Args:
        inputs: For each input, the task managers of the subtasks that it reads from.
        prior: Where the subtask ran last, because its state may be cached there. It outweighs the inputs.

    Returns:
        The ids of task managers: those of the input with the fewest; none if each input comes from more than eight.
    """
    if prior is not None:
        return (prior,)
    distinct = [tuple(dict.fromkeys(locations)) for locations in inputs]
    return min((d for d in distinct if 0 < len(d) <= MAX_DISTINCT_LOCATIONS), key=len, default=())
