"""The state file of a local Spark server: how its users find it, and whose end it waits for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dagster_flinkpy.errors import SparkUnavailableError
from dagster_flinkpy.runtime.processes import ProcessId

__all__ = ["RUNTIME_DIR_VARIABLE", "ServerState", "StateFile", "runtime_directory"]

RUNTIME_DIR_VARIABLE = "FLINKPY_RUNTIME_DIR"
"""Names the directory of the state files, locks and logs of local Spark servers."""


def runtime_directory() -> Path:
    """The directory of this user's state files and server logs, made when it is missing.

    ``$FLINKPY_RUNTIME_DIR``, else ``$XDG_RUNTIME_DIR/flinkpy``, else ``flinkpy-<uid>`` in the temporary directory.

    Raises:
        SparkUnavailableError: it cannot be made, or others could write there.
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
            f"Cannot make the directory {path} ({error}): set {RUNTIME_DIR_VARIABLE}."
        ) from None
    # The state file holds the server's token: whoever can write here can give us a server of their own.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SparkUnavailableError(f"{path} is not a directory of this user: set {RUNTIME_DIR_VARIABLE}.")
    path.chmod(0o700)
    return path


@dataclass(frozen=True)
class ServerState:
    """A running server."""

    port: int
    token: str
    """What a client must show; other users of this machine can reach the port, too."""
    server: ProcessId
    """The Java process."""
    supervisor: ProcessId
    owners: tuple[ProcessId, ...]
    """The server ends with the last of these."""
    scratch: str
    """Its directory of temporary files."""

    def staleness(self) -> str | None:
        """Why this server cannot be used; None when it can."""
        if not self.server.is_alive():
            return f"its process {self.server.pid} has ended"
        if not self.supervisor.is_alive():
            return f"its supervisor {self.supervisor.pid} has ended"
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError as error:
            return f"port {self.port} does not answer ({error})"
        return None

    def with_owner(self, owner: ProcessId) -> ServerState:
        """The same server, which now also waits for this process."""
        return replace(self, owners=tuple(dict.fromkeys((*self.owners, owner))))

    def without_ended_owners(self) -> ServerState:
        """The same server with only those owners that still run."""
        return replace(self, owners=tuple(owner for owner in self.owners if owner.is_alive()))

    def destroy(self) -> None:
        """Kill what is left of the server and remove its temporary files."""
        for process in (self.supervisor, self.server):
            if process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.scratch, ignore_errors=True)


@dataclass(frozen=True)
class StateFile:
    """A `ServerState` on disk, beside its lock and the server's log. Read and written under the lock only."""

    path: Path

    @property
    def log(self) -> Path:
        """What the server and its Python workers print."""
        return self.path.with_suffix(".log")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from this file; ends with the process, too."""
        import fcntl

        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> ServerState | None:
        """The state; None when there is none, or it is not readable."""
        try:
            stored = json.loads(self.path.read_text())
            return ServerState(
                port=int(stored["port"]),
                token=str(stored["token"]),
                server=ProcessId(**stored["server"]),
                supervisor=ProcessId(**stored["supervisor"]),
                owners=tuple(ProcessId(**owner) for owner in stored["owners"]),
                scratch=str(stored["scratch"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, state: ServerState) -> None:
        """Replace the state in one step."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(state)))
        draft.chmod(0o600)
        draft.replace(self.path)

    def remove(self) -> None:
        """Remove the state."""
        self.path.unlink(missing_ok=True)
