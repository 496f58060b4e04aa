"""What a task of Spark finds out about its worker. It runs there, so it imports little."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import socketserver
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import IO, Any

from dagster_flinkpy.runtime.exchange.places import address_towards
from dagster_flinkpy.storage import StorageLocation

__all__ = ["PACKAGES", "Errand", "address_of", "serving", "version_of"]

PACKAGES = ("dagster-flinkpy", "pyspark", "pyarrow", "numpy", "msgspec", "boto3")
_CONNECT_SECONDS = 5.0
_REPLY_SECONDS = 60.0


@dataclass(frozen=True)
class Errand:
    """What a task is sent to find out."""

    host: str
    """Of the driver, as workers should see it."""
    port: int
    token: str
    """Without it, the driver hears nobody."""
    storage: StorageLocation | None
    key: str
    """An object that the driver has written; its content is ``token``."""

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields one row, whose column ``report`` is JSON."""
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"report": [json.dumps(self._report())]})

    def _report(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "host": socket.gethostname(),
            "python": sys.version.split()[0],
            "packages": {name: version_of(name) for name in PACKAGES},
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "free_bytes": shutil.disk_usage(tempfile.gettempdir()).free,
        }
        return report | self._use_store() | self._meet()

    def _use_store(self) -> dict[str, Any]:
        """Reads what the driver has written, and writes as much. Returns what is wrong, or nothing, and its time."""
        if self.storage is None:
            return {"store": ""}
        own, start = f"{self.key}-{uuid.uuid4().hex}", time.monotonic()
        try:
            store = self.storage.open()
            store.check_way()
            data, _ = store.get(self.key)
            if data.decode() != self.token:
                return {"store": "it has another object under the same key"}
            store.put(own, data)
            store.delete(own)
        except Exception as error:
            return {"store": f"{type(error).__name__}: {error}"}
        return {"store": "", "store_ms": (time.monotonic() - start) * 1000}

    def _meet(self) -> dict[str, Any]:
        """Calls the driver, and then the tasks that have called it at the same time."""
        try:
            own = address_towards(self.host, self.port)
            with _greeting(own) as address, socket.create_connection((self.host, self.port), _CONNECT_SECONDS) as line:
                line.settimeout(_REPLY_SECONDS)
                with line.makefile("rw") as driver:
                    others = _ask(driver, {"token": self.token, "address": address, "clock": time.time()})["others"]
                    failed = {address_of(other): why for other in others if (why := _called(tuple(other)))}
                    _ask(driver, {"failed": failed})  # others may call until the driver answers
        except (OSError, ValueError) as error:
            return {"driver": f"{type(error).__name__}: {error}"}
        return {"driver": "", "at_once": len(others) + 1, "unreachable": failed}


def version_of(package: str) -> str | None:
    """Returns the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def address_of(address: tuple[str, int]) -> str:
    """Returns an address as a text."""
    return f"{address[0]}:{address[1]}"


@contextmanager
def serving(host: str, handler: type[socketserver.BaseRequestHandler]) -> Iterator[socketserver.ThreadingTCPServer]:
    """Serves on a free port, each connection in a thread of its own."""
    with socketserver.ThreadingTCPServer((host, 0), handler, bind_and_activate=False) as server:
        server.daemon_threads = True
        server.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server.server_bind()
        server.server_activate()
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Hello(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"hello\n")


@contextmanager
def _greeting(host: str) -> Iterator[tuple[str, int]]:
    """Greets who calls a port of this task, whose address is returned."""
    with serving(host, _Hello) as server:
        yield server.server_address[:2]  # type: ignore[misc]


def _called(address: tuple[str, int]) -> str:
    """Returns why another task cannot be called, or nothing."""
    try:
        with socket.create_connection(address, _CONNECT_SECONDS) as line, line.makefile() as answer:
            return "" if answer.readline(16) == "hello\n" else "somebody else answered"
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def _ask(driver: IO[str], what: dict[str, Any]) -> dict[str, Any]:
    driver.write(json.dumps(what) + "\n")
    driver.flush()
    answer = json.loads(driver.readline())
    if not isinstance(answer, dict):
        raise ValueError("the driver answered something else")
    return answer
