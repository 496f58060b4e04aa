"""The logs of local Spark servers, one file for each server. The newest ones are kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ServerLog", "new_log"]

_KEPT = 10
_QUOTED_LINES = 20
_LINE_CHARACTERS = 300
_TAIL_BYTES = 256 << 10
_FRAME = re.compile(r"\s+(at \S|\.\.\. \d+ (more|common frames))")
_NO_MEMORY = re.compile(r"OutOfMemoryError|OutOfMemoryException|OutOfDirectMemoryError")  # of Java, Arrow and Netty
_NO_USER = re.compile(r"basedir must be absolute: \?|Invalid UID|invalid null input: name")  # of Ivy and Hadoop


def new_log(state_path: Path) -> Path:
    """Creates an empty log beside the state file of a server that is about to start, and deletes old logs.

    Ten logs are kept, and those of servers that have a state file.

    Args:
        state_path: The state file of the server.
    """
    made = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = state_path.with_name(f"{state_path.stem}.{made}-{os.getpid()}.log")
    _delete_old(state_path.parent)
    path.touch(mode=0o600)
    return path


def _delete_old(folder: Path) -> None:
    in_use = set[str]()
    for state_path in folder.glob("spark-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            in_use.add(json.loads(state_path.read_text())["log"])
    aged = list[tuple[float, Path]]()
    for path in folder.glob("spark-*.log"):
        with contextlib.suppress(FileNotFoundError):  # another process may have deleted it
            aged.append((path.stat().st_mtime, path))
    for _, path in sorted(aged, reverse=True)[_KEPT - 1 :]:
        if str(path) not in in_use:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ServerLog:
    """The log of a server from a position on. What earlier jobs have logged is not shown."""

    path: Path
    start: int = 0
    """The position, in bytes."""

    @classmethod
    def from_now_on(cls, path: Path) -> ServerLog:
        """Returns the log without its current content."""
        try:
            return cls(path, path.stat().st_size)
        except OSError:
            return cls(path)

    def quote(self) -> str:
        """Returns a sentence for an error message that names the log, and then its last lines if there are any.

        The frames of Java's stack traces are left out. If memory was exhausted, or the user has no name, it says what
        to do.
        """
        lines = self._last_lines()
        if not lines:
            return f"Spark's log is {self.path}"
        advice = ""
        if any(_NO_MEMORY.search(line) for line in lines):
            advice = (
                "Spark's JVM ran out of memory: give it more, for example with "
                'SparkResource(conf={"spark.driver.memory": "4g"}). '
            )
        if any(_NO_USER.search(line) for line in lines):
            advice = (
                f"Spark needs a user with a name, and uid {os.getuid()} has none: add it to /etc/passwd, for example "
                'where a container starts: echo "spark:x:$(id -u):0::/tmp:/bin/false" >> /etc/passwd. '
            )
        quoted = "\n".join(f"  {line}" for line in lines)
        return f"{advice}The end of Spark's log {self.path}:\n{quoted}"

    def _last_lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self.start, end - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return []
        told = (line.rstrip() for line in text.splitlines())
        last = deque((line for line in told if line and not _FRAME.match(line)), maxlen=_QUOTED_LINES)
        return [line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}..." for line in last]
