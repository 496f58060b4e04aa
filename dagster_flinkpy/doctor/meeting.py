"""The driver's side of a check of the network: tasks call it, and it tells them of each other."""

from __future__ import annotations

import hmac
import json
import secrets
import socketserver
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from dagster_flinkpy.doctor.worker import serving

__all__ = ["TASKS", "Meeting"]

TASKS = 4
"""How many tasks are started. Not all of them run at the same time if there are too few cores."""
_WAITS_SECONDS = 3.0
"""How long the tasks that have come wait for one more."""
_ENDS_SECONDS = 30.0
_MAX_LINE = 1 << 16


class Meeting:
    """Lets tasks that run at the same time know of each other."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.skews: list[float] = []
        """How far the clock of each task that called is ahead of this one, in seconds."""
        self._news = Condition()
        self._came: list[tuple[str, int]] = []
        self._last = 0.0
        self._closed = False
        self._left = 0

    @contextmanager
    def held_at(self, host: str) -> Iterator[int]:
        """Listens on a port of an address of this machine, and returns the port."""
        meeting = self

        class Call(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                meeting._talk(self)

        with serving(host, Call) as server:
            yield server.server_address[1]

    def _talk(self, call: socketserver.StreamRequestHandler) -> None:
        hello = _heard(call)
        if not hmac.compare_digest(str(hello.get("token", "")), self.token):
            return
        others = self._arrive(tuple(hello["address"]), float(hello["clock"]))
        _say(call, {"others": others})
        _heard(call)
        with self._news:
            self._left += 1
            self._news.notify_all()
            self._news.wait_for(lambda: self._left >= len(others) + 1, _ENDS_SECONDS)
        _say(call, {})

    def _arrive(self, address: tuple[str, int], clock: float) -> list[tuple[str, int]]:
        """Waits until nobody else comes, and returns the addresses of the others; none for who comes later."""
        with self._news:
            self.skews.append(clock - time.time())
            if self._closed:
                return []
            self._came.append(address)
            self._last = time.monotonic()
            self._news.notify_all()
            while not self._closed and (left := self._last + _WAITS_SECONDS - time.monotonic()) > 0:
                if len(self._came) == TASKS:
                    break
                self._news.wait(left)
            self._closed = True
            self._news.notify_all()
            return [other for other in self._came if other != address]


def _heard(call: socketserver.StreamRequestHandler) -> dict[str, Any]:
    try:
        heard = json.loads(call.rfile.readline(_MAX_LINE))
    except (OSError, ValueError):
        return {}
    return heard if isinstance(heard, dict) else {}


def _say(call: socketserver.StreamRequestHandler, what: dict[str, Any]) -> None:
    call.wfile.write(json.dumps(what).encode() + b"\n")
