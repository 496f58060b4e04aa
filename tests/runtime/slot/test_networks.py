"""Tasks that live on networks that fail: the job goes on when they are mended, and loses and doubles nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.errors import ConfigurationError, SlotProtocolError
from dagster_flinkpy.runtime.exchange import frames, tls
from dagster_flinkpy.runtime.master import job_failover
from dagster_flinkpy.runtime.master.deployments import job_exchange
from dagster_flinkpy.runtime.shuffle import wire
from dagster_flinkpy.runtime.shuffle.wire import Kind
from dagster_flinkpy.runtime.slot import task_executor
from tests.chaos.relay import TROUBLES, Relays
from tests.runtime.slot.test_live_failures import (
    LiveAttempt,
    Noted,
    OnRestart,
    assert_exact,
    program,
    raise_first,
    restarts,
)

OPTIONS = ExchangeOptions(
    ExchangeMode.PIPELINED,
    heartbeat_interval=timedelta(seconds=0.1),
    heartbeat_timeout=timedelta(seconds=1),
    slot_request_timeout=timedelta(seconds=20),
)


@pytest.fixture
def relays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relays]:
    made = Relays()
    made.install(monkeypatch.setattr)
    yield made
    made.close()


def test_a_job_over_tls(tmp_path: Path) -> None:
    graph, sink = program(tmp_path, Noted(tmp_path, raise_first))
    exchange = replace(OPTIONS, tls=True, heartbeat_timeout=timedelta(seconds=20))
    with LiveAttempt(graph, tmp_path, exchange=exchange, failover=restarts(1)) as attempt:
        list(attempt.run_epochs())
    assert_exact(sink)


class _Writer:
    """What a slot sends to the driver, of which one message with an acknowledgement cannot be sent."""

    failed = False

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_with_metadata(self, batch: pa.RecordBatch, message: bytes) -> None:
        if not _Writer.failed and Kind.ACK in batch.column("kind").to_pylist():
            _Writer.failed = True
            raise pa.ArrowCapacityError("too large")
        self._writer.write_with_metadata(batch, message)


class _Replies:
    def write_metadata(self, message: bytes) -> None:
        pass


def test_what_a_slot_has_sent_is_not_taken_again_when_its_call_is_over() -> None:
    executor = task_executor.TaskExecutor(
        task_executor.SlotDescriptor(
            "default-0", "id", "grpc://driver:1", "token", heartbeat_seconds=1, timeout_seconds=9
        )
    )
    call = frames.opening(deployment="d", slot="default-1").command
    executor.receive(call, [], _Replies())
    with pytest.raises(SlotProtocolError, match="default-1 has called slot default-0 already"):
        executor.receive(call, [], _Replies())


def test_what_cannot_be_sent_to_the_driver_is_not_lost_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        def __init__(self, location: str, certificate: Any) -> None:
            self._client = tls.connect(location, certificate)
            self.close = self._client.close

        def do_exchange(self, *args: Any) -> tuple[Any, Any]:
            writer, reader = self._client.do_exchange(*args)
            return _Writer(writer), reader

    def connect(location: str, certificate: Any) -> Any:
        return Client(location, certificate) if location == driver[0] else tls.connect(location, certificate)

    driver = list[str]()
    here = job_exchange.start_here
    monkeypatch.setattr(job_exchange, "start_here", lambda told: (driver.append(told.driver), here(told))[1])
    monkeypatch.setattr(task_executor, "connect", connect)
    monkeypatch.setattr(_Writer, "failed", False)
    graph, sink = program(tmp_path, Noted(tmp_path))
    exchange = replace(OPTIONS, heartbeat_timeout=timedelta(seconds=20))
    with LiveAttempt(graph, tmp_path, exchange=exchange, failover=restarts(1)) as attempt:
        list(attempt.run_epochs())
        assert attempt._deployed.failover.graph.restarts == 1
    assert_exact(sink)


def test_rows_for_the_driver_that_are_too_large_together_are_sent_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    def batch_of(rows: Any, payloads: Any) -> pa.RecordBatch:
        sizes.append(len(payloads))
        return wire.batch_of(rows, payloads)

    monkeypatch.setattr(task_executor, "_BATCH_BYTES", 1)
    monkeypatch.setattr(task_executor, "batch_of", batch_of)
    graph, sink = program(tmp_path, Noted(tmp_path))
    with LiveAttempt(graph, tmp_path) as attempt:
        list(attempt.run_epochs())
    assert_exact(sink)
    assert set(sizes) == {1}


def test_a_program_that_is_too_large_for_a_message_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD", 1_000)
    graph, sink = program(tmp_path, Noted(tmp_path))
    with (
        LiveAttempt(graph, tmp_path, failover=restarts(3)) as attempt,
        pytest.raises(ConfigurationError, match="a slot can be sent at most 1000"),
    ):
        list(attempt.run_epochs())
    assert attempt._deployed.failover.graph.restarts == 0
    assert sink.rows() == []


def test_auto_goes_on_without_slots_that_do_not_reach_each_other(
    tmp_path: Path, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    relays.trouble("cut", "slots")
    monkeypatch.setattr(job_exchange.JobExchange, "_reason_for_spark", lambda *_: None)  # it would ask Spark
    graph, sink = program(tmp_path, Noted(tmp_path))
    lines: list[str] = []
    exchange = replace(OPTIONS, heartbeat_timeout=timedelta(seconds=20))
    with LiveAttempt(graph, tmp_path, exchange=exchange, lines=lines) as attempt:
        attempt._exchange._mode = ExchangeMode.AUTO
        list(attempt.run_epochs())
    assert_exact(sink)
    [said] = [line for line in lines if "execution.exchange" in line]
    assert said.startswith("job 'job': each epoch is a Spark job (execution.exchange: spark), because ")
    assert "slot default-" in said
    assert "cannot be reached" in said


@pytest.mark.short
@pytest.mark.parametrize("to", ["driver", "slots"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_network_that_fails_and_comes_back(trouble: str, to: str, tmp_path: Path, relays: Relays) -> None:
    graph, sink = program(tmp_path, Noted(tmp_path))
    noticed = OnRestart(relays.mend)
    logger = logging.getLogger(job_failover.__name__)
    logger.addFilter(noticed)
    try:
        with LiveAttempt(graph, tmp_path, exchange=OPTIONS, failover=restarts(1_000)) as attempt:
            for epoch in attempt.run_epochs():
                if epoch.checkpoint_id == 2:
                    relays.trouble(trouble, to)
            assert attempt._deployed.failover.graph.restarts > 0
    finally:
        logger.removeFilter(noticed)
    assert_exact(sink)
