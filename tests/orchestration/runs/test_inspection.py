"""The inspect job on checkpoints from the harness."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance, Definitions, ExecuteInProcessResult

from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.key_hashes import assign_to_key_group
from dagster_flinkpy.orchestration import build_flink_jobs, flink_assets
from dagster_flinkpy.orchestration.runs.inspection import state_table
from dagster_flinkpy.runtime.master.job import JobAttempt
from dagster_flinkpy.storage.local import LocalObjectStore
from tests.orchestration.programs import word_count
from tests.runtime.harness import run_rows, spark_order

WORDS = [hashlib.md5(str(i).encode()).hexdigest() for i in range(9000)]
WORD = WORDS[7]
WORDS += [WORD, WORD]


class Deployment:
    """A word count and its jobs."""

    def __init__(self, folder: Path, instance: DagsterInstance, resources: dict[str, Any]) -> None:
        self.instance, self.state = instance, folder / "checkpoints" / "words"
        env = word_count(folder / "table", WORDS, per_epoch=5000)
        self.definitions = Definitions(
            flink_assets(env, name="words"), jobs=build_flink_jobs(env, name="words"), resources=resources
        )

    def run(self) -> None:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=self.instance).success

    def inspect(self, **config: Any) -> ExecuteInProcessResult:
        job = self.definitions.resolve_job_def("words_inspect")
        config = {"ops": {"inspect_words": {"config": config}}}
        return job.execute_in_process(config, self.instance, raise_on_error=False)


def metadata(result: ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success
    [output] = [event for event in result.all_events if event.is_successful_output]
    return dict(output.step_output_data.metadata)


def failure(result: ExecuteInProcessResult) -> str:
    [failed] = [event for event in result.all_events if event.is_step_failure]
    return str(failed.step_failure_data.user_failure_data.description)


@pytest.fixture
def deployment(
    tmp_path: Path, instance: DagsterInstance, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Deployment:
    monkeypatch.setattr(JobAttempt, "_on_spark", lambda self, job: run_rows(job, spark_order))
    return Deployment(tmp_path, instance, resources)


def test_the_state_of_a_key_is_a_table(deployment: Deployment) -> None:
    deployment.run()
    deployment.run()
    shown = metadata(deployment.inspect(uid="count", state="count", key=WORD))
    assert (shown["flink/checkpoint_id"].value, shown["rows"].value) == (2, 1)
    [row] = shown["state/count"].records
    assert row.data == {"key": WORD, "value": 3}
    older = metadata(deployment.inspect(uid="count", key=WORD, savepoint_path="chk-1"))
    assert (older["flink/checkpoint_id"].value, older["state/count"].records[0].data["value"]) == (1, 1)
    by_path = deployment.inspect(uid="count", key=WORD, savepoint_path=str(deployment.state / "chk-1"))
    assert metadata(by_path)["state/count"].records == older["state/count"].records


def test_a_key_without_state_has_an_empty_table(deployment: Deployment) -> None:
    deployment.run()
    shown = metadata(deployment.inspect(uid="count", key="nobody"))
    assert shown["rows"].value == 0
    assert shown["state/count"].records == []


def test_files_of_other_key_groups_are_not_read(deployment: Deployment) -> None:
    deployment.run()
    latest = CompletedCheckpointStore(LocalObjectStore(deployment.state)).latest()
    assert latest is not None
    count = latest.operator("count")
    assert count is not None
    group = assign_to_key_group(WORD, 16)
    [other] = [s.keyed for s in count.subtasks if s.keyed and group not in s.keyed.key_groups]
    [path] = [run.path for table in other.tables for run in table.runs]
    (deployment.state / path).unlink()
    assert metadata(deployment.inspect(uid="count", key=WORD))["rows"].value == 1
    [mine] = [s.keyed for s in count.subtasks if s.keyed and group in s.keyed.key_groups]
    for run in mine.tables[0].runs:
        (deployment.state / run.path).unlink()
    assert "is missing" in failure(deployment.inspect(uid="count", key=WORD))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"uid": "counts", "key": "a"}, "no operator has uid 'counts'; the uids are: count, table, words"),
        ({"uid": "count", "state": "sum", "key": "a"}, "operator 'count' has no state 'sum'; it has: count"),
        ({"uid": "table", "key": "a"}, "operator 'table' has no keyed state in checkpoint 1"),
        ({"uid": "count", "key": "a", "savepoint_path": "chk-9"}, "chk-9"),
    ],
)
def test_what_is_not_there_is_named(deployment: Deployment, config: dict[str, Any], says: str) -> None:
    deployment.run()
    assert says in failure(deployment.inspect(**config))


def test_before_the_first_checkpoint(deployment: Deployment) -> None:
    assert "checkpoint" in failure(deployment.inspect(uid="count", key="a"))


def test_cells_are_what_dagster_and_a_browser_can_show() -> None:
    rows = pa.table(
        {
            "key_group": [1],
            "key": [2**60],
            "value": [{"a": [1, None], "b": b"\x01"}],
            "bytes": [b"\xff"],
            "nan": [float("nan")],
            "text": ['"x"'],
            "long": ["x" * 5000],
        }
    )
    [row] = state_table(rows).records
    long = row.data.pop("long")
    assert row.data == {
        "key": str(2**60),
        "value": '{"a": [1, null], "b": "01"}',
        "bytes": "ff",
        "nan": "nan",
        "text": '"x"',
    }
    assert isinstance(long, str)
    assert len(long) <= 1000
    assert len(state_table(pa.table({"key": list(range(500))})).records) == 100
