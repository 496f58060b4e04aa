"""Asks a cluster how many tasks it runs at once, and makes profiles of tasks with cores and resources of their own.

Spark Connect has no ``SparkContext`` that could tell the slots.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.spark.sessions import SparkSettings
from dagster_flinkpy.spark.versions import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "TaskSlots",
    "ask_for_slots",
    "await_slots",
    "copies_slow_tasks",
    "slots_of_local_master",
    "task_profile",
]

_LOCAL = re.compile(r"local(?:\[(\d+)(?:,\d+)?\])?")
_SPLITS = re.compile(r"splits=(?:Some\()?(\d+)")
_REGISTRATION_SECONDS = 30
"""Spark itself waits this long for executors (``spark.scheduler.maxRegisteredResourcesWaitingTime``)."""
_AGAIN_SECONDS = 0.5
_LOCAL_MASTER = re.compile(r"local(\[[^-].*\])?")
"""Masters that run tasks in the process of the driver, unlike ``local-cluster[...]``."""
_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""The profiles of each session. Spark keeps each one that is created."""


@dataclass(frozen=True)
class TaskSlots:
    """The task slots of a cluster."""

    executors: Mapping[str, int]
    """How many tasks each executor runs at once. One has all slots if Spark does not say how many there are."""
    limit: int | None
    """How many slots there can be: more than now if Spark adds executors as tasks wait (dynamic allocation). None for
    no limit."""
    cores: int | None = None
    """The cores of a slot, if tasks may have more of them than others; None in local mode."""

    @property
    def number(self) -> int:
        """How many slots there are."""
        return sum(self.executors.values())


def slots_of_local_master(settings: SparkSettings) -> TaskSlots | None:
    """Returns the slots of ``local`` or ``local[4]``, without asking; None for another master."""
    found = _LOCAL.fullmatch(settings.master) if settings.mode != "remote" else None
    if found is None or "spark.task.cpus" in settings.conf:
        return None
    number = int(found[1] or 1)
    return TaskSlots({"driver": number}, number)


def ask_for_slots(spark: SparkSession) -> TaskSlots | None:
    """Asks Spark for its task slots. No task is run.

    Spark divides a range into as many parts as it has cores, and shows the number in the query plan. On a cluster it is
    at least 2.

    Returns:
        The slots, or None if the session overrides the number of parts.
    """
    conf = spark.conf
    if any(conf.get(key, None) for key in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")):
        return None
    splits = _SPLITS.search(str(spark.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]))
    if splits is None:
        return None
    cpus = int(conf.get("spark.task.cpus", None) or 1)
    number = int(splits[1]) // cpus
    master = str(conf.get("spark.master", None) or "")
    if _LOCAL_MASTER.fullmatch(master):
        return TaskSlots({"driver": number}, number)
    cores, per_executor = conf.get("spark.executor.cores", None), number
    if cores:  # those that are left of each executor run no task
        per_executor = int(cores) // cpus
        full, rest = divmod(int(splits[1]), int(cores))
        number = full * per_executor + rest // cpus
    limit: int | None = number
    if str(conf.get("spark.dynamicAllocation.enabled", None)).lower() == "true":
        most = conf.get("spark.dynamicAllocation.maxExecutors", None)
        limit = max(number, int(most) * (int(cores or 1) // cpus)) if most else None
    return TaskSlots(_executors(number, per_executor), limit, cpus)


def copies_slow_tasks(spark: SparkSession) -> bool:
    """Asks whether Spark copies a task to another machine because of its age, and ends it when the copy has ended.

    Without a threshold it only copies tasks of which most others of their stage have ended.
    """
    on = str(spark.conf.get("spark.speculation", None)).lower() == "true"
    return on and bool(spark.conf.get("spark.speculation.task.duration.threshold", None))


def _executors(number: int, per_executor: int) -> dict[str, int]:
    if not 0 < per_executor < number:
        return {"cluster": number}
    full, rest = divmod(number, per_executor)
    sizes = [per_executor] * full + ([rest] if rest else [])
    return {str(i + 1): size for i, size in enumerate(sizes)}


def await_slots(
    ask: Callable[[], TaskSlots | None],
    needed: Callable[[TaskSlots], int],
    *,
    seconds: float = _REGISTRATION_SECONDS,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> TaskSlots | None:
    """Asks until there can be enough slots, because the executors of a new cluster register one by one.

    Args:
        ask: Returns the slots that there are.
        needed: Returns how many such slots are needed.
        seconds: How long to go on asking.
        wait: Waits a number of seconds.
        clock: Returns monotonic time in seconds.

    Returns:
        The last answer.
    """
    deadline = clock() + seconds
    while True:
        slots = ask()
        enough = slots is None or slots.limit is None or slots.limit >= needed(slots) or "driver" in slots.executors
        if enough or clock() >= deadline:
            return slots
        wait(_AGAIN_SECONDS)


@dataclass(frozen=True)
class _Profile:
    """What ``mapInArrow`` takes as the profile of its tasks."""

    id: int


def task_profile(spark: SparkSession, cores: int, resources: Mapping[str, float]) -> Any:
    """Returns the profile of tasks with cores and resources of their own, for ``mapInArrow``.

    Args:
        spark: The session.
        cores: The cores of each task.
        resources: How much each task has of each other resource of the executors.

    Returns:
        The profile; None if Spark runs in local mode, which has no profiles.

    Raises:
        NoResourceAvailableError: No executor has as much.
    """
    from pyspark.errors import PySparkException
    from pyspark.resource import TaskResourceRequests

    if _LOCAL_MASTER.fullmatch(str(spark.conf.get("spark.master", None) or "")):
        return None
    wanted = TaskResourceRequests().cpus(cores)
    for name, amount in resources.items():
        wanted.resource(name, amount)
    made = _made.setdefault(spark, {})
    key = cores, tuple(sorted(resources.items()))
    try:
        if key not in made:
            made[key] = _created(spark, wanted)
        return made[key]
    except PySparkException as error:
        having = "".join(f", {amount:g} of {name!r}" for name, amount in resources.items())
        raise NoResourceAvailableError(
            f"Spark has no executors for tasks with {cores} cores{having}: {str(error).splitlines()[0]}"
        ) from error


def _created(spark: SparkSession, wanted: Any) -> Any:
    if is_classic(spark):
        from pyspark.resource import ResourceProfileBuilder

        return ResourceProfileBuilder().require(wanted).build
    from pyspark.sql.connect.proto import ResourceProfile, TaskResourceRequest

    # ResourceProfile of PySpark does the same on the active session of this thread, but only the first thread has one.
    requests = {n: TaskResourceRequest(resource_name=n, amount=r.amount) for n, r in wanted.requests.items()}
    return _Profile(spark.client._create_profile(ResourceProfile(executor_resources={}, task_resources=requests)))
