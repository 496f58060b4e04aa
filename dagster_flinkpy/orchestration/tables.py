"""Tables as metadata of Dagster: of any rows, of the columns of records, and of how a run was executed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster import MetadataValue, TableColumn, TableMetadataValue, TableRecord, TableSchema

from dagster_flinkpy.common.clock import datetime_of_millis
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.connectors.columns.column_types import columns_of

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport

__all__ = ["execution_metadata", "operator_states", "shown_time", "table", "table_columns"]


def table(kinds: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> TableMetadataValue:
    """Returns a table.

    Args:
        kinds: The types of the columns, by name, in their order.
        rows: The values of each row, in the order of the columns.
    """
    records = [TableRecord(dict(zip(kinds, row, strict=True))) for row in rows]
    return MetadataValue.table(records, TableSchema([TableColumn(name, kind) for name, kind in kinds.items()]))


def table_columns(type_info: TypeInformation) -> list[TableColumn]:
    """Returns the columns of records, or none if they have no declared type."""
    if isinstance(type_info, PickledBytesTypeInfo):
        return []
    return [TableColumn(name, kind.arrow_name) for name, kind in columns_of(type_info).items()]


def shown_time(millis: int) -> str:
    """Formats a time, in milliseconds since 1970, for a table."""
    return datetime_of_millis(millis).strftime("%Y-%m-%d %H:%M:%S")


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
        kinds = {"failed at": "string", "region": "int", "operator": "string", "subtask": "int", "attempt": "int"}
        kinds |= {"error": "string", "message": "string"}
        found["failures"] = table(
            kinds,
            (
                (shown_time(f.at_ms), f.region, f.operator, f.subtask, f.attempt, f.error, f.message)
                for f in reversed(report.failures)
            ),
        )
    return found


def operator_states(report: ExecutionReport) -> TableMetadataValue:
    """Returns a table of the operators of a run: region, states of the subtasks, since when, and attempts."""
    kinds = {"operator": "string", "name": "string", "region": "int", "subtasks": "int", "state": "string"}
    kinds |= {"subtasks by state": "string", "since": "string", "attempt": "int"}
    rows = []
    for v in report.vertices:
        by_state = ", ".join(f"{number} {state}" for state, number in v.states.items())
        rows.append((v.uid, v.name, v.region, v.parallelism, v.state, by_state, shown_time(v.since_ms), v.attempt))
    return table(kinds, rows)
