"""Builds asset checks: can the last checkpoint be restored, and does the job keep up?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    AssetSpec,
    multi_asset_check,
)

from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec, WindowSpec
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, StorageError
from dagster_flinkpy.orchestration.definitions.translator import FlinkTranslator, operator_specs
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, flink_jobs

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.runs.check_findings import Finding

__all__ = ["build_flink_asset_checks"]

_STORE_FAILED = (
    "- This says nothing about the checkpoint. Run the check again when the store answers; `flinkpy doctor --storage "
    "URL` shows whether it does."
)


def build_flink_asset_checks(
    env: Environment,
    *,
    name: str,
    max_lag: timedelta | None = None,
    max_event_time_lag: timedelta | None = None,
    max_late_records: int | None = None,
    trend_factor: float = 3.0,
    translator: FlinkTranslator | None = None,
    checkpoint_storage_resource_key: str = "checkpoint_storage",
) -> list[AssetChecksDefinition]:
    """Builds checks of a job's last completed checkpoint, for each region of the program.

    - ``snapshot_integrity``, on operators with state: every state file exists and matches its checksum, and every key
      group has an owner.
    - ``restore_drill``, on operators with state: reads the state as a restore at another parallelism would, and fails
      if a row is missing.
    - ``lag``, on the last operators: the time since the last checkpoint, and how far the watermark is behind.
    - ``late_records``, on event-time windows that drop late records: how many they dropped in the last epoch.
    - ``lingering_transactions``, on sinks: fails if data is staged that no checkpoint will commit.
    - ``checkpoint_trend``, on operators with state, or on sources if there are none: compares duration and size of the
      last checkpoint with the median of the earlier ones.
    - ``state_evolution``, on operators with state, or on sources if there are none: compares the deployed program with
      the last checkpoint. It fails if the next run will be refused, and warns if an operator keeps its state but has
      changed.

    The checks of a job are one step, and so run in one process. They run without Spark, but they read the state; the
    first two read all of it. If a run replaces a checkpoint while a check reads it, the check reads the newer one. If
    the store fails, the step fails.

    Args:
        env: The program, as passed to `flink_assets`.
        name: Name of the job, as passed to `flink_assets`.
        max_lag: ``lag`` fails if the last checkpoint is older than this and input is left. Default: never.
        max_event_time_lag: ``lag`` fails if the watermark is behind the clock by more than this. Default: never.
        max_late_records: ``late_records`` fails if a window dropped more late records than this. Default: never.
        trend_factor: ``checkpoint_trend`` warns if duration or size of the last checkpoint is more than this many times
            the median.
        translator: As passed to `flink_assets`.
        checkpoint_storage_resource_key: Key of the `CheckpointStorageResource`.

    Raises:
        JobGraphError: The program is not valid.
        ConfigurationError: ``trend_factor`` is not above 1, or ``max_late_records`` is below 0.

    Examples:
        Fail if the last checkpoint is older than an hour:

        .. code-block:: python

            from datetime import timedelta

            from dagster_flinkpy.orchestration import build_flink_asset_checks

            # `words_env` builds the program
            checks = build_flink_asset_checks(words_env, name="words", max_lag=timedelta(hours=1))
    """
    if trend_factor <= 1:
        raise ConfigurationError(
            f"trend_factor={trend_factor} must be above 1: half of all checkpoints are above the median"
        )
    if max_late_records is not None and max_late_records < 0:
        raise ConfigurationError(f"max_late_records={max_late_records} must be 0 or more")
    program = flink_jobs(env, name)
    all_specs = operator_specs(program, name=name, translator=translator or FlinkTranslator())
    checks: list[AssetChecksDefinition] = []
    for job, specs in zip(program, all_specs, strict=True):
        graph = job.graph
        stateful = [
            v.uid for v in graph.vertices if v.spec.keeps_state and not isinstance(v.spec, (SourceSpec, SinkSpec))
        ]
        sources = [v.uid for v in graph.vertices if not graph.inputs(v.uid)]
        windows = [
            v.uid
            for v in graph.vertices
            if isinstance(v.spec, WindowSpec) and v.spec.assigner.is_event_time() and v.spec.late_tag is None
        ]
        last = [v.uid for v in graph.vertices if not graph.outputs(v.uid)]
        declared = [
            _Check(
                "snapshot_integrity",
                stateful,
                "All state files of the last checkpoint match their checksums, and each key group has one owner.",
            ),
            _Check(
                "restore_drill",
                stateful,
                "Restoring the last checkpoint at another parallelism would find every row of state.",
            ),
            _Check(
                "lag",
                last,
                "The last checkpoint and its watermark are recent enough.",
                {"max_lag": max_lag, "max_event_time_lag": max_event_time_lag},
            ),
            _Check(
                "late_records",
                windows,
                "The windows drop few enough records that come too late.",
                {"max_late_records": max_late_records},
            ),
            _Check(
                "lingering_transactions",
                last,
                "The sinks have no staged data that no checkpoint will commit.",
            ),
            _Check(
                "checkpoint_trend",
                stateful or sources,
                "The last checkpoint took about as long, and wrote about as much, as the ones before it.",
                {"factor": trend_factor},
            ),
            _Check(
                "state_evolution",
                stateful or sources,
                "The program can continue from the state of the last checkpoint, and its operators have not changed.",
            ),
        ]
        checks.append(_step(job, specs, declared, checkpoint_storage_resource_key))
    return checks


@dataclass(frozen=True)
class _Check:
    name: str
    uids: Sequence[str]
    """The operators that have the check."""
    description: str
    limits: Mapping[str, Any] = field(default_factory=dict)


def _step(
    job: FlinkJob, specs: dict[str, AssetSpec], checks: Sequence[_Check], storage_key: str
) -> AssetChecksDefinition:
    """Builds the step that runs all checks of a job, or the selected ones."""
    assets = [spec.key for spec in specs.values()]
    known = {AssetCheckKey(specs[uid].key, check.name): (check, uid) for check in checks for uid in check.uids}

    @multi_asset_check(
        name=f"{job.dagster_name}_checks",
        specs=[
            AssetCheckSpec(key.name, asset=key.asset_key, description=check.description)
            for key, (check, _) in known.items()
        ],
        required_resource_keys={storage_key},
        can_subset=True,
    )
    def step(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
        from dagster_flinkpy.orchestration.runs.check_findings import look

        selected = context.selected_asset_check_keys
        try:
            store = getattr(context.resources, storage_key).location().child(job.job_id).open()
            of = {"assets": assets, "instance": context.instance, "store": store}
            for key, (check, uid) in known.items():
                if key in selected:
                    yield _result(key, look(check.name, job, uid, key.asset_key, **of, **check.limits))
        except StorageError as error:
            raise as_failure(error, _STORE_FAILED) from error
        except FlinkPyError as error:
            raise as_failure(error) from error

    return step


def _result(key: AssetCheckKey, finding: "Finding") -> AssetCheckResult:
    return AssetCheckResult(
        passed=finding.passed,
        asset_key=key.asset_key,
        check_name=key.name,
        severity=finding.severity,
        description=finding.description,
        metadata=finding.metadata,
    )
