"""Runs the programs of halves.py in Flink, for the tests: ``make flink-fixtures``; see the README beside the fixtures.

It runs with the Python of an environment with PyFlink, imports nothing from dagster_flinkpy, and starts jobs in Flink's
mini cluster, one at a time. Of each program it writes ``first.txt`` (what it wrote of the first half), the savepoint
that it took then, and ``straight.txt`` (what it writes of both halves in one run). Of the program of the page on moving
a job it writes what the job and a straight run have written to their files, too.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import halves
from pyflink.common import Configuration
from pyflink.java_gateway import get_gateway

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "flink-halves"
MOVED = FIXTURES.parent / "flink-moved"
PAGE = FIXTURES.parents[2] / "docs" / "how-to" / "migrate-flink.md"
QUIET = 10.0
"""Seconds without output after which a job has nothing more to write."""
LONGEST = 120.0
"""Seconds after which a job that writes nothing is taken for dead."""


def run(name, folder, savepoint_to=None, restore_from=None):
    """Runs a program on the files that are there until it writes nothing more, and returns what it wrote."""
    out = folder / "out"
    out.write_text("")
    config = Configuration()
    config.set_string("state.backend.type", "hashmap")
    config.set_string("parallelism.default", "1")
    if name.endswith("-thread"):
        config.set_string("python.execution-mode", "thread")
    if restore_from is not None:
        config.set_string("execution.state-recovery.path", str(restore_from))
    client = halves.build(name, folder, config).execute_async(name)
    began = changed = time.monotonic()
    size = 0
    while time.monotonic() - changed < (QUIET if size else LONGEST):
        time.sleep(0.2)
        if (now := out.stat().st_size) != size:
            size, changed = now, time.monotonic()
        if str(client.get_job_status().result()) in ("JobStatus.FAILED", "JobStatus.CANCELED"):
            break
    if savepoint_to is None:
        client.cancel().result()
    else:
        stop(client, folder, savepoint_to, "NATIVE" if name.endswith("-native") else "CANONICAL")
    print(f"{name}: {len(out.read_text().splitlines())} lines in {time.monotonic() - began:.1f} s", flush=True)
    return sorted(out.read_text().splitlines(keepends=True))


def stop(client, folder, savepoint_to, form="CANONICAL"):
    """Stops a job with a savepoint."""
    forms = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
    url = client._j_job_client.stopWithSavepoint(False, str(folder / "savepoints"), forms.valueOf(form)).get()
    shutil.rmtree(savepoint_to, ignore_errors=True)
    shutil.copytree(url.removeprefix("file:"), savepoint_to)


def write_half(folder, *which):
    (folder / "in").mkdir(exist_ok=True)
    lines = [line for half in which for line in halves.lines_of(half)]
    (folder / "in" / f"{which[-1]}.csv").write_text("".join(f"{line}\n" for line in lines))


def make(name):
    """Makes the fixture of a program."""
    target = FIXTURES / name
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        first, straight = Path(scratch) / "first", Path(scratch) / "straight"
        first.mkdir(), straight.mkdir()
        write_half(first, 0)
        (target / "first.txt").write_text("".join(run(name, first, savepoint_to=target / "savepoint")))
        write_half(straight, 0, 1)
        (target / "straight.txt").write_text("".join(run(name, straight)))


def move():
    """Makes the fixture of the page: its job is stopped when some of its files are finished, and another one is not."""
    code = PAGE.read_text().partition('```python title="shop.py"\n')[2].partition("```")[0]
    program = {"__name__": "__main__"}  # so that functions travel by value
    exec(compile(code.replace("dagster_flinkpy", "pyflink"), "shop.py", "exec"), program)
    for target, is_stopped in (("totals", True), ("straight", False)):
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            config = Configuration()
            config.set_string("execution.checkpointing.interval", "1 s")
            if is_stopped:
                config.set_string("python.fn-execution.bundle.size", "1")  # or it ends before it is stopped
            env = program["orders"]()
            env.configure(config)
            client = env.execute_async("orders")
            if is_stopped:
                while sum(len(path.read_text().splitlines()) for path in Path().glob("totals/*/part-*")) < 30:
                    time.sleep(0.1)
                stop(client, Path(scratch), MOVED / "savepoint")
            else:
                client.get_job_execution_result().result()
            shutil.copytree("totals", MOVED / target, dirs_exist_ok=True)
            os.chdir("/")


def resume(name, folder):
    """Runs the second half of a program on the savepoint that was exported to ``folder/flink``, and keeps both."""
    target = FIXTURES / name
    exported = {path.name: path.read_bytes() for path in (folder / "flink").glob("*-*")}
    write_half(folder, 1)
    (target / "resumed.txt").write_text("".join(run(name, folder, restore_from=folder / "flink")))
    (target / "exported").mkdir(exist_ok=True)
    for path, data in exported.items():
        (target / "exported" / path).write_bytes(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resume", type=Path, help="folder in which the first half of the one program ran elsewhere")
    parser.add_argument("names", nargs="*", help="programs to run; by default those without a fixture")
    arguments = parser.parse_args()
    names = arguments.names
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # Flink looks for `python`
    if arguments.resume is not None:
        resume(names[0], arguments.resume)
        return
    for name in names or [each for each in halves.PROGRAMS if not (FIXTURES / each).exists()]:
        make(name)
    if not MOVED.exists():
        move()


if __name__ == "__main__":
    main()
