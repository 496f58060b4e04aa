"""Tasks of a slot take turns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_flinkpy.common import WatermarkStrategy
from dagster_flinkpy.common.exchange_options import ExchangeMode, ExchangeOptions
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.shuffle import batch
from dagster_flinkpy.runtime.slot import deployment, pipelined_task
from dagster_flinkpy.storage import StorageLocation
from tests.runtime.programs import EVENT, CollectionSource, environment


def test_a_slow_function_does_not_hold_up_what_it_is_not_connected_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record of one takes a second, and nothing else takes time."""
    called = tmp_path / "called"
    called.touch()
    clock = SimpleNamespace(monotonic=lambda: float(called.read_text().count("slow")))
    for module in (batch, deployment, pipelined_task):
        monkeypatch.setattr(module, "time", clock)
    env = environment(1)
    for name, count in (("slow", 10), ("quick", 40)):
        source = CollectionSource([(name, i, i) for i in range(count)], EVENT, batch_size=count)

        def call(event: Any, name: str = name) -> Any:
            with called.open("a") as file:
                file.write(f"{name}\n")
            return event

        records = env.from_source(source, WatermarkStrategy.no_watermarks(), f"{name}-source").uid(f"{name}-source")
        records.rebalance().map(call, EVENT).uid(name).print().uid(f"{name}-print")
    options = ExchangeOptions(ExchangeMode.PIPELINED)
    config = JobConfig("job", StorageLocation(str(tmp_path / "store")), exchange=options, in_process=True)
    with JobAttempt(env.get_job_graph(), config, owner="test") as attempt:
        attempt.run_epoch()
    assert called.read_text().split()[-5:] == ["slow"] * 5
