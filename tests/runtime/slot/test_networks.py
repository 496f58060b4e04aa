"""Tasks that live on networks that fail: the job goes on when they are mended, and loses and doubles nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.runtime.master import job_failover
from tests.chaos.relay import TROUBLES, Relays
from tests.runtime.slot.test_live_failures import LiveAttempt, Noted, assert_exact, program, raise_first, restarts

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


class OnRestart(logging.Filter):
    """Calls something when the master has noticed a failure."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def filter(self, record: logging.LogRecord) -> bool:
        self._act()
        return True


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
