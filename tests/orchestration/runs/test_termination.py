from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from dagster import DagsterEventType, DagsterInstance, materialize

from dagster_flinkpy.orchestration import flink_assets
from tests.orchestration.programs import word_count
from tests.waiting import until


@pytest.mark.system
def test_a_step_ends_when_the_process_of_its_run_is_killed(
    tmp_path: Path, resources: dict[str, Any], in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    environment = {**os.environ, "KILLED_RUN": str(tmp_path)}
    command = [sys.executable, "-m", "tests.orchestration.runs.killed_run"]
    with DagsterInstance.get() as instance, subprocess.Popen(command, env=environment) as run:
        until((tmp_path / "pid").exists, "the step does not begin")
        step = psutil.Process(int((tmp_path / "pid").read_text()))
        run.kill()
        try:
            (killed,) = instance.get_runs()
            failed = DagsterEventType.STEP_FAILURE
            until(lambda: instance.get_records_for_run(killed.run_id, of_type=failed).records, "the step goes on")
        finally:
            (tmp_path / "go on").touch()
        step.wait()
        instance.report_run_failed(killed)  # as the process does that has started it
        assets = flink_assets(word_count(tmp_path / "table", ["a", "b", "a"]), name="words")
        assert materialize(assets, instance=instance, resources=resources).success
    rows = [tuple(row.values()) for row in pq.read_table(tmp_path / "table", partitioning=None).to_pylist()]
    assert sorted(rows) == [("a", 1), ("a", 2), ("b", 1)]
