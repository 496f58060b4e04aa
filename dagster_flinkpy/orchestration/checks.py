"""Asset checks: whether the last checkpoint could be restored, and whether the job keeps up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    AssetKey,
    AssetSpec,
    multi_asset_check,
)

from dagster_flinkpy.datastream.operators import SinkSpec, SourceSpec
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, StorageError
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.check_findings import Finding

__all__ = ["build_flink_asset_checks"]

_STORE_FAILED = (
    "- That says nothing about the checkpoint. Run the check again when the store answers; `flinkpy doctor --storage "
    "URL` tells whether it does."
)


def build_flink_asset_checks(
    env: Environment,
    *,
    name: str,
    max_lag: timedelta | None = None,
    max_event_time_lag: timedelta | None = None,
    trend_factor: float = 3.0,
    translator: FlinkTranslator | None = None,
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[AssetChecksDefinition]:
    """Checks of a job's last completed checkpoint; for each region of a program.

    - ``snapshot_integrity``, of operators with state: every state file is there and has its checksum, and every key
      group has an owner.
    - ``restore_drill``, of operators with state: read as a restore at another parallelism would, no row is missing.
    - ``lag``, of the last operators: the time since the last checkpoint, and how far the watermark is behind.
    - ``lingering_transactions``, of sinks: nothing is staged that no checkpoint will commit.
    - ``checkpoint_trend``, of operators with state, else of sources: time and size of the last checkpoint,
      beside the median of those before.

    They run without Spark, but read the state: the first two all of it. A checkpoint that a run replaces, and so
    deletes, while a check reads it is no finding: the check looks at the newer one. Where the store fails, so does the
    check's step.

    Args:
        env: As given to `flink_assets`.
        name: Of the job.
        max_lag: ``lag`` fails when the last checkpoint is older than this and input is left. Default: it only tells.
        max_event_time_lag: ``lag`` fails when the watermark is behind the clock by more than this. Default: it tells.
        trend_factor: ``checkpoint_trend`` warns when the last checkpoint took, or wrote, so many times the median.
        translator: As given to `flink_assets`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid.
        ConfigurationError: ``trend_factor`` is not above 1.
    """
    if trend_factor <= 1:
        raise ConfigurationError(
            f"trend_factor={trend_factor} must be above 1: every other checkpoint is over the median"
        )
    program = flink_jobs(env, name)
    all_specs = operator_specs(program, name=name, translator=translator or FlinkTranslator())
    checks: list[AssetChecksDefinition] = []
    for job, specs in zip(program, all_specs, strict=True):
        builder = _Builder(job, specs, checkpoint_storage_resource_key)
        graph = job.graph
        stateful = [
            v.uid for v in graph.vertices if v.spec.keeps_state and not isinstance(v.spec, (SourceSpec, SinkSpec))
        ]
        sources = [v.uid for v in graph.vertices if not graph.inputs(v.uid)]
        last = [v.uid for v in graph.vertices if not graph.outputs(v.uid)]
        checks += [
            builder.check(
                "snapshot_integrity",
                stateful,
                "The last checkpoint's state files are there with their checksums, and each key group has one owner.",
            ),
            builder.check(
                "restore_drill",
                stateful,
                "A restore of the last checkpoint at another parallelism would find each row of state.",
            ),
            builder.check(
                "lag",
                last,
                "The last checkpoint and its watermark are as recent as they should be.",
                max_lag=max_lag,
                max_event_time_lag=max_event_time_lag,
            ),
            builder.check(
                "lingering_transactions",
                last,
                "Nothing is staged for the sinks that no checkpoint names.",
            ),
            builder.check(
                "checkpoint_trend",
                stateful or sources,
                "The last checkpoint took about as long, and wrote about as much, as those before it.",
                factor=trend_factor,
            ),
        ]
    return [check for check in checks if list(check.check_keys)]


@dataclass(frozen=True)
class _Builder:
    job: FlinkJob
    specs: dict[str, AssetSpec]
    storage_key: str

    def check(self, name: str, uids: Sequence[str], description: str, **limits: Any) -> AssetChecksDefinition:
        """One step that checks some operators of the job."""
        by_asset = {self.specs[uid].key: uid for uid in uids}
        assets = [spec.key for spec in self.specs.values()]

        @multi_asset_check(
            name=f"{self.job.dagster_name}_{name}",
            specs=[AssetCheckSpec(name, asset=key, description=description) for key in by_asset],
            required_resource_keys={self.storage_key},
            can_subset=True,
        )
        def check(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
            from dagster_flinkpy.orchestration.check_findings import look

            selected = [key.asset_key for key in context.selected_asset_check_keys]
            try:
                store = getattr(context.resources, self.storage_key).location().child(self.job.job_id).open()
                of = {"assets": assets, "instance": context.instance, "store": store, **limits}
                found = {key: look(name, self.job, by_asset[key], key, **of) for key in selected}
            except StorageError as error:
                raise as_failure(error, _STORE_FAILED) from error
            except FlinkPyError as error:
                raise as_failure(error) from error
            for key, finding in found.items():
                yield self._result(name, key, finding)

        return check

    def _result(self, name: str, asset: AssetKey, finding: "Finding") -> AssetCheckResult:
        return AssetCheckResult(
            passed=finding.passed,
            asset_key=asset,
            check_name=name,
            severity=finding.severity,
            description=finding.description,
            metadata=finding.metadata,
        )
