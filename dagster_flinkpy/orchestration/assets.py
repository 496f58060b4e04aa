"""A job's operators as assets. A checkpoint materializes all of them."""

from collections.abc import Iterator, Sequence
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    Config,
    DataVersion,
    MaterializeResult,
    multi_asset,
)
from pydantic import Field

from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.report import checkpoint_line, operator_metadata
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs

__all__ = ["FlinkRunConfig", "flink_assets"]


class FlinkRunConfig(Config):
    """What a run does; the launchpad shows it."""

    epochs: int = Field(
        default=1, ge=0, description="Checkpoints to take, one after each epoch. 0: until the input ends."
    )
    parallelism: int | None = Field(
        default=None, ge=1, description="Subtasks per operator. Default: as in the last checkpoint, else the program's."
    )
    restore_from: str | None = Field(
        default=None, description="Savepoint or chk-n folder to start from. Default: the latest checkpoint."
    )
    allow_non_restored_state: bool = Field(
        default=False, description="Leave behind state whose operator the program no longer has."
    )
    allow_pickled_state: bool = Field(
        default=False, description="Restore pickled state of a foreign savepoint; whoever wrote it can run code here."
    )


def flink_assets(
    env: Environment,
    *,
    name: str,
    group_name: str | None = None,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[AssetsDefinition]:
    """One asset per operator; one multi-asset, so one step, per pipelined region.

    An operator cannot run without the rest of its region. A run restores the last completed checkpoint, reads input up
    to the next barrier, completes the checkpoint and commits the sinks; only then are the assets materialized, with
    the checkpoint's numbers as metadata and ``{checkpoint id}-{digest}`` as data version.

    Args:
        env: The program, or a function that builds it. It is called when the code location loads.
        name: Of the job: first part of the asset keys, and the job id under which state is kept. A program of several
            regions has a job ``{name}.{uid of the first source}`` for each.
        group_name: Asset group.
        translator: Makes the asset specs.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid, such as a stateful operator without a uid.
    """
    jobs = flink_jobs(env, name)
    specs = operator_specs(jobs, name=name, translator=translator or FlinkTranslator(), group_name=group_name)
    return [
        _region_assets(job, each, spark_resource_key, checkpoint_storage_resource_key)
        for job, each in zip(jobs, specs, strict=True)
    ]


def _region_assets(job: FlinkJob, specs: dict[str, AssetSpec], spark_key: str, storage_key: str) -> AssetsDefinition:
    @multi_asset(
        name=job.dagster_name,
        specs=list(specs.values()),
        can_subset=False,
        required_resource_keys={spark_key, storage_key},
        op_tags={JOB_TAG: job.job_id},
    )
    def region(context: AssetExecutionContext, config: FlinkRunConfig) -> Iterator[MaterializeResult[Any]]:
        with flink_failures():
            results = _run(context, config, job, specs, spark_key, storage_key)
        yield from results

    return region


def _run(
    context: AssetExecutionContext,
    config: FlinkRunConfig,
    job: FlinkJob,
    specs: dict[str, AssetSpec],
    spark_key: str,
    storage_key: str,
) -> Sequence[MaterializeResult[Any]]:
    attempt = job.attempt(
        getattr(context.resources, storage_key),
        getattr(context.resources, spark_key),
        owner=f"Dagster run {context.run.run_id}, try {context.retry_number + 1}",
        parallelism=config.parallelism,
        restore_from=config.restore_from,
        allow_non_restored_state=config.allow_non_restored_state,
        allow_pickled_state=config.allow_pickled_state,
        run_id=context.run.run_id,
        on_progress=context.log.info,
    )
    epoch, taken = None, 0
    with attempt:
        while not attempt.finished and (config.epochs == 0 or taken < config.epochs):
            epoch, taken = attempt.run_epoch(), taken + 1
            context.log.info(checkpoint_line(job, epoch))
    if epoch is None:
        context.log.warning(f"The input of job {job.job_id} has ended; there is no checkpoint left to take.")
        return []
    version = DataVersion(f"{epoch.checkpoint_id}-{epoch.digest[:12]}")
    return [
        MaterializeResult(
            asset_key=spec.key,
            metadata=operator_metadata(epoch, epoch.operator(uid), attempt.token),
            data_version=version,
        )
        for uid, spec in specs.items()
    ]
