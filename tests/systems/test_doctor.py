"""``flinkpy doctor`` on a machine without problems. `tests.test_doctor` is about machines with problems."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from dagster_flinkpy.doctor import Verdict, diagnose
from dagster_flinkpy.storage import StorageLocation


@pytest.mark.spark
def test_a_machine_that_is_fine(tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in diagnose(StorageLocation(str(tmp_path)))}
    spark = ["Spark", "workers", "network", "store of workers"]
    assert list(findings) == ["packages", "Java", "store", *spark, "local disk", "Dagster"]
    broken = [finding for finding in findings.values() if finding.verdict is Verdict.BROKEN]
    assert not broken
    assert "tasks ran at the same time" in findings["workers"].detail
    assert f"dagster-flinkpy {version('dagster-flinkpy')}" in findings["workers"].detail
    assert "workers reach the driver" in findings["network"].detail
    assert not [*tmp_path.rglob("doctor-*")]
    assert Path(findings["Spark"].detail.rpartition("its log is ")[2]).exists()
    assert "honours conditional writes" in findings["store"].detail
