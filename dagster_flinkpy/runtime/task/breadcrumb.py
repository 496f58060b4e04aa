"""What a Python worker was at, for the driver to read when the worker is dead.

A process that calls ``os._exit``, crashes in native code or is killed for want of memory says nothing. Spark
reads the file that it gives each worker for `faulthandler`, and puts it into the error of the Spark task. So the
operator that is at work stands there, in front of what `faulthandler` may write.
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
    """The note of one worker; without effect where Spark has given it no file.

    Args:
        subtask: Index of the subtask that the worker runs.
    """

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask
        self._note = _note_of(os.getpid())

    def leave(self, uid: str) -> None:
        """Notes the operator that is at work; takes less than a microsecond, and no system call."""
        if self._note is not None:
            line = f"[at work: subtask {self._subtask} of operator '{uid[:_UID_CHARACTERS]}']".encode()
            self._note[:] = line.ljust(_LENGTH - 1) + b"\n"

    def clear(self) -> None:
        """Notes that the work is done: a worker is kept for the next task."""
        if self._note is not None:
            self._note[:] = b" " * (_LENGTH - 1) + b"\n"


@lru_cache(maxsize=1)
def _note_of(pid: int) -> mmap.mmap | None:
    directory = os.environ.get(_DIRECTORY_VARIABLE)
    if not directory or not os.path.exists(path := os.path.join(directory, str(pid))):
        return None
    # The mapping keeps the place at the beginning; the other handle writes behind it.
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    os.write(descriptor, b" " * (_LENGTH - 1) + b"\n")
    faulthandler.enable(file=descriptor)  # until the process ends, and so is the descriptor
    return mmap.mmap(descriptor, _LENGTH)


def end_forked_process(uid: str, error: BaseException | None = None) -> NoReturn:
    """Ends a child that a user function forked, when it comes back from the function.

    It would go on as a second worker: read the same input, write the same files, and answer Spark on the same socket,
    at a later task even.

    Args:
        uid: Of the operator whose function it was.
        error: What came out of the function, if it has not returned. The exit code of a `SystemExit` is kept.
    """
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, SystemExit):
        os._exit(cause.code & 0xFF if isinstance(cause.code, int) else int(cause.code is not None))
    said = f"a function of operator {uid!r} forked its process: the child, {os.getpid()}, ends where the function does"
    os.write(2, f"dagster-flinkpy: {said}\n".encode())
    os._exit(1)


def read_breadcrumb(error: str) -> tuple[str, int] | None:
    """Finds the operator and the subtask that a dead worker was at in the text of Spark's error."""
    found = _LEFT.search(error)
    return (found[2], int(found[1])) if found else None
