"""A relay of TCP connections that can be cut, stops reading, or loses what it should pass on."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from dagster_flinkpy.runtime.master.deployments import job_exchange
from dagster_flinkpy.runtime.master.slots import slot_pool

__all__ = ["TROUBLES", "Relay", "Relays"]

TROUBLES = ("cut", "half-open", "stops", "swallows")

_RESET = struct.pack("ii", 1, 0)
_CONNECT_SECONDS = 10.0


class Relay:
    """Passes on what comes, in both directions.

    In trouble, it does one of these until :meth:`mend`:

    - ``cut``: it resets each connection, and takes no other.
    - ``half-open``: it ends the connections to the target, and those to the callers stay, in silence.
    - ``stops``: it reads nothing, so that buffers fill up. Afterwards it goes on where it was.
    - ``swallows``: it reads everything, and passes on nothing.

    Args:
        target: Where it passes things on to, such as ``grpc://127.0.0.1:4001``.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = str(parts.hostname), int(parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.location = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        """Where it listens."""
        self._trouble: str | None = None
        self._changed = threading.Condition()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        """The connections of callers, each with that to the target."""
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def trouble(self, trouble: str) -> None:
        """Makes trouble for the connections that are there, and for those that come."""
        with self._changed:
            self._trouble = trouble
            self._changed.notify_all()
            for caller, called in list(self._pairs):
                if trouble == "cut":
                    _reset(caller)
                if trouble in ("cut", "half-open"):
                    _reset(called)

    def mend(self) -> None:
        """Passes on again. Connections that have lost something are gone."""
        with self._changed:
            before, self._trouble = self._trouble, None
            self._changed.notify_all()
            for pair in list(self._pairs):
                if before != "stops":
                    for each in pair:
                        _reset(each)

    def close(self) -> None:
        """Ends all connections."""
        self._listener.close()
        self.trouble("cut")

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
                called = socket.create_connection(self._target, _CONNECT_SECONDS)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                _reset(caller)
                continue
            called.settimeout(None)
            for each in (caller, called):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._pairs.add((caller, called))
            if self._trouble == "cut":
                _reset(caller)
            for ends in ((caller, called, True), (called, caller, False)):
                threading.Thread(target=self._pass_on, args=ends, name="relay", daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, of_caller: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._changed:
                    self._changed.wait_for(lambda: self._trouble != "stops")
                    trouble = self._trouble
                if trouble is None:
                    sink.sendall(data)
        with self._changed:
            if self._trouble == "half-open" and not of_caller:
                return
            self._pairs.discard((source, sink) if of_caller else (sink, source))
        _reset(source)
        _reset(sink)


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)  # wakes whoever reads
    connection.close()


class Relays:
    """Lets all connections of slots go through relays: to the driver, and to each other."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Relay]] = {"driver": {}, "slots": {}}
        self._trouble: dict[str, str] = {}

    def install(self, set_attribute: Callable[[Any, str, Any], object] = setattr) -> None:
        """Comes in between, in jobs of this process that begin later."""
        opened = slot_pool.opened

        def opened_through_relay(*args: Any, **expected: Any) -> Any:
            fields = opened(*args, **expected)
            return {**fields, "location": self._relayed("slots", fields["location"])}

        set_attribute(slot_pool, "opened", opened_through_relay)
        on_spark, here = job_exchange.start_on_spark, job_exchange.start_here
        set_attribute(job_exchange, "start_on_spark", lambda *args: self._through(on_spark(*args)))
        set_attribute(job_exchange, "start_here", self._through(here))

    def _through(self, start: Any) -> Any:
        return lambda told: start(replace(told, driver=self._relayed("driver", told.driver)))

    def _relayed(self, to: str, target: str) -> str:
        relays = self._of[to]
        if target not in relays:
            relays[target] = Relay(target)
            if (trouble := self._trouble.get(to)) is not None:
                relays[target].trouble(trouble)
        return relays[target].location

    def trouble(self, trouble: str, to: str) -> None:
        """Makes trouble for all connections to ``driver`` or ``slots``, also later ones."""
        self._trouble[to] = trouble
        for relay in list(self._of[to].values()):
            relay.trouble(trouble)

    def mend(self) -> None:
        """Passes on again."""
        self._trouble.clear()
        for relays in self._of.values():
            for relay in list(relays.values()):
                relay.mend()

    def close(self) -> None:
        """Ends all connections."""
        for relays in self._of.values():
            for relay in relays.values():
                relay.close()
