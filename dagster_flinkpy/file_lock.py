"""A file lock between processes. A waiting process can tell which process holds it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

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
    lock = FileLock(path)
    try:
        lock.acquire(min(timeout, _SILENT_SECONDS), poll_interval=_POLL_SECONDS)
    except Timeout:
        _log.warning("Waiting at most %g s for the lock %s, held by %s.", timeout, path, _holder(path))
        try:
            lock.acquire(max(0.0, timeout - _SILENT_SECONDS), poll_interval=_POLL_SECONDS)
        except Timeout:
            raise LockTimeoutError(
                f"the lock {path} was not free within {timeout:g} s; it is held by {_holder(path)}: "
                "end that process, or let it continue (`kill -CONT` if it is stopped)"
            ) from None
    try:
        yield
    finally:
        lock.release()


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
