"""Runs the code of the state benchmark on a few keys. The measured values mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import state, state_cost
from benchmarks.peers import spark as spark_peer

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_server")]


def values(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {each["metric"]: each["value"] for each in lines}


def test_cost(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "WARM_UP_ROUNDS", 1)
    monkeypatch.setattr(state, "TOUCH_ROUNDS", 1)
    for module in (state, state_cost):
        monkeypatch.setattr(module, "PARALLELISM", 2)
    monkeypatch.setattr(state, "RESCALED", 3)
    monkeypatch.setattr(state, "RESTORE_ROUNDS", 1)
    lines = state.cost(spark, tmp_path, (1_000, 50_000))
    found = values(lines)
    assert [each["value"] for each in lines if each["metric"] == "state.bytes"][1] > 100_000
    assert 0.5 < found["state.rescale_bytes_ratio"] < 3
    assert found["state.worker_rss_mb_10m"] > 50
    assert found["state.restore_vs_pyarrow_read"] > 0

    pytest.importorskip("matplotlib")
    from benchmarks import plots

    plots.draw_cost(lines, tmp_path / "cost.png")
    assert (tmp_path / "cost.png").stat().st_size > 1_000


def test_throughput_beside_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "RATE_ROUNDS", 1)
    rates, lines = state.throughput(tmp_path, events=4_000, per_checkpoint=1_000, keys=100)
    assert set(rates) == {f"{form}{how}" for form in ("process", "sum", "mini-batch sum") for how in ("", " plain")}
    assert all(json.dumps(each) for each in lines)
    (tmp_path / "events").mkdir()
    assert spark_peer.group_by_sum(spark, str(tmp_path / "events"), batches=3, per_batch=100, keys=10) > 0
