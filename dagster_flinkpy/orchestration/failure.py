"""Turns errors of the library into step failures. The UI shows the parts of an error as metadata."""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import DagsterInvariantViolationError, Failure, MetadataValue, OpExecutionContext

from dagster_flinkpy import errors
from dagster_flinkpy.errors import (
    FlinkPyError,
    PythonWorkerLostError,
    ThrowableType,
    UserFunctionError,
    add_note,
    message_of,
    shorten,
)
from dagster_flinkpy.orchestration.tables import execution_metadata
from dagster_flinkpy.runtime.throwables import throwable_type

if TYPE_CHECKING:
    from dagster import DagsterLogManager

    from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport

__all__ = ["as_failure", "flink_failures", "retry_is_pointless"]

_MESSAGE_CHARACTERS = 2_000
_TRACEBACK_CHARACTERS = 20_000


def retry_is_pointless(error: str) -> bool:
    """Returns whether a retry cannot fix an error of this type, which `as_failure` named."""
    kind = getattr(errors, error, None)
    return isinstance(kind, type) and throwable_type(kind) is ThrowableType.NON_RECOVERABLE_ERROR


def as_failure(error: FlinkPyError, advice: str = "", *, execution: ExecutionReport | None = None) -> Failure:
    """Builds the step failure of an error, with the error's parts as metadata. Raise it ``from`` the error.

    Dagster prints an error with its causes and all their stacks, twice. So the error's traceback is moved to a file,
    and what Dagster prints ends with a line that says what happened and names the file.

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
        if error.permanent:
            metadata["permanent"] = MetadataValue.bool(True)
        trace = error.user_traceback
    else:
        trace = shorten("".join(traceback.format_exception(error)), _TRACEBACK_CHARACTERS)
    metadata["traceback"] = MetadataValue.md(f"```\n{trace.rstrip()}\n```")
    if execution is not None:
        metadata |= execution_metadata(execution)
    if error.suppressed_by:
        metadata["suppressed_by"] = MetadataValue.text(error.suppressed_by)
    retry = throwable_type(error) is not ThrowableType.NON_RECOVERABLE_ERROR and not error.suppressed_by
    first_line = shorten(message_of(error).partition("\n")[0], _MESSAGE_CHARACTERS)
    said = f"{first_line} {advice}".rstrip()
    if error.__traceback__ is not None and (file := _write_traceback(error)) is not None:
        add_note(error.with_traceback(None), f"{said} (traceback: {file})")
        error.__cause__, error.__suppress_context__ = None, True
    return Failure(said, metadata, allow_retries=retry)


def _write_traceback(error: FlinkPyError) -> Path | None:
    """Writes the traceback to a file beside the captured logs of the run, and returns its path.

    None if nobody could find it there: outside of a step, or if the instance is that of a test.
    """
    try:
        context = OpExecutionContext.get()
    except DagsterInvariantViolationError:
        return None
    if context.instance.is_ephemeral:
        return None
    # Without a home, Dagster deletes the folder of the instance when the command ends.
    folder = context.instance.storage_directory() if os.environ.get("DAGSTER_HOME") else tempfile.gettempdir()
    file = Path(folder, context.run_id, f"{context.op_def.name}.traceback.txt")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(error))
        file.write_text(text, "utf-8", "backslashreplace")  # user code may quote what is no text, such as half an emoji
    except OSError:
        return None
    return file


@contextmanager
def flink_failures(log: DagsterLogManager | None = None) -> Iterator[None]:
    """Turns errors of the library that are raised inside into step failures.

    Args:
        log: The log of the run. It gets the warnings that the library logs meanwhile. Default: only Python's log does.
    """
    logger = logging.getLogger("dagster_flinkpy")
    told = [each for each in logger.handlers if isinstance(each, _ToRun) and each.log is log]
    handlers = [] if log is None or told else [_ToRun(log)]
    for handler in handlers:
        logger.addHandler(handler)
    before = _run_log.get()
    _run_log.set(log or before)
    try:
        yield
    except FlinkPyError as error:
        raise as_failure(error) from error
    finally:
        _run_log.set(before)
        for handler in handlers:
            logger.removeHandler(handler)


_run_log: ContextVar[DagsterLogManager | None] = ContextVar("run_log", default=None)
"""The log of the run that this thread works for, or None if that is not known."""


class _ToRun(logging.Handler):
    """Forwards warnings to the log of a run, but not those of another run in this process.

    Args:
        log: The log.
    """

    def __init__(self, log: DagsterLogManager) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        if _run_log.get() in (None, self.log):
            with suppress(Exception):  # Dagster's database is away, of which it has told standard error
                self.log.log(record.levelno, self.format(record))
