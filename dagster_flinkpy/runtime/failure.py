"""Sends errors of tasks to the driver as data, so that their type and fields survive Spark."""

from __future__ import annotations

import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from typing import Any

from dagster_flinkpy import errors
from dagster_flinkpy.errors import (
    CheckpointError,
    FlinkPyError,
    ThrowableType,
    UnsupportedEnvironmentError,
    UserFunctionError,
    message_of,
    shorten,
)
from dagster_flinkpy.runtime.throwables import fails_always, throwable_type
from dagster_flinkpy.storage.location import on_worker

__all__ = [
    "DRIVER_EXCEPTIONS",
    "UNKNOWN",
    "USER_EXCEPTIONS",
    "TaskError",
    "error_from_json",
    "error_in_task",
    "error_to_json",
    "last_taken",
    "outside_error",
    "raised_on_driver",
    "reported",
    "unsupported",
    "user_error",
]


USER_EXCEPTIONS = BaseException
"""What user functions raise, which is reported. What is no `Exception` would otherwise end the Python worker, or one of
its generators, without a word."""

DRIVER_EXCEPTIONS = (Exception, SystemExit, GeneratorExit)
"""What user code on the driver raises, such as an enumerator or a master hook. An interruption is not the code's."""

UNKNOWN: Any = object()
"""Stands for a key or value that does not exist or is not known."""

_SHOWN_CHARACTERS = 500
_TASK_ERROR = re.compile(r"^dagster_flinkpy\.runtime\.failure\.TaskError: (\{.*\})$", re.MULTILINE)


def user_error(
    error: BaseException, *, what: str, operator: str, subtask: int | None, key: Any = UNKNOWN, value: Any = UNKNOWN
) -> UserFunctionError:
    """Wraps an exception of a user function.

    Args:
        error: The exception.
        what: The function, for messages, e.g. ``"process_element of operator 'rotations'"``.
        operator: Uid of the operator.
        subtask: Index of the subtask; None if it does not matter.
        key: The key that was being processed.
        value: The record that was being processed.

    Raises:
        KeyboardInterrupt: It is one of who runs the program in this process, and wants it to end.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if isinstance(error, KeyboardInterrupt) and in_main_thread and not on_worker():
        raise error
    shown_key = None if key is UNKNOWN else _shown(key, repr)
    shown_value = None if value is UNKNOWN else _shown(value, repr)
    message = what if subtask is None else f"{what}, subtask {subtask}"
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
        permanent=fails_always(error),
    )


@contextmanager
def raised_on_driver(what: str, kind: type[FlinkPyError]) -> Iterator[None]:
    """Turns what code of a connector or user raises inside, on the driver, into an error that names it.

    Args:
        what: The code, for messages, e.g. ``"the split enumerator of source 'orders'"``.
        kind: The class of the error, unless trying again raises the same.

    Raises:
        UnsupportedEnvironmentError: Trying again raises the same.
        FlinkPyError: Another exception, as an error of this class. An error of this library is raised as it is.
    """
    try:
        yield
    except FlinkPyError:
        raise
    except DRIVER_EXCEPTIONS as error:
        why = UnsupportedEnvironmentError if fails_always(error) else kind
        said = _shown(error, str)
        raise why(f"{what} raised {type(error).__name__}{f': {said}' if said else ''}") from error


def _shown(value: Any, to_text: Callable[[Any], str]) -> str:
    try:
        return shorten(to_text(value), _SHOWN_CHARACTERS)
    except USER_EXCEPTIONS as error:
        return f"<{type(value).__name__}, whose {to_text.__name__}() raised {type(error).__name__}>"


def last_taken(values: Sequence[Any], each: Iterator[Any]) -> Any:
    """Returns the value that was last taken from an iterator over a list."""
    return values[len(values) - length_hint(each) - 1]


def error_to_json(error: FlinkPyError, operator: str = "", subtask: int = 0) -> bytes:
    """Encodes an error with its fields, as the payload of a row.

    Args:
        error: The error. Of a user's class, the class of this library is kept.
        operator: Uid of the operator that raised it, or the first one of its chain, if the error does not say so.
        subtask: Index of the subtask.
    """
    kind = next(each for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int | None)}
    where = {"operator": fields.get("operator") or operator, "subtask": subtask}
    if isinstance(error, UserFunctionError):
        fields |= where
    return json.dumps({"type": kind.__name__, "message": message_of(error), **where, "fields": fields}).encode()


def error_from_json(payload: bytes | str) -> FlinkPyError:
    """Decodes an error that :func:`error_to_json` wrote; an unknown type becomes the base class."""
    parts = json.loads(payload)
    known = getattr(errors, parts["type"], None)
    kind = known if isinstance(known, type) and issubclass(known, FlinkPyError) else FlinkPyError
    error = kind.__new__(kind)
    FlinkPyError.__init__(error, parts["message"])
    vars(error).update(parts.get("fields", {}))
    return error


def outside_error(error: BaseException, what: str) -> FlinkPyError:
    """Returns what a worker raised outside of user functions as an error of this library.

    Args:
        error: The error. One of this library is returned as it is.
        what: What the worker did, in words for people.
    """
    if isinstance(error, FlinkPyError):
        return error
    said = "".join(traceback.format_exception(error)).rstrip()
    if throwable_type(error) is ThrowableType.NON_RECOVERABLE_ERROR:
        return unsupported(what, said)
    return CheckpointError(f"{what} failed: {type(error).__name__}: {message_of(error)}\n{said}")


def unsupported(what: str, reason: str) -> UnsupportedEnvironmentError:
    """Returns the error of something that cannot run on this Spark."""
    import pyspark

    return UnsupportedEnvironmentError(
        f"{what} cannot run, however often it is tried, because the program, PySpark {pyspark.__version__}, the Spark "
        "server and what is installed on its workers do not fit together: run 'flinkpy doctor', which compares them. "
        f"Spark or Python say: {reason}"
    )


class TaskError(Exception):
    """Fails a Spark task, and takes an error of this library to the driver, as a line of JSON that Spark passes on."""


@contextmanager
def reported() -> Iterator[None]:
    """Lets :func:`error_in_task` find errors of this library that are raised inside, in a function that Spark runs."""
    try:
        yield
    except FlinkPyError as error:
        raise TaskError(error_to_json(error).decode()) from error


def error_in_task(error: BaseException) -> FlinkPyError | None:
    """Returns the error of this library that failed a Spark task, or None if it was another error."""
    found = _TASK_ERROR.findall(str(error))
    return error_from_json(found[-1]) if found else None
