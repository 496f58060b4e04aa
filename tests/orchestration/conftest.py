from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance

from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource


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
