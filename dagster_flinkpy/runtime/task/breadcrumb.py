"""Records what a Python worker is doing, so that the driver can tell what a dead worker was doing.

A process that calls ``os._exit``, crashes in native code or is killed because memory is exhausted reports nothing.
Spark gives each worker a file for `faulthandler`, and includes its content in the error of the Spark task. So the uid
of the running operator is written to that file, before any output of `faulthandler`.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
from functools import lru_cache
from typing import NoReturn

__all__ = ["Breadcrumb", "end_forked_process", "read_breadcrumb"]

_DIRECTORY_VARIABLE = "PYTHON_FAULTHANDLER_DIR"
_LENGTH = 512
_UID_CHARACTERS = 100
_LEFT = re.compile(r"\[at work: subtask (\d+) of operator '([^\n]*)'\]")


class Breadcrumb:
    """The note of one worker; has no effect if Spark has given the worker no file."""

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask
        self._note = _note_of(os.getpid())

    def leave(self, uid: str) -> None:
        """Records the running operator; takes less than a microsecond and no system call."""
        if self._note is not None:
            line = f"[at work: subtask {self._subtask} of operator '{uid[:_UID_CHARACTERS]}']".encode()
            self._note[:] = line.ljust(_LENGTH - 1) + b"\n"

    def clear(self) -> None:
        """Records that no operator is running; the worker is kept for the next task."""
        if self._note is not None:
            self._note[:] = b" " * (_LENGTH - 1) + b"\n"


@lru_cache(maxsize=1)
def _note_of(pid: int) -> mmap.mmap | None:
    directory = os.environ.get(_DIRECTORY_VARIABLE)
    if not directory or not os.path.exists(path := os.path.join(directory, str(pid))):
        return None
    # The mapping is the beginning of the file; faulthandler's handle appends to it.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    os.write(descriptor, b" " * (_LENGTH - 1) + b"\n")
    faulthandler.enable(file=descriptor)  # it needs the open descriptor until the process ends
    return mmap.mmap(descriptor, _LENGTH)


def end_forked_process(uid: str, error: BaseException | None = None) -> NoReturn:
    """Ends a child process that a user function forked, when the function returns in the child.

    Otherwise the child would continue as a second worker: it would read the same input, write the same files, and
    answer Spark on the same socket, even in later tasks.

    Args:
        uid: Uid of the function's operator.
        error: The exception that the function raised, or None if it returned. The exit code of `SystemExit` is kept.
    """
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, SystemExit):
        os._exit(cause.code & 0xFF if isinstance(cause.code, int) else int(cause.code is not None))
    said = f"a function of operator {uid!r} forked its process; the child {os.getpid()} ends with the function"
    os.write(2, f"dagster-flinkpy: {said}\n".encode())
    os._exit(1)


def read_breadcrumb(error: str) -> tuple[str, int] | None:
    """Returns the operator and subtask that a dead worker was running, from the text of Spark's error, or None."""
    found = _LEFT.search(error)
    return (found[2], int(found[1])) if found else None
