"""What is stored about the execution of a job: the state of its operators, restarts, failures and earlier runs.

It is the object ``execution`` below the job's prefix. A run writes it when it begins, now and then, and when it ends.
Nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from dagster_flinkpy.errors import ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.json_records import Count, Json, JsonRecord, Millis, load_object
from dagster_flinkpy.storage import ObjectStore
from dagster_flinkpy.storage.object_store import put_if

__all__ = [
    "EXECUTION_KEY",
    "ExecutionReport",
    "FailureReport",
    "InputReport",
    "PriorExecutions",
    "RunReport",
    "VertexReport",
    "read_execution_report",
    "write_execution_report",
]

EXECUTION_KEY = "execution"
_VERSION = 1


@dataclass(frozen=True)
class PriorExecutions(JsonRecord):
    """The executions of an operator's subtasks before a restart."""

    attempt: int
    began_ms: int
    """When they were created, in milliseconds since 1970."""
    ended_ms: int
    states: Mapping[str, int]
    """The number of subtasks in each final state."""


@dataclass(frozen=True)
class InputReport(JsonRecord):
    """An edge into an operator (Flink: ``JobPlanInfo.Plan.Node.Input``)."""

    uid: str
    """The operator that it comes from."""
    partitioner: str
    """How it distributes records, such as ``hash``; ``blocking`` if they are stored first."""
    chained: bool
    """Whether both operators run in the same task."""


@dataclass(frozen=True)
class VertexReport(JsonRecord):
    """One operator (Flink: ``JobDetailsInfo.JobVertexDetailsInfo``)."""

    uid: str
    name: str
    region: int
    parallelism: int
    state: str
    states: Mapping[str, int]
    """The number of subtasks in each state."""
    attempt: int
    since_ms: int
    """When its subtasks entered their last state, in milliseconds since 1970."""
    prior: tuple[PriorExecutions, ...] = ()
    """The last 16 restarts, the oldest first."""
    inputs: tuple[InputReport, ...] = ()
    """Empty for sources, and in reports of older releases."""


@dataclass(frozen=True)
class FailureReport(JsonRecord):
    """One failure (Flink: ``JobExceptionsInfoWithHistory``)."""

    at_ms: int
    """When the master heard of it, in milliseconds since 1970."""
    error: str
    """The type of the error."""
    message: str
    """The first line of its message, shortened."""
    region: int | None
    """The region that failed; None if the job failed as a whole."""
    operator: str | None
    """The operator whose subtask raised the error; None if the driver raised it."""
    subtask: int | None
    attempt: int
    """The attempt number of the region's executions that failed; 0 if the job failed as a whole."""


@dataclass(frozen=True)
class RunReport(JsonRecord):
    """A run of the job."""

    token: Count
    """The fencing token of its last execution attempt."""
    owner: str
    began_ms: Millis
    at_ms: Millis
    """When this was written, in milliseconds since 1970."""
    status: str
    """Status of the job, as a name of `JobStatus`."""
    restarts: Count
    checkpoint_id: Count | None
    """The last checkpoint that was complete."""
    error: str = ""
    """The type of the error that ended it."""


@dataclass(frozen=True)
class ExecutionReport(JsonRecord):
    """The last run of a job, and those before it."""

    run: RunReport
    vertices: tuple[VertexReport, ...]
    failures: tuple[FailureReport, ...]
    """The last 16 failures of the run, the oldest first."""
    earlier: tuple[RunReport, ...] = ()
    """The last 16 earlier runs, the oldest first."""

    def to_json(self) -> dict[str, Json]:
        return {"version": _VERSION, **super().to_json()}


def read_execution_report(store: ObjectStore) -> tuple[ExecutionReport | None, str | None]:
    """Returns the report of a job and its ETag; None for the report if there is none, or it cannot be read.

    Args:
        store: The object store, rooted at the job's prefix.
    """
    try:
        data, etag = store.get(EXECUTION_KEY)
    except ObjectNotFoundError:
        return None, None
    with suppress(ValueError):
        stored = load_object(data)
        if stored.get("version") == _VERSION:
            return ExecutionReport.from_json(stored), etag
    return None, etag


def write_execution_report(store: ObjectStore, report: ExecutionReport, etag: str | None) -> str | None:
    """Writes the report of a job, unless another run has written one.

    Args:
        store: The object store, rooted at the job's prefix.
        report: The report.
        etag: The ETag of the object that it replaces; None if there must be none.

    Returns:
        The ETag of the object; None if another run has written one.

    Raises:
        StorageError: It may not have been written.
    """
    try:
        return put_if(store, EXECUTION_KEY, report.to_bytes(), etag)
    except PreconditionFailedError:
        return None
