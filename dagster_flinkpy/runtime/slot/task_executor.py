"""The process of a slot: connects to the driver, takes what it deploys, and runs it (Flink: ``TaskExecutor``)."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import FlinkPyError, SlotLostError, SlotProtocolError
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.exchange.frames import ALIVE, calling, frame, of_credits, opened, opening, parse
from dagster_flinkpy.runtime.exchange.places import address_towards
from dagster_flinkpy.runtime.exchange.reply_stream import ReplyStream
from dagster_flinkpy.runtime.exchange.slot_link import CONNECT_SECONDS, SlotLink
from dagster_flinkpy.runtime.exchange.tls import AttemptCertificate, Endpoint, address_at, connect
from dagster_flinkpy.runtime.failure import error_to_json, outside_error
from dagster_flinkpy.runtime.shipping import load_for_each, loaded_job
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, WIRE_SCHEMA, Kind, WireRow, batch_of, rows_of
from dagster_flinkpy.runtime.slot.deployment import SlotDeployment, Turns
from dagster_flinkpy.runtime.task.garbage import collecting_rarely
from dagster_flinkpy.spark.user_logs import UserLogs

__all__ = ["SlotDescriptor", "TaskExecutor", "run_slot"]

_END_SECONDS = 30.0
"""How long tasks may take to give up what they do when the slot ends, if that is below the timeout of heartbeats. A
process of its own then ends without them."""
_BATCH_BYTES = 64 << 20
"""Rows for the driver are sent when they have this size. Arrow cannot address more than 2 GiB of payloads at once."""
_LOG_SECONDS = 1.0  # until the driver hears at the latest what functions log and print
_SWITCH_SECONDS = 0.002
"""How long a thread may run Python while others wait: a record must not wait for long while a snapshot is uploaded. But
each thread that waits wakes up as often, and there is one per slot that sends."""


@dataclass(frozen=True)
class SlotDescriptor:
    """What a slot is told when it starts."""

    name: str
    """Its name in the job."""
    id: str
    """Tells it from others that have or had the name."""
    driver: str
    """Where the driver listens, such as ``grpc://10.0.0.1:40001``."""
    token: str
    """The token of the execution attempt."""
    heartbeat_seconds: float
    """How often driver and slot tell each other that they are there."""
    timeout_seconds: float
    """After which time without that the slot gives up."""
    tls: AttemptCertificate | None = None
    """The certificate of the execution attempt. Default: none, without TLS."""
    resources: tuple[SlotSharingGroup, ...] = ()
    """Groups that say what it needs of an executor. Default: a core."""


