"""Hundreds of millions of keys: their filling, updates at random, a start without local copies, a rescale.

Not among the benchmarks that run by default: 300 million keys take half an hour of two cores, and 20 GB of disk.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import growth
from benchmarks.report import line

KEYS, EPOCHS = 300_000_000, 15
UPDATES = 5_000_000
FEW = 1_000
MEMORY = 512 << 20
"""Bytes of anonymous memory that a task may use."""
MANAGED = 128 << 20
"""Bytes of it for state in memory (``taskmanager.memory.managed.size``)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this benchmark alone."""
    parser.add_argument("--keys", type=int, default=KEYS, help="large_state: how many keys there are")


def _shown(what: str, epoch: growth.Epoch) -> growth.Epoch:
    """Prints what an epoch has taken: all of them take half an hour."""
    print(
        f"{what}: {epoch.seconds:.1f} s, {epoch.cpu_seconds:.1f} CPU s, {epoch.worker_anonymous >> 20} MB anonymous,"
        f" {epoch.stored >> 20} MB stored, {epoch.local >> 20} MB local",
        file=sys.stderr,
        flush=True,
    )
    return epoch


def run(peers: tuple[str, ...] = (), *, keys: int = KEYS) -> list[dict[str, Any]]:
    """Returns the lines.

    Args:
        peers: Ignored.
        keys: How many keys there are. Default: 300 million.
    """
    part, random = keys // EPOCHS, np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="flinkpy-benchmark-") as name, growth.runner(Path(name)) as at:
        job = at.growing("sum", MANAGED)
        new = [_shown("new keys", job.run(part * i + np.arange(part))) for i in range(EPOCHS)]
        updates = [_shown("updates", job.run(random.integers(0, keys, UPDATES))) for _ in range(3)]
        warm = _shown("a record", job.run(np.arange(1)))
        shutil.rmtree(job.cache)
        first = _shown("a record, without copies", job.run(np.arange(1)))
        shutil.rmtree(job.cache)
        cold = _shown("few records, without copies", job.run(random.integers(0, keys, FEW)))
        shutil.rmtree(job.cache)
        rescaled = _shown("rescale", job.run(random.integers(0, keys, FEW), growth.PARALLELISM + 1))
        job.close()
    settings = {
        "keys": keys,
        "managed_memory": MANAGED,
        "parallelism": growth.PARALLELISM,
        "worker_anonymous_mb": [each.worker_anonymous >> 20 for each in (*new, *updates, rescaled)],
        "seconds": [round(each.seconds, 1) for each in (*new, *updates)],
        "stored_mb": updates[-1].stored >> 20,
        "local_mb": updates[-1].local >> 20,
    }
    most = max(each.worker_anonymous for each in (*new, *updates, rescaled))
    found = [
        ("new_keys", keys / sum(each.cpu_seconds for each in new), "keys/CPU s", ""),
        ("updates", 3 * UPDATES / sum(each.cpu_seconds for each in updates), "updates/CPU s", ">= 100000"),
        ("worker_anonymous", most / MEMORY, "ratio of bytes to 512 MB", "<= 1"),
        ("run_of_a_record", warm.seconds, "s", ""),
        ("without_copies_run_of_a_record", first.seconds, "s", "<= 10"),
        ("without_copies_run_of_1000_records", cold.seconds, "s", ""),
        ("rescale_without_copies_run_of_1000_records", rescaled.seconds, "s", ""),
        ("rescale_read", rescaled.read / cold.read, "ratio of bytes to those without a rescale", "<= 1.05"),
    ]
    return [line(f"large_state.{n}", value, unit, bar=bar, settings=settings) for n, value, unit, bar in found]
