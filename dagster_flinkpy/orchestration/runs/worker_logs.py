"""Forwards what user functions log and print on the workers to the Dagster run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dagster_flinkpy.spark.user_logs import LogEntry, print_line

if TYPE_CHECKING:
    from dagster import DagsterLogManager


__all__ = ["to_run"]


def to_run(log: DagsterLogManager) -> Callable[[LogEntry], None]:
    """Returns a function that takes the entries: log records go to the run's log, printed lines to standard output.

    While Dagster's database is away, records are lost: no reason to end the job.

    Args:
        log: The log of the run.
    """

    def take(entry: LogEntry) -> None:
        if entry.level:
            with suppress(Exception):  # Dagster has said so on standard error
                # Dagster does not show a run that has records of other levels.
                log.log(min(entry.level // 10 * 10, logging.CRITICAL), str(entry))
        else:
            print_line(entry.text)

    return take
