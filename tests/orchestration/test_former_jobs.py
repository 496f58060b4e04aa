"""A program whose parts were formerly separate jobs. Tasks run in the harness."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, materialize

from dagster_flinkpy.orchestration import flink_assets
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.state_processor import write_savepoint
from dagster_flinkpy.storage import StorageLocation, lease
from tests.orchestration.programs import parts
from tests.runtime.harness import run_rows


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance, resources: dict[str, Any]) -> Any:
    """Materializes a program of parts; returns what the run's failure says, or None."""
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job))

    def execute(name: str, *of: str, **config: Any) -> str | None:
        result: ExecuteInProcessResult = materialize(
            flink_assets(parts(tmp_path / "tables", *of), name=name),
            instance=instance,
            resources=resources,
            run_config={"ops": {name.replace(".", "_"): {"config": config}}},
            raise_on_error=False,
        )
        failures = [event.step_failure_data.user_failure_data for event in result.all_events if event.is_step_failure]
        return str(failures[0].description) if failures else None

    return execute


def rows(tmp_path: Path) -> dict[str, int]:
    return {name: pq.read_table(tmp_path / "tables" / name).num_rows for name in "ab"}


def test_a_job_does_not_start_from_nothing_beside_the_jobs_of_its_parts(tmp_path: Path, run: Any) -> None:
    assert [run("both.a", "a"), run("both.b", "b")] == [None, None]
    refused = run("both", "a", "b")
    assert "in the checkpoints of jobs 'both.a', 'both.b'" in refused
    assert "make a program of each part, and name it after its job" in refused
    assert run("both.a", "a") is None, "the former jobs can continue"
    assert rows(tmp_path) == {"a": 2, "b": 1}
    assert not (tmp_path / "checkpoints/both").exists()


def test_the_message_says_how_to_join_them(tmp_path: Path, run: Any) -> None:
    run("both.a", "a")
    run("both.b", "b")
    refused = run("both", "a", "b")
    code = refused[refused.index("write_savepoint(") : refused.index(".write(...)")]
    savepoint = eval(code, {"write_savepoint": write_savepoint}).write(str(tmp_path / "joined"))
    assert run("both", "a", "b", restore_from=savepoint) is None
    assert rows(tmp_path) == {"a": 2, "b": 2}
    assert run("both", "a", "b") is None, "it has the state of all parts now"


def test_what_is_not_committed_would_be_lost_in_a_savepoint(tmp_path: Path, run: Any) -> None:
    run("both.a", "a")
    store = StorageLocation(str(tmp_path / "checkpoints/both.a")).open()
    leader = lease.acquire(store, "dies before it commits", timedelta(0), 0, above=0, led_by="")
    lease.release(store, leader, committed=0)
    refused = run("both", "a", "b")
    assert "name it after its job" in refused
    assert "write_savepoint" not in refused


def test_state_may_be_left_behind(run: Any) -> None:
    run("both.a", "a")
    assert run("both", "a", "b", start_empty=True) is None
    assert run("both", "a", "b") is None


def test_a_part_that_is_new_hinders_nobody(run: Any) -> None:
    assert run("both", "a") is None
    assert run("both", "a", "b") is None
