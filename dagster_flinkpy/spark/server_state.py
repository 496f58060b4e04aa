"""What processes know of a local Spark server, in files: how to find it, who owns it, its logs and its current jobs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.file_lock import LockTimeoutError, file_lock
from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.spark.processes import ProcessId

__all__ = [
    "RUNTIME_DIR_VARIABLE",
    "CurrentJobs",
    "ServerLog",
    "ServerState",
    "StateFile",
    "new_log",
    "runtime_directory",
]

RUNTIME_DIR_VARIABLE = "FLINKPY_RUNTIME_DIR"
"""Environment variable with the directory for state files, locks and logs of local Spark servers."""

_LOCK_TIMEOUT_SECONDS = 30.0
_KEPT_LOGS = 10
_QUOTED_LINES = 20
_LINE_CHARACTERS = 300
_TAIL_BYTES = 256 << 10
_FRAME = re.compile(r"\s+(at \S|\.\.\. \d+ (more|common frames))")
_NO_MEMORY = re.compile(r"OutOfMemoryError|OutOfMemoryException|OutOfDirectMemoryError")  # of Java, Arrow and Netty
_NO_USER = re.compile(r"basedir must be absolute: \?|Invalid UID|invalid null input: name")  # of Ivy and Hadoop


def runtime_directory() -> Path:
    """Returns the directory of this user's state files and server logs; creates it if it is missing.

    It is ``$FLINKPY_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/flinkpy``, else ``flinkpy-<uid>`` in the temporary
    directory.

    Raises:
        SparkUnavailableError: The directory cannot be created, or others could write to it.
    """
    if named := os.environ.get(RUNTIME_DIR_VARIABLE):
        path = Path(named).absolute()
    elif xdg := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(xdg, "flinkpy")
    else:
        path = Path(tempfile.gettempdir(), f"flinkpy-{os.getuid()}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise SparkUnavailableError(
            f"Cannot create the directory {path} ({error}): set {RUNTIME_DIR_VARIABLE}."
        ) from None
    # The state file has the server's token, and whoever can write it could make us use their own server.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SparkUnavailableError(f"{path} is not a directory of this user: set {RUNTIME_DIR_VARIABLE}.")
    path.chmod(0o700)
    return path


@dataclass(frozen=True)
class ServerState(JsonRecord):
    """A server that is running or starting."""

    token: str
    """The token that clients must present, because other users of this machine can reach the port, too."""
    supervisor: ProcessId
    owners: tuple[ProcessId, ...]
    """The owners. The server ends with the last of them."""
    log: str
    """The file with the output of the server and its Python workers."""
    port: int | None = None
    """None while it is starting."""
    server: ProcessId | None = None
    """The Java process; None while it is starting."""
    scratch: str | None = None
    """Its directory of temporary files; None while it is starting."""

    def staleness(self) -> str | None:
        """Returns why this server cannot be used, or None if it can be used or is starting."""
        if self.server is not None and not self.server.is_alive():
            return f"its process {self.server.pid} has ended"
        if not self.supervisor.is_alive():
            return f"its supervisor {self.supervisor.pid} has ended"
        if self.port is None:
            return None
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError as error:
            return f"port {self.port} does not answer ({error})"
        return None

    def with_owner(self, owner: ProcessId) -> ServerState:
        """Returns the server with an additional owner."""
        return replace(self, owners=tuple(dict.fromkeys((*self.owners, owner))))

    def without_ended_owners(self) -> ServerState:
        """Returns the server without owners that have ended."""
        return replace(self, owners=tuple(owner for owner in self.owners if owner.is_alive()))

    def destroy(self) -> None:
        """Kills the remaining processes of the server and removes its temporary files."""
        for process in (self.supervisor, self.server):
            if process is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass(frozen=True)
class StateFile:
    """A `ServerState` on disk, beside its lock. It is only read and written under the lock."""

    path: Path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the file against other processes. Inside the context, nothing may wait for anything else.

        Raises:
            SparkUnavailableError: Another process does not release the lock.
        """
        try:
            with file_lock(self.path.with_suffix(".lock"), timeout=_LOCK_TIMEOUT_SECONDS):
                yield
        except LockTimeoutError as error:
            raise SparkUnavailableError(f"The local Spark server cannot be looked up: {error}") from None

    def read(self) -> ServerState | None:
        """Reads the state; returns None if there is none, or if it is not readable."""
        try:
            return ServerState.from_text(self.path.read_text())
        except (OSError, ValueError):
            return None

    def write(self, state: ServerState) -> None:
        """Replaces the state atomically."""
        draft = self.path.with_suffix(".draft")
        draft.write_bytes(state.to_bytes())
        draft.chmod(0o600)
        draft.replace(self.path)

    def remove(self) -> None:
        """Removes the state."""
        self.path.unlink(missing_ok=True)


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
    for _, path in sorted(aged, reverse=True)[_KEPT_LOGS - 1 :]:
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


class CurrentJobs:
    """The Spark jobs of all processes that use one server.

    Args:
        folder: The folder with one file for each job. It is created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def announce(self, what: str, owner: str, *, slots: int = 0) -> Iterator[list[str]]:
        """Records a job while it runs, and yields a line for each job of others that was running when it began.

        Args:
            what: The job, for messages, e.g. ``checkpoint 7 of job 'orders'``.
            owner: Identifies whom it belongs to.
            slots: How many task slots it keeps all the time. Default: 0, because its tasks end soon.
        """
        note = self._folder / f"{uuid.uuid4().hex}.json"
        others = self._others(owner)
        with contextlib.suppress(OSError):  # a job also runs without its record
            self._folder.mkdir(mode=0o700, exist_ok=True)
            draft = note.with_suffix(".draft")
            draft.write_bytes(_Note(what, time.time(), ProcessId.current(), owner, slots).to_bytes())
            draft.replace(note)
        try:
            yield others
        finally:
            with contextlib.suppress(OSError):
                note.unlink(missing_ok=True)

    def kept_slots(self) -> int:
        """Returns how many task slots the jobs keep that run now."""
        return sum(note.slots for note in self._notes())

    def _others(self, owner: str) -> list[str]:
        return [note.line for note in sorted(self._notes(), key=lambda note: note.since) if note.owner != owner]

    def _notes(self) -> Iterator[_Note]:
        for path in self._folder.glob("*.json"):
            try:
                note = _Note.from_text(path.read_text())
            except (OSError, ValueError):
                continue
            if note.process.is_alive():
                yield note
            else:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Note(JsonRecord):
    what: str
    since: float
    process: ProcessId
    owner: str | None = None
    slots: int = 0

    @property
    def line(self) -> str:
        return f"{self.what} (process {self.process.pid}, for {max(0.0, time.time() - self.since):.0f} s)"
