"""What the processes of a job hold, and whether it grows."""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Held", "Sample", "growth", "hold"]

_MB = 1 << 20


@dataclass(frozen=True)
class Held:
    """What processes hold together."""

    memory_mb: float = 0
    """Resident memory."""
    threads: int = 0
    descriptors: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(
            self.memory_mb + other.memory_mb, self.threads + other.threads, self.descriptors + other.descriptors
        )


@dataclass(frozen=True)
class Sample:
    """What is held after an epoch."""

    driver: Held
    jvm: Held
    workers: Held
    """Spark's Python daemon and workers."""
    files: Mapping[str, int]
    """Files of checkpoints, in the cache and in Spark's scratch folder, by kind; see `files_below`."""


_ALLOWED = Held(memory_mb=32, threads=4, descriptors=12)
_ALLOWED_SHARE = 0.1
"""Memory may grow by this share, if that is more: an allocator returns it late, and Java's heap grows to its limit."""
_ALLOWED_FILES = 8
"""Of one kind. What others are about to delete does not count: the fewest in a part of the samples are compared. Spark
deletes the files of a shuffle when Java next collects garbage."""
_DIFFERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]+|[0-9a-f]{16,}|\b[0-9a-f]{2}$|\d+")
_POOLS = ("block-manager-", "Worker Monitor")
"""Threads of Spark that come and go with the number of tasks: two pools of up to 128 threads each, which give them back
after a minute without work, and one thread per Python task, which ends up to two seconds after it."""


def hold(process: psutil.Process) -> Held:
    """Returns what a process holds; nothing if it has ended."""
    with suppress(psutil.NoSuchProcess), process.oneshot():
        return Held(process.memory_info().rss / _MB, _threads(process.pid), process.num_fds())
    return Held()


def _threads(pid: int) -> int:
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found += not (task / "comm").read_text().startswith(_POOLS)
    return found


def files_below(**folders: Path) -> Counter[str]:
    """Counts files by kind, while others delete some: their paths, with N for what differs between epochs."""
    return Counter(
        "/".join([name, *(_DIFFERS.sub("N", part) for part in (*Path(folder).relative_to(top).parts, file))])
        for name, top in folders.items()
        for folder, _, files in os.walk(top)
        for file in files
    )


def growth(samples: Sequence[Sample], *, jvm_memory: bool) -> list[str]:
    """Says what is more at the end than in the middle; before that, caches fill and processes warm up.

    Args:
        samples: One per epoch.
        jvm_memory: Whether Java's memory counts, too. It grows for minutes: Java takes its heap step by step.
    """
    middle, end = samples[len(samples) // 3 : 2 * len(samples) // 3], samples[-len(samples) // 3 :]

    def compared(what: str, values: list[list[float]], allowed: float) -> list[str]:
        before, after = map(statistics.median, values)
        return [f"{what}: {before:.0f} -> {after:.0f}"] if after > before + allowed else []

    found = []
    for kind in sorted({kind for sample in end for kind in sample.files}):
        before, after = (min(sample.files.get(kind, 0) for sample in part) for part in (middle, end))
        found += [f"files {kind}: {before} -> {after}"] if after > before + _ALLOWED_FILES else []
    for role in ("driver", "jvm", "workers"):
        for name in ("memory_mb", "threads", "descriptors"):
            if (role, name) == ("jvm", "memory_mb") and not jvm_memory:
                continue
            values = [[getattr(getattr(s, role), name) for s in part] for part in (middle, end)]
            allowed = getattr(_ALLOWED, name)
            if name == "memory_mb":
                allowed = max(allowed, _ALLOWED_SHARE * statistics.median(values[0]))
            found += compared(f"{role} {name}", values, allowed)
    return found
