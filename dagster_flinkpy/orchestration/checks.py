"""Asset checks: whether the last checkpoint could be restored, and whether the job keeps up."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    AssetSpec,
    DagsterInstance,
    IntMetadataValue,
    MetadataValue,
    multi_asset_check,
)

from dagster_flinkpy.datastream.operators import SinkSpec, SourceSpec
from dagster_flinkpy.errors import (
    ConfigurationError,
    CorruptMetadataError,
    CorruptStateError,
    FlinkPyError,
    StorageError,
)
from dagster_flinkpy.orchestration.failure import as_failure
from dagster_flinkpy.orchestration.flink_job import Environment, FlinkJob, flink_jobs
from dagster_flinkpy.orchestration.job_runs import active_runs
from dagster_flinkpy.orchestration.translator import FlinkTranslator, operator_specs
from dagster_flinkpy.storage import ObjectStore

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["build_flink_asset_checks"]

_TREND_OVER = 20
_TREND_NEEDS = 5
_END_OF_TIME = 2**63 - 1
_TRIES = 5
_STORE_FAILED = (
    "- That says nothing about the checkpoint. Run the check again when the store answers; `flinkpy doctor --storage "
    "URL` tells whether it does."
)

WARN, ERROR = AssetCheckSeverity.WARN, AssetCheckSeverity.ERROR


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
                _integrity,
            ),
            builder.check(
                "restore_drill",
                stateful,
                "A restore of the last checkpoint at another parallelism would find each row of state.",
                _drill,
            ),
            builder.check(
                "lag",
                last,
                "The last checkpoint and its watermark are as recent as they should be.",
                lambda view: _lag(view, max_lag, max_event_time_lag),
            ),
            builder.check(
                "lingering_transactions",
                last,
                "Nothing is staged for the sinks that no checkpoint names.",
                _lingering,
            ),
            builder.check(
                "checkpoint_trend",
                stateful or sources,
                "The last checkpoint took about as long, and wrote about as much, as those before it.",
                lambda view: _trend(view, trend_factor),
            ),
        ]
    return [check for check in checks if list(check.check_keys)]


@dataclass(frozen=True)
class _View:
    """What a check looks at."""

    job: FlinkJob
    uid: str
    asset: AssetKey
    assets: Sequence[AssetKey]
    """Of the whole job."""
    instance: DagsterInstance
    store: ObjectStore
    latest: "CheckpointMetadata"

    def of_operator(self) -> "CheckpointMetadata":
        """The checkpoint, cut down to the operator."""
        return replace(self.latest, operators=tuple(o for o in self.latest.operators if o.uid == self.uid))


@dataclass(frozen=True)
class _Finding:
    passed: bool
    description: str
    metadata: dict[str, Any]
    severity: AssetCheckSeverity = ERROR


@dataclass(frozen=True)
class _Builder:
    job: FlinkJob
    specs: dict[str, AssetSpec]
    storage_key: str

    def check(
        self, name: str, uids: Sequence[str], description: str, find: Callable[[_View], _Finding]
    ) -> AssetChecksDefinition:
        """One step that checks some operators of the job."""
        by_asset = {self.specs[uid].key: uid for uid in uids}

        @multi_asset_check(
            name=f"{self.job.dagster_name}_{name}",
            specs=[AssetCheckSpec(name, asset=key, description=description) for key in by_asset],
            required_resource_keys={self.storage_key},
            can_subset=True,
        )
        def check(context: AssetCheckExecutionContext) -> Iterator[AssetCheckResult]:
            selected = [key.asset_key for key in context.selected_asset_check_keys]
            try:
                store = getattr(context.resources, self.storage_key).location().child(self.job.job_id).open()
                found = {key: self._look(by_asset[key], key, context.instance, store, find) for key in selected}
            except StorageError as error:
                raise as_failure(error, _STORE_FAILED) from error
            except FlinkPyError as error:
                raise as_failure(error) from error
            for key, finding in found.items():
                yield self._result(name, key, finding)

        return check

    def _look(
        self,
        uid: str,
        asset: AssetKey,
        instance: DagsterInstance,
        store: ObjectStore,
        find: Callable[[_View], _Finding],
    ) -> _Finding:
        """What is found of the latest checkpoint. A run may complete the next one and delete it meanwhile."""
        from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore

        checkpoints, keys = CompletedCheckpointStore(store), [spec.key for spec in self.specs.values()]
        seen: list[int] = []
        try:
            latest = checkpoints.latest()
            while latest is not None:
                finding = find(_View(self.job, uid, asset, keys, instance, store, latest))
                finding.metadata["flink/checkpoint_id"] = latest.checkpoint_id
                seen.append(latest.checkpoint_id)
                if finding.passed or (latest := checkpoints.latest()) is None or latest.checkpoint_id == seen[-1]:
                    return finding
                if len(seen) == _TRIES:
                    what = f"Checkpoints {seen} were each replaced while they were read. Check when no run is at work."
                    return _Finding(False, what, {}, WARN)
        except CorruptMetadataError as error:
            return _Finding(False, str(error), {})
        return _Finding(True, "There is no completed checkpoint yet.", {})

    def _result(self, name: str, asset: AssetKey, finding: _Finding) -> AssetCheckResult:
        return AssetCheckResult(
            passed=finding.passed,
            asset_key=asset,
            check_name=name,
            severity=finding.severity,
            description=finding.description,
            metadata=finding.metadata,
        )


def _integrity(view: _View) -> _Finding:
    from dagster_flinkpy.checkpoint.verify import verify_checkpoint

    found = verify_checkpoint(view.of_operator(), view.store)
    facts: dict[str, Any] = {"files": found.files, "bytes": found.bytes}
    if not found.problems:
        return _Finding(True, f"{found.files} files, {found.bytes:,} bytes, all with their checksums.", facts)
    facts["problems"] = MetadataValue.md("\n".join(f"- {line}" for line in found.problems))
    more = f", and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
    return _Finding(False, f"{found.problems[0]}{more}. Restore a savepoint or an older checkpoint.", facts)


def _drill(view: _View) -> _Finding:
    from dagster_flinkpy.checkpoint.verify import restore_drill

    try:
        drill = restore_drill(view.of_operator(), view.store)
    except (CorruptStateError, CorruptMetadataError) as error:
        return _Finding(False, str(error), {})
    except StorageError:
        raise
    except FlinkPyError as error:
        return _Finding(False, str(error), {}, WARN)
    rows = drill.after.get(view.uid, 0)
    return _Finding(
        True,
        f"{rows:,} rows of keyed state and timers, the same at parallelism {drill.parallelism}.",
        {"rows": rows, "parallelism": drill.parallelism},
    )


def _lag(view: _View, max_lag: timedelta | None, max_event_time_lag: timedelta | None) -> _Finding:
    now_ms, latest = time.time_ns() // 1_000_000, view.latest
    since = timedelta(milliseconds=max(now_ms - latest.timestamp_ms, 0))
    operator = latest.operator(view.uid)
    watermarks = [s.watermark for s in operator.subtasks if s.watermark is not None] if operator else []
    facts: dict[str, Any] = {"seconds_since_checkpoint": since.total_seconds()}
    said = f"The last checkpoint is {_span(since)} old"
    if latest.end_of_input:
        return _Finding(True, f"{said}; it read the last of the input.", facts)
    passed = max_lag is None or since <= max_lag
    if watermarks and min(watermarks) < _END_OF_TIME:
        behind = timedelta(milliseconds=max(now_ms - min(watermarks), 0))
        facts["event_time_lag_seconds"] = behind.total_seconds()
        said += f", the watermark {_span(behind)} behind"
        passed &= max_event_time_lag is None or behind <= max_event_time_lag
    return _Finding(passed, f"{said}.", facts)


def _lingering(view: _View) -> _Finding:
    from dagster_flinkpy.runtime.committers import Committers

    runs = active_runs(view.instance, view.job.job_id, view.assets)
    count = Committers(view.job.graph, view.job.job_id, attempt=2**63 - 1).lingering(view.latest).get(view.uid, 0)
    facts: dict[str, Any] = {"transactions": count}
    if runs and count:
        return _Finding(True, f"{count} open transactions, of run {runs[0].run_id} that is at work.", facts)
    if count:
        what = f"{count} open transactions that no checkpoint names; the next run of the job aborts them."
        return _Finding(False, what, facts, WARN)
    return _Finding(True, "No transaction is open.", facts)


def _trend(view: _View, factor: float) -> _Finding:
    records = view.instance.fetch_materializations(view.asset, limit=_TREND_OVER + 1).records
    said, facts, passed = [], dict[str, Any](), True
    for field, unit in (("duration_ms", "ms"), ("delta_bytes", "bytes")):
        events = (record.asset_materialization for record in records)
        found = (event.metadata.get(f"flink/{field}") for event in events if event)
        values = [entry.value for entry in found if isinstance(entry, IntMetadataValue) and entry.value is not None]
        if len(values) <= _TREND_NEEDS:
            continue
        usual = median(values[1:])
        facts |= {field: values[0], f"median_{field}": float(usual)}
        said.append(f"{field} {values[0]:,} {unit}, median of {len(values) - 1} before {usual:,.0f}")
        passed &= values[0] <= max(usual, 1) * factor
    if not said:
        return _Finding(True, f"Fewer than {_TREND_NEEDS + 1} checkpoints to compare.", facts, WARN)
    return _Finding(passed, "; ".join(said) + ".", facts, WARN)


def _span(duration: timedelta) -> str:
    return str(timedelta(seconds=round(duration.total_seconds())))
