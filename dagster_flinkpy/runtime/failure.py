"""How an error of a task reaches the driver: as data, so that its type and its parts survive Spark."""

from __future__ import annotations

import json
import traceback
from typing import Any

from dagster_flinkpy import errors
from dagster_flinkpy.errors import FlinkPyError, UserFunctionError

__all__ = ["error_from_json", "error_to_json", "user_error"]


def user_error(
    error: BaseException, *, what: str, operator: str, subtask: int, key: Any = None, keyed: bool = False
) -> UserFunctionError:
    """Wraps what a user function raised.

    Args:
        error: What was raised.
        what: The function, for people, e.g. ``"process_element of operator 'rotations'"``.
        operator: Uid of the operator.
        subtask: Index of the subtask.
        key: The key that was processed.
        keyed: Whether there is a key.
    """
    at_key = f", key {key!r}" if keyed else ""
    return UserFunctionError(
        f"{what}, subtask {subtask}{at_key}, raised {type(error).__name__}: {error}",
        operator=operator,
        subtask=subtask,
        key=repr(key) if keyed else None,
        user_traceback="".join(traceback.format_exception(error)),
    )


def error_to_json(error: FlinkPyError, operator: str, subtask: int) -> bytes:
    """An error as a payload."""
    parts: dict[str, Any] = {"type": type(error).__name__, "message": str(error.args[0] if error.args else error)}
    parts |= {"operator": operator, "subtask": subtask}
    if isinstance(error, UserFunctionError):
        # It knows its operator; the caller knows the first one of the chain only.
        parts |= {"operator": error.operator or operator, "key": error.key, "user_traceback": error.user_traceback}
    return json.dumps(parts).encode()


def error_from_json(payload: bytes) -> FlinkPyError:
    """The error that :func:`error_to_json` wrote; an unknown type becomes the base class."""
    parts = json.loads(payload)
    if parts["type"] == UserFunctionError.__name__:
        return UserFunctionError(
            parts["message"],
            operator=parts["operator"],
            subtask=parts["subtask"],
            key=parts["key"],
            user_traceback=parts["user_traceback"],
        )
    kind = getattr(errors, parts["type"], FlinkPyError) if parts["type"] in errors.__all__ else FlinkPyError
    error: FlinkPyError = kind(parts["message"])
    return error
