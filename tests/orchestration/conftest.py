from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.runtime.harness import run_rows


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def resources(tmp_path: Path) -> dict[str, Any]:
    return {
        "spark": SparkResource(),
        "checkpoint_storage": CheckpointStorageResource(url=str(tmp_path / "checkpoints"), num_retained=2),
    }


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs all tasks in this process instead of on Spark."""
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))
