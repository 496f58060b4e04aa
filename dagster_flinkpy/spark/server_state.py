"""The state file of a local Spark server: how clients find the server, and which processes own it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.file_lock import LockTimeoutError, file_lock
from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.spark.processes import ProcessId

__all__ = ["RUNTIME_DIR_VARIABLE", "ServerState", "StateFile", "runtime_directory"]

RUNTIME_DIR_VARIABLE = "FLINKPY_RUNTIME_DIR"
"""Environment variable with the directory for state files, locks and logs of local Spark servers."""

_LOCK_TIMEOUT_SECONDS = 30.0


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
