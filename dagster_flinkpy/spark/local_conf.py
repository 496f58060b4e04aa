"""How a local Spark runs: on the cores that Java counts, with more slots than cores, and jobs that take turns."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

__all__ = ["available_cores", "fair_pool_conf", "local_master"]

_CGROUPS = Path("/sys/fs/cgroup")
_LOCAL_MASTER = re.compile(r"local(?:\[(\*|\d+)(?:,(\d+))?\])?")
_SLOTS_PER_CORE = 4
"""Spark does not interrupt a task. With a slot per core, a run with a long task on each would make all others wait."""
_TASK_TRIES = 4
"""Spark's default of ``spark.task.maxFailures``, which has no effect on a local master."""
_ALLOCATIONS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""
"""Makes Spark's default pool fair. In FIFO mode, the tasks of a job wait for all tasks of earlier jobs."""


def available_cores(cgroups: Path = _CGROUPS) -> int:
    """Returns how many cores this process may use; at least 1.

    Args:
        cgroups: Where the kernel shows the quota of the container, if there is one. Default: ``/sys/fs/cgroup``.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = _quota(cgroups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def local_master(master: str, *, shared: bool) -> str:
    """Returns a master with which a local Spark runs a failed task again, as a cluster does. By default it gives up.

    Args:
        master: The master of the settings.
        shared: Whether runs share the Spark. Then there are more slots than cores, unless the master says how many.
    """
    found = _LOCAL_MASTER.fullmatch(master)
    if found is None:
        return master
    slots = found[1] or "1"
    if shared and slots == "*":
        slots = str(available_cores() * _SLOTS_PER_CORE)
    return f"local[{slots},{found[2] or _TASK_TRIES}]"


def _quota(cgroups: Path) -> float | None:
    """Returns the cores that the container may keep busy; None for no limit."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroups 2 and 1
        try:
            quota, period = " ".join((cgroups / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        return float(quota) / float(period) if quota not in ("max", "-1") else None
    return None


def fair_pool_conf(folder: Path) -> dict[str, str]:
    """Returns the configuration of a Spark whose jobs take turns, task by task.

    All jobs use the default pool: clients of a Spark Connect server cannot select another.

    Args:
        folder: The folder for a file that Spark reads when it starts.
    """
    allocations = folder / "allocations.xml"
    allocations.write_text(_ALLOCATIONS)
    # Hadoop takes the path of a URL as it is: %20 is no space.
    return {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": f"file://{allocations.absolute()}"}
