"""How the command ``flinkpy`` prints: tables, times, bars and progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

__all__ = ["bar", "console_of_width", "plain_table", "progress", "time_of", "watermark_of"]

_PIPE_WIDTH = 200
_BAR_WIDTH = 30
_PARTS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"  # eighths of a block


def console_of_width(file: IO[str] | None = None) -> Console:
    """A console of the terminal's width, or of a fixed one where the output goes elsewhere.

    Args:
        file: Where it prints. Default: standard output.
    """
    return Console(file=file, width=None if (file or sys.stdout).isatty() else _PIPE_WIDTH)


def plain_table(*columns: str) -> Table:
    """A table; a column whose name starts with ``#`` holds numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", overflow="fold")
    return table


def bar(value: int, most: int) -> str:
    """A value as a bar, beside the largest there is."""
    eighths = round(8 * _BAR_WIDTH * value / most) if most else 0
    return ("\u2588" * (eighths // 8) + _PARTS[eighths % 8]).rstrip()


@contextmanager
def progress(what: str, of: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows on the terminal how far something is; nothing where standard error is none.

    Args:
        what: Is done.
        of: What is counted.
        total: How many there are; None: nobody knows.

    Yields:
        A function to be called with how many more are done.
    """
    count = MofNCompleteColumn() if total is not None else TextColumn("{task.completed:,}")
    columns = (TextColumn("{task.description}"), BarColumn(), count, TextColumn(of), TimeElapsedColumn())
    console = Console(stderr=True)
    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=off) as shown:
        task = shown.add_task(what, total=total)
        yield lambda more: shown.advance(task, more)


def time_of(when: datetime) -> str:
    """A time in UTC."""
    return when.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def watermark_of(milliseconds: int) -> str:
    """A watermark as a time, where it is one."""
    if milliseconds == 2**63 - 1:  # Flink: Watermark.MAX_WATERMARK
        return "end of input"
    try:
        return time_of(datetime.fromtimestamp(milliseconds / 1000, timezone.utc))
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
