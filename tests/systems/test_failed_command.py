"""What Dagster's command prints of a run that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_output_of_a_failed_command_ends_with_what_happened(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    program = f"""
import dagster as dg
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, build_flink_jobs
from tests.orchestration.programs import word_count

storage = CheckpointStorageResource(url={str(tmp_path / "checkpoints")!r})
defs = dg.Definitions(
    jobs=build_flink_jobs(word_count({str(tmp_path / "table")!r}, ["a"]), name="words"),
    resources={{"spark": SparkResource(), "checkpoint_storage": storage}},
)
"""
    (tmp_path / "definitions.py").write_text(program)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("dagster")),
            "job",
            "execute",
            "-f",
            "definitions.py",
            "-j",
            "words_restore",
        ],
        cwd=tmp_path,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    of_dagster = (" - dagster - DEBUG - ", "Error: Run ")
    lines = [line for line in done.stderr.splitlines() if line and not any(each in line for each in of_dagster)]
    assert "There is no savepoint in" in lines[-1]
    assert Path(lines[-1].partition("(traceback: ")[2].rstrip(")")).read_text().startswith("Traceback")
