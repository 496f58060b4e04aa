"""Runs the programs of this folder under PyFlink and stores their output; see README.md.

Run it with the Python of the PyFlink environment: ``/path/to/venv/bin/python tests/pyflink/generate.py [NAME ...]``. It
imports nothing from dagster_flinkpy.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected"


SUBTASK = re.compile(r"^\d+> ")
NOISE = ("No module named google", "PYFLINK_CYTHON_ENABLED", "Using Any for unsupported type", "Starting a local Spark")
"""Lines that PyFlink logs to standard output."""


def programs() -> dict[str, Path]:
    """Returns the programs by name."""
    return {file.stem: file for file in sorted((HERE / "programs").glob("*.py"))}


def printed(text: str) -> str:
    """Returns the text to compare: lines without subtask numbers, sorted because Flink's subtasks print in parallel."""
    lines = (SUBTASK.sub("", line) for line in text.splitlines() if line.strip() and not line.startswith(NOISE))
    return "".join(f"{line}\n" for line in sorted(lines))


def run(program: Path) -> str:
    """Returns the output of a program.

    Raises:
        RuntimeError: The program failed; the message has the last lines of its output.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # Flink looks for `python` there
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        causes = [line for line in done.stderr.splitlines() if not line.startswith("\tat ")]
        raise RuntimeError("\n".join(causes[-60:]))
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs to run; by default those without an expected output")
    names = parser.parse_args().names
    EXPECTED.mkdir(exist_ok=True)
    for name, path in programs().items():
        expected = EXPECTED / f"{name}.txt"
        if name in names or (not names and not expected.exists()):
            print(name, flush=True)
            try:
                expected.write_text(printed(run(path)))
            except RuntimeError as error:
                print(f"{name} failed: {error}", flush=True)


if __name__ == "__main__":
    main()
