"""A file lock between processes. A waiting process can tell which process holds it."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["LockTimeoutError", "describe_process", "file_lock"]

_log = logging.getLogger(__name__)

_SILENT_SECONDS = 2.0
"""A process that waits longer than this logs a warning."""
_POLL_SECONDS = 0.005
_SHOWN_CHARACTERS = 200


class LockTimeoutError(Exception):
    """A lock did not become free in time; the message says which process holds it."""


@contextmanager
def file_lock(path: Path, *, timeout: float) -> Iterator[None]:
    """Holds a lock, so that other threads and processes wait. If a process is killed, its lock is released.

    Args:
        path: The lock file, which is created if it is missing.
        timeout: The maximum number of seconds to wait.

    Raises:
        LockTimeoutError: Another process still holds the lock.
        FileNotFoundError: The directory of the file is gone.
        OSError: The file cannot be opened.
    """
    lock = _locked(path, min(timeout, _SILENT_SECONDS))
    if lock is None:
        _log.warning("Waiting at most %g s for the lock %s, held by %s.", timeout, path, _holder(path))
        lock = _locked(path, max(0.0, timeout - _SILENT_SECONDS))
        if lock is None:
            raise LockTimeoutError(
                f"the lock {path} was not free within {timeout:g} s; it is held by {_holder(path)}: "
                "end that process, or let it continue (`kill -CONT` if it is stopped)"
            )
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # to close it is not enough: a process that was forked has it open, too
        os.close(lock)


def _locked(path: Path, seconds: float) -> int | None:
    """Returns the file, open and locked, or None if it does not become free in time."""
    end = time.monotonic() + seconds
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:  # otherwise it was deleted, and the next process would lock another file
                return file
        except BlockingIOError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if time.monotonic() >= end:
            return None
        time.sleep(_POLL_SECONDS)


def _holder(path: Path) -> str:
    """Describes the processes that have the lock file open. Waiting processes open it only while they try."""
    import psutil

    target = str(path.resolve())
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(file.path == target for file in process.open_files()):
                found.append(describe_process(process.pid))
    return " and ".join(found) or "a process of another user or machine"


def describe_process(pid: int) -> str:
    """Describes a process: its pid, what it runs, and whether it is stopped."""
    import psutil

    try:
        process = psutil.Process(pid)
        command, status = " ".join(process.cmdline()), process.status()
    except psutil.Error:
        return f"process {pid}"
    if len(command) > _SHOWN_CHARACTERS:
        command = f"{command[:_SHOWN_CHARACTERS]}..."
    return f"process {pid} ({command}{', stopped' if status == psutil.STATUS_STOPPED else ''})"
