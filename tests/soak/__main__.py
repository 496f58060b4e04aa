"""``python -m tests.soak --minutes 30`` runs one job for a while, and fails if anything grows."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.growth import Sample, growth
from tests.soak.job import samples

_SHOWN = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long (default: 30)")
    parser.add_argument("--live", action="store_true", help="tasks live; a fast source, and a slow task behind it")
    arguments = parser.parse_args()
    minutes = arguments.minutes
    taken: list[Sample] = []
    until = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        for sample in samples(Path(folder), lambda _: time.monotonic() >= until, live=arguments.live):
            taken.append(sample)
            if len(taken) % _SHOWN == 1:
                print(f"epoch {len(taken)}: {sample}", flush=True)
    found = growth(taken, jvm_memory=True)
    for role in ("driver", "workers"):
        held = [getattr(sample, role).memory_mb for sample in taken]
        print(
            f"{role}: {held[0]:.0f} MB after the first epoch, {held[-1]:.0f} MB after the last, {max(held):.0f} at most"
        )
    print(f"{len(taken)} epochs; " + ("; ".join(found) or "nothing has grown"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
