"""Observes tables at once when a checkpoint has added rows to them behind their watermark.

Whoever has read an hour of event time that was complete has to read it again: see ``watermark_passed()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from dagster import AssetKey, AssetObservation, DagsterInstance

from dagster_flinkpy.checkpoint.reports.late_rows import LateRows, late_rows
from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.orchestration.dagster_internals import record_at_once
from dagster_flinkpy.orchestration.metadata_set import FlinkCheckpointMetadataSet
from dagster_flinkpy.orchestration.runs.changed_tables import LOOKED_AT, metadata_of
from dagster_flinkpy.orchestration.runs.job_run import JobRun
from dagster_flinkpy.orchestration.tables import table

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata

__all__ = ["has_late_rows", "observe_late_rows", "observe_late_rows_once"]

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The years 1 to 9999, which Python's datetimes have."""
_CHECKPOINT = "flink/late_rows_checkpoint"


def has_late_rows(run: JobRun, checkpoint: CheckpointMetadata) -> bool:
    """Returns whether a checkpoint has added late rows to a table."""
    return bool(_late(run, checkpoint))


def observe_late_rows(run: JobRun, checkpoint: CheckpointMetadata) -> None:
    """Observes each table that has got late rows. It has no other number of the checkpoint, which is recorded later."""
    for uid, found in _late(run, checkpoint):
        _observe(run, uid, checkpoint.checkpoint_id, found)


def observe_late_rows_once(run: JobRun, restored: CheckpointMetadata) -> None:
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
    return {entry.value for each in records if (entry := metadata_of(each).get(_CHECKPOINT)) is not None}
