from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "psutil", "boto3", "botocore", "grpc_status", "rich", "duckdb"}
HEAVY |= {"deltalake", "pyiceberg", "psycopg", "confluent_kafka", "polars", "prometheus_client"}
RUN = {  # what runs, checks and ticks need
    "checkpoint.coordinator.coordinator",
    "checkpoint.metadata",
    "checkpoint.restore",
    "checkpoint.store",
    "cli",
    "connectors.commit.table_writer",
    "orchestration.runs.check_findings",
    "runtime.master.job",
    "state",
    "storage.local",
    "storage.s3",
}


@pytest.mark.parametrize("name", sorted(RUN))
def test_the_modules_are_named_as_they_are(name: str) -> None:
    assert find_spec(f"dagster_flinkpy.{name}") is not None


@pytest.mark.parametrize(
    "module",
    [
        "dagster_flinkpy",
        "dagster_flinkpy.connectors",
        "dagster_flinkpy.datastream.connectors.kafka",
        "dagster_flinkpy.orchestration",
        "assets.definitions",
    ],
)
def test_heavy_modules_stay_out(module: str, tmp_path: Path) -> None:
    """A code location is loaded often, and never itself runs Spark."""
    unwanted = HEAVY | {f"dagster_flinkpy.{name}" for name in RUN}
    program = f"import sys, {module};print(*({unwanted} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env={"PATH": "", "FLINKPY_HOME": str(tmp_path / "home")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == ""
    assert not (tmp_path / "home").exists()
