"""What user functions log is in the run's log, at a level that Dagster knows."""

from __future__ import annotations

from typing import Any

import pytest
from dagster_graphql.schema.logs.log_level import GrapheneLogLevel

from dagster_flinkpy.orchestration.runs.worker_logs import to_run
from dagster_flinkpy.spark.user_logs import LogEntry


@pytest.mark.parametrize(
    ("level", "shown"), [(20, "INFO"), (25, "INFO"), (39, "WARNING"), (50, "CRITICAL"), (70, "CRITICAL")]
)
def test_records_of_own_levels_have_one_that_dagster_shows(level: int, shown: str) -> None:
    """Dagster shows no page of a run that has a record of another one."""

    class Log:
        def log(self, level: int, text: str) -> None:
            taken.append((level, text))

    taken: list[tuple[int, str]] = []
    log: Any = Log()
    to_run(log)(LogEntry("op", 0, 7, level, "shop", "a notice"))
    assert [(GrapheneLogLevel.from_level(level).name, text) for level, text in taken] == [
        (shown, "[op, subtask 0, checkpoint 7] shop: a notice")
    ]
