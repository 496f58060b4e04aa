"""Output of the command ``flinkpy``: tables, times, bars and progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dagster_flinkpy.checkpoint.reports.job_metrics import OperatorMetrics
from dagster_flinkpy.common.clock import datetime_of_millis

__all__ = ["bar", "console_of_width", "lines_of", "metrics_table", "plain_table", "progress", "time_of", "watermark_of"]

_PIPE_WIDTH = 200
_BAR_WIDTH = 30
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
_PARTS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"  # eighths of a block


def console_of_width(file: IO[str] | None = None) -> Console:
    """Returns a console as wide as the terminal, or of a fixed width if the output is not a terminal.

    Args:
        file: Where it prints. Default: standard output.
    """
    return Console(file=file, width=None if (file or sys.stdout).isatty() else _PIPE_WIDTH)


def plain_table(*columns: str) -> Table:
    """Returns an empty table. A column whose name starts with ``#`` is right-aligned, for numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return table


def metrics_table(operators: Sequence[OperatorMetrics]) -> Table:
    """Returns a table with a row for each operator."""
    table = plain_table("uid", *(f"#{title}" for title in _COLUMNS))
    for operator in operators:
        values = (operator.total.get(name) for name in _COLUMNS.values())
        table.add_row(escape(operator.uid), *("-" if value is None else f"{value:,}" for value in values))
    return table


def bar(value: int, most: int) -> str:
    """Draws a value as a bar, relative to the largest value."""
    eighths = round(8 * _BAR_WIDTH * value / most) if most else 0
    return ("\u2588" * (eighths // 8) + _PARTS[eighths % 8]).rstrip()


@contextmanager
def progress(what: str, of: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows progress on standard error; silent if that is not a terminal.

    Args:
        what: What is being done, such as ``"deleting"``.
        of: What is counted, such as ``"files"``.
        total: How many there are, or None if that is unknown.

    Yields:
        A function to call with the number of items done since the last call.
    """
    count = MofNCompleteColumn() if total is not None else TextColumn("{task.completed:,}")
    columns = (TextColumn("{task.description}"), BarColumn(), count, TextColumn(of), TimeElapsedColumn())
    console = Console(stderr=True)
    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=off) as shown:
        task = shown.add_task(what, total=total)
        yield lambda more: shown.advance(task, more)


@contextmanager
def lines_of(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on standard error that something is at work, and yields what prints lines about it there."""
    console = Console(stderr=True)
    with console.status(f"{what} ..."):
        yield lambda line: console.print(escape(line), soft_wrap=True)


def time_of(when: datetime) -> str:
    """Formats a time in UTC."""
    return when.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def watermark_of(milliseconds: int) -> str:
    """Formats a watermark as a time, or in words if it is not one."""
    if milliseconds == 2**63 - 1:  # Flink: Watermark.MAX_WATERMARK
        return "end of input"
    try:
        return time_of(datetime_of_millis(milliseconds))
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
