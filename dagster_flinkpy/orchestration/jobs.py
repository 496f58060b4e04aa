"""What is done to a job besides checkpoints: Dagster jobs with typed config."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetObservation,
    AssetSpec,
    Failure,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    job,
    op,
)

from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import JOB_TAG, Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.job_runs import active_runs
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.report import operator_metadata, place
from dagster_flinkpy.orchestration.run_config import (
    DisposeConfig,
    RescaleConfig,
    ResetConfig,
    RestoreConfig,
    SavepointConfig,
    StopConfig,
    SweepConfig,
)
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.runtime.job import JobAttempt

__all__ = ["build_flink_jobs"]


def build_flink_jobs(
    env: Environment,
    *,
    name: str,
    translator: FlinkTranslator | None = None,
    spark_resource_key: str = "spark",
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[JobDefinition]:
    """What is done to a job besides checkpoints, as Dagster jobs; for each region of a program.

    ==================== ===========================================================================================
    ``{name}_savepoint`` Keeps the last completed checkpoint as a savepoint, until somebody deletes it.
    ``{name}_restore``   Makes a savepoint the job's latest checkpoint, at another parallelism if asked.
    ``{name}_rescale``   Spreads the latest checkpoint over another parallelism. A stopped job stays so.
    ``{name}_reset``     Goes back to an older checkpoint that is still kept.
    ``{name}_stop``      Takes a last checkpoint and keeps it as a savepoint. From then on runs find the job finished,
                         and the sensor does not start any, until a savepoint is restored.
    ``{name}_dispose``   Deletes a savepoint.
    ``{name}_sweep``     Deletes what failed epochs have left, and old savepoints.
    ==================== ===========================================================================================

    All but the last two refuse to start while another run of this instance works on the job. Runs go on from what a
    restore, a rescale or a reset has made. What they did is an observation of each asset.

    Args:
        env: As given to `flink_assets`, and so are the rest.
        name: Of the job.
        translator: Makes the asset specs.
        spark_resource_key: Key of the `SparkResource`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid.
    """
    jobs: list[JobDefinition] = []
    program = flink_jobs(env, name)
    of_program = cache(partial(operator_specs, program, name=name, translator=translator or FlinkTranslator()))
    for region, flink_job in enumerate(program):
        builder = _Jobs(flink_job, region, of_program, spark_resource_key, checkpoint_storage_resource_key)
        jobs += [
            builder.savepoint(),
            builder.restore(),
            builder.rescale(),
            builder.reset(),
            builder.stop(),
            builder.dispose(),
            builder.sweep(),
        ]
    return jobs


@dataclass(frozen=True)
class _Jobs:
    """Builds the jobs of one region."""

    flink_job: FlinkJob
    region: int
    of_program: Callable[[], Sequence[dict[str, AssetSpec]]]
    spark_key: str
    storage_key: str

    @property
    def specs(self) -> dict[str, AssetSpec]:
        """The assets, by uid; their runs need them, their definitions do not."""
        return self.of_program()[self.region]

    # --- the jobs ----------------------------------------------------------------------------------------------------

    def savepoint(self) -> JobDefinition:
        def take_savepoint(context: OpExecutionContext, config: SavepointConfig) -> str:
            with flink_failures(), self._attempt(context, "savepoint") as attempt:
                path = attempt.savepoint(config.target, config.format_type)
                restored = attempt.restored
            assert restored is not None  # else there was nothing to make a savepoint of
            context.log.info(f"Checkpoint {restored.checkpoint_id} of job {self._id} is kept as savepoint {path}")
            self._observe(context, f"Savepoint of checkpoint {restored.checkpoint_id}", restored, path)
            return path

        what = f"Keeps the last completed checkpoint of job {self._id} as a savepoint."
        return self._job("savepoint", f"take_savepoint_of_{self._name}", take_savepoint, what)

    def stop(self) -> JobDefinition:
        def stop_with_savepoint(context: OpExecutionContext, config: StopConfig) -> str:
            with flink_failures(), self._attempt(context, "stop") as attempt:
                path = attempt.stop_with_savepoint(config.target, config.format_type, drain=config.drain)
                latest = attempt.latest
            assert latest is not None
            context.log.info(f"Job {self._id} is stopped with checkpoint {latest.checkpoint_id}, savepoint {path}")
            self._observe(context, f"Stopped with checkpoint {latest.checkpoint_id}", latest, path)
            return path

        what = f"Stops job {self._id} with a savepoint."
        return self._job("stop", f"stop_{self._name}", stop_with_savepoint, what)

    def restore(self) -> JobDefinition:
        def restore_savepoint(context: OpExecutionContext, config: RestoreConfig) -> int:
            return self._commit_restored(
                context,
                "restore",
                f"goes on from {config.savepoint_path}",
                savepoint=config.savepoint_path,
                restore_from=config.savepoint_path,
                parallelism=config.parallelism,
                claim_mode=config.claim_mode,
                allow_non_restored_state=config.allow_non_restored_state,
                allow_pickled_state=config.allow_pickled_state,
            )

        what = f"Makes a savepoint the latest checkpoint of job {self._id}, at any parallelism."
        return self._job("restore", f"restore_{self._name}", restore_savepoint, what)

    def rescale(self) -> JobDefinition:
        def rescale_job(context: OpExecutionContext, config: RescaleConfig) -> int:
            did = f"is rescaled to parallelism {config.parallelism}"
            return self._commit_restored(context, "rescale", did, parallelism=config.parallelism)

        what = f"Spreads the latest checkpoint of job {self._id} over another parallelism."
        return self._job("rescale", f"rescale_{self._name}", rescale_job, what)

    def reset(self) -> JobDefinition:
        def reset_job(context: OpExecutionContext, config: ResetConfig) -> int:
            checkpoint = f"chk-{config.checkpoint_id}"
            return self._commit_restored(context, "reset", f"goes on from {checkpoint}", restore_from=checkpoint)

        what = f"Takes job {self._id} back to an older checkpoint that is kept. Committed rows stay."
        return self._job("reset", f"reset_{self._name}", reset_job, what)

    def dispose(self) -> JobDefinition:
        def dispose(context: OpExecutionContext, config: DisposeConfig) -> None:
            savepoint = replace(self._location(context), url=config.savepoint_path.rstrip("/"))
            with flink_failures():
                self._dispose(context, savepoint)

        return self._job(
            "dispose", f"dispose_savepoint_of_{self._name}", dispose, "Deletes a savepoint.", on_spark=False
        )

    def sweep(self) -> JobDefinition:
        def sweep_job(context: OpExecutionContext, config: SweepConfig) -> None:
            from dagster_flinkpy.checkpoint.sweep import old_savepoints, sweep

            location = self._location(context).child(self._id)
            with flink_failures():
                old: list[str] = []
                if config.savepoint_days is not None:
                    age = timedelta(days=config.savepoint_days)
                    old = old_savepoints(location.open(), age, keep=config.keep_savepoints)
                for folder in () if config.dry_run else old:
                    self._dispose(context, location.child(folder))
                swept = sweep(location.open(), timedelta(hours=config.grace_hours), dry_run=config.dry_run)
            context.add_output_metadata(
                {
                    "files": swept.files,
                    "bytes": swept.bytes,
                    "savepoints": MetadataValue.json(old),
                    "dry_run": config.dry_run,
                }
            )
            what = "would be deleted" if config.dry_run else "are deleted"
            context.log.info(
                f"{swept.files} files ({swept.bytes:,} bytes) that nothing names, and {len(old)} savepoints, {what}"
            )

        what = f"Deletes what failed epochs of job {self._id} have left, and old savepoints."
        return self._job("sweep", f"sweep_{self._name}", sweep_job, what, on_spark=False)

    # --- what they share ---------------------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return self.flink_job.job_id

    @property
    def _name(self) -> str:
        return self.flink_job.dagster_name

    def _job(
        self, verb: str, op_name: str, function: Callable[..., Any], description: str, *, on_spark: bool = True
    ) -> JobDefinition:
        keys = {self.storage_key, self.spark_key} if on_spark else {self.storage_key}
        # One that is not on Spark is not at work on the job: no other run has to wait for it.
        tags = {JOB_TAG: self._id} if on_spark else {}
        step = op(name=op_name, required_resource_keys=keys, tags=tags)(function)

        @job(name=f"{self._name}_{verb}", description=description, tags=tags)
        def only() -> None:
            step()

        return only

    def _location(self, context: OpExecutionContext) -> StorageLocation:
        location: StorageLocation = getattr(context.resources, self.storage_key).location()
        return location

    def _attempt(self, context: OpExecutionContext, why: str, **options: Any) -> "JobAttempt":
        self._refuse_beside_others(context)
        return self.flink_job.attempt(
            getattr(context.resources, self.storage_key),
            getattr(context.resources, self.spark_key),
            owner=f"Dagster run {context.run.run_id} ({why})",
            on_progress=context.log.info,
            **options,
        )

    def _commit_restored(
        self, context: OpExecutionContext, why: str, did: str, *, savepoint: str | None = None, **options: Any
    ) -> int:
        """Completes a checkpoint of restored state, so that later runs go on from it; gives its id."""
        with flink_failures(), self._attempt(context, why, **options) as attempt:
            epoch = attempt.commit_restored()
            token, stopped = attempt.token, attempt.stopped and not epoch.metadata.end_of_input
        what = f"Job {self._id} {did}, now its checkpoint {epoch.checkpoint_id}"
        if stopped:
            what += (
                f". It stays stopped: {self._name}_reset with checkpoint_id {epoch.checkpoint_id} starts it from "
                f"there, {self._name}_restore from a savepoint"
            )
        context.log.info(what)
        origin = dict(FlinkCheckpointMetadataSet(savepoint=None if savepoint is None else place(savepoint)))
        for report in epoch.operators:
            facts = {**operator_metadata(epoch, report, token), **origin}
            context.log_event(AssetObservation(self.specs[report.uid].key, description=what, metadata=facts))
        summary = FlinkCheckpointMetadataSet(
            checkpoint_id=epoch.checkpoint_id,
            checkpoint_metadata=place(epoch.metadata_path),
            state_bytes=epoch.metadata.state_bytes,
            duration_ms=epoch.duration_ms,
        )
        context.add_output_metadata({**dict(summary), **origin})
        return epoch.checkpoint_id

    def _observe(self, context: OpExecutionContext, what: str, metadata: "CheckpointMetadata", savepoint: str) -> None:
        facts = dict(
            FlinkCheckpointMetadataSet(
                checkpoint_id=metadata.checkpoint_id, savepoint=place(savepoint), state_bytes=metadata.state_bytes
            )
        )
        for spec in self.specs.values():
            context.log_event(AssetObservation(spec.key, description=what, metadata=facts))
        context.add_output_metadata(facts)

    def _dispose(self, context: OpExecutionContext, savepoint: StorageLocation) -> None:
        from dagster_flinkpy.checkpoint.dispose import dispose_savepoint

        owner = f"Dagster run {context.run.run_id} (dispose)"
        dispose_savepoint(savepoint, owner=owner, now_ms=time.time_ns() // 1_000_000)
        context.log.info(f"{savepoint.url} is deleted")

    def _refuse_beside_others(self, context: OpExecutionContext) -> None:
        """An attempt fences the one before, so this one would end a run that is at work."""
        keys = [spec.key for spec in self.specs.values()]
        others = active_runs(context.instance, self._id, keys, besides=context.run.run_id)
        if others:
            raise Failure(
                f"Run {others[0].run_id} ({others[0].status.value}) is at work on job {self._id}: let it end, or "
                "cancel it, then try again.",
                {"run": MetadataValue.dagster_run(others[0].run_id)},
            )
