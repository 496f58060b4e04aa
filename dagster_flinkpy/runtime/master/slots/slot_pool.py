"""The slots of an execution attempt, as the master has them (Flink: ``SlotPool``, ``ResourceManager``).

A slot is shared by the subtasks with one number of all operators of a slot-sharing group (Flink: ``SharedSlot``), and
named after them, so a subtask that is deployed again is where it ran before. If a process has several of Flink's slots,
they are one slot here.

It is a long task of Spark, in a Spark job of its own, so that one that dies takes no other along. It dials the
driver, so only connections from executors to the driver must be possible, and those between executors. It is kept until
the attempt ends, and its process with it: a region that restarts finds its local copies of state there.

A slot that is lost is never used again. Its process is killed, and the next request starts another one.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from dagster_flinkpy.common.exchange_options import ExchangeOptions
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import (
    CheckpointError,
    FlinkPyError,
    NoResourceAvailableError,
    SlotLostError,
    SlotProtocolError,
)
from dagster_flinkpy.runtime.exchange.frames import frame, opened, parse
from dagster_flinkpy.runtime.exchange.reply_stream import ReplyStream
from dagster_flinkpy.runtime.exchange.tls import Endpoint, address_at, new_certificate
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA, WireRow, rows_of
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor

__all__ = ["Slot", "SlotListener", "SlotPool", "SlotProcess", "StartSlot"]

_END_SECONDS = 10.0
"""How long a slot may take to end when it is told to, and then again when it is killed."""


class SlotListener(Protocol):
    """Somebody who uses slots."""

    def on_message(self, slot: Slot, fields: dict[str, Any]) -> None:
        """Takes a message of a slot, on a thread of the network."""

    def on_rows(self, slot: Slot, deployment: str, rows: list[WireRow]) -> None:
        """Takes rows for the driver, on a thread of the network."""

    def on_lost(self, slot: Slot, error: FlinkPyError) -> None:
        """Takes the loss of a slot. Any thread may call it."""


class SlotProcess(Protocol):
    """What runs a slot."""

    def run(self) -> None:
        """Runs it, and returns when it has ended; raises why it has ended otherwise. Called once."""

    def end(self) -> None:
        """Ends it soon, whatever it does, or before it has begun. Any thread may call it, more than once."""


StartSlot = Callable[[SlotDescriptor], SlotProcess]
"""Returns what runs a slot."""


class Slot:
    """A slot, from its request until its process has ended."""

    def __init__(
        self, descriptor: SlotDescriptor, start: StartSlot, on_ended: Callable[[Slot, BaseException], None]
    ) -> None:
        self.name, self.id = descriptor.name, descriptor.id
        self.location = ""
        """Where other slots reach it; empty if it has not registered yet."""
        self.heard = 0.0
        """When it was last heard of, in seconds of the monotonic clock."""
        self.lost: FlinkPyError | None = None
        self.ended: BaseException | None = None
        """Why its process has ended."""
        self._process, self._on_ended = start(descriptor), on_ended
        self._killed = False
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"slot {self.name}", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether it can no longer be used."""
        return self.lost is not None or self.ended is not None

    def _run(self) -> None:
        error: BaseException = SlotLostError(f"the process of slot {self.name} has ended")
        try:
            self._process.run()
        except BaseException as raised:
            if not self._killed:  # otherwise Spark says that its job was cancelled, which is not why the slot was lost
                error = raised
        self._on_ended(self, error)

    def say(self, message: bytes) -> None:
        """Sends a message soon, and does not wait for the network. A slot that is gone is noticed elsewhere."""
        self._messages.put(message)

    def talk(self, replies: ReplyStream) -> None:
        """Sends messages until :meth:`hang_up`."""
        while (message := self._messages.get()) is not None:
            replies.send(message)

    def hang_up(self) -> None:
        """Ends :meth:`talk`."""
        self._messages.put(None)

    def kill(self) -> None:
        """Ends its process, also one that does not answer."""
        if self.ended is None:
            self._killed = True
            self._process.end()


