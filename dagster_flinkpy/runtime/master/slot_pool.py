"""The slots of an execution attempt, as the master has them (Flink: ``SlotPool``, ``ResourceManager``).

A slot is a long task of Spark, in a Spark job of its own, so that one that dies takes no other along. It dials the
driver, so only connections from executors to the driver must be possible, and those between executors. It is kept until
the attempt ends, and its process with it: a region that restarts finds its local copies of state there.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from dagster_flinkpy.errors import FlinkPyError, NoResourceAvailableError, SlotLostError, SlotProtocolError
from dagster_flinkpy.runtime.exchange.frames import authenticated, frame, parse
from dagster_flinkpy.runtime.exchange.reply_stream import ReplyStream
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA, WireRow, rows_of
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor

__all__ = ["Slot", "SlotListener", "SlotPool", "StartSlot"]

HEARTBEAT_SECONDS, TIMEOUT_SECONDS = 2.0, 30.0
"""How often driver and slots tell each other that they are there, and after which time without that a slot is lost."""


class SlotListener(Protocol):
    """Somebody who uses slots."""

    def on_message(self, slot: Slot, fields: dict[str, Any]) -> None:
        """Takes a message of a slot, on a thread of the network."""

    def on_rows(self, slot: Slot, deployment: str, rows: list[WireRow]) -> None:
        """Takes rows for the driver, on a thread of the network."""

    def on_lost(self, slot: Slot, error: FlinkPyError) -> None:
        """Takes the loss of a slot, on a thread of the network."""


StartSlot = Callable[[SlotDescriptor], None]
"""Runs a slot, and returns when it has ended; called on a thread of its own. Raises why it has ended otherwise."""


@dataclass(eq=False)
class Slot:
    """A slot that has registered."""

    name: str
    location: str
    """Where other slots reach it."""
    attempt: int
    """How often Spark has started it before."""
    replies: ReplyStream
    heard: float
    """When it was last heard of, in seconds of the monotonic clock."""
    lost: FlinkPyError | None = None

    def say(self, message: bytes) -> None:
        """Sends a message. A slot that is gone is noticed elsewhere."""
        self.replies.send(message)


class SlotPool:
    """Starts slots, and knows which ones are there.

    Args:
        start: Runs a slot.
        host: The address of this machine that the executors reach.
        request_timeout: How many seconds to wait for slots that are missing.
        progress: Takes one-line progress messages.
    """

    def __init__(self, start: StartSlot, host: str, request_timeout: float, progress: Callable[[str], object]) -> None:
        self._start, self._host, self._timeout, self._progress = start, host, request_timeout, progress
        self._token = secrets.token_hex(16)
        self._changed = threading.Condition()
        self._slots: dict[str, Slot] = {}
        self._starting: dict[str, threading.Thread] = {}
        self._ended: dict[str, BaseException] = {}
        """Why the last process of a slot has ended, by name."""
        self._listeners: list[SlotListener] = []
        self._server: _Endpoint | None = None
        self._closed = False

    def add_listener(self, listener: SlotListener) -> None:
        """Adds somebody who is told of messages and losses."""
        self._listeners.append(listener)

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, names: Collection[str]) -> dict[str, Slot]:
        """Returns slots, and starts those that are not there.

        Args:
            names: Their names.

        Raises:
            NoResourceAvailableError: Some did not start in time.
            FlinkPyError: One cannot run on this Spark.
        """
        self._open()
        until = time.monotonic() + self._timeout
        with self._changed:
            for name in names:
                if name not in self._slots:
                    self._launch(name)
            said = False
            while missing := [name for name in names if name not in self._slots]:
                for name in missing:
                    if (error := self._ended.pop(name, None)) is not None:
                        raise error
                left = until - time.monotonic()
                if left <= 0:
                    had = len(names) - len(missing)
                    raise NoResourceAvailableError(
                        f"{len(missing)} of {len(names)} slots did not start within {self._timeout:.0f} s "
                        f"({', '.join(sorted(missing)[:5])}): Spark has too few free cores. Lower the parallelism, "
                        "give Spark more cores, or set execution.exchange to 'spark', with which tasks take turns",
                        needed=len(names),
                        had=had,
                    )
                if not self._changed.wait(min(left, 2.0)) and not said:
                    said = True
                    self._progress(f"waiting for {len(missing)} of {len(names)} slots")
            return {name: self._slots[name] for name in names}

    def _launch(self, name: str) -> None:
        if name in self._starting:
            return
        assert self._server is not None
        location = f"grpc://{self._host}:{self._server.port}"
        descriptor = SlotDescriptor(name, location, self._token, HEARTBEAT_SECONDS, TIMEOUT_SECONDS)
        self._ended.pop(name, None)
        thread = threading.Thread(target=self._run, args=(descriptor,), name=f"slot {name}", daemon=True)
        self._starting[name] = thread
        thread.start()

    def _run(self, descriptor: SlotDescriptor) -> None:
        error: BaseException = SlotLostError(f"slot {descriptor.name} has ended")
        try:
            self._start(descriptor)
        except BaseException as raised:
            error = raised
        with self._changed:
            self._starting.pop(descriptor.name, None)
            if not self._closed:
                self._ended[descriptor.name] = error
            self._changed.notify_all()

    def why_ended(self, name: str, seconds: float) -> BaseException | None:
        """Returns why the process of a lost slot has ended, if its Spark job says so in time.

        Args:
            name: The slot.
            seconds: How long to wait at most.
        """
        with self._changed:
            self._changed.wait_for(lambda: name in self._ended or name in self._slots, seconds)
            return self._ended.get(name)

    # --- life --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._server is None:
            self._server = _Endpoint(f"grpc://{self._host}:0", self)
            threading.Thread(target=self._watch, name="heartbeats of slots", daemon=True).start()

    def close(self, seconds: float = 10.0) -> None:
        """Ends all slots.

        Args:
            seconds: How long to wait for their processes. Default: 10.
        """
        with self._changed:
            self._closed = True
            slots, threads = list(self._slots.values()), list(self._starting.values())
        for slot in slots:
            slot.say(frame("end"))
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._server is not None:
            self._server.shutdown()

    def _watch(self) -> None:
        while not self._closed:
            time.sleep(HEARTBEAT_SECONDS)
            for slot in list(self._slots.values()):
                slot.say(frame("heartbeat"))
                silent = time.monotonic() - slot.heard
                if silent > TIMEOUT_SECONDS:
                    self._lose(slot, SlotLostError(f"slot {slot.name} has not answered for {silent:.0f} s"))

    # --- messages of slots -------------------------------------------------------------------------------------------

    def serve(self, opening: bytes | None, reader: Any, writer: Any) -> None:
        """Registers a slot, and takes its messages until it ends. Runs on a thread of the network.

        Raises:
            SlotProtocolError: The caller is no slot of this execution attempt, or the slot is over.
        """
        fields = authenticated(opening, self._token)
        writer.begin(WIRE_SCHEMA)
        slot = Slot(fields["slot"], fields["location"], int(fields["attempt"]), ReplyStream(writer), time.monotonic())
        with self._changed:
            if self._closed:
                raise SlotProtocolError("the job has ended")
            former = self._slots.get(slot.name)
        if former is not None:
            self._lose(former, SlotLostError(f"slot {slot.name} was started again"))
        with self._changed:
            self._slots[slot.name] = slot
            self._changed.notify_all()
        error = SlotLostError(f"the process of slot {slot.name} has ended")
        try:
            for chunk in reader:
                slot.heard = time.monotonic()
                self._take(slot, chunk)
        except (pa.ArrowException, OSError) as raised:
            error = SlotLostError(f"the connection to slot {slot.name} broke: {raised}")
        finally:
            slot.replies.end()
            self._lose(slot, error)

    def _take(self, slot: Slot, chunk: Any) -> None:
        if chunk.app_metadata is None:
            return
        fields, _ = parse(chunk.app_metadata)
        if fields["kind"] == "rows":
            rows = list(rows_of(chunk.data))
            for listener in self._listeners:
                listener.on_rows(slot, fields["deployment"], rows)
        elif fields["kind"] != "heartbeat":
            for listener in self._listeners:
                listener.on_message(slot, fields)

    def _lose(self, slot: Slot, error: FlinkPyError) -> None:
        with self._changed:
            if slot.lost is not None:
                return
            slot.lost = error
            if self._slots.get(slot.name) is slot:
                del self._slots[slot.name]
            closed = self._closed
            self._changed.notify_all()
        if not closed:
            for listener in self._listeners:
                listener.on_lost(slot, error)


class _Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """Where slots call the driver."""

    def __init__(self, location: str, pool: SlotPool) -> None:
        super().__init__(location)
        self._pool = pool

    def do_exchange(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        try:
            self._pool.serve(descriptor.command, reader, writer)
        except SlotProtocolError as error:
            raise flight.FlightUnauthenticatedError(str(error)) from error
