"""Sends errors of tasks to the driver as data, so that their type and fields survive Spark."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any

from dagster_flinkpy import errors
from dagster_flinkpy.errors import FlinkPyError, UserFunctionError, shorten

__all__ = [
    "UNKNOWN",
    "USER_EXCEPTIONS",
    "error_from_json",
    "error_in_task",
    "error_to_json",
    "last_taken",
    "user_error",
]


USER_EXCEPTIONS = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions of user functions that are reported. The last two would otherwise end the Python worker silently."""

UNKNOWN: Any = object()
"""Stands for a key or value that does not exist or is not known."""

_SHOWN_CHARACTERS = 500
_OUR_ERROR = re.compile(r"^dagster_flinkpy\.errors\.(\w+): (.*)$", re.MULTILINE)


def user_error(
    error: BaseException, *, what: str, operator: str, subtask: int, key: Any = UNKNOWN, value: Any = UNKNOWN
) -> UserFunctionError:
    """Wraps an exception of a user function.

    Args:
        error: The exception.
        what: The function, for messages, e.g. ``"process_element of operator 'rotations'"``.
        operator: Uid of the operator.
        subtask: Index of the subtask.
        key: The key that was being processed.
        value: The record that was being processed.
    """
    shown_key = None if key is UNKNOWN else _shown(key, repr)
    shown_value = None if value is UNKNOWN else _shown(value, repr)
    message = f"{what}, subtask {subtask}"
    if shown_key is not None:
        message += f", key {shown_key}"
    message += f", raised {type(error).__name__}"
    if said := _shown(error, str):
        message += f": {said}"
    if shown_value is not None:
        message += f" (value: {shown_value})"
    if not isinstance(error, Exception):
        message += ". A function must not end its process; raise an error to fail the job"
    return UserFunctionError(
        message,
        operator=operator,
        subtask=subtask,
        key=shown_key,
        value=shown_value,
        user_traceback="".join(traceback.format_exception(error)),
    )


def _shown(value: Any, to_text: Callable[[Any], str]) -> str:
    try:
        return shorten(to_text(value), _SHOWN_CHARACTERS)
    except USER_EXCEPTIONS as error:
        return f"<{type(value).__name__}, whose {to_text.__name__}() raised {type(error).__name__}>"


def last_taken(values: Sequence[Any], each: Iterator[Any]) -> Any:
    """Returns the value that was last taken from an iterator over a list."""
    return values[len(values) - length_hint(each) - 1]


def error_to_json(error: FlinkPyError, operator: str, subtask: int) -> bytes:
    """Encodes an error as the payload of a row."""
    parts: dict[str, Any] = {"type": type(error).__name__, "message": str(error.args[0] if error.args else error)}
    parts |= {"operator": operator, "subtask": subtask}
    if isinstance(error, UserFunctionError):
        # The error knows its operator; the caller knows only the first operator of the chain.
        parts |= {"operator": error.operator or operator, "key": error.key, "value": error.value}
        parts |= {"user_traceback": error.user_traceback}
    return json.dumps(parts).encode()


def error_from_json(payload: bytes) -> FlinkPyError:
    """Decodes an error that :func:`error_to_json` wrote; an unknown type becomes the base class."""
    parts = json.loads(payload)
    if parts["type"] == UserFunctionError.__name__:
        return UserFunctionError(
            parts["message"],
            operator=parts["operator"],
            subtask=parts["subtask"],
            key=parts["key"],
            value=parts["value"],
            user_traceback=parts["user_traceback"],
        )
    kind = getattr(errors, parts["type"], FlinkPyError) if parts["type"] in errors.__all__ else FlinkPyError
    error: FlinkPyError = kind(parts["message"])
    return error


def error_in_task(error: Exception) -> FlinkPyError | None:
    """Returns the error of this library that failed a Spark task, or None if it was another error."""
    found = _OUR_ERROR.findall(str(error))
    if not found or found[-1][0] not in errors.__all__:
        return None
    kind, message = found[-1]
    ours: FlinkPyError = getattr(errors, kind)(message)
    return ours
