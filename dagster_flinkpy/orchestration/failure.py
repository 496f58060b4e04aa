"""Errors of the library as step failures that the UI can show part by part."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from dagster import Failure, MetadataValue

from dagster_flinkpy import errors
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    FencedError,
    FlinkPyError,
    RestoreError,
    StateSchemaError,
    UserFunctionError,
)

__all__ = ["as_failure", "flink_failures", "retry_is_pointless"]

_RETRY_IS_POINTLESS = (CommittableLostError, ConfigurationError, FencedError, RestoreError, StateSchemaError)


def retry_is_pointless(error: str) -> bool:
    """Whether an error of this type, as `as_failure` names it, comes again however often one tries."""
    kind = getattr(errors, error, None)
    return isinstance(kind, type) and issubclass(kind, _RETRY_IS_POINTLESS)


def as_failure(error: FlinkPyError, advice: str = "") -> Failure:
    """The step failure of an error, with its parts as metadata; raise it ``from`` the error.

    Args:
        error: What was raised.
        advice: What to do, if the error cannot say that.
    """
    metadata: dict[str, MetadataValue] = {"error": MetadataValue.text(type(error).__name__)}
    if isinstance(error, UserFunctionError):
        metadata["operator"] = MetadataValue.text(error.operator)
        if error.subtask is not None:
            metadata["subtask"] = MetadataValue.int(error.subtask)
        if error.key is not None:
            metadata["key"] = MetadataValue.text(error.key)
        trace = error.user_traceback
    else:
        trace = "".join(traceback.format_exception(error))
    metadata["traceback"] = MetadataValue.md(f"```\n{trace.rstrip()}\n```")
    retry = not isinstance(error, _RETRY_IS_POINTLESS)
    message = str(error.args[0] if error.args else error)
    return Failure(f"{message.partition(chr(10))[0]} {advice}".rstrip(), metadata, allow_retries=retry)


@contextmanager
def flink_failures() -> Iterator[None]:
    """Turns what the library raises inside into step failures."""
    try:
        yield
    except FlinkPyError as error:
        raise as_failure(error) from error
