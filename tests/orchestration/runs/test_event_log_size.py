"""What a run that goes on adds to Dagster's event log, which has no retention but that of runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterEventType, DagsterInstance, Definitions, EventLogEntry, serialize_value

from dagster_flinkpy.orchestration import flink_assets
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows

MATERIALIZED = DagsterEventType.ASSET_MATERIALIZATION


@pytest.fixture
def events(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))

    def run(checkpoints: int, interval: float) -> list[EventLogEntry]:
        words = [hashlib.md5(str(i).encode()).hexdigest() for i in range(checkpoints + 1)]
        assets = flink_assets(word_count(tmp_path / "table", words, per_epoch=1), name="words")
        job = Definitions(assets, resources=resources).resolve_implicit_global_asset_job_def()
        config = {"ops": {"words": {"config": {"epochs": checkpoints, "materialize_interval": interval}}}}
        return instance.all_logs(job.execute_in_process(config, instance).run_id)

    return run


def size(entries: list[EventLogEntry]) -> int:
    return sum(len(serialize_value(each)) for each in entries)


@pytest.mark.system
def test_a_checkpoint_between_two_materializations_adds_few_bytes(events: Any) -> None:
    one, many = events(1, 1e9), events(31, 1e9)
    assert size(many) - size(one) < 30 * 1_000, "10,000 checkpoints add less than 10 MB"


@pytest.mark.system
def test_a_materialization_has_the_tables_of_the_whole_job_once(events: Any) -> None:
    log = [each for each in events(12, 0) if each.dagster_event_type == MATERIALIZED]
    keys = [each.get_dagster_event().asset_key for each in log]
    sizes = {key.path[-1]: size([each]) for key, each in zip(keys, log, strict=True) if key}
    assert len(log) == 12 * len(sizes)
    assert sizes["words"] < 24_000
    assert max(sizes["count"], sizes["table"]) < 14_000
