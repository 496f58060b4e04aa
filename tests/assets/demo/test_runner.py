from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.spark
def test_two_days(tmp_path: Path) -> None:
    """Runs the demo on its first two days."""
    done = subprocess.run(
        [sys.executable, "-m", "assets.demo"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "FLINKPY_HOME": str(tmp_path), "FLINKPY_DAYS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 duplicated" in done.stdout
    assert " 2 of 2 days: parallelism 3" in done.stdout
    assert (tmp_path / "dagster_home/history/runs.db").exists()
