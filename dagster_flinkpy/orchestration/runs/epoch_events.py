"""Materializes the checkpoints of a run without partitions: while it runs, when it ends, and when it fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetObservation, AssetSpec, DagsterInstance, DataVersion, MaterializeResult

from dagster_flinkpy.checkpoint.reports.late_rows import LateRows, late_rows
from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.datastream.connectors.tables import CountedTable, RowCount
from dagster_flinkpy.datastream.operator_specs import SinkSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
from dagster_flinkpy.orchestration.dagster_internals import DATA_VERSION_TAG, TableMetadataSet, record_at_once
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.runs.changed_tables import LOOKED_AT, ChangedTables, metadata_of
from dagster_flinkpy.orchestration.runs.job_run import JobRun
from dagster_flinkpy.orchestration.runs.report import asset_metadata, checkpoint_line, data_version
from dagster_flinkpy.orchestration.tables import operator_states, table

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
    from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport

__all__ = ["EpochEvents"]

_log = logging.getLogger(__name__)
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The years 1 to 9999, which Python's datetimes have."""
_LATE_ROWS_OF = "flink/late_rows_checkpoint"


class EpochEvents:
    """Records the completed checkpoints of a run.

    Each checkpoint is a line in the run's log. While the run goes on, the assets are materialized at most once per
    interval, and always with the last checkpoint, whether the run succeeds or fails. A step yields one result per
    asset, so all materializations but those of `results` are events in the log of the run.

    If no table has changed since then, the assets are not materialized but observed, with the data version that they
    have. So whatever runs when they are updated does not run.

    While Dagster's database is away, as when it restarts, the job goes on. A later checkpoint records what was not.

    Args:
        run: The step.
        interval: Seconds from one materialization to the next. The first is due after this time. 0: with each
            checkpoint.
        clock: Tells seconds.
    """

    def __init__(self, run: JobRun, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._interval, self._clock = run, interval, clock
        self._recorded_at = clock()
        self._tables = ChangedTables(run.assets)
        self._last: tuple[CompletedEpoch, int] | None = None
        """The last completed checkpoint, and the fencing token of its attempt."""
        self._is_recorded = False
        self._unobserved: list[CheckpointMetadata] = []
        """Checkpoints whose late rows were not observed."""
        self._late = Counter[str]()
        """The late records that each operator has dropped since the event before."""
        self._materialized = set[str]()
        """The assets with a materialization that is not a result of the step."""
        self.execution: ExecutionReport | None = None
        """How the run was executed, for `results`; None if it has not ended."""

    def begin(self, restored: CheckpointMetadata | None) -> None:
        """Finds out whether the assets were recorded as they are now.

        Args:
            restored: The job's own latest checkpoint, from which the run continues; None if it starts otherwise.
        """
        if restored is not None:
            self._tables.continues_from(restored.checkpoint_id, self._run.context.instance)
            _observe_late_rows_once(self._run, restored)

    def completed(self, epoch: CompletedEpoch, attempt: int, *, is_last: bool) -> None:
        """Records a checkpoint that was just completed.

        Args:
            epoch: The checkpoint.
            attempt: Fencing token of the attempt.
            is_last: Whether the run certainly takes no other checkpoint. Then `results` materializes it.
        """
        self._run.say(checkpoint_line(self._run.assets.job, epoch))
        if _late(self._run, epoch.metadata):  # metadata may be large, and Dagster's database away for long
            self._unobserved.append(epoch.metadata)
        if self._is_recorded:
            self._late.clear()
        for report in epoch.operators:
            self._late[report.uid] += report.late_records_dropped or 0
        self._tables.completed(epoch)
        self._last, self._is_recorded = (self._with_late(epoch), attempt), False
        try:
            self._observe_late_rows()
            if not is_last and self._clock() - self._recorded_at >= self._interval:
                self._record_last()
        except Exception as error:  # each storage of Dagster has its own
            self._say_unrecorded(error)

    def record_last(self) -> None:
        """Materializes the assets with the last completed checkpoint of a run that fails, unless that has been done.

        If Dagster's database is away, the next run does it.
        """
        try:
            self._record_last()
        except Exception as error:
            self._say_unrecorded(error)

    @staticmethod
    def _say_unrecorded(error: Exception) -> None:
        _log.warning("Dagster could not record a checkpoint, which is complete. A later one does: %s", error)

    def _observe_late_rows(self) -> None:
        while self._unobserved:
            _observe_late_rows(self._run, self._unobserved[0])
            del self._unobserved[0]

    def _record_last(self) -> None:
        if self._last is None or self._is_recorded:
            return
        epoch, attempt = self._last
        version, run = data_version(epoch), self._run.with_inputs_of(epoch.metadata.timestamp_ms)
        versions = dict.fromkeys(run.specs, version)
        for uid, spec in run.specs.items():
            facts = self._facts(uid, epoch, attempt)
            if (known := self._tables.unchanged(uid)) is not None:
                versions[uid] = known
                record_at_once(run.context, _observation(spec, facts, known))
            else:
                self._materialized.add(uid)
                record_at_once(run.context, run.event(spec, facts, run.tags(spec, version)))
        self._tables.recorded(versions)
        self._is_recorded, self._recorded_at = True, self._clock()

    def results(self) -> Iterator[MaterializeResult[Any]]:
        """Yields the results of a step that has succeeded: the assets with the last checkpoint, if there is one.

        Assets that have not changed are observed, and have no result; unless other steps of the run read them, which
        Dagster would skip.
        """
        if self._last is None:
            yield from self._run.known_results()
            return
        self._observe_late_rows()
        epoch, attempt = self._last
        version, run = data_version(epoch), self._run.with_inputs_of(epoch.metadata.timestamp_ms)
        executed, observed = {}, 0
        if self.execution is not None:
            executed = dict(FlinkCheckpointMetadataSet(execution=operator_states(self.execution)))
        for uid, spec in run.specs.items():
            facts = self._facts(uid, epoch, attempt) | (executed if uid == run.assets.first else {})
            known = self._tables.unchanged(uid)
            if known is not None and run.is_read(spec, by_checks=uid in self._materialized):
                yield run.unchanged_result(spec, known, facts)
            elif known is not None:
                observed += 1
                run.context.log_event(_observation(spec, facts, known))
            elif run.is_selected(spec):
                # Dagster would say that the step has read what was there when it began.
                tags = {**run.outside_tags(spec), **run.input_tags(spec, version)}
                yield run.result(spec, version, facts, tags)
            else:
                run.record(spec, facts, run.tags(spec, version), partition=None)
        if observed:
            run.context.log.info(
                f"Checkpoint {epoch.checkpoint_id} has changed no table of {observed} assets: they are observed, and "
                "not materialized, so nothing runs that waits for an update of them."
            )

    def _with_late(self, epoch: CompletedEpoch) -> CompletedEpoch:
        """Returns the checkpoint with the late records of the epochs before it, which have no materialization."""
        reports = (
            report
            if report.late_records_dropped is None
            else replace(report, late_records_dropped=self._late[report.uid])
            for report in epoch.operators
        )
        return replace(epoch, operators=tuple(reports))

    def _facts(self, uid: str, epoch: CompletedEpoch, attempt: int) -> dict[str, Any]:
        assets = self._run.assets
        return {**asset_metadata(epoch, assets, uid, attempt), **_table_rows(self._run, assets.job.graph.vertex(uid))}


def _observation(spec: AssetSpec, facts: dict[str, Any], version: DataVersion) -> AssetObservation:
    return AssetObservation(spec.key, metadata=facts, tags={DATA_VERSION_TAG: version.value})


# --- late rows --------------------------------------------------------------------------------------------------------
# Tables are observed at once: whoever has read an hour that was complete has to read it again (`watermark_passed()`).


def _observe_late_rows(run: JobRun, checkpoint: CheckpointMetadata) -> None:
    """Observes each table that has got late rows. It has no other number of the checkpoint, which is recorded later."""
    for uid, found in _late(run, checkpoint):
        _observe(run, uid, checkpoint.checkpoint_id, found)


def _observe_late_rows_once(run: JobRun, restored: CheckpointMetadata) -> None:
    """Observes the late rows of a checkpoint whose run may have died before it did."""
    for uid, found in _late(run, restored):
        if restored.checkpoint_id not in _observed(run.context.instance, run.specs[uid].key):
            _observe(run, uid, restored.checkpoint_id, found)


def _late(run: JobRun, checkpoint: CheckpointMetadata) -> Sequence[tuple[str, tuple[LateRows, ...]]]:
    found = ((each.uid, late_rows(s.metrics for s in each.subtasks)) for each in checkpoint.operators)
    return [(uid, late) for uid, late in found if late and uid in run.specs]


def _observe(run: JobRun, uid: str, checkpoint_id: int, late: Sequence[LateRows]) -> None:
    key, rows = run.specs[uid].key, sum(each.rows for each in late)
    first, last = _time(late[0].start_ms), _time(max(each.end_ms for each in late))
    text = (
        f"Checkpoint {checkpoint_id} has added {rows:,} late rows, from between {first:%Y-%m-%d %H:%M} and "
        f"{last:%Y-%m-%d %H:%M} UTC, whose end the watermark had passed."
    )
    run.context.log.info(f"{key.to_user_string()}: {text}")
    periods = table(
        {"from": "string", "to": "string", "rows": "int"},
        ((_time(each.start_ms).isoformat(), _time(each.end_ms).isoformat(), each.rows) for each in late),
    )
    facts = FlinkCheckpointMetadataSet(late_rows=periods, late_rows_checkpoint=checkpoint_id)
    record_at_once(run.context, AssetObservation(key, description=text, metadata=dict(facts)))


def _time(milliseconds: int) -> datetime:
    """Returns a time; the first or last one that there is, if it is beyond that."""
    return datetime_of_millis(min(max(milliseconds, _FIRST_MS), _LAST_MS))


def _observed(instance: DagsterInstance, key: AssetKey) -> set[object]:
    """Returns the checkpoints whose late rows have been observed lately."""
    records = instance.fetch_observations(key, limit=LOOKED_AT).records
    return {entry.value for each in records if (entry := metadata_of(each).get(_LATE_ROWS_OF)) is not None}


# --- rows of tables ---------------------------------------------------------------------------------------------------


def _table_rows(run: JobRun, vertex: JobVertex) -> dict[str, Any]:
    """Returns the row count of the table of a sink that counts its rows (`CountedTable`) as metadata.

    Other operators get no metadata.

    If the rows cannot be counted, the table gets no number, and the run's log says why. The step does not fail, because
    the checkpoint is complete.

    Args:
        run: The step.
        vertex: The operator.
    """
    sink = vertex.spec.sink if isinstance(vertex.spec, SinkSpec) else None
    if not isinstance(sink, CountedTable):
        return {}
    try:
        count = sink.count_rows(_counted_before(run.context.instance, run.specs[vertex.uid].key))
    except Exception as error:  # clients of catalogs raise errors of all kinds
        run.context.log.warning(f"The rows of table {sink.uri()} were not counted: {error}")
        return {}
    if count is None:
        return {}
    facts = FlinkCheckpointMetadataSet(table_files=count.files, table_digest=count.digest)
    return {**TableMetadataSet(row_count=count.rows), **dict(facts)}


def _counted_before(instance: DagsterInstance, key: AssetKey) -> RowCount | None:
    """Returns the row count in the metadata of the asset's last materialization."""
    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return None
    metadata = event.asset_materialization.metadata
    rows, facts = TableMetadataSet.extract(metadata).row_count, FlinkCheckpointMetadataSet.extract(metadata)
    return None if rows is None else RowCount(rows, facts.table_files, facts.table_digest)