class SlotPool:
    """Starts slots, and knows which ones are there.

    Args:
        start: Returns what runs a slot.
        host: The address of this machine that the executors reach.
        options: How long to wait for slots that are missing, and for those that do not answer.
        progress: Takes one-line progress messages.
        check_leader: Raises an error if another attempt has taken over; then lost slots are not replaced, because they
            would take its cores. Default: nobody does.
    """

    def __init__(
        self,
        start: StartSlot,
        host: str,
        options: ExchangeOptions,
        progress: Callable[[str], object],
        check_leader: Callable[[], object] = bool,
    ) -> None:
        self._start, self._progress, self._check_leader = start, progress, check_leader
        self._timeout = options.slot_request_timeout.total_seconds()
        self._beat_seconds = options.heartbeat_interval.total_seconds()
        self._silent_seconds = options.heartbeat_timeout.total_seconds()
        self._token = secrets.token_hex(16)
        self._tls = new_certificate() if options.tls else None
        self._address = address_at(host, self._tls)
        self._changed = threading.Condition()
        self._slots: dict[str, Slot] = {}
        """By name, the slot that was started last."""
        self._processes: list[Slot] = []
        """All whose process has not ended."""
        self._listeners: list[SlotListener] = []
        self._server: Endpoint | None = None
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None

    def add_listener(self, listener: SlotListener) -> None:
        """Adds somebody who is told of messages and losses."""
        self._listeners.append(listener)

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(
        self,
        names: Collection[str],
        given_up: Callable[[], bool] = lambda: False,
        resources: Mapping[str, tuple[SlotSharingGroup, ...]] = MappingProxyType({}),
    ) -> dict[str, Slot]:
        """Returns slots, and starts those that are not there.

        Args:
            names: Their names.
            given_up: Whether they are no longer needed; looked at again after :meth:`wake`. Default: never.
            resources: The groups that say what slots need of an executor, by name. Default: a core.

        Raises:
            NoResourceAvailableError: Some did not start in time.
            CheckpointError: They are no longer needed.
            FencedError: Another attempt has taken over, while a slot was lost.
            FlinkPyError: One cannot run on this Spark.
        """
        if any(self._slots[name].is_over for name in names if name in self._slots):
            self._check_leader()
        self._open()
        until, said = time.monotonic() + self._timeout, False
        with self._changed:
            slots = {name: self._usable(name, resources.get(name, ())) for name in names}
            while missing := sorted(name for name, slot in slots.items() if not slot.location or slot.is_over):
                for slot in slots.values():
                    if slot.is_over:
                        error = slot.ended or slot.lost
                        assert error is not None
                        raise error
                if given_up() or self._over.is_set():
                    raise CheckpointError("the tasks of the region were interrupted")
                left = until - time.monotonic()
                if left <= 0:
                    for name in missing:  # those that start later would hold cores for nobody
                        slots[name].lost = SlotLostError(f"slot {name} did not start in time")
                        slots[name].kill()
                    raise NoResourceAvailableError(
                        f"{len(missing)} of {len(names)} slots did not start within {self._timeout:g} s "
                        f"({', '.join(missing[:5])}): Spark has too few free cores, or its executors do not reach "
                        f"{self._address}, where the job runs. Lower the parallelism, give Spark more cores, open the "
                        "ports, or set execution.exchange to 'spark', with which tasks take turns",
                        needed=len(names),
                        had=len(names) - len(missing),
                    )
                if not self._changed.wait(min(left, 2.0)) and not said:
                    said = True
                    self._progress(f"waiting for {len(missing)} of {len(names)} slots")
            return slots

    @property
    def names(self) -> set[str]:
        """The names of the slots that were requested and not given back."""
        with self._changed:
            return set(self._slots)

    def release(self, names: Collection[str]) -> None:
        """Ends slots that nobody uses any more, and does not wait for it."""
        with self._changed:
            slots = [slot for name in names if (slot := self._slots.pop(name, None)) is not None]
        for slot in slots:
            slot.say(frame("end"))
            if not slot.location:
                slot.kill()

    def wake(self) -> None:
        """Lets requests look whether they are still needed. Any thread may call it."""
        with self._changed:
            self._changed.notify_all()

    def _usable(self, name: str, resources: tuple[SlotSharingGroup, ...]) -> Slot:
        known = self._slots.get(name)
        if known is not None and not known.is_over:
            return known
        if self._over.is_set():
            raise CheckpointError("the job has ended")
        if known is not None:
            known.kill()
        assert self._server is not None
        descriptor = SlotDescriptor(
            name,
            uuid.uuid4().hex,
            f"{self._address}:{self._server.port}",
            self._token,
            self._beat_seconds,
            self._silent_seconds,
            self._tls,
            resources,
        )
        slot = self._slots[name] = Slot(descriptor, self._start, self._on_ended)
        self._processes.append(slot)
        slot.thread.start()
        return slot

    def _on_ended(self, slot: Slot, error: BaseException) -> None:
        with self._changed:
            slot.ended = error
            self._processes.remove(slot)
            self._changed.notify_all()
        if slot.location:  # a process that Spark has given up may still be there
            slot.say(frame("end"))
            self._lose(slot, SlotLostError(f"the process of slot {slot.name} has ended"))

    def why_ended(self, slot: Slot, seconds: float) -> BaseException | None:
        """Returns why the process of a lost slot has ended, if its Spark job says so in time."""
        with self._changed:
            self._changed.wait_for(lambda: slot.ended is not None, seconds)
            return slot.ended

    # --- life --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        with self._changed:
            if self._server is None and not self._over.is_set():
                self._server = Endpoint(f"{self._address}:0", self._token, self._tls, self.serve)
                self._watcher = threading.Thread(target=self._watch, name="heartbeats of slots", daemon=True)
                self._watcher.start()

    def close(self) -> None:
        """Ends all slots, and waits for their processes."""
        with self._changed:
            self._over.set()
            self._changed.notify_all()
            processes = self._processes.copy()
        for slot in processes:
            if slot.location and slot.lost is None:
                slot.say(frame("end"))
            else:
                slot.kill()
        _join([slot.thread for slot in processes], _END_SECONDS)
        left = [slot for slot in processes if slot.thread.is_alive()]
        for slot in left:
            slot.kill()
        _join([slot.thread for slot in left], _END_SECONDS)
        if self._watcher is not None:
            self._watcher.join()
        if self._server is not None:  # it waits for calls, and that of a process that nobody can kill does not end
            ends = threading.Thread(target=self._server.shutdown, name="end of the exchange", daemon=True)
            ends.start()
            ends.join(_END_SECONDS)
            if ends.is_alive():  # a call that is left when Python ends would abort this process, or keep it
                _cut_connections(self._server.port)
                ends.join(_END_SECONDS)

    def _watch(self) -> None:
        while not self._over.wait(self._beat_seconds):
            with self._changed:
                slots = [slot for slot in self._slots.values() if slot.location and not slot.is_over]
            for slot in slots:
                slot.say(frame("heartbeat"))
                silent = time.monotonic() - slot.heard
                if silent > self._silent_seconds:
                    self.give_up(slot, SlotLostError(f"slot {slot.name} has not answered for {silent:.1f} s"))

    def give_up(self, slot: Slot, error: FlinkPyError) -> None:
        """Treats a slot as lost, and kills its process. Any thread may call it."""
        slot.say(frame("end"))  # should it still listen
        self._lose(slot, error)
        slot.kill()

    # --- messages of slots -------------------------------------------------------------------------------------------

    def serve(self, opening: bytes | None, reader: Any, writer: Any) -> None:
        """Registers a slot, and takes its messages until it ends. Runs on a thread of the network.

        Raises:
            SlotProtocolError: The caller is no slot that is expected.
        """
        fields = opened(opening, slot=str, id=str, location=str)
        with self._changed:
            slot = self._slots.get(fields["slot"])
            if self._over.is_set() or slot is None or slot.id != fields["id"] or slot.is_over or slot.location:
                raise SlotProtocolError(f"slot {fields['slot']} is not expected: it was replaced, or the job has ended")
            slot.location, slot.heard = fields["location"] or "?", time.monotonic()
        writer.begin(WIRE_SCHEMA)
        replies = ReplyStream(writer)
        talks = threading.Thread(target=slot.talk, args=(replies,), name=f"to slot {slot.name}", daemon=True)
        talks.start()
        self.wake()
        error: FlinkPyError = SlotLostError(f"the process of slot {slot.name} has ended")
        try:
            for chunk in reader:
                if slot.lost is not None:  # it was taken for dead, and others do its work
                    break
                slot.heard = time.monotonic()
                self._take(slot, chunk)
        except (pa.ArrowException, OSError) as raised:
            error = SlotLostError(f"the connection to slot {slot.name} broke: {raised}")
        except Exception as raised:
            error = SlotLostError(f"slot {slot.name} has sent what it must not: {raised!r}")
        finally:
            slot.hang_up()
            self._lose(slot, error)
            talks.join()
            replies.end()

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
            self._changed.notify_all()
        for listener in self._listeners:
            listener.on_lost(slot, error)


def _join(threads: Collection[threading.Thread], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _cut_connections(port: int) -> None:
    """Ends the connections to a port of this process, as if the network had failed, and with them their calls."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError, ValueError):  # it is no socket, or one that listens
            each = socket.socket(fileno=int(name))
            try:
                if each.getsockname()[1:2] == (port,) and each.getpeername():
                    each.shutdown(socket.SHUT_RDWR)
            finally:
                each.detach()  # others close it
