"""``typed.py FILE [CODE]`` runs a file and then code, as if typed after ``python -i FILE``. Jobs need no Spark."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType

from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import local_executor
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.runtime.harness import run_rows


def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
    return run_rows(job)


def main() -> None:
    file, *typed = sys.argv[1:]
    JobAttempt._on_spark = on_harness
    local_executor.start_server = lambda: None
    module = ModuleType("__main__")  # so that functions travel by value, as those of a script do
    sys.modules["__main__"] = module
    for name, code in [(file, Path(file).read_text()), *(("<typed>", each) for each in typed)]:
        exec(compile(code, name, "exec"), vars(module))


if __name__ == "__main__":
    main()
    # Threads of Arrow or delta-rs that still read ahead sometimes abort a process that ends.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)
