"""How a run was executed, as metadata of Dagster: the states of its operators, and its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagster import MetadataValue, TableColumn, TableMetadataValue, TableRecord, TableSchema

from dagster_flinkpy.common.clock import datetime_of_millis

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport

__all__ = ["execution_metadata", "operator_states"]


def execution_metadata(report: ExecutionReport) -> dict[str, MetadataValue]:
    """Returns the status of the job, its restarts, a table of its operators with their attempts, and one of failures.

    Args:
        report: How the run was executed.
    """
    found: dict[str, MetadataValue] = {
        "status": MetadataValue.text(report.run.status),
        "restarts": MetadataValue.int(report.run.restarts),
        "operators": operator_states(report),
    }
    if report.run.checkpoint_id is not None:
        found["last_checkpoint"] = MetadataValue.int(report.run.checkpoint_id)
    if report.failures:
        found["failures"] = _failures(report)
    return found


def operator_states(report: ExecutionReport) -> TableMetadataValue:
    """Returns a table of the operators of a run: region, states of the subtasks, since when, and attempts."""
    kinds = {"operator": "string", "name": "string", "region": "int", "subtasks": "int", "state": "string"}
    kinds |= {"subtasks by state": "string", "since": "string", "attempt": "int"}
    rows = [
        (v.uid, v.name, v.region, v.parallelism, v.state, _by_state(v.states), _time(v.since_ms), v.attempt)
        for v in report.vertices
    ]
    return _table(kinds, rows)


def _failures(report: ExecutionReport) -> TableMetadataValue:
    kinds = {"failed at": "string", "region": "int", "operator": "string", "subtask": "int", "attempt": "int"}
    kinds |= {"error": "string", "message": "string"}
    rows = [
        (_time(f.at_ms), f.region, f.operator, f.subtask, f.attempt, f.error, f.message)
        for f in reversed(report.failures)
    ]
    return _table(kinds, rows)


def _table(kinds: Mapping[str, str], rows: Sequence[tuple[str | int | None, ...]]) -> TableMetadataValue:
    records = [TableRecord(dict(zip(kinds, row, strict=True))) for row in rows]
    return MetadataValue.table(records, TableSchema([TableColumn(name, kind) for name, kind in kinds.items()]))


def _by_state(states: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in states.items())


def _time(millis: int) -> str:
    return datetime_of_millis(millis).strftime("%Y-%m-%d %H:%M:%S")
