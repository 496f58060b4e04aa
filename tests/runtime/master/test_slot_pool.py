"""Slots that are asked for, and what else comes to the port of the driver."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    FencedError,
    FlinkPyError,
    NoResourceAvailableError,
    SlotLostError,
    UnsupportedEnvironmentError,
)
from dagster_flinkpy.runtime.exchange.frames import calling, frame, opening
from dagster_flinkpy.runtime.master.deployments.slot_processes import start_here
from dagster_flinkpy.runtime.master.slots import slot_pool
from dagster_flinkpy.runtime.master.slots.slot_pool import Slot, SlotPool, SlotProcess
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA, WireRow
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor
from tests.waiting import LIMIT, until


class Silent:
    """The process of a slot that never registers."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.killed, self._error = threading.Event(), error

    def run(self) -> None:
        if self._error is not None:
            raise self._error
        self.killed.wait(60)

    def end(self) -> None:
        self.killed.set()


class Heard:
    """Notes what it hears of slots."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.lost: list[tuple[str, FlinkPyError]] = []
        self.changed = threading.Condition()

    def on_message(self, slot: Slot, fields: dict[str, Any]) -> None:
        with self.changed:
            self.messages.append(fields)
            self.changed.notify_all()

    def on_rows(self, slot: Slot, deployment: str, rows: list[WireRow]) -> None:
        raise AssertionError("nobody sends rows")

    def on_lost(self, slot: Slot, error: FlinkPyError) -> None:
        with self.changed:
            self.lost.append((slot.name, error))
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 30)


class Pool(SlotPool):
    """Slots of this process, unless another process is given for a name."""

    def __init__(
        self, request_timeout: float = 30.0, interval: float = 1.0, timeout: float = 50.0, host: str = "127.0.0.1"
    ) -> None:
        self.others: dict[str, Callable[[SlotDescriptor], SlotProcess]] = {}
        self.told: list[SlotDescriptor] = []
        self.lines: list[str] = []
        self.heard = Heard()
        options = ExchangeOptions(
            ExchangeMode.PIPELINED,
            slot_request_timeout=timedelta(seconds=request_timeout),
            heartbeat_interval=timedelta(seconds=interval),
            heartbeat_timeout=timedelta(seconds=timeout),
        )
        super().__init__(self._start_one, host, options, self.lines.append)
        self.add_listener(self.heard)

    def _start_one(self, descriptor: SlotDescriptor) -> SlotProcess:
        self.told.append(descriptor)
        return self.others.get(descriptor.name, start_here)(descriptor)


@pytest.fixture
def pools() -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []
    before = set(threading.enumerate())

    def make(*args: Any, **options: Any) -> Pool:
        made.append(Pool(*args, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
        for descriptor in pool.told[:1]:
            with pytest.raises(OSError, match="refused"):
                connect(descriptor.driver)
    for thread in set(threading.enumerate()) - before:
        if not isinstance(thread, threading._DummyThread):
            thread.join(20)
            assert not thread.is_alive(), thread.name


def connect(location: str) -> socket.socket:
    place = urlsplit(location)
    return socket.create_connection((str(place.hostname), int(place.port or 0)), 10)


def call(descriptor: SlotDescriptor, what: flight.FlightDescriptor, token: str) -> tuple[Any, Any, Any]:
    client = flight.connect(descriptor.driver)
    writer, reader = client.do_exchange(what, calling(token))
    writer.begin(WIRE_SCHEMA)
    return client, writer, reader


def refused(descriptor: SlotDescriptor, what: flight.FlightDescriptor, token: str) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError):
        _, _, reader = call(descriptor, what, token)
        reader.read_chunk()


def test_slots_are_started_once_and_given_back(pools: Callable[..., Pool]) -> None:
    pool = pools()
    slots = pool.request(["a", "b"])
    assert pool.request(["a"]) == {"a": slots["a"]}
    assert sorted(descriptor.name for descriptor in pool.told) == ["a", "b"]


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_slots_find_a_driver_that_has_an_address_of_ipv6(pools: Callable[..., Pool]) -> None:
    pool = pools(host="::1")
    assert pool.request(["a"])["a"].location.startswith("grpc://[::1]:")


def test_a_request_says_how_many_slots_are_missing(pools: Callable[..., Pool]) -> None:
    pool, processes = pools(), [Silent(), Silent()]
    pool.request(["a"])
    pool._timeout, pool.others = 0.5, {"b": lambda _: processes[0], "c": lambda _: processes[1]}
    with pytest.raises(NoResourceAvailableError, match=r"2 of 3 slots did not start within 0\.5 s \(b, c\)") as raised:
        pool.request(["a", "b", "c"])
    assert (raised.value.needed, raised.value.had) == (3, 1)
    assert all(process.killed.wait(30) for process in processes)  # no Spark job is left that waits for cores
    pool._timeout, pool.others = 30.0, {}
    assert sorted(pool.request(["a", "b", "c"])) == ["a", "b", "c"]  # there are cores again


def test_a_request_that_is_given_up_ends(pools: Callable[..., Pool]) -> None:
    pool, given_up, process = pools(), threading.Event(), Silent()

    def start(_: SlotDescriptor) -> SlotProcess:
        threading.Thread(target=lambda: (given_up.set(), pool.wake())).start()
        return process

    pool.others = {"a": start}
    with pytest.raises(CheckpointError, match="interrupted"):
        pool.request(["a"], given_up.is_set)


def test_a_slot_that_cannot_run_says_why(pools: Callable[..., Pool]) -> None:
    pool = pools()
    pool.others = {"a": lambda _: Silent(UnsupportedEnvironmentError("no pyarrow"))}
    with pytest.raises(UnsupportedEnvironmentError, match="no pyarrow"):
        pool.request(["a"])


def test_a_slot_that_is_given_up_is_replaced(pools: Callable[..., Pool]) -> None:
    pool = pools()
    first = pool.request(["a", "b"])
    pool.give_up(first["a"], SlotLostError("it hangs"))
    pool.heard.wait_for(lambda: [name for name, _ in pool.heard.lost] == ["a"])
    second = pool.request(["a", "b"])
    assert second["a"] is not first["a"]
    assert second["b"] is first["b"]
    first["a"].thread.join(30)
    assert not first["a"].thread.is_alive()


class _Frozen(Silent):
    """A slot that registers, and says nothing any more."""

    def __init__(self, descriptor: SlotDescriptor) -> None:
        super().__init__()
        self._descriptor = descriptor

    def run(self) -> None:
        what = opening(slot=self._descriptor.name, id=self._descriptor.id, location="grpc://127.0.0.1:1")
        client, _, reader = call(self._descriptor, what, self._descriptor.token)
        super().run()
        reader.cancel()
        client.close()
        raise CheckpointError("Spark has cancelled the job of the slot")


class _Away(_Frozen):
    """One on a machine that is gone: nobody can end it."""

    def end(self) -> None:
        pass


def test_no_call_is_left_of_a_slot_that_nobody_can_end(
    pools: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_pool, "_END_SECONDS", 0.1)
    pool, away = pools(), list[_Away]()
    pool.others = {"a": lambda descriptor: away.append(_Away(descriptor)) or away[0]}  # type: ignore[func-returns-value]
    pool.request(["a"])
    unnamed, peer = socket.socketpair()
    with unnamed, peer:
        pool.close()
    for each in threading.enumerate():
        if each.name == "end of the exchange":
            each.join(30)
            assert not each.is_alive(), "Python would abort when it ends"
    away[0].killed.set()


def test_a_slot_that_does_not_answer_is_lost(pools: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(slot_pool, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    pool = pools(interval=0.1, timeout=LIMIT)
    pool.others = {"a": _Frozen}
    slots = pool.request(["a", "b"])
    slots["a"].say(frame("deploy", bytes(64 << 20)))  # nobody reads it, and nobody waits for that
    for _ in range(3):
        ahead += 0.4 * LIMIT
        now = time.monotonic() + ahead
        until(lambda now=now: slots["b"].heard >= now, "the other slot answers")
    pool.heard.wait_for(lambda: bool(pool.heard.lost))
    assert "slot a has not answered for" in str(pool.heard.lost[0][1])
    slots["a"].thread.join(30)
    assert not slots["a"].thread.is_alive()
    assert [name for name, _ in pool.heard.lost] == ["a"]
    assert isinstance(pool.why_ended(slots["a"], 0), SlotLostError), "not that it was killed: regions restart then"


def test_a_job_that_another_attempt_has_taken_over_replaces_no_slots(pools: Callable[..., Pool]) -> None:
    def check() -> None:
        raise FencedError("another run has taken over")

    pool = pools()
    slots = pool.request(["a", "b"])
    pool._check_leader = check
    assert pool.request(["a", "b"]) == slots  # nobody asks the store for that
    pool.give_up(slots["a"], SlotLostError("it hangs"))
    with pytest.raises(FencedError):
        pool.request(["a", "b"])
    assert len(pool.told) == 2


def test_a_process_that_spark_has_given_up_is_told_to_end(pools: Callable[..., Pool]) -> None:
    """Spark says that the task has ended, as if it had lost the executor, and the process is still there."""
    given_up, orphans = threading.Event(), list[threading.Thread]()

    class Orphan(Silent):
        def __init__(self, descriptor: SlotDescriptor) -> None:
            super().__init__()
            orphans.append(threading.Thread(target=start_here(descriptor).run, daemon=True))

        def run(self) -> None:
            orphans[0].start()
            assert given_up.wait(30)

    pool = pools()
    pool.others = {"a": Orphan}
    slot = pool.request(["a"])["a"]
    given_up.set()
    pool.heard.wait_for(lambda: [name for name, _ in pool.heard.lost] == ["a"])
    orphans[0].join(30)
    assert not orphans[0].is_alive()
    pool.others = {}
    assert pool.request(["a"])["a"] is not slot


def test_a_process_that_was_replaced_cannot_register_again(pools: Callable[..., Pool]) -> None:
    pool = pools()
    slot = pool.request(["a"])["a"]
    told = pool.told[0]
    refused(told, opening(slot="a", id=told.id, location="grpc://x:1"), told.token)  # its task, started again
    pool.give_up(slot, SlotLostError("gone"))
    refused(told, opening(slot="a", id=told.id, location="grpc://x:1"), told.token)
    fresh = pool.request(["a"])["a"]
    refused(told, opening(slot="a", id=told.id, location="grpc://x:1"), told.token)
    assert fresh.lost is None


def test_foreign_bytes_are_refused_and_the_slots_live_on(pools: Callable[..., Pool]) -> None:
    pool = pools()
    slots = pool.request(["a", "b"])
    told = pool.told[0]
    known = opening(slot="c", id="c", location="grpc://x:1")
    for nonsense in (b"\x00" * 100_000, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 100, b""):
        for location in (told.driver, slots["a"].location):
            with connect(location) as raw:
                raw.settimeout(30)
                try:
                    raw.sendall(nonsense)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(65_536):
                        pass
                except TimeoutError:
                    raise
                except OSError:
                    pass  # the server has hung up first
    refused(told, known, "")
    refused(told, known, "f" * 32)
    refused(told, known, told.token)  # a slot that nobody has asked for
    for damaged in (b"", b"{", b"[]", b'"a"', b"\xff\xfe", b'{"slot": 1, "id": [], "location": null}', b"{}" * 100):
        refused(told, flight.FlightDescriptor.for_command(damaged), told.token)
    client = flight.connect(told.driver)
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(client.list_flights())
    with pytest.raises(flight.FlightUnauthenticatedError):
        client.do_get(flight.Ticket(b"x")).read_all()
    client.close()
    assert pool.request(["a", "b"]) == slots
    assert pool.heard.lost == []


def test_a_huge_message_without_the_token_is_not_taken(pools: Callable[..., Pool]) -> None:
    pool = pools()
    slots = pool.request(["a"])
    refused(pool.told[0], flight.FlightDescriptor.for_command(bytes(256 << 20)), "wrong")
    assert pool.request(["a"]) == slots


@pytest.mark.parametrize(
    "message",
    [
        b"no json\n",
        b"[1]\n",
        b'{"kind": 1}\n',
        b'{"kind": "rows"}\n',
        b'{"kind": "rows", "deployment": {}}\n',
        b"\xff\n",
    ],
)
def test_a_slot_that_sends_what_it_must_not_is_lost(pools: Callable[..., Pool], message: bytes) -> None:
    class Odd(_Frozen):
        def run(self) -> None:
            what = opening(slot="a", id=self._descriptor.id, location="grpc://127.0.0.1:1")
            client, writer, reader = call(self._descriptor, what, self._descriptor.token)
            writer.write_metadata(message)
            try:
                with pytest.raises((pa.ArrowException, StopIteration)):
                    while True:
                        reader.read_chunk()
            finally:
                client.close()

    pool = pools()
    pool.others = {"a": Odd}
    with suppress(SlotLostError):  # it may be lost before the request looks
        pool.request(["a"])
    pool.heard.wait_for(lambda: bool(pool.heard.lost))
    assert "has sent what it must not" in str(pool.heard.lost[0][1])


def test_slots_end_by_themselves_when_the_driver_is_gone() -> None:
    """The heartbeats of the driver stay away, and the connection is still there."""
    reached, over = threading.Event(), threading.Event()

    class Driver(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            writer.begin(WIRE_SCHEMA)
            reached.set()
            over.wait(60)

    server = Driver("grpc://127.0.0.1:0")
    told = SlotDescriptor("a", "1", f"grpc://127.0.0.1:{server.port}", "token", 0.1, 0.5)
    slot = threading.Thread(target=start_here(told).run, daemon=True)
    slot.start()
    assert reached.wait(30)
    slot.join(30)
    assert not slot.is_alive()
    over.set()
    server.shutdown()


@pytest.mark.parametrize(("interval", "timeout"), [(0, 10), (10, 10), (10, 5), (-1, 5)])
def test_the_interval_of_heartbeats_is_below_their_timeout(interval: int, timeout: int) -> None:
    with pytest.raises(ConfigurationError, match=r"heartbeat\.interval"):
        ExchangeOptions(heartbeat_interval=timedelta(seconds=interval), heartbeat_timeout=timedelta(seconds=timeout))
