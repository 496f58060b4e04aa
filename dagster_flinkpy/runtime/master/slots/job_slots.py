"""The task slots of a job: asked from Spark, compared with what the job needs, and shared by its regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.runtime.master.job_session import JobSession
from dagster_flinkpy.runtime.master.slots.slot_plan import RegionSlots, SlotPlan, plan_slots, required_slots
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.task_slots import TaskSlots, ask_for_slots, await_slots, slots_of_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobSlots", "require_all_slots"]


class JobSlots:
    """Knows how many slots there are, says once if a job needs more, and tells which regions run side by side.

    Args:
        job_id: The job.
        graph: The job's graph, with the parallelism that it runs with.
        regions: Its pipelined regions.
        settings: Which Spark runs it.
        progress: Takes one-line progress messages.
    """

    def __init__(
        self,
        job_id: str,
        graph: JobGraph,
        regions: Sequence[JobGraph],
        settings: SparkSettings,
        progress: Callable[[str], object],
    ) -> None:
        self._job_id, self._graph, self._settings, self._progress = job_id, graph, settings, progress
        self.regions = tuple(regions)
        """Its pipelined regions."""
        self._region_slots: RegionSlots | None = None
        self._said = ""
        self.plan: SlotPlan | None = None
        """Where the subtasks run; None as long as Spark was not asked, or does not say."""
        self._cores: int | None = None
        """The cores of a slot."""

    @property
    def needed_to_live(self) -> int:
        """How many slots live tasks need: those of different regions share none."""
        return sum(slots for region in self.regions for slots in required_slots(region, cores=self._cores).values())

    def open(self, session: JobSession) -> None:
        """Asks Spark for the slots that the regions share, unless all regions share the same ones anyway."""
        if len(self.regions) == 1 or len(required_slots(self._graph)) == 1:
            return
        slots = slots_of_local_master(self._settings) or _ask(self._job_id, session)
        if slots is not None and slots.number:
            self.take_note(slots)
            self._region_slots = RegionSlots(self.regions, slots.executors, cores=slots.cores)

    def look(self, spark: SparkSession) -> None:
        """Asks Spark, at the start of an attempt, and before each epoch as long as tasks have to wait for slots."""
        if self.plan is not None and len(self.plan.waves) == 1:
            return
        slots = slots_of_local_master(self._settings) or ask_for_slots(spark)
        if slots is not None and slots.number:
            self.take_note(slots)

    def take_note(self, slots: TaskSlots) -> None:
        """Plans with the slots that there are, and says so if the job needs more.

        Args:
            slots: The slots; at least one in all.

        Raises:
            NoResourceAvailableError: No executor has as many cores as a slot-sharing group asks for.
        """
        self.plan, self._cores = plan_slots(self._graph, slots.executors, cores=slots.cores), slots.cores
        description = self.plan.description
        if len(self.plan.waves) > 1 and description != self._said:
            self._said = description
            self._progress(f"job {self._job_id!r} {description}")

    def acquire(self, region: int) -> bool:
        """Takes the slots of a region that is to run. Returns False if it has to wait for another one to end."""
        return self._region_slots is None or self._region_slots.acquire(region)

    def release(self, region: int) -> None:
        """Gives back the slots of a region that has ended."""
        if self._region_slots is not None:
            self._region_slots.release(region)


def require_all_slots(job_id: str, graph: JobGraph, settings: SparkSettings, session: JobSession) -> None:
    """Checks that all subtasks of a job can run at once, as Flink requires it for streaming jobs.

    Args:
        job_id: The job.
        graph: The job's graph, with the parallelism that it runs with.
        settings: Which Spark runs it.
        session: The session of the attempt.

    Raises:
        NoResourceAvailableError: There are fewer slots, or Spark does not say how many there are.
    """
    slots = slots_of_local_master(settings)
    if slots is None:
        slots = _ask(job_id, session, graph)
    needed = sum(required_slots(graph, cores=None if slots is None else slots.cores).values())
    what = f"job {job_id!r} needs all of its {needed} slots at once (execution.require-all-slots)"
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


def _ask(job_id: str, session: JobSession, graph: JobGraph | None = None) -> TaskSlots | None:
    session.begin(f"flinkpy-{job_id}-slots", f"the slots of job {job_id!r}")

    def enough(slots: TaskSlots) -> int:
        return 0 if graph is None else sum(required_slots(graph, cores=slots.cores).values())

    with session.open() as spark:
        return await_slots(lambda: ask_for_slots(spark), enough)
