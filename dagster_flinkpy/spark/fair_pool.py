"""Makes Spark's default pool fair. In FIFO mode, the tasks of a job wait for all tasks of earlier jobs."""

from __future__ import annotations

from pathlib import Path

__all__ = ["fair_pool_conf"]

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
