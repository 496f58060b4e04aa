"""What trying again can do about an error (Flink: ``ThrowableClassifier``).

The answer depends on the class of an error. Of errors that only Spark's text tells, it depends on the class that the
text names.
"""

from __future__ import annotations

import builtins
import re

from dagster_flinkpy.errors import FlinkPyError, ThrowableType, UserFunctionError

__all__ = ["fails_always", "refused_by_spark", "throwable_type"]

_RECOVERABLE, _, _NON_RECOVERABLE = ThrowableType

_PROGRAMMING = (AttributeError, ImportError, NameError, NotImplementedError, SyntaxError, TypeError)
"""Raised outside of user functions: code and what is installed do not fit together."""

_FUNCTION = (ImportError, NotImplementedError, SyntaxError)
"""Raised in a user function: code that is not there. All else may depend on the world, as in Flink."""

_REFUSALS = frozenset(
    {
        "AnalysisException",
        "IllegalArgumentException",
        "InvalidPlanInput",
        "PySparkAttributeError",
        "PySparkImportError",
        "PySparkIndexError",
        "PySparkKeyError",
        "PySparkNotImplementedError",
        "PySparkPicklingError",
        "PySparkTypeError",
        "PySparkValueError",
        "UnsupportedOperationException",
    }
)
"""Classes of PySpark: Spark does not run the plan, whatever the data and the machines do."""

# The class of the exception that ends a traceback of a Python worker: it follows the indented lines of the calls.
_PYTHON_CLASS = re.compile(r"^[ ]+\S.*\n([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
_VERSIONS = re.compile(r"\[PYTHON_VERSION_MISMATCH\]")
_JAVA_LINKAGE = re.compile(
    r"\bjava\.lang\.(?:AbstractMethodError|ClassNotFoundException|IncompatibleClassChangeError|NoSuchFieldError"
    r"|NoSuchMethodError|UnsupportedClassVersionError)\b"
)


def throwable_type(error: BaseException | type[BaseException]) -> ThrowableType:
    """Returns what a restart can do about an error, or about errors of a class.

    Errors of user functions and sources are recoverable, as in Flink: they may depend on the world outside. What is no
    `Exception`, such as a termination from outside, is not.
    """
    kind = error if isinstance(error, type) else type(error)
    if issubclass(kind, FlinkPyError):
        permanent = isinstance(error, UserFunctionError) and error.permanent
        return _NON_RECOVERABLE if permanent else kind.throwable_type
    if not issubclass(kind, Exception):
        return _NON_RECOVERABLE
    if isinstance(error, AttributeError) and error.name is not None and error.obj is None:
        return _RECOVERABLE  # of None: something was closed meanwhile
    if issubclass(kind, _PROGRAMMING) or _is_refusal(kind):
        return _NON_RECOVERABLE
    refused = not isinstance(error, type) and refused_by_spark(error)
    return _NON_RECOVERABLE if refused else _RECOVERABLE


def fails_always(error: BaseException) -> bool:
    """Returns whether a user function that raised an error raises it whenever it is tried.

    An interruption counts, because somebody wants the process to end.
    """
    return isinstance(error, (*_FUNCTION, KeyboardInterrupt)) or refused_by_spark(error, _FUNCTION)


def refused_by_spark(error: BaseException, in_workers: tuple[type[Exception], ...] = _PROGRAMMING) -> bool:
    """Returns whether an exception of PySpark says that Spark or its Python workers cannot run the plan.

    Args:
        error: An exception; one that is not of PySpark says nothing.
        in_workers: What a Python worker raises that cannot run it. Default: all that says that code does not fit.
    """
    kind = type(error)
    if not any(each.__module__.startswith("pyspark.") for each in kind.__mro__):
        return False
    if _is_refusal(kind):
        return True
    text = str(error)
    raised = _PYTHON_CLASS.findall(text)
    in_python = getattr(builtins, raised[-1], None) if raised else None
    if isinstance(in_python, type) and issubclass(in_python, in_workers):
        return True
    return _VERSIONS.search(text) is not None or _JAVA_LINKAGE.search(text) is not None


def _is_refusal(kind: type[BaseException]) -> bool:
    return any(each.__name__ in _REFUSALS and each.__module__.startswith("pyspark.") for each in kind.__mro__)