def run_slot(descriptor: SlotDescriptor, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs a slot in a Python worker of Spark until the driver ends it; yields why it could not, as JSON, or "".

    A slot is one process. If it dies, Spark starts its task again, but by then the driver has lost the slot.
    """
    from pyspark import TaskContext

    for _ in batches:  # Spark keeps a Python worker for the next task only if it has read all of its input.
        pass
    error, context = "", TaskContext.get()
    try:
        if context is not None and context.attemptNumber() > 0:
            raise SlotLostError(f"the process of slot {descriptor.name} has died")
        _run_slot(TaskExecutor(descriptor, own_process=context is not None))
    except FlinkPyError as known:  # as data, because Spark would try again
        error = error_to_json(known).decode()
    yield pa.record_batch({"error": [error]})


def _run_slot(executor: TaskExecutor) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with collecting_rarely():
            executor.run()
    finally:
        sys.setswitchinterval(before)


class TaskExecutor:
    """One slot.

    Args:
        descriptor: Who it is, and where the driver is.
        own_process: Whether the process is there for the slot alone: what user functions log and print goes to the
            driver, and the process ends if they do not when the slot must. Default: False.
    """

    def __init__(self, descriptor: SlotDescriptor, *, own_process: bool = False) -> None:
        self._descriptor, self._own_process = descriptor, own_process
        self._logs = UserLogs(self._where) if own_process else None
        self._mails: deque[Callable[[], None]] = deque()
        self._event = threading.Event()
        self._deployments: dict[str, SlotDeployment] = {}
        self._known = threading.Condition()
        self._programs = ExitStack()
        """What the programs of all deployments need. It stays until the slot ends: those of a job share it."""
        self._incoming: dict[tuple[str, str], ReplyStream] = {}
        self._current: SlotDeployment | None = None
        """The deployment that the thread of the slot works on, or the last one."""
        self._gone: set[str] = set()
        """The deployments that are over."""
        self._closed = False
        self._over, self._ended = threading.Event(), threading.Event()
        self._write_lock = threading.Lock()
        self._rows: dict[str, list[WireRow]] = {}
        self._heard = time.monotonic()

    # --- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs until the driver says that the slot is over, or is gone.

        Raises:
            SlotLostError: The driver cannot be reached.
        """
        descriptor = self._descriptor
        driver = urlsplit(descriptor.driver)
        host = address_towards(str(driver.hostname), int(driver.port or 0))
        address = address_at(host, descriptor.tls)
        server = Endpoint(f"{address}:0", descriptor.token, descriptor.tls, self.receive)
        location = f"{address}:{server.port}"
        client = connect(descriptor.driver, descriptor.tls)
        threads = [
            threading.Thread(target=target, name=f"slot {descriptor.name} {what}", daemon=True)
            for target, what in ((self._listen, "listens"), (self._beat, "beats"), (self._watch, "watches"))
        ]
        call = opening(slot=descriptor.name, id=descriptor.id, location=location, pid=os.getpid())
        try:
            try:
                self._writer, self._reader = client.do_exchange(call, calling(descriptor.token))
                self._writer.begin(WIRE_SCHEMA)
            except (pa.ArrowException, OSError) as error:
                raise SlotLostError(
                    f"slot {descriptor.name} cannot reach the driver at {descriptor.driver}: {error}"
                ) from error
            for thread in threads:
                thread.start()
            with self._logs.captured() if self._logs is not None else nullcontext():
                self._loop()
        finally:
            self.end()
            for deployment in list(self._deployments.values()):
                self._remove(deployment, deployment.cancel)
            self._programs.close()
            for thread in threads[:2]:
                if thread.ident is not None:
                    thread.join()  # nobody may read or write while the call is closed
            if threads[0].ident is not None:
                with suppress(pa.ArrowException, OSError):
                    self._writer.close()
            client.close()
            server.shutdown()
            self._ended.set()
            if threads[2].ident is not None:
                threads[2].join()

    def _loop(self) -> None:
        turns = Turns()
        while not self._closed:
            self._event.clear()
            while self._mails:
                self._mails.popleft()()
            deployments, waits = list(self._deployments.values()), list[float | None]()
            turns.next_round()
            for deployment in deployments:
                self._current = deployment
                for _ in deployment.steps(turns):
                    self._send_credits()
            for deployment in deployments:
                self._current = deployment
                waits.append(deployment.rest(turns.any_ready))
            self._send_rows()
            if not (turns.any_ready or self._mails or self._closed):
                self._event.wait(min((wait for wait in waits if wait is not None), default=None))

    def later(self, mail: Callable[[], None]) -> None:
        """Calls a function later on the thread of the slot. Any thread may call it."""
        self._mails.append(mail)
        self._event.set()

    def _where(self) -> tuple[str, int, int]:
        task = None if self._current is None else self._current.current
        return ("", 0, 0) if task is None else (task.current, task.index, task.epoch)

    # --- the driver --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            for chunk in self._reader:
                self._heard = time.monotonic()
                if chunk.app_metadata is not None:
                    fields, body = parse(chunk.app_metadata)
                    if fields["kind"] == "end":
                        break
                    if fields["kind"] == "cancel" and (known := self._deployments.get(fields["deployment"])):
                        known.cut()  # the thread of the slot may wait for another slot, which does not read
                    if fields["kind"] != "heartbeat":
                        self.later(partial(self._on_message, fields, body))
        except (pa.ArrowException, OSError, FlinkPyError):
            pass  # the driver is gone
        self.end()

    def _beat(self) -> None:
        seconds, due = self._descriptor.heartbeat_seconds, 0.0
        while not self._over.wait(min(seconds, _LOG_SECONDS)):
            if (current := self._current) is not None:  # its thread may be busy with a function for long
                self._send_logs(current.id)
            if time.monotonic() >= due:
                due = time.monotonic() + seconds
                self._say(frame("heartbeat"))

    def _watch(self) -> None:
        descriptor = self._descriptor
        while not self._over.wait(descriptor.heartbeat_seconds):
            if time.monotonic() - self._heard > descriptor.timeout_seconds:
                self.end()
            for deployment in list(self._deployments.values()):
                for link in list(deployment.links.values()):
                    link.look(descriptor.timeout_seconds)
        if self._own_process and not self._ended.wait(min(_END_SECONDS, descriptor.timeout_seconds)):
            os._exit(1)  # a user function runs on, or another slot does not end its call

    def end(self) -> None:
        """Ends the slot soon. Any thread may call it, more than once."""
        self._closed = True
        self._over.set()
        for deployment in list(self._deployments.values()):
            deployment.cut()
        with suppress(pa.ArrowException, OSError, AttributeError):  # there may be no call yet
            self._reader.cancel()
        with self._known:
            self._known.notify_all()
        self._event.set()

    def _say(self, message: bytes) -> None:
        self._write(lambda: self._writer.write_metadata(message))

    def _write(self, write: Callable[[], object]) -> None:
        with self._write_lock:
            if not self._closed:
                try:
                    write()
                except (pa.ArrowException, OSError):  # the driver is gone, or is to see that something is missing
                    self.end()

    def _on_message(self, fields: dict[str, Any], body: bytes) -> None:
        kind, name = fields["kind"], fields.get("deployment", "")
        deployment = self._current = self._deployments.get(name)
        if kind == "deploy":
            self._deploy(name, fields, body)
        elif deployment is None:
            if kind in ("cancel", "finish"):
                self._say(frame("ended", deployment=name))
        elif kind == "begin":
            epoch: EpochInput = pickle.loads(body)  # from the driver of this job
            deployment.in_all(lambda task: task.begin(epoch))
        elif kind == "event":
            deployment.take_event(fields["uid"], int(fields["subtask"]), fields["event"])
        elif kind == "stop_reading":
            deployment.in_all(lambda task: task.stop_reading(stops=True))
        elif kind == "align":
            deployment.in_all(lambda task: task.set_limits(fields["limits"]))
        elif kind == "notify":
            deployment.in_all(lambda task: task.notify(fields["news"], int(fields["checkpoint_id"])))
        elif kind in ("cancel", "finish"):
            cancel = partial(deployment.cancel, fields.get("last"))
            self._remove(deployment, cancel if kind == "cancel" else deployment.finish)
            self._send_rows()
            if self._logs is not None:
                self._logs.end_lines()
            self._send_logs(name)
            self._say(frame("ended", deployment=name))

    def _deploy(self, name: str, fields: dict[str, Any], body: bytes) -> None:
        places = {(uid, index): slot for uid, index, slot in fields["places"]}
        locations = fields["locations"]

        def link(slot: str, deployment: SlotDeployment) -> SlotLink:
            location = locations[slot]
            return SlotLink(
                f"slot {slot} at {location}",
                connect(location, self._descriptor.tls),
                opening(deployment=name, slot=self._descriptor.name),
                calling(self._descriptor.token),
                self._descriptor.heartbeat_seconds,
                deployment.add_credits,
                deployment.on_lost_link,
            )

        try:
            jobs = load_for_each(self._programs.enter_context(loaded_job(body)), body)
            deployment = SlotDeployment(
                name,
                partial(next, jobs),
                places,
                self._descriptor.name,
                link=link,
                to_driver=partial(self._to_driver, name),
                later=self.later,
                wake=self._event.set,
            )
        except Exception as error:
            ours = outside_error(error, f"the program of slot {self._descriptor.name}")
            self._to_driver(name, WireRow(0, NO_EDGE, 0, 0, Kind.FAILURE, pa.py_buffer(error_to_json(ours))))
            return
        with self._known:
            self._deployments[name] = self._current = deployment
            self._known.notify_all()
        deployment.open()
        if not deployment.failed:  # otherwise the driver hears of the failure
            self._say(frame("running", deployment=name))

    def _remove(self, deployment: SlotDeployment, end: Callable[[], None]) -> None:
        end()
        with self._known:
            self._deployments.pop(deployment.id, None)
            self._gone.add(deployment.id)
        for key in [key for key in list(self._incoming) if key[0] == deployment.id]:
            self._incoming.pop(key, None)

    def _to_driver(self, deployment: str, row: WireRow) -> None:
        self._rows.setdefault(deployment, []).append(row)

    def _send_rows(self) -> None:
        if not self._rows:
            return
        rows_of_all, self._rows = self._rows, {}
        for name, rows in rows_of_all.items():
            self._send_logs(name)
            part, size = list[WireRow](), 0
            for row in rows:
                part.append(row)
                size += row.payload.size
                if size >= _BATCH_BYTES:
                    self._send_part(name, part)
                    part, size = [], 0
            if part:
                self._send_part(name, part)

    def _send_logs(self, deployment: str) -> None:
        if self._logs is not None and (logs := self._logs.payload()) is not None:
            self._send_part(deployment, [WireRow(0, NO_EDGE, 0, 0, Kind.LOG, pa.py_buffer(logs))])

    def _send_part(self, deployment: str, rows: Sequence[WireRow]) -> None:
        batch = batch_of([(r.target, r.edge, r.channel, r.seq, int(r.kind)) for r in rows], [r.payload for r in rows])
        self._write(lambda: self._writer.write_with_metadata(batch, frame("rows", deployment=deployment)))

    # --- other slots -------------------------------------------------------------------------------------------------

    def receive(self, call: bytes | None, reader: Any, writer: flight.MetadataRecordBatchWriter) -> None:
        """Takes what another slot sends, until it ends the call. Runs on a thread of the server.

        Raises:
            SlotProtocolError: The caller is not of this execution attempt, or of a deployment that is over.
        """
        fields = opened(call, deployment=str, slot=str)
        name, slot = fields["deployment"], fields["slot"]
        replies = ReplyStream(writer)
        if name in self._gone:
            raise SlotProtocolError(f"deployment {name} is no longer in slot {self._descriptor.name}")
        if self._incoming.setdefault((name, slot), replies) is not replies:
            raise SlotProtocolError(f"slot {slot} has called slot {self._descriptor.name} already")
        replies.send(ALIVE)
        deployment: SlotDeployment | None = None
        try:
            for chunk in reader:
                if chunk.data is None:
                    replies.send(ALIVE)
                    continue
                if deployment is None:
                    deployment = self._await_deployment(name)
                for row in rows_of(chunk.data):
                    deployment.put(row)
        finally:
            replies.end()  # and stays: a slot calls once for a deployment, and what it has sent must not arrive again

    def _await_deployment(self, name: str) -> SlotDeployment:
        with self._known:
            self._known.wait_for(
                lambda: self._closed or name in self._deployments or name in self._gone, CONNECT_SECONDS
            )
            deployment = self._deployments.get(name)
        if deployment is None:
            raise SlotProtocolError(f"deployment {name} is not, or no longer, in slot {self._descriptor.name}")
        return deployment

    def _send_credits(self) -> None:
        for deployment in self._deployments.values():
            if not deployment.credits:
                continue
            credits, deployment.credits = deployment.credits, {}
            for slot, each in credits.items():
                if (replies := self._incoming.get((deployment.id, slot))) is not None:
                    replies.send(of_credits(each))
