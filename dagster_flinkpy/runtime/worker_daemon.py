"""Spark's Python daemon, which imports what every task needs before it forks: ``spark.python.daemon.module``.

Spark ends Python workers that are idle for a minute. By default, each new one imports PyArrow, pandas and this library,
which takes a second of CPU time. Here it is done once, and a new worker is ready after the fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os

__all__ = ["main"]

_MODULES = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "dagster_flinkpy.runtime.master.deployments.region_job",
    "dagster_flinkpy.runtime.slot.task_executor",  # Arrow Flight may be imported before a fork, but not used
)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""


def main() -> None:
    """Runs until Spark closes standard input."""
    from pyspark import daemon

    _keep_freed_memory()
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a worker's collections do not touch, and copy, the memory that it shares with the daemon
    daemon.manager()


def _keep_freed_memory() -> None:
    """Lets workers use what numpy and Arrow have freed again: a new page costs as much as what is computed in it."""
    os.environ.setdefault("MIMALLOC_PURGE_DECOMMITS", "0")  # Arrow's stays until the system needs it
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(_TRIM_THRESHOLD, 64 << 20)
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that is possible


if __name__ == "__main__":
    main()
