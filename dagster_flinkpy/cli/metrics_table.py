"""The metrics of operators as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from dagster_flinkpy.checkpoint.reports.job_metrics import OperatorMetrics
from dagster_flinkpy.cli.terminal import plain_table

__all__ = ["metrics_table"]

_COLUMNS = {
    "records in": "numRecordsIn",
    "records out": "numRecordsOut",
    "records in/s": "numRecordsInPerSecond",
    "records out/s": "numRecordsOutPerSecond",
    "bytes in": "numBytesIn",
    "bytes out": "numBytesOut",
    "busy ms/s": "busyTimeMsPerSecond",
    "idle ms/s": "idleTimeMsPerSecond",
    "back-pressured ms/s": "backPressuredTimeMsPerSecond",
    "watermark lag ms": "watermarkLag",
}


def metrics_table(operators: Sequence[OperatorMetrics]) -> Table:
    """Returns a table with a row for each operator."""
    table = plain_table("uid", *(f"#{title}" for title in _COLUMNS))
    for operator in operators:
        values = (operator.total.get(name) for name in _COLUMNS.values())
        table.add_row(escape(operator.uid), *("-" if value is None else f"{value:,}" for value in values))
    return table
