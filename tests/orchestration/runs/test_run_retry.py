"""A run that Dagster retries is one run to the job, so it restores a savepoint only once."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import (
    DagsterInstance,
    Definitions,
    JobDefinition,
    ReexecutionOptions,
    define_asset_job,
    execute_job,
    in_process_executor,
    reconstructable,
)

from dagster_flinkpy.datastream import RecoveryClaimMode
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.orchestration import CheckpointStorageResource, SparkResource, flink_assets
from dagster_flinkpy.runtime.master import job as runtime_job
from tests.orchestration.programs import FakeAttempt, word_count

JOB = "take_checkpoint"


def checkpoint_job() -> JobDefinition:
    from pathlib import Path

    definitions = Definitions(
        assets=flink_assets(word_count(Path("table"), ["a"]), name="words"),
        jobs=[define_asset_job(JOB, executor_def=in_process_executor)],
        resources={"spark": SparkResource(), "checkpoint_storage": CheckpointStorageResource(url="checkpoints")},
    )
    return definitions.resolve_job_def(JOB)


def test_a_try_after_a_failure_has_the_run_id_of_the_first(
    monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance
) -> None:
    config: dict[str, Any] = {"ops": {"words": {"config": {"restore_from": "s3://b/savepoint", "claim_mode": "CLAIM"}}}}
    ids, told = [], []
    reexecution = None
    for error in (StorageError("no"), StorageError("no"), None, None):
        monkeypatch.setattr(runtime_job, "JobAttempt", FakeAttempt.factory(error=error))
        with execute_job(
            reconstructable(checkpoint_job), instance, run_config=config, reexecution_options=reexecution
        ) as result:
            assert result.success is (error is None)
            ids.append(result.run_id)
            reexecution = ReexecutionOptions(result.run_id)
        [attempt] = FakeAttempt.made
        told.append(attempt.options["run_id"])
        assert attempt.options["claim_mode"] is RecoveryClaimMode.CLAIM
    assert len(set(ids)) == 4
    assert told == [ids[0], ids[0], ids[0], ids[3]], "what is started again after it has succeeded is another run"
