"""TLS between driver and slots: who does not have the certificate of the attempt is neither heard nor believed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow.flight as flight
import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.errors import ConfigurationError, SlotLostError
from dagster_flinkpy.runtime.exchange.frames import calling, opening
from dagster_flinkpy.runtime.exchange.tls import connect, new_certificate, server_options
from dagster_flinkpy.runtime.master.deployments.slot_processes import start_here
from dagster_flinkpy.runtime.master.slots.slot_pool import SlotPool, SlotProcess
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA
from dagster_flinkpy.runtime.slot.task_executor import SlotDescriptor


@pytest.fixture
def told() -> list[SlotDescriptor]:
    return []


@pytest.fixture
def pool(told: list[SlotDescriptor]) -> Iterator[SlotPool]:
    def start(descriptor: SlotDescriptor) -> SlotProcess:
        told.append(descriptor)
        return start_here(descriptor)

    made = SlotPool(start, "127.0.0.1", ExchangeOptions(ExchangeMode.PIPELINED, tls=True), lambda line: None)
    yield made
    made.close()


def exchange(client: flight.FlightClient, token: str, what: flight.FlightDescriptor) -> None:
    try:
        writer, reader = client.do_exchange(what, calling(token))
        writer.begin(WIRE_SCHEMA)
        reader.read_chunk()
    finally:
        client.close()


def test_only_who_has_the_certificate_is_heard(pool: SlotPool, told: list[SlotDescriptor]) -> None:
    slot = pool.request(["a"])["a"]
    ours, other = told[0].tls, new_certificate()
    assert ours is not None
    for location in (told[0].driver, slot.location):
        assert location.startswith("grpc+tls://")
        trusting = {"tls_root_certs": ours.certificate, "override_hostname": "flinkpy"}
        for refused in (
            flight.connect(location, **trusting),  # without a certificate of its own
            flight.connect(location, **trusting, cert_chain=other.certificate, private_key=other.key),
            flight.connect(location, disable_server_verification=True),
            flight.connect(location.replace("grpc+tls", "grpc")),
        ):
            with pytest.raises(flight.FlightUnavailableError):
                exchange(refused, told[0].token, opening(slot="a", id="1", location=""))
        with pytest.raises(flight.FlightUnauthenticatedError):  # the token is asked for, too
            exchange(connect(location, ours), "x" * 32, opening(slot="a", id="1", location=""))
    assert pool.request(["a"]) == {"a": slot}


@pytest.mark.parametrize("tls", [True, False])
def test_no_proxy_of_the_environment_is_asked_for_the_way(tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    certificate = new_certificate() if tls else None
    scheme = "grpc+tls" if tls else "grpc"

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
            yield from ()

    with (
        Server(f"{scheme}://127.0.0.1:0", **server_options(certificate)) as server,
        connect(f"{scheme}://127.0.0.1:{server.port}", certificate) as client,
    ):
        assert list(client.list_flights()) == []


@pytest.mark.parametrize("certificate", ["of another attempt", None])
def test_a_slot_takes_nothing_from_an_impostor(certificate: str | None) -> None:
    """The driver is gone, and somebody else listens on its port, who would send programs."""
    called = threading.Event()

    class Impostor(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            called.set()

    theirs = new_certificate() if certificate else None
    server = Impostor(f"grpc{'+tls' if theirs else ''}://127.0.0.1:0", **server_options(theirs))
    descriptor = SlotDescriptor("a", "1", f"grpc+tls://127.0.0.1:{server.port}", "token", 0.1, 5.0, new_certificate())
    with pytest.raises(SlotLostError, match="slot a cannot reach the driver at grpc"):
        start_here(descriptor).run()
    assert not called.is_set()
    server.shutdown()


def test_each_attempt_has_a_certificate_of_its_own() -> None:
    first, second = new_certificate(), new_certificate()
    assert first.certificate != second.certificate
    assert b"PRIVATE KEY" in first.key
    assert "KEY" not in repr(first)  # nor in what is said of a slot


def test_the_package_that_makes_certificates_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    options = ExchangeOptions(ExchangeMode.PIPELINED, tls=True)
    with pytest.raises(ConfigurationError, match=r"dagster-flinkpy\[tls\]"):
        SlotPool(start_here, "127.0.0.1", options, lambda line: None)
