"""Materializes the checkpoints of a run without partitions: while it runs, when it ends, and when it fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster import AssetObservation, AssetSpec, DataVersion, MaterializeResult

from dagster_flinkpy.orchestration.dagster_internals import DATA_VERSION_TAG, record_at_once
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.runs.changed_tables import ChangedTables
from dagster_flinkpy.orchestration.runs.job_run import JobRun
from dagster_flinkpy.orchestration.runs.late_rows import has_late_rows, observe_late_rows, observe_late_rows_once
from dagster_flinkpy.orchestration.runs.report import asset_metadata, checkpoint_line, data_version
from dagster_flinkpy.orchestration.runs.table_rows import table_rows
from dagster_flinkpy.orchestration.tables import operator_states

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
    from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport

__all__ = ["EpochEvents"]

_log = logging.getLogger(__name__)


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
            observe_late_rows_once(self._run, restored)

    def completed(self, epoch: CompletedEpoch, attempt: int, *, is_last: bool) -> None:
        """Records a checkpoint that was just completed.

        Args:
            epoch: The checkpoint.
            attempt: Fencing token of the attempt.
            is_last: Whether the run certainly takes no other checkpoint. Then `results` materializes it.
        """
        self._run.say(checkpoint_line(self._run.assets.job, epoch))
        if has_late_rows(self._run, epoch.metadata):  # metadata may be large, and Dagster's database away for long
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
            observe_late_rows(self._run, self._unobserved[0])
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
        return {**asset_metadata(epoch, assets, uid, attempt), **table_rows(self._run, assets.job.graph.vertex(uid))}


def _observation(spec: AssetSpec, facts: dict[str, Any], version: DataVersion) -> AssetObservation:
    return AssetObservation(spec.key, metadata=facts, tags={DATA_VERSION_TAG: version.value})
