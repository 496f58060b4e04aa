"""``examples/shop``: its own tests, and runs of its code location."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance

from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.runtime.harness import run_rows

SHOP = Path(__file__).parents[2] / "examples" / "shop"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copies the example, so that nothing is written into the repository."""
    ignored = shutil.ignore_patterns("__pycache__", ".*", "data", "tables", "checkpoints", "dagster_home")
    return shutil.copytree(SHOP, tmp_path / "shop", ignore=ignored)


@pytest.fixture
def shop(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Loads the code location. Its jobs run in this process, without Spark."""

    def on_harness(self: JobAttempt, job: EpochJob) -> list[WireRow]:
        return run_rows(job)

    monkeypatch.setattr(JobAttempt, "_on_spark", on_harness)
    monkeypatch.setenv("SHOP_HOME", str(project))
    monkeypatch.syspath_prepend(str(project / "src"))
    forget()  # another test may have imported a module of this name, such as one of a page of the documentation
    yield import_module("shop.definitions").defs
    forget()


def forget() -> None:
    """Forgets the modules of the example."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[module]


@pytest.mark.smoke
def test_its_own_tests_pass(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_dagster_runs_it_day_by_day(shop: Any, project: Path) -> None:
    import_module("shop.generate").generate(project / "data", orders_per_day=40)
    job = shop.resolve_implicit_global_asset_job_def()
    paid = []
    with DagsterInstance.ephemeral() as instance:
        for _ in range(3):
            result = job.execute_in_process(instance=instance)
            materialized = {event.asset_key.path[-1] for event in result.get_asset_materialization_events()}
            assert {"paid_orders", "paid_orders_table", "sessions", "top_products"} <= materialized
            paid.append(pq.read_table(project / "tables/paid_orders").num_rows)
    assert 0 < paid[0] < paid[1] < paid[2]
    days = set(pq.read_table(project / "tables/top_products")["day"].to_pylist())
    assert len(days) == 2  # the third one waits for the fourth
    assert pq.read_table(project / "tables/late_clicks").num_rows > 0
