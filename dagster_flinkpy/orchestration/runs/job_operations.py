"""What the runs of a job's jobs for savepoints, forks, upgrades, and changes of its state do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster import AssetObservation, MetadataValue, OpExecutionContext

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.errors import ConfigurationError, ObjectNotFoundError, RestoreError
from dagster_flinkpy.orchestration.dagster_internals import delete_run
from dagster_flinkpy.orchestration.failure import flink_failures
from dagster_flinkpy.orchestration.flink_job import FlinkJob
from dagster_flinkpy.orchestration.job_assets import JobAssets
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.program import load_program
from dagster_flinkpy.orchestration.resources import CheckpointStorageResource, SparkResource, resource_of
from dagster_flinkpy.orchestration.run_config import (
    DisposeConfig,
    ForkConfig,
    ImportConfig,
    InspectConfig,
    RescaleConfig,
    ResetConfig,
    RestoreConfig,
    RollbackConfig,
    SavepointConfig,
    StopConfig,
    SweepConfig,
    SwitchConfig,
    UpgradeConfig,
)
from dagster_flinkpy.orchestration.run_tries import first_try
from dagster_flinkpy.orchestration.runs.job_run import to_run
from dagster_flinkpy.orchestration.runs.old_runs import old_runs
from dagster_flinkpy.orchestration.runs.report import asset_metadata, place
from dagster_flinkpy.orchestration.runs.running_job import ask_running_job, refuse_beside_others
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.requests import Answer, Order
    from dagster_flinkpy.runtime.master.job import JobAttempt
    from dagster_flinkpy.state_processor.import_report import ImportReport

__all__ = ["JobOperations"]


@dataclass(frozen=True)
class JobOperations:
    """The operations on one job, each run as the only step of a Dagster run.

    While a run works on the job, `take_savepoint`, `stop` and `rescale` ask that run, which answers. Otherwise they are
    execution attempts of the job, as `restore` and `reset` always are, which refuse to start beside another run. All of
    these record what was done as an observation of each asset.
    """

    assets: JobAssets
    spark_key: str
    """Key of the `SparkResource`."""
    storage_key: str
    """Key of the `CheckpointStorageResource`."""

    @property
    def job(self) -> FlinkJob:
        """The job."""
        return self.assets.job

    def take_savepoint(self, context: OpExecutionContext, config: SavepointConfig) -> str:
        """Keeps a checkpoint as a savepoint, and returns its path: the next one of a running job, or the last one."""
        with flink_failures(context.log):
            if (answer := self._ask_for_savepoint(context, "savepoint", config)) is not None:
                path, kept = answer
            else:
                with self._attempt(context, "savepoint") as attempt:
                    path = attempt.savepoint(config.target, config.format_type)
                    assert attempt.restored is not None, "the attempt has taken a savepoint of it"
                    kept = attempt.restored
        context.log.info(f"Checkpoint {kept.checkpoint_id} of job {self.job.job_id} is kept as savepoint {path}")
        self._observe(context, f"Savepoint of checkpoint {kept.checkpoint_id}", kept, savepoint=path)
        return path

    def stop(self, context: OpExecutionContext, config: StopConfig) -> str:
        """Takes a last checkpoint, keeps it as a savepoint, and returns its path."""
        with flink_failures(context.log):
            if (answer := self._ask_for_savepoint(context, "stop", config, drain=config.drain)) is not None:
                path, last = answer
            else:
                with self._attempt(context, "stop") as attempt:
                    path = attempt.stop_with_savepoint(config.target, config.format_type, drain=config.drain)
                    assert attempt.latest is not None, "the attempt has completed a checkpoint"
                    last = attempt.latest
        context.log.info(f"Job {self.job.job_id} is stopped with checkpoint {last.checkpoint_id}, savepoint {path}")
        self._observe(context, f"Stopped with checkpoint {last.checkpoint_id}", last, savepoint=path)
        return path

    def restore(self, context: OpExecutionContext, config: RestoreConfig) -> int:
        """Makes a savepoint the latest checkpoint, and returns the id of that checkpoint."""
        return self._commit_restored(
            context,
            "restore",
            f"continues from {config.savepoint_path}",
            savepoint=config.savepoint_path,
            restore_from=config.savepoint_path,
            parallelism=config.parallelism,
            claim_mode=config.claim_mode,
            allow_non_restored_state=config.allow_non_restored_state,
            allow_pickled_state=config.allow_pickled_state,
        )

    def rescale(self, context: OpExecutionContext, config: RescaleConfig) -> int:
        """Spreads the latest checkpoint over another parallelism, and returns the id of the new one."""
        from dagster_flinkpy.checkpoint.requests import Order, RequestKind

        did = f"is rescaled to parallelism {config.parallelism}"
        with flink_failures(context.log):
            answer = self._ask(context, Order(RequestKind.RESCALE, parallelism=config.parallelism))
            if answer is not None:
                taken = self._checkpoint_of(context, answer)
        if answer is not None:
            what = f"Job {self.job.job_id} {did} while it runs, with its checkpoint {taken.checkpoint_id}"
            context.log.info(what)
            self._observe(context, what, taken)
            return taken.checkpoint_id
        return self._commit_restored(context, "rescale", did, parallelism=config.parallelism)

    def reset(self, context: OpExecutionContext, config: ResetConfig) -> int:
        """Goes back to an older checkpoint, and returns the id of the new one."""
        checkpoint = f"chk-{config.checkpoint_id}"
        return self._commit_restored(context, "reset", f"continues from {checkpoint}", restore_from=checkpoint)

    def dispose(self, context: OpExecutionContext, config: DisposeConfig) -> None:
        """Deletes a savepoint."""
        from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import savepoint_choices, savepoint_location

        job = self._location(context).child(self.job.job_id)
        with flink_failures(context.log):
            try:
                self._dispose(context, savepoint_location(config.savepoint_path, job))
            except RestoreError as error:
                raise RestoreError(f"{error} {savepoint_choices(job.open())}") from error

    def fork(self, context: OpExecutionContext, config: ForkConfig) -> None:
        """Creates a job that continues from a checkpoint or savepoint of this one."""
        from dagster_flinkpy.checkpoint.forks.fork import fork_job

        job, owner = self._location(context).child(self.job.job_id), f"Dagster run {context.run.run_id} (fork)"
        with flink_failures(context.log):
            checkpoint_id = fork_job(job, config.name, at=config.at, owner=owner)
        context.log.info(f"Job {config.name} continues from checkpoint {checkpoint_id} with the state of {job.url}")
        context.add_output_metadata({"fork": config.name, **FlinkCheckpointMetadataSet(checkpoint_id=checkpoint_id)})

    def upgrade(self, context: OpExecutionContext, config: UpgradeConfig) -> str:
        """Compares the rows of the program with those of another version, and returns the verdict."""
        from dagster_flinkpy.orchestration.upgrade import UpgradeVerdict, prove_upgrade
        from dagster_flinkpy.orchestration.upgrade.findings import record_findings

        with flink_failures(context.log):
            if config.switch_if_same and self.job.fork_of is not None:
                raise ConfigurationError(
                    f"a branch cannot switch job {self.job.fork_of!r} of production to its version. Launch the upgrade "
                    "job of production with switch_if_same once the version is deployed there"
                )
            report = prove_upgrade(
                load_program(config.from_program),
                self.job,
                self._location(context).child(self.job.fork_of or self.job.job_id),
                spark=self._spark(context),
                owner=f"Dagster run {context.run.run_id} (upgrade)",
                on_progress=context.log.info,
                at=config.at,
                epochs=config.epochs,
                **_recompute_options(config),
            )
            if report.plan.problem is not None:
                raise RestoreError(report.plan.problem)
        record_findings(context, self.assets.specs, report)
        if config.switch_if_same and report.verdict is UpgradeVerdict.SAME:
            self.switch(context, SwitchConfig(**_recompute_options(config)))
        return report.verdict.value

    def switch(self, context: OpExecutionContext, config: SwitchConfig) -> int:
        """Brings the state to this version of the program, and returns the id of the checkpoint."""
        from dagster_flinkpy.orchestration.upgrade import switch_program

        change = partial(switch_program, keep=config.kept, **_recompute_options(config))
        return self._to_this_version(context, "switch", change)

    def roll_back(self, context: OpExecutionContext, config: RollbackConfig) -> int:
        """Brings the job back to this version of the program, and returns the id of the checkpoint."""
        from dagster_flinkpy.orchestration.upgrade import roll_back

        return self._to_this_version(context, "rollback", partial(roll_back, kept=config.kept))

    def sweep(self, context: OpExecutionContext, config: SweepConfig) -> None:
        """Deletes files that failed epochs left behind, old savepoints, and old runs."""
        from dagster_flinkpy.checkpoint.sweep import old_savepoints, sweep

        location = self._location(context).child(self.job.job_id)
        with flink_failures(context.log):
            old: list[str] = []
            if config.savepoint_days is not None:
                age = timedelta(days=config.savepoint_days)
                old = old_savepoints(location.open(), age, keep=config.keep_savepoints)
            for folder in () if config.dry_run else old:
                self._dispose(context, location.child(folder))
            swept = sweep(location.open(), timedelta(hours=config.grace_hours), dry_run=config.dry_run)
            runs = self._old_runs(context, location, config)
            for run_id in () if config.dry_run else runs:
                delete_run(context.instance, run_id)
        context.add_output_metadata(
            {
                "files": swept.files,
                "bytes": swept.bytes,
                "savepoints": MetadataValue.json(old),
                "runs": len(runs),
                "dry_run": config.dry_run,
            }
        )
        did = "Would delete" if config.dry_run else "Deleted"
        files = f"{swept.files} unreferenced files ({swept.bytes:,} bytes)"
        context.log.info(f"{did} {files}, {len(old)} savepoints and {len(runs)} runs")

    def inspect(self, context: OpExecutionContext, config: InspectConfig) -> None:
        """Shows the state of one key as metadata of the step."""
        from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import savepoint_location
        from dagster_flinkpy.orchestration.runs.inspection import inspect_key, state_table

        location = job = self._location(context).child(self.job.job_id)
        if (path := config.savepoint_path) is not None:
            inside = path.startswith("chk-") and "/" not in path
            location = job.child(path) if inside else savepoint_location(path, job)
        with flink_failures(context.log):
            found = inspect_key(location, config.uid, config.state, config.key)
        checkpoint = found.checkpoint.checkpoint_id
        rows = ", ".join(f"{table.num_rows:,} of {name!r}" for name, table in found.states.items())
        context.log.info(f"Rows of key {config.key!r} of operator {config.uid!r} in checkpoint {checkpoint}: {rows}")
        context.add_output_metadata(
            {
                **FlinkCheckpointMetadataSet(checkpoint_id=checkpoint),
                "rows": found.rows,
                **{f"state/{name}": state_table(table) for name, table in found.states.items()},
            }
        )

    def import_state(self, context: OpExecutionContext, config: ImportConfig) -> str:
        """Makes a savepoint of one of Flink, or of a checkpoint of Spark, and returns its URL."""
        with flink_failures(context.log):
            report = self._imported(context, config)
        for left in report.left_behind:
            context.log.warning(f"left behind: {left.problem}")
        context.add_output_metadata(
            {
                **FlinkCheckpointMetadataSet(savepoint=place(report.url)),
                **{f"rows/{each.uid}/{each.name}": each.rows for each in report.imported},
                "left_behind": MetadataValue.json([asdict(each) for each in report.left_behind]),
            }
        )
        return report.url

    # --- what they share ---------------------------------------------------------------------------------------------

    def _location(self, context: OpExecutionContext) -> StorageLocation:
        return self._storage(context).location()

    def _storage(self, context: OpExecutionContext) -> CheckpointStorageResource:
        return resource_of(context.resources, self.storage_key, CheckpointStorageResource)

    def _spark(self, context: OpExecutionContext) -> SparkResource:
        return resource_of(context.resources, self.spark_key, SparkResource)

    def _old_runs(self, context: OpExecutionContext, location: StorageLocation, config: SweepConfig) -> list[str]:
        from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

        latest = CompletedCheckpointStore(location.open()).latest()
        if config.keep_runs is None or latest is None:
            return []
        last = latest.checkpoint_id
        return old_runs(context.instance, self.job.job_id, self.assets.keys, keep=config.keep_runs, checkpoint_id=last)

    def _imported(self, context: OpExecutionContext, config: ImportConfig) -> ImportReport:
        from dagster_flinkpy.orchestration.flink_import import import_targets
        from dagster_flinkpy.orchestration.program import load_descriptors
        from dagster_flinkpy.spark.sessions import open_session
        from dagster_flinkpy.state_processor.flink_import import import_flink_savepoint
        from dagster_flinkpy.state_processor.spark_checkpoint import SparkCheckpoint
        from dagster_flinkpy.state_processor.spark_import import import_spark_state

        if bool(config.flink_savepoint) == bool(config.spark_checkpoint):
            raise ConfigurationError("set either flink_savepoint or spark_checkpoint")
        if config.mapping and config.flink_savepoint:
            raise ConfigurationError("mapping is for a spark_checkpoint; state of Flink is found by its uid and name")
        location = self._location(context)
        target = replace(location, url=config.target)
        targets = import_targets(self.job.graph, None if config.declared is None else load_descriptors(config.declared))
        options: dict[str, Any] = {
            "allow_non_restored_state": config.allow_non_restored_state,
            "on_progress": context.log.info,
        }
        if config.flink_savepoint:
            return import_flink_savepoint(replace(location, url=config.flink_savepoint), target, targets, **options)
        source = replace(location, url=str(config.spark_checkpoint))
        with open_session(self._spark(context).settings()) as session:
            return import_spark_state(
                SparkCheckpoint(source, session), target, targets, mapping=config.mapping, **options
            )

    def _ask(self, context: OpExecutionContext, order: Order) -> Answer | None:
        return ask_running_job(context, self.assets, self._location(context), order)

    def _ask_for_savepoint(
        self, context: OpExecutionContext, kind: str, config: SavepointConfig, *, drain: bool = False
    ) -> tuple[str, CheckpointMetadata] | None:
        """Returns the path and the metadata of the savepoint that a running job has written; None if none runs."""
        from dagster_flinkpy.checkpoint.requests import Order, RequestKind
        from dagster_flinkpy.checkpoint.savepoints.savepoint import load_savepoint
        from dagster_flinkpy.checkpoint.savepoints.stored_checkpoint import savepoint_location

        location = self._location(context)
        # The job may run in another working directory, so it is told a URL.
        target = None if config.target is None else replace(location, url=config.target).url
        answer = self._ask(context, Order(RequestKind(kind), target, config.format_type, drain))
        if answer is None:
            return None
        assert answer.savepoint is not None, "the request was done"
        folder = savepoint_location(answer.savepoint, location.child(self.job.job_id))
        return answer.savepoint, load_savepoint(folder.open())

    def _checkpoint_of(self, context: OpExecutionContext, answer: Answer) -> CheckpointMetadata:
        """Returns the metadata of the checkpoint that a running job has taken, or of a later one that replaced it."""
        from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

        assert answer.checkpoint_id is not None, "the request was done"
        store = CompletedCheckpointStore(self._location(context).child(self.job.job_id).open())
        try:
            return store.load(answer.checkpoint_id)
        except ObjectNotFoundError:
            latest = store.latest()
            assert latest is not None, "there was a checkpoint"
            return latest

    def _attempt(self, context: OpExecutionContext, why: str, **options: Any) -> JobAttempt:
        refuse_beside_others(context, self.assets)
        return self.job.attempt(
            self._storage(context),
            self._spark(context),
            owner=f"Dagster run {context.run.run_id} ({why})",
            led_by=context.run.run_id,
            run_id=first_try(context.instance, context.run),  # so that a retried restore restores only once
            on_progress=context.log.info,
            on_log=to_run(context.log),
            **options,
        )

    def _commit_restored(
        self, context: OpExecutionContext, why: str, did: str, *, savepoint: str | None = None, **options: Any
    ) -> int:
        """Completes a checkpoint of restored state, from which later runs continue, and returns its id."""
        with flink_failures(context.log), self._attempt(context, why, **options) as attempt:
            epoch = attempt.commit_restored()
            token, stopped = attempt.token, attempt.stopped and not epoch.metadata.end_of_input
        what = f"Job {self.job.job_id} {did}, now its checkpoint {epoch.checkpoint_id}"
        if stopped:
            name = self.job.dagster_name
            what += (
                f". It stays stopped. To start it, run {name}_reset with checkpoint_id {epoch.checkpoint_id}, or "
                f"{name}_restore with a savepoint."
            )
        context.log.info(what)
        origin = dict(FlinkCheckpointMetadataSet(savepoint=None if savepoint is None else place(savepoint)))
        assets = self.assets
        for uid, spec in assets.specs.items():
            facts = {**asset_metadata(epoch, assets, uid, token), **origin}
            context.log_event(AssetObservation(spec.key, description=what, metadata=facts))
        summary = FlinkCheckpointMetadataSet(
            checkpoint_id=epoch.checkpoint_id,
            checkpoint_metadata=place(epoch.metadata_path),
            state_bytes=epoch.metadata.state_bytes,
            duration_ms=epoch.duration_ms,
        )
        context.add_output_metadata({**dict(summary), **origin})
        return epoch.checkpoint_id

    def _to_this_version(self, context: OpExecutionContext, why: str, change: Callable[..., int]) -> int:
        from dagster_flinkpy.orchestration.upgrade.findings import record_switch

        with flink_failures(context.log):
            refuse_beside_others(context, self.assets)
            checkpoint_id = change(
                self.job,
                self._location(context).child(self.job.job_id),
                spark=self._spark(context),
                owner=f"Dagster run {context.run.run_id} ({why})",
                on_progress=context.log.info,
            )
        record_switch(context, self.assets.specs, checkpoint_id)
        context.log.info(f"This version of job {self.job.job_id} continues from checkpoint {checkpoint_id}")
        context.add_output_metadata(dict(FlinkCheckpointMetadataSet(checkpoint_id=checkpoint_id)))
        return checkpoint_id

    def _observe(
        self, context: OpExecutionContext, what: str, metadata: CheckpointMetadata, savepoint: str | None = None
    ) -> None:
        """Records what was done as an observation of each asset."""
        place_of = None if savepoint is None else place(savepoint)
        facts = FlinkCheckpointMetadataSet(
            checkpoint_id=metadata.checkpoint_id, savepoint=place_of, state_bytes=metadata.state_bytes
        )
        for uid, spec in self.assets.specs.items():
            state = metadata.operator(uid)
            width = FlinkCheckpointMetadataSet(parallelism=state.parallelism if state else None)
            context.log_event(AssetObservation(spec.key, description=what, metadata={**dict(facts), **dict(width)}))
        context.add_output_metadata(dict(facts))

    def _dispose(self, context: OpExecutionContext, savepoint: StorageLocation) -> None:
        from dagster_flinkpy.checkpoint.savepoints.dispose import dispose_savepoint

        owner = f"Dagster run {context.run.run_id} (dispose)"
        dispose_savepoint(savepoint, owner=owner, now_ms=current_millis())
        context.log.info(f"Deleted {savepoint.url}")


def _recompute_options(config: SwitchConfig | UpgradeConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ("recompute", "recompute_changed", "since")}
