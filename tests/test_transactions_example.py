"""``examples/transactions``: a day that runs again, and a range of days."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pandas as pd
import pytest
from dagster import AssetKey, DagsterInstance

EXAMPLE = Path(__file__).parents[1] / "examples" / "transactions" / "definitions.py"


def test_each_day_has_its_rows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_HOME", str(tmp_path))
    defs = run_path(str(EXAMPLE))["defs"]
    instance = DagsterInstance.ephemeral()

    def run(*assets: str, **options: Any) -> None:
        job = defs.resolve_implicit_global_asset_job_def()
        selected = [AssetKey(each) for each in assets]
        assert job.execute_in_process(instance=instance, asset_selection=selected, **options).success

    run("orders", partition_key="2026-01-02")
    tags = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-03"}
    run("orders", tags=tags)
    run("totals")
    run("totals")
    assert len(pd.read_parquet(tmp_path / "tables/orders")) == 1 + 2 + 3
    [report] = (tmp_path / "reports/totals").glob("*.csv")
    assert pd.read_csv(report).to_dict("records") == [{"customer": "ann", "amount": 60}]
