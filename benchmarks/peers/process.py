"""Programs of other engines, which run in processes and environments of their own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagster_flinkpy.spark.java import find_java_home

__all__ = ["answers"]

_SAID = 40


def answers(python: Path, program: Path, order: dict[str, Any]) -> Iterator[Any]:
    """Runs a program with an order in JSON, and yields the JSON lists that it prints, a line each.

    Raises:
        RuntimeError: The program failed; the message has the last lines of its output.
    """
    environment: dict[str, Any] = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},  # of our own session
        "JAVA_HOME": str(find_java_home()),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",  # Flink and Spark look for `python` there
    }
    command = [str(python), str(program), json.dumps(order)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as running,
    ):
        assert running.stdout is not None
        try:
            for line in running.stdout:
                if line.startswith("["):
                    yield json.loads(line)
        except BaseException:
            running.kill()
            raise
        if running.wait():
            errors.seek(0)
            said = [line.rstrip() for line in errors if not line.startswith("\tat ")]
            raise RuntimeError("\n".join(said[-_SAID:]))
