"""Types the blocks of a page: the steps come as JSON on standard input. Jobs need no Spark.

A step is ``["append", FILE, CODE]``, or ``["run", FILE, CODE...]``: a new process runs the file and then code, as if
typed after ``python -i FILE``. What each of these processes prints is a line of JSON. They are forked from this one,
which has imported what all of them need.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType

import pandas  # noqa: F401

import dagster_flinkpy.orchestration  # noqa: F401
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master import local_executor
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.runtime.harness import run_rows


def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
    return run_rows(job)


def run(file: str, typed: list[str]) -> None:
    """Runs a file and code in this process."""
    JobAttempt._on_spark = on_harness
    local_executor.start_server = lambda: None
    module = ModuleType("__main__")  # so that functions travel by value, as those of a script do
    sys.modules["__main__"] = module
    for name, code in [(file, Path(file).read_text()), *(("<typed>", each) for each in typed)]:
        exec(compile(code, name, "exec"), vars(module))


def run_forked(file: str, typed: list[str]) -> tuple[str, int]:
    """Runs a file and code in a new process. Returns what it printed, and its exit code."""
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            code = 1
            try:
                run(file, typed)
                code = 0
            except BaseException:
                traceback.print_exc()
            # Threads of Arrow or delta-rs that still read ahead sometimes abort a process that ends.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        printed.seek(0)
        return printed.read(), os.waitstatus_to_exitcode(status)


def main() -> None:
    for what, file, *code in json.load(sys.stdin):
        if what == "append":
            with Path(file).open("a") as target:
                target.write(code[0])
            continue
        printed, failed = run_forked(file, code)
        print(json.dumps(printed), flush=True)
        if failed:
            sys.exit(f"{file} ended with {failed}")


if __name__ == "__main__":
    main()
