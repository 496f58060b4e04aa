"""Which runs of Dagster are tries of one run."""

from __future__ import annotations

from dagster import DagsterInstance, DagsterRun

__all__ = ["FIRST_TRY_TAG", "first_try"]

FIRST_TRY_TAG = "flink/first_try"
"""Run tag of a restarted run: the id of the run that failed first."""


def first_try(instance: DagsterInstance, run: DagsterRun) -> str:
    """Returns the id of the first run that this run retries, whoever started the retries, or its own id.

    A run that repeats one that succeeded is not a retry.

    Args:
        instance: Where runs are recorded.
        run: The run.
    """
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    if parent is not None:
        return run.run_id if parent.is_success else first_try(instance, parent)
    return run.tags.get(FIRST_TRY_TAG) or run.root_run_id or run.run_id
