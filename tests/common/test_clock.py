"""Clocks."""

from __future__ import annotations

import time

import pytest

from dagster_flinkpy.common import clock

HOUR = 3_600_000


def test_a_clock_that_is_set_back_goes_on_and_is_right_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, passed = 100 * HOUR, 0

    def after(milliseconds: int, *, jump: int = 0) -> int:
        nonlocal machine, passed
        machine, passed = machine + milliseconds + jump, passed + milliseconds
        return clock.steady_millis() - 100 * HOUR

    monkeypatch.setattr(clock, "_seen", (0.0, 0.0))
    monkeypatch.setattr(time, "time_ns", lambda: machine * 1_000_000)
    monkeypatch.setattr(time, "monotonic", lambda: passed / 1000)
    assert after(1000) == 1000
    assert after(1000, jump=5 * HOUR) == 5 * HOUR + 2000
    assert after(1000, jump=-5 * HOUR) == 5 * HOUR + 2900
    assert after(1000) == 5 * HOUR + 3800
    assert after(60 * HOUR) == 60 * HOUR + 4000
    assert after(1000) == 60 * HOUR + 5000
