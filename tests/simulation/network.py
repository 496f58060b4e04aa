"""A network in place of Arrow Flight: it delays, cuts connections, loses one direction of them, and repeats old calls.

What one side sends of a call arrives in its order, or not at all. Different calls overtake each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from dagster_flinkpy.errors import FlinkPyError, SlotProtocolError
from dagster_flinkpy.runtime.exchange.frames import ALIVE, TokenCheck
from dagster_flinkpy.runtime.exchange.input_gate import InputGate
from dagster_flinkpy.runtime.master.deployments.pipelined_region import PipelinedRegion
from dagster_flinkpy.runtime.slot.task_executor import TaskExecutor
from tests.simulation.world import Process, World

__all__ = ["Network", "Server"]

_PORTS = 8
"""So few that a new process soon listens where another one has listened."""
_GIVES_UP_SECONDS = 900
"""After which time a connection breaks on which nothing arrives."""
_END = object()

Handle = Callable[[bytes, Any, Any], None]
"""Serves a call: what opened it, the reader, and the writer."""


class _Pipe:
    """One direction of a call."""

    def __init__(self, network: Network, sender: Process, capacity: int) -> None:
        self._network, self._world = network, network.world
        self._sender, self._capacity = sender, capacity
        self.sent: list[Any] = []
        self._items: deque[tuple[int, Any]] = deque()
        self._last_at = 0
        self.silent = False
        """Whether nothing arrives any more, and nobody is told."""
        self._swallowed = 0
        self.error: Exception | None = None

    @property
    def under_way(self) -> int:
        return len(self._items)

    def send(self, item: Any) -> None:
        world = self._world
        world.turn()
        if not world.wait_for(lambda: self.error is not None or self._has_room) or self.error is not None:
            raise self.error or OSError("the call has ended")
        self.sent.append(item)
        if self.silent:
            self._swallowed += 1
            return
        self._last_at = max(self._last_at, world.now_ms + self._network.delay())
        self._items.append((self._last_at, item))

    @property
    def _has_room(self) -> bool:
        return len(self._items) + self._swallowed < self._capacity

    def end(self) -> None:
        """The sender has nothing more to send."""
        if not self.silent:
            self._items.append((max(self._last_at, self._world.now_ms), _END))

    def take(self) -> Any:
        """Waits for what arrives next."""
        world = self._world
        world.turn()
        while True:
            if self._items and self._items[0][0] <= world.now_ms:
                item = self._items[0][1]
                if item is not _END:
                    self._items.popleft()
                if not _is_heartbeat(item):
                    self._network.moved()
                return item
            if self.error is not None and not self._items:
                raise self.error
            until = self._items[0][0] if self._items else None
            seen = len(self._items)
            world.wait_for(
                lambda seen=seen: len(self._items) != seen or (self.error is not None and not self._items),
                math.inf if until is None else until,
            )

    def break_(self, error: Exception) -> None:
        """What has not arrived arrives still, or is lost."""
        if self.error is None:
            self.error = error
            if self._world.rng.random() < 0.5:
                self._items.clear()


def _is_heartbeat(item: Any) -> bool:
    if item is _END or item.data is not None:
        return False
    message = item.app_metadata.to_pybytes()
    return message == ALIVE or b'"kind": "heartbeat"' in message[:32]


class Call:
    """A call, as both sides see it."""

    def __init__(self, network: Network, caller: Process, served_by: Process | None, opened: tuple[Any, str]) -> None:
        capacity = network.world.rng.choice((2, 8, 100))
        self.caller, self.served_by, self.opened = caller, served_by, opened
        self.up = _Pipe(network, caller, capacity)
        self.down = _Pipe(network, served_by or caller, capacity)

    def break_(self, error: Exception) -> None:
        self.up.break_(error)
        self.down.break_(error)

    @property
    def is_quiet(self) -> bool:
        """Whether all that was sent has arrived, and more would arrive."""
        return not any(pipe.silent or pipe.error or pipe.under_way for pipe in (self.up, self.down))

    @property
    def is_over(self) -> bool:
        return self.up.error is not None and self.down.error is not None


class _Writer:
    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe

    def begin(self, schema: pa.Schema) -> None:
        pass

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._pipe.send(SimpleNamespace(data=batch, app_metadata=None))

    def write_metadata(self, message: bytes) -> None:
        self._pipe.send(SimpleNamespace(data=None, app_metadata=pa.py_buffer(message)))

    def write_with_metadata(self, batch: pa.RecordBatch, message: bytes) -> None:
        self._pipe.send(SimpleNamespace(data=batch, app_metadata=pa.py_buffer(message)))

    def close(self) -> None:
        self._pipe.end()


class _Reader:
    def __init__(self, call: Call, pipe: _Pipe) -> None:
        self._call, self._pipe = call, pipe

    def __iter__(self) -> Iterator[Any]:
        while (item := self._pipe.take()) is not _END:
            yield item

    def cancel(self) -> None:
        self._call.break_(flight.FlightCancelledError("cancelled"))


class Server:
    """Answers calls at a port, each on an actor of its process."""

    def __init__(self, network: Network, token: str, handle: Handle) -> None:
        self.network, self.process = network, network.world.current.process
        self.port = network.listen(self)
        self.process.on_end.append(lambda: network.lost(self.process))
        self._check, self._handle = TokenCheck(token), handle
        self._calls = 0

    def serve(self, call: Call) -> None:
        self._calls += 1
        command, token = call.opened
        try:
            self._check.start_call(None, {"authorization": [f"Bearer {token}"]})
            self._handle(command, _Reader(call, call.up), _Writer(call.down))
        except SlotProtocolError as error:
            call.break_(flight.FlightUnauthenticatedError(str(error)))
        except (FlinkPyError, pa.ArrowException, OSError) as error:
            call.break_(flight.FlightUnavailableError(str(error)))
        else:
            call.down.end()
            call.up.error = call.up.error or flight.FlightUnavailableError("the server has ended the call")
        finally:
            self._calls -= 1

    def shutdown(self) -> None:
        """Takes no more calls, and waits until the last one has ended."""
        self.network.close(self)
        self.network.world.wait_for(lambda: not self._calls)


class Network:
    """All connections of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._servers: dict[int, Server] = {}
        self.calls: list[Call] = []
        self.executors: dict[TaskExecutor, Process] = {}
        """The slots that run, and their processes."""
        self.waiting: dict[PipelinedRegion, Process] = {}
        """The regions that wait for their tasks, and the processes of their drivers."""
        self.ending: set[PipelinedRegion] = set()
        """The regions that wait for the barrier of an epoch that was open, and read on behind it."""
        self.cut: set[InputGate] = set()
        """The gates of deployments that run nothing any more. Old calls may still reach them."""
        self.working = 0
        """How many pieces of work run beside the threads of slots."""
        self.moved_at = 0
        """When something has arrived last, or a task has worked."""

    def moved(self) -> None:
        self.moved_at = self.world.now_ms

    def delay(self) -> int:
        """Returns after how many milliseconds something arrives."""
        world = self.world
        if world.chaos.slow and world.rng.random() < world.chaos.slow:
            return world.rng.choice((50, 1_000, 10_000))
        return world.rng.choice((0, 0, 0, 1, 5))

    # --- servers ------------------------------------------------------------------------------------------------------

    def listen(self, server: Server) -> int:
        free = [port for port in range(_PORTS) if port not in self._servers] or [max(self._servers) + 1]
        port = self.world.rng.choice(free)
        self._servers[port] = server
        return port

    def close(self, server: Server) -> None:
        if self._servers.get(server.port) is server:
            del self._servers[server.port]

    def lost(self, process: Process) -> None:
        """A process has ended. The others are told, or it is its machine that is gone, and they are not."""
        for server in [server for server in self._servers.values() if server.process is process]:
            self.close(server)
        quiet = self.world.rng.random() < 0.2
        for call in [call for call in self.calls if process in (call.caller, call.served_by)]:
            if quiet:
                call.up.silent = call.down.silent = True
                self._break_later(call, _GIVES_UP_SECONDS)
            else:
                self._break_later(call, self.world.rng.choice((0, 0, 0.01, 1)))

    def _break_later(self, call: Call, seconds: float) -> None:
        def break_() -> None:
            self.world.sleep(seconds)
            if not call.is_over:
                self.world.note("a connection breaks")
            call.break_(flight.FlightUnavailableError("connection reset"))

        self.world.spawn("network", break_)

    # --- calls --------------------------------------------------------------------------------------------------------

    def connect(self, location: str) -> Any:
        """Replaces `flight.connect`."""

        def do_exchange(descriptor: flight.FlightDescriptor, token: str) -> tuple[_Writer, _Reader]:
            call = self._open(self.world.current.process, location, descriptor.command, token)
            if self.world.rng.random() < self.world.chaos.stray_calls:
                self._repeat_later(call, location)
            return _Writer(call.up), _Reader(call, call.down)

        return SimpleNamespace(do_exchange=do_exchange, close=lambda: None)

    def _open(self, caller: Process, location: str, command: Any, token: str) -> Call:
        world, port = self.world, int(location.rpartition(":")[2])
        server = self._servers.get(port)
        self.calls = [call for call in self.calls if not call.is_over]
        call = Call(self, caller, server and server.process, (command, token))
        self.calls.append(call)
        if server is None:
            self._break_later(call, 0)
            return call
        chaos, rng = world.chaos, world.rng
        world.spawn(f"{server.process.name}/call", lambda: server.serve(call), server.process)
        if chaos.cut and rng.random() < chaos.cut:
            self._break_later(call, rng.choice((0, 0.05, 0.5, 5, 60)))
        elif chaos.half_open and rng.random() < chaos.half_open:
            self._go_silent_later(call, rng.choice((0, 0.05, 0.5, 5, 60)))
        return call

    def _go_silent_later(self, call: Call, seconds: float) -> None:
        def go_silent() -> None:
            self.world.sleep(seconds)
            if call.is_over:
                return
            self.world.note("a connection is half open")
            which = self.world.rng.choice(([call.up], [call.down], [call.up, call.down]))
            for pipe in which:
                pipe.silent = True
            self._break_later(call, _GIVES_UP_SECONDS)

        self.world.spawn("network", go_silent)

    def _repeat_later(self, call: Call, location: str) -> None:
        """Somebody sends all of a call again, when it may be over, and somebody else may listen there."""

        def repeat() -> None:
            world = self.world
            world.sleep(world.rng.choice((0.01, 0.5, 5, 60)))
            again = self._open(world.current.process, location, *call.opened)
            world.note("an old call is made again")
            try:
                for item in list(call.up.sent):
                    again.up.send(item)
                again.up.end()
                for _ in _Reader(again, again.down):
                    pass
            except (pa.ArrowException, OSError) as error:
                world.note(f"  {error}")

        self.world.spawn("stranger", repeat)
