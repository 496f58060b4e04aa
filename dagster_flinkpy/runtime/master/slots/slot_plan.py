"""Plans which subtasks run in which slots, in how many waves, and which regions run side by side.

Operators that are chained run in one Spark task, so they are one co-location group, in the slot-sharing group of the
first of them. Spark itself chooses the executor of a task; the plan says how many tasks run at once, and what to wait
for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dagster_flinkpy.checkpoint.coordinator.messages import Subtask
from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobGraph, JobVertex
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.slots.slots import (
    CoLocationConstraint,
    CoLocationGroup,
    ScheduledUnit,
    Scheduler,
    SimpleSlot,
    SlotSharingGroup,
    TaskManager,
    preferred_locations,
)

__all__ = ["Place", "RegionSlots", "SlotPlan", "plan_slots", "required_slots"]


@dataclass(frozen=True)
class Place:
    """A slot of a task manager."""

    task_manager: str
    slot: int


@dataclass(frozen=True)
class SlotPlan:
    """Where the subtasks of a job run."""

    needed: int
    """How many slots the job needs to run all subtasks at once."""
    had: int
    """How many slots there are."""
    waves: tuple[Mapping[Subtask, Place], ...]
    """The subtasks that run at once, one wave after the other."""

    @property
    def description(self) -> str:
        """One line for people."""
        line = f"needs {self.needed} {_slots(self.needed)}, has {self.had}"
        return line if len(self.waves) == 1 else f"{line}: {len(self.waves)} waves"


class _Tasks:
    """The subtasks of a graph with their groups.

    Args:
        graph: The graph.
        cores: The cores of a slot of a task manager; None if no group can have slots of another size.
    """

    def __init__(self, graph: JobGraph, cores: int | None) -> None:
        self._graph, self._cores = graph, cores
        self._head: dict[str, JobVertex] = {}
        """The first operator of the chain that an operator is in."""
        for vertex in graph.vertices:
            chained = next((e for e in graph.inputs(vertex.uid) if self._is_chained(e)), None)
            self._head[vertex.uid] = vertex if chained is None else self._head[chained.source]

    def _is_chained(self, edge: JobEdge) -> bool:
        return self._graph.is_chained(edge) and not edge.blocking

    @property
    def vertices(self) -> Sequence[JobVertex]:
        """The operators, inputs first."""
        return self._graph.vertices

    def group(self, vertex: JobVertex) -> str:
        """Returns the slot-sharing group of an operator."""
        return self._head[vertex.uid].slot_sharing_group

    @cached_property
    def required(self) -> dict[str, int]:
        """How many slots each group needs: the highest parallelism in it, times the slots that a task takes."""
        slots: dict[str, int] = {}
        for vertex in self.vertices:
            group = self.group(vertex)
            slots[group] = max(slots.get(group, 0), vertex.parallelism * self._width(vertex))
        return slots

    def groups(self) -> dict[str, SlotSharingGroup]:
        """Returns the groups by name, without slots."""
        return {self.group(v): SlotSharingGroup(self.group(v), self._width(v)) for v in self.vertices}

    def _width(self, vertex: JobVertex) -> int:
        resources = self._head[vertex.uid].slot_resources
        if self._cores is None or resources is None or resources.cpu_cores is None:
            return 1
        return max(1, math.ceil(resources.cpu_cores / self._cores))

    def allocate(
        self,
        scheduler: Scheduler,
        groups: Mapping[str, SlotSharingGroup],
        first: Mapping[str, int],
        prior: Mapping[Subtask, str],
    ) -> dict[Subtask, SimpleSlot]:
        """Allocates slots for as many subtasks as there is room for.

        Args:
            scheduler: Has the slots.
            groups: The slot-sharing groups, by name.
            first: For each operator, the first subtask that has not run.
            prior: The task manager where a subtask ran last.
        """
        constraints: dict[tuple[str, int], CoLocationConstraint] = {}
        slots: dict[Subtask, SimpleSlot] = {}
        for vertex in self.vertices:
            group, head = groups[self.group(vertex)], self._head[vertex.uid].uid
            edges = self._graph.inputs(vertex.uid)
            all_of = {e.source: self._locations(e.source, slots) for e in edges if not self._is_chained(e)}
            for i in range(first.get(vertex.uid, 0), vertex.parallelism):
                task = Subtask(vertex.uid, i)
                constraint = constraints.setdefault((head, i), CoLocationConstraint(CoLocationGroup(head)))
                preferred = preferred_locations(all_of.values(), prior.get(task))
                try:
                    slots[task] = scheduler.allocate_slot(ScheduledUnit(task, group, constraint, preferred))
                except NoResourceAvailableError:
                    break  # the next subtasks of the operator need the same
        return slots

    def _locations(self, uid: str, slots: Mapping[Subtask, SimpleSlot]) -> list[str]:
        tasks = (Subtask(uid, i) for i in range(self._graph.vertex(uid).parallelism))
        return list(dict.fromkeys(slots[task].location for task in tasks if task in slots))


def required_slots(graph: JobGraph, *, cores: int | None = None) -> dict[str, int]:
    """Returns how many slots each slot-sharing group needs: the highest parallelism of its operators, as in Flink.

    Args:
        graph: The job.
        cores: The cores of a slot. A group whose slots have more needs more of them. None: cores do not count.
    """
    return _Tasks(graph, cores).required


def plan_slots(
    graph: JobGraph,
    executors: Mapping[str, int],
    *,
    prior: Mapping[Subtask, str] | None = None,
    cores: int | None = None,
) -> SlotPlan:
    """Returns where the subtasks of a job run.

    Args:
        graph: The job.
        executors: The number of slots of each executor.
        prior: The executor where each subtask ran last, because its state may be cached there. Default: unknown.
        cores: The cores of a slot; see `required_slots`.

    Raises:
        NoResourceAvailableError: There is no slot at all, or no executor with as many as one slot of a group takes.
    """
    tasks = _Tasks(graph, cores)
    needed, had = sum(tasks.required.values()), sum(executors.values())
    if not had:
        raise NoResourceAvailableError(f"{needed} slots are needed, and Spark has no executor", needed=needed)
    first = {vertex.uid: 0 for vertex in graph.vertices}
    waves: list[Mapping[Subtask, Place]] = []
    while any(first[vertex.uid] < vertex.parallelism for vertex in graph.vertices):
        slots = tasks.allocate(Scheduler(_task_managers(executors)), tasks.groups(), first, prior or {})
        if not slots:
            raise NoResourceAvailableError(
                f"no executor of Spark has as many cores as a task of {_slots_of(tasks)} needs: lower set_cpu_cores(), "
                "or raise spark.executor.cores",
                needed=needed,
                had=had,
            )
        waves.append({task: Place(slot.location, slot.parent.root.number) for task, slot in slots.items()})
        for task in slots:
            first[task.uid] = task.subtask + 1
    return SlotPlan(needed, had, tuple(waves))


class RegionSlots:
    """Decides which pipelined regions run side by side.

    Regions with the same slot-sharing groups use the same slots, so they run side by side. A region with a group of its
    own waits as long as the running ones leave it fewer slots than it would get alone.

    Args:
        regions: The regions of the job.
        executors: The number of slots of each executor.
        cores: The cores of a slot; see `required_slots`.
    """

    def __init__(self, regions: Iterable[JobGraph], executors: Mapping[str, int], *, cores: int | None = None) -> None:
        self._regions = [_Tasks(region, cores) for region in regions]
        self._held: dict[int, dict[Subtask, SimpleSlot]] = {}
        self._prior: dict[Subtask, str] = {}
        self._scheduler = Scheduler(_task_managers(executors))
        self._groups = {name: group for tasks in self._regions for name, group in tasks.groups().items()}
        self._alone = [self._slots_alone(index) for index in range(len(self._regions))]

    def _slots_alone(self, region: int) -> dict[str, int]:
        slots = self._allocate(region)
        counts = {name: self._groups[name].assignment.number_of_slots for name in self._regions[region].required}
        _release(slots)
        return counts

    def _allocate(self, region: int) -> dict[Subtask, SimpleSlot]:
        return self._regions[region].allocate(self._scheduler, self._groups, {}, self._prior)

    def acquire(self, region: int) -> bool:
        """Takes the slots of a region that is to run. Returns False if it has to wait for another one to end."""
        slots = self._allocate(region)
        alone = self._alone[region].items()
        if self._held and any(self._groups[name].assignment.number_of_slots < count for name, count in alone):
            _release(slots)
            return False
        self._held[region] = slots
        self._prior.update((task, slot.location) for task, slot in slots.items())
        return True

    def release(self, region: int) -> None:
        """Gives back the slots of a region that has ended."""
        _release(self._held.pop(region))


def _release(slots: Mapping[Subtask, SimpleSlot]) -> None:
    for slot in slots.values():
        slot.release()


def _slots_of(tasks: _Tasks) -> str:
    return " or ".join(f"slot-sharing group {name!r}" for name, group in tasks.groups().items() if group.width > 1)


def _task_managers(executors: Mapping[str, int]) -> list[TaskManager]:
    return [TaskManager(resource_id, slots) for resource_id, slots in executors.items()]


def _slots(number: int) -> str:
    return "slot" if number == 1 else "slots"
