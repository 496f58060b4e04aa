"""The task slots that a job needs, and those that Spark has.

A task slot is a core of an executor of Spark (Flink: ``Instance``), which a slot-sharing group may have more of. Spark
chooses the executor. An epoch that is a Spark job runs its tasks as slots become free; tasks that live are in the slots
of :mod:`~dagster_flinkpy.runtime.master.slots.slot_pool`, all at once, several in a process if there are more of them
than cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_flinkpy.datastream.program.job_graph import JobGraph, JobVertex
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.exchange.places import chains_of
from dagster_flinkpy.runtime.master.job_session import JobSession
from dagster_flinkpy.spark.local_conf import available_cores
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import (
    TaskSlots,
    ask_for_slots,
    await_slots,
    copies_slow_tasks,
    slots_of_local_master,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobSlots", "required_slots"]


def required_slots(graph: JobGraph, cores: int | None = None, *, per_process: int = 1) -> dict[str, int]:
    """Returns how many slots each slot-sharing group needs: the highest parallelism of its operators, as in Flink.

    Operators that are chained run in one task, in the group of the first of them.

    Args:
        graph: The job, or a region of it.
        cores: The cores of a slot. A group whose tasks have more needs more of them. None: cores do not count.
        per_process: How many slots share a process, which then takes one slot of Spark. Those of a group that asks for
            resources have a process each. Default: 1.
    """
    slots: dict[str, int] = {}
    alone: set[str] = set()
    for vertex, head in _with_heads(graph):
        group = head.slot_sharing_group
        slots[group] = max(slots.get(group, 0), vertex.parallelism * _width(head, cores))
        if vertex.slot_resources is not None:
            alone.add(group)
    return {group: n if group in alone else math.ceil(n / per_process) for group, n in slots.items()}


def _with_heads(graph: JobGraph) -> list[tuple[JobVertex, JobVertex]]:
    """Returns the operators, each with the first operator of its chain."""
    chains = (chain for stage in range(graph.number_of_stages) for chain in chains_of(graph, stage))
    return [(vertex, chain[0]) for chain in chains for vertex in chain]


def _width(head: JobVertex, cores: int | None) -> int:
    """Returns how many slots of Spark a task takes."""
    resources = head.slot_resources
    if cores is None or resources is None or resources.cpu_cores is None:
        return 1
    return max(1, math.ceil(resources.cpu_cores / cores))


class JobSlots:
    """Knows how many slots there are, and says once if a job needs more."""

    def __init__(
        self, job_id: str, graph: JobGraph, settings: SparkSettings, progress: Callable[[str], object]
    ) -> None:
        self._job_id, self._graph, self._settings, self._progress = job_id, graph, settings, progress
        self.regions = graph.regions()
        """Its pipelined regions."""
        self.had: int | None = None
        """How many slots Spark has; None as long as it was not asked, or does not say."""
        self.copied = False
        """Whether Spark copies tasks because of their age."""
        self._said = ""
        self.most: int | None = None
        """How many slots Spark can have; None as long as it was not asked, or if there is no limit."""
        self._cores: int | None = None
        """The cores of a slot."""

    @property
    def needed(self) -> int:
        """How many slots the job needs to run all subtasks at once."""
        return sum(required_slots(self._graph, cores=self._cores).values())

    def needed_to_live(self, per_process: int = 1) -> int:
        """Returns how many slots of Spark live tasks need: those of different regions share none."""
        needed = (required_slots(region, cores=self._cores, per_process=per_process) for region in self.regions)
        return sum(slots for groups in needed for slots in groups.values())

    def slots_per_process(self, *, spare: int) -> int:
        """Returns how many slots of live tasks share a process.

        More processes than cores cost more than they do: each buffer between two of them takes CPU time. So a process
        has as many slots as there are per core, rounded down, because otherwise a core could be idle beside another one
        that has too much. It has more if Spark has too few slots for so many processes.
        """
        needed, largest = self.needed_to_live(), max(vertex.parallelism for vertex in self._graph.vertices)
        shared = max(1, needed // available_cores()) if self._settings.on_this_machine else 1
        if self.most is None:
            return shared
        room = self.most - spare
        fitting = (n for n in range(shared, largest + 1) if self.needed_to_live(n) <= room)
        return next(fitting, shared)

    def look(self, spark: SparkSession, *, wait: bool = False) -> None:
        """Asks Spark, at the start of an attempt, and before each epoch as long as tasks have to wait for slots.

        Args:
            spark: The session.
            wait: Whether to wait for the executors of a new cluster. Default: False.
        """
        if self.had is not None and self.had >= self.needed:
            return
        if (slots := slots_of_local_master(self._settings)) is None:
            needed = self.needed_to_live() if wait else 0
            slots = await_slots(lambda: ask_for_slots(spark), lambda _: needed)
            self.copied = copies_slow_tasks(spark)
        if slots is not None and slots.number:
            self.take_note(slots)

    def take_note(self, slots: TaskSlots) -> None:
        """Says so if the job needs more slots than there are.

        Raises:
            NoResourceAvailableError: No executor has as many cores as a slot-sharing group asks for.
        """
        self.had, self.most, self._cores = slots.number, slots.limit, slots.cores
        largest = max(slots.executors.values())
        wide = sorted({h.slot_sharing_group for _, h in _with_heads(self._graph) if _width(h, slots.cores) > largest})
        if wide:
            groups = " or ".join(f"slot-sharing group {name!r}" for name in wide)
            raise NoResourceAvailableError(
                f"no executor of Spark has as many cores as a task of {groups} needs: lower set_cpu_cores(), or raise "
                "spark.executor.cores",
                needed=self.needed,
                had=self.had,
            )
        said = f"job {self._job_id!r} needs {self.needed} slots, and Spark has {self.had}: its tasks take turns"
        if self.needed > self.had and said != self._said:
            self._said = said
            self._progress(said)

    def require_all(self, session: JobSession) -> None:
        """Checks that all subtasks of the job can run at once, as Flink requires it for streaming jobs.

        Raises:
            NoResourceAvailableError: There are fewer slots, or Spark does not say how many there are.
        """
        if (slots := slots_of_local_master(self._settings)) is None:
            session.begin(f"flinkpy-{self._job_id}-slots", f"the slots of job {self._job_id!r}")
            with session.open() as spark:
                slots = await_slots(
                    lambda: ask_for_slots(spark), lambda there: sum(required_slots(self._graph, there.cores).values())
                )
        needed = sum(required_slots(self._graph, None if slots is None else slots.cores).values())
        what = f"job {self._job_id!r} needs all of its {needed} slots at once (execution.require-all-slots)"
        if slots is None:
            raise NoResourceAvailableError(
                f"{what}, but Spark does not say how many it has: unset spark.default.parallelism and "
                "spark.sql.leafNodeDefaultParallelism",
                needed=needed,
            )
        if slots.limit is not None and slots.limit < needed:
            raise NoResourceAvailableError(
                f"{what}, and Spark has {slots.limit}: lower the parallelism, or give Spark more cores or executors",
                needed=needed,
                had=slots.limit,
            )
