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

_held: set[int] = set()
"""Descriptors of locks that this process holds."""


def _forget() -> None:
    """Closes them in a forked process, which would otherwise hold the locks after the death of this one."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget)


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
    descriptor = _acquired(path, min(timeout, _SILENT_SECONDS))
    if descriptor is None:
        _log.warning("Waiting at most %g s for the lock %s, held by %s.", timeout, path, _holder(path))
        descriptor = _acquired(path, max(0.0, timeout - _SILENT_SECONDS))
    if descriptor is None:
        raise LockTimeoutError(
            f"the lock {path} was not free within {timeout:g} s; it is held by {_holder(path)}: "
            "end that process, or let it continue (`kill -CONT` if it is stopped)"
        )
    _held.add(descriptor)
    try:
        yield
    finally:
        if descriptor in _held:  # else this is a forked process
            _held.remove(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # at once, also if a process that is being forked has it
            os.close(descriptor)


def _acquired(path: Path, timeout: float) -> int | None:
    """Opens and locks a file. Returns its descriptor, or None if it was not free in time."""
    end = time.monotonic() + timeout
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # which one depends on the file system
            os.close(descriptor)
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL_SECONDS)
            continue
        except BaseException:
            os.close(descriptor)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # another process had deleted the file before it was locked


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
