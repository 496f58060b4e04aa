from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dagster_flinkpy.runtime.shuffle.record_writer import NETWORK_MEMORY

ROOT = Path(__file__).parents[2]


def peak(mib: int, folder: Path) -> int:
    command = [sys.executable, "-m", "tests.runtime.memory_run", str(mib), str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


@pytest.mark.smoke
def test_an_epoch_20_times_larger_than_the_budget_needs_no_more_memory(tmp_path: Path) -> None:
    budget = NETWORK_MEMORY >> 20
    small, large = peak(budget, tmp_path / "small"), peak(20 * budget, tmp_path / "large")
    # Each of the four tasks may hold its budget and the batches that it is processing.
    assert large - small < 4 * budget
