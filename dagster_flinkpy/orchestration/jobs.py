"""What is done to a job besides checkpoints: Dagster jobs with typed config."""

import time
from dataclasses import replace

from dagster import (
    AssetObservation,
    AssetSpec,
    Config,
    Failure,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    job,
    op,
)
from pydantic import Field

from dagster_flinkpy.checkpoint.dispose import dispose_savepoint
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.job_runs import active_runs
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.report import operator_metadata, place
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs

__all__ = ["DisposeConfig", "RestoreConfig", "SavepointConfig", "StopConfig", "build_flink_jobs"]


class SavepointConfig(Config):
    """Of a savepoint job."""

    target: str | None = Field(
        default=None, description="Folder to put the savepoint into. Default: beside the job's checkpoints."
    )


class StopConfig(SavepointConfig):
    """Of a stop job."""

    drain: bool = Field(
        default=False, description="End event time first, so that all timers and windows fire; then nothing is left."
    )


class DisposeConfig(Config):
    """Of a dispose job."""

    savepoint_path: str = Field(description="Savepoint, or chk-n folder that was left unclaimed, to delete.")


class RestoreConfig(Config):
    """Of a restore job."""

    savepoint_path: str = Field(description="Savepoint or chk-n folder to restore.")
    parallelism: int | None = Field(
        default=None, ge=1, description="Subtasks per operator from now on. Default: that of the savepoint."
    )
    claim_mode: RecoveryClaimMode = Field(
        default=RecoveryClaimMode.NO_CLAIM,
        description="CLAIM: the savepoint is the job's from now on, which deletes it. NO_CLAIM: it stays its owner's.",
    )
    allow_non_restored_state: bool = Field(
        default=False, description="Leave behind state whose operator the program no longer has."
    )
    allow_pickled_state: bool = Field(
        default=False, description="Restore pickled state of a foreign savepoint; whoever wrote it can run code here."
    )


