"""The cores that a process may use, as Java counts them: its affinity and the quota of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["available_cores"]

_CGROUPS = Path("/sys/fs/cgroup")


def available_cores(cgroups: Path = _CGROUPS) -> int:
    """Returns how many cores this process may use; at least 1.

    Args:
        cgroups: Where the kernel shows the quota of the container, if there is one. Default: ``/sys/fs/cgroup``.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = _quota(cgroups)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """Returns the cores that the container may keep busy; None for no limit."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # cgroups 2 and 1
        try:
            quota, period = " ".join((cgroups / file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        return float(quota) / float(period) if quota not in ("max", "-1") else None
    return None
