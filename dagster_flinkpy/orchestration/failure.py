"""Turns errors of the library into step failures. The UI shows the parts of an error as metadata."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster import Failure, MetadataValue

from dagster_flinkpy import errors
from dagster_flinkpy.errors import FlinkPyError, PythonWorkerLostError, UserFunctionError, shorten
from dagster_flinkpy.orchestration.execution_tables import execution_metadata
from dagster_flinkpy.runtime.master.failover import ThrowableType, throwable_type

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.execution_report import ExecutionReport

__all__ = ["as_failure", "flink_failures", "retry_is_pointless"]

_MESSAGE_CHARACTERS = 2_000
_TRACEBACK_CHARACTERS = 20_000


def retry_is_pointless(error: str) -> bool:
    """Returns whether a retry cannot fix an error of this type, which `as_failure` named."""
    kind = getattr(errors, error, None)
    return isinstance(kind, type) and throwable_type(kind) is ThrowableType.NON_RECOVERABLE_ERROR


def as_failure(error: FlinkPyError, advice: str = "", *, execution: ExecutionReport | None = None) -> Failure:
    """Builds the step failure of an error, with the error's parts as metadata. Raise it ``from`` the error.

    Args:
        error: The error that was raised.
        advice: What to do, if the error does not say so.
        execution: How the run was executed. Default: it has not begun.
    """
    metadata: dict[str, MetadataValue] = {"error": MetadataValue.text(type(error).__name__)}
    if isinstance(error, (UserFunctionError, PythonWorkerLostError)):
        metadata["operator"] = MetadataValue.text(error.operator)
        if error.subtask is not None:
            metadata["subtask"] = MetadataValue.int(error.subtask)
    if isinstance(error, UserFunctionError):
        if error.key is not None:
            metadata["key"] = MetadataValue.text(error.key)
        if error.value is not None:
            metadata["value"] = MetadataValue.text(error.value)
        trace = error.user_traceback
    else:
        trace = shorten("".join(traceback.format_exception(error)), _TRACEBACK_CHARACTERS)
    metadata["traceback"] = MetadataValue.md(f"```\n{trace.rstrip()}\n```")
    if execution is not None:
        metadata |= execution_metadata(execution)
    if error.suppressed_by:
        metadata["suppressed_by"] = MetadataValue.text(error.suppressed_by)
    retry = throwable_type(error) is not ThrowableType.NON_RECOVERABLE_ERROR and not error.suppressed_by
    message = str(error.args[0] if error.args else error)
    first_line = shorten(message.partition("\n")[0], _MESSAGE_CHARACTERS)
    return Failure(f"{first_line} {advice}".rstrip(), metadata, allow_retries=retry)


@contextmanager
def flink_failures() -> Iterator[None]:
    """Turns errors of the library that are raised inside into step failures."""
    try:
        yield
    except FlinkPyError as error:
        raise as_failure(error) from error
