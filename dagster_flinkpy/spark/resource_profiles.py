"""Tasks with cores and resources of their own, on a Spark cluster (Spark: ``TaskResourceProfile``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dagster_flinkpy.errors import NoResourceAvailableError
from dagster_flinkpy.spark.versions import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL_MASTER", "task_profile"]

LOCAL_MASTER = re.compile(r"local(\[[^-].*\])?")
"""Masters that run tasks in the process of the driver, unlike ``local-cluster[...]``."""


_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""The profiles of each session. Spark keeps each one that is created."""


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

    if LOCAL_MASTER.fullmatch(str(spark.conf.get("spark.master", None) or "")):
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