def build_flink_jobs(
    env: Environment,
    *,
    name: str,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[JobDefinition]:
    """The jobs ``{name}_savepoint``, ``_restore``, ``_stop`` and ``_dispose``, for each region of a program.

    *Savepoint* copies the last completed checkpoint into a folder of its own, which is kept until somebody deletes it.
    *Restore* makes a savepoint the job's latest checkpoint, spread over another parallelism if asked; runs after that
    go on from there. *Stop* takes a last checkpoint and keeps it as a savepoint; from then on runs find the job
    finished, and the sensor does not start any, until a savepoint is restored. *Dispose* deletes a savepoint. All but
    the last refuse to start while another run of this instance works on the job. What they did is an observation of
    each asset.

    Args:
        env: As given to `flink_assets`, and so are the rest.
        name: Of the job.
        translator: Makes the asset specs.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid.
    """
    keys = (spark_resource_key, checkpoint_storage_resource_key)
    jobs: list[JobDefinition] = []
    program = flink_jobs(env, name)
    all_specs = operator_specs(program, name=name, translator=translator or FlinkTranslator())
    for flink_job, specs in zip(program, all_specs, strict=True):
        jobs += [
            _savepoint_job(flink_job, specs, *keys),
            _restore_job(flink_job, specs, *keys),
            _stop_job(flink_job, specs, *keys),
            _dispose_job(flink_job, storage_key=checkpoint_storage_resource_key),
        ]
    return jobs


def _savepoint_job(flink_job: FlinkJob, specs: dict[str, AssetSpec], spark_key: str, storage_key: str) -> JobDefinition:
    @op(
        name=f"take_savepoint_of_{flink_job.dagster_name}",
        required_resource_keys={spark_key, storage_key},
        tags={JOB_TAG: flink_job.job_id},
    )
    def take_savepoint(context: OpExecutionContext, config: SavepointConfig) -> str:
        _refuse_beside_others(context, flink_job, specs)
        with (
            flink_failures(),
            flink_job.attempt(
                getattr(context.resources, storage_key),
                getattr(context.resources, spark_key),
                owner=f"Dagster run {context.run.run_id} (savepoint)",
                on_progress=context.log.info,
            ) as attempt,
        ):
            path = attempt.savepoint(config.target)
            restored = attempt.restored
        assert restored is not None  # else there was nothing to make a savepoint of
        context.log.info(f"Checkpoint {restored.checkpoint_id} of job {flink_job.job_id} is kept as savepoint {path}")
        _observe(context, specs, f"Savepoint of checkpoint {restored.checkpoint_id}", restored, path)
        return path

    @job(
        name=f"{flink_job.dagster_name}_savepoint",
        description=f"Keeps the last completed checkpoint of job {flink_job.job_id} as a savepoint.",
        tags={JOB_TAG: flink_job.job_id},
    )
    def savepoint() -> None:
        take_savepoint()

    return savepoint


def _observe(
    context: OpExecutionContext, specs: dict[str, AssetSpec], what: str, metadata: CheckpointMetadata, savepoint: str
) -> None:
    facts = dict(
        FlinkCheckpointMetadataSet(
            checkpoint_id=metadata.checkpoint_id, savepoint=place(savepoint), state_bytes=metadata.state_bytes
        )
    )
    for spec in specs.values():
        context.log_event(AssetObservation(spec.key, description=what, metadata=facts))
    context.add_output_metadata(facts)


def _stop_job(flink_job: FlinkJob, specs: dict[str, AssetSpec], spark_key: str, storage_key: str) -> JobDefinition:
    @op(
        name=f"stop_{flink_job.dagster_name}",
        required_resource_keys={spark_key, storage_key},
        tags={JOB_TAG: flink_job.job_id},
    )
    def stop_with_savepoint(context: OpExecutionContext, config: StopConfig) -> str:
        _refuse_beside_others(context, flink_job, specs)
        with (
            flink_failures(),
            flink_job.attempt(
                getattr(context.resources, storage_key),
                getattr(context.resources, spark_key),
                owner=f"Dagster run {context.run.run_id} (stop)",
                on_progress=context.log.info,
            ) as attempt,
        ):
            path = attempt.stop_with_savepoint(config.target, drain=config.drain)
            latest = attempt.latest
        assert latest is not None
        context.log.info(f"Job {flink_job.job_id} is stopped with checkpoint {latest.checkpoint_id}, savepoint {path}")
        _observe(context, specs, f"Stopped with checkpoint {latest.checkpoint_id}", latest, path)
        return path

    @job(
        name=f"{flink_job.dagster_name}_stop",
        description=f"Stops job {flink_job.job_id} with a savepoint.",
        tags={JOB_TAG: flink_job.job_id},
    )
    def stop() -> None:
        stop_with_savepoint()

    return stop


def _dispose_job(flink_job: FlinkJob, *, storage_key: str) -> JobDefinition:
    @op(name=f"dispose_savepoint_of_{flink_job.dagster_name}", required_resource_keys={storage_key})
    def dispose(context: OpExecutionContext, config: DisposeConfig) -> None:
        location = getattr(context.resources, storage_key).location()
        savepoint = replace(location, url=config.savepoint_path.rstrip("/"))
        with flink_failures():
            owner = f"Dagster run {context.run.run_id} (dispose)"
            dispose_savepoint(savepoint, owner=owner, now_ms=time.time_ns() // 1_000_000)
        context.log.info(f"{savepoint.url} is deleted")

    @job(name=f"{flink_job.dagster_name}_dispose", description="Deletes a savepoint.")
    def dispose_job() -> None:
        dispose()

    return dispose_job


def _restore_job(flink_job: FlinkJob, specs: dict[str, AssetSpec], spark_key: str, storage_key: str) -> JobDefinition:
    @op(
        name=f"restore_{flink_job.dagster_name}",
        required_resource_keys={spark_key, storage_key},
        tags={JOB_TAG: flink_job.job_id},
    )
    def restore_savepoint(context: OpExecutionContext, config: RestoreConfig) -> int:
        _refuse_beside_others(context, flink_job, specs)
        with (
            flink_failures(),
            flink_job.attempt(
                getattr(context.resources, storage_key),
                getattr(context.resources, spark_key),
                owner=f"Dagster run {context.run.run_id} (restore)",
                restore_from=config.savepoint_path,
                parallelism=config.parallelism,
                claim_mode=config.claim_mode,
                allow_non_restored_state=config.allow_non_restored_state,
                allow_pickled_state=config.allow_pickled_state,
                on_progress=context.log.info,
            ) as attempt,
        ):
            epoch = attempt.commit_restored()
            token = attempt.token
        what = f"Job {flink_job.job_id} goes on from {config.savepoint_path}, now its checkpoint {epoch.checkpoint_id}"
        context.log.info(what)
        for report in epoch.operators:
            facts = {
                **operator_metadata(epoch, report, token),
                **FlinkCheckpointMetadataSet(savepoint=place(config.savepoint_path)),
            }
            context.log_event(AssetObservation(specs[report.uid].key, description=what, metadata=facts))
        summary = FlinkCheckpointMetadataSet(
            checkpoint_id=epoch.checkpoint_id,
            savepoint=place(config.savepoint_path),
            checkpoint_metadata=place(epoch.metadata_path),
            state_bytes=epoch.metadata.state_bytes,
            duration_ms=epoch.duration_ms,
        )
        context.add_output_metadata(dict(summary))
        return epoch.checkpoint_id

    @job(
        name=f"{flink_job.dagster_name}_restore",
        description=f"Makes a savepoint the latest checkpoint of job {flink_job.job_id}, at any parallelism.",
        tags={JOB_TAG: flink_job.job_id},
    )
    def restore() -> None:
        restore_savepoint()

    return restore


def _refuse_beside_others(context: OpExecutionContext, flink_job: FlinkJob, specs: dict[str, AssetSpec]) -> None:
    """An attempt fences the one before, so this one would end a run that is at work."""
    others = active_runs(
        context.instance, flink_job.job_id, [spec.key for spec in specs.values()], besides=context.run.run_id
    )
    if others:
        raise Failure(
            f"Run {others[0].run_id} ({others[0].status.value}) is at work on job {flink_job.job_id}: let it end, or "
            "cancel it, then try again.",
            {"run": MetadataValue.dagster_run(others[0].run_id)},
        )
