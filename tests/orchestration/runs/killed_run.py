"""A run whose step has a process of its own and stays amid its first epoch, for `test_termination.py`."""

import os
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, Definitions, JobDefinition, define_asset_job, execute_job, reconstructable

from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, flink_assets
from dagster_flinkpy.runtime.master.job import JobAttempt
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows
from tests.waiting import until

FOLDER = Path(os.environ["KILLED_RUN"])


def _waits(self: JobAttempt, job: Any) -> Any:
    (FOLDER / "pid.part").write_text(str(os.getpid()))
    (FOLDER / "pid.part").rename(FOLDER / "pid")
    until((FOLDER / "go on").exists, "nobody lets the epoch go on")
    return run_rows(job)


def words() -> JobDefinition:
    resources = {
        "spark": SparkResource(),
        "checkpoint_storage": CheckpointStorageResource(url=str(FOLDER / "checkpoints")),
    }
    assets = flink_assets(word_count(FOLDER / "table", ["a", "b", "a"]), name="words")
    jobs = [define_asset_job("killed")]
    return Definitions(assets=assets, jobs=jobs, resources=resources).resolve_job_def("killed")


if __name__ == "__mp_main__":  # in the process of the step
    JobAttempt._on_spark = _waits  # type: ignore[method-assign]

if __name__ == "__main__":
    from tests.orchestration.runs.killed_run import words as importable

    execute_job(reconstructable(importable), DagsterInstance.get())
