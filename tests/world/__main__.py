"""Plays one case, every act at every moment, or writes the table of the documentation.

```
python -m tests.world case SYSTEM "ACT @ MOMENT ROUND" ...
python -m tests.world grid [SYSTEM ...]
python -m tests.world table
```
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dagster_flinkpy.storage import StorageLocation
from tests import servers
from tests.world.play import Case, Deed, Promise
from tests.world.stage import Place
from tests.world.table import PAGE, replaced
from tests.world.worlds import SYSTEMS, run


@contextmanager
def _place(systems: list[str]) -> Iterator[Place]:
    needs = {SYSTEMS[name].needs for name in systems}
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory)))
        postgres = stack.enter_context(servers.postgres()) if "postgres" in needs else ""
        s3 = stack.enter_context(servers.ministack(folder)) if "s3" in needs else None
        yield Place(folder, postgres, s3 and StorageLocation("s3://world", s3, "us-east-1", "test", "test"))


def main() -> int:
    """Does what the command line says, and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.world")
    commands = parser.add_subparsers(dest="command", required=True)
    case = commands.add_parser("case")
    case.add_argument("system", choices=SYSTEMS)
    case.add_argument("deeds", nargs="*")
    case.add_argument("--run-ends", type=int, default=2)
    grid = commands.add_parser("grid")
    grid.add_argument("systems", nargs="*")
    grid.add_argument("--round", type=int, default=2)
    grid.add_argument("--moment", action="append")
    commands.add_parser("table")
    options = parser.parse_args()
    if options.command == "table":
        PAGE.write_text(replaced(PAGE.read_text()))
        return 0
    if options.command == "case":
        with _place([options.system]) as place:
            for stands, error in run(
                Case(options.system, tuple(map(Deed.parse, options.deeds)), options.run_ends), place
            ):
                print(f"{stands}: {type(error).__name__}: {error}")
        print("the promise was kept")
        return 0
    broken = 0
    names = options.systems or list(SYSTEMS)
    with _place(names) as place:
        for name in names:
            for act in SYSTEMS[name].acts:
                for moment in options.moment or act.at:
                    began = time.monotonic()
                    try:
                        errors = run(Case(name, (Deed(act.name, moment, options.round),)), place)
                        result = ", ".join(type(error).__name__ for _, error in errors) or "rows right"
                    except Promise as error:
                        broken += 1
                        result = f"BROKEN {error}"
                    print(f"{time.monotonic() - began:5.2f} {name}: {act.name} @ {moment}: {result}", flush=True)
    return broken > 0


if __name__ == "__main__":
    sys.exit(main())
