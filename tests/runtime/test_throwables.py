"""What cannot be mended by trying again is told from what can, by the class of an error."""

from __future__ import annotations

import builtins
import pickle
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    ParseException,
    PySparkAssertionError,
    PySparkAttributeError,
    PySparkException,
    PySparkImportError,
    PySparkNotImplementedError,
    PySparkRuntimeError,
    PySparkTypeError,
    PySparkValueError,
    PythonException,
    SparkRuntimeException,
    UnsupportedOperationException,
)
from pyspark.errors.exceptions.connect import AnalysisException as ConnectAnalysisException
from pyspark.errors.exceptions.connect import InvalidPlanInput, SparkConnectGrpcException
from pyspark.errors.exceptions.connect import PythonException as ConnectPythonException

from dagster_flinkpy import errors
from dagster_flinkpy.errors import FlinkPyError, StorageError, ThrowableType, UserFunctionError
from dagster_flinkpy.runtime.failure import error_from_json, error_to_json, user_error
from dagster_flinkpy.runtime.throwables import fails_always, refused_by_spark, throwable_type

RECOVERABLE, PERMANENT = ThrowableType.RECOVERABLE_ERROR, ThrowableType.NON_RECOVERABLE_ERROR
ENVIRONMENT = {
    "CheckpointTimeoutError",
    "ConditionalWritesUnsupportedError",
    "CorruptMetadataError",
    "CorruptStateError",
    "IllegalStateTransitionError",
    "JavaNotFoundError",
    "PathEscapesPrefixError",
}
NON_RECOVERABLE = {
    "CommitRefusedError",
    "CommittableLostError",
    "ConfigurationError",
    "DuplicateUidError",
    "FencedError",
    "HeadLostError",
    "InputAfterEndError",
    "InputChangedError",
    "InputExpiredError",
    "InputTypeError",
    "JobCancelledError",
    "NamedSegmentLostError",
    "JobGraphError",
    "JobNotFoundError",
    "JobNotRunningError",
    "JobRestartedError",
    "MissingUidError",
    "ParallelismError",
    "RequestFailedError",
    "RequestOutcomeUnknownError",
    "RequestTimeoutError",
    "RestoreError",
    "SparkRefusedError",
    "StateSchemaError",
    "UnknownRequestError",
    "UnsupportedEnvironmentError",
}


def test_the_errors_that_no_restart_in_the_run_mends() -> None:
    found: dict[ThrowableType, set[str]] = {kind: set() for kind in ThrowableType}
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, FlinkPyError):
            found[throwable_type(kind)].add(name)
    assert found[ThrowableType.ENVIRONMENT_ERROR] == ENVIRONMENT
    assert found[ThrowableType.NON_RECOVERABLE_ERROR] == NON_RECOVERABLE


class Closed:
    session = None


def raised(function: Any) -> BaseException:
    with pytest.raises(BaseException) as found:
        function()
    return found.value


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("a split enumerator raised"), RECOVERABLE),
        (KeyError("a"), RECOVERABLE),
        (ConnectionError("reset"), RECOVERABLE),
        (MemoryError(), RECOVERABLE),
        (raised(lambda: Closed().session.addTag("a")), RECOVERABLE),  # type: ignore[attr-defined]
        (raised(lambda: Closed().addTag("a")), PERMANENT),  # type: ignore[attr-defined]
        (raised(lambda: len(profile=1)), PERMANENT),  # type: ignore[call-arg]
        (ModuleNotFoundError("No module named 'a'"), PERMANENT),
        (NotImplementedError(), PERMANENT),
        (NameError("a"), PERMANENT),
        (SyntaxError("a"), PERMANENT),
        (KeyboardInterrupt(), PERMANENT),
        (SystemExit(), PERMANENT),
        (AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] a"), PERMANENT),
        (ConnectAnalysisException("a column"), PERMANENT),
        (ParseException("a"), PERMANENT),
        (InvalidPlanInput("a"), PERMANENT),
        (IllegalArgumentException("a"), PERMANENT),
        (UnsupportedOperationException("a"), PERMANENT),
        (PySparkAttributeError("a"), PERMANENT),
        (PySparkImportError("a"), PERMANENT),
        (PySparkNotImplementedError("a"), PERMANENT),
        (PySparkTypeError("a"), PERMANENT),
        (PySparkValueError("a"), PERMANENT),
        (PySparkAssertionError("the server has another session"), RECOVERABLE),
        (PySparkRuntimeError("a"), RECOVERABLE),
        (SparkRuntimeException("a"), RECOVERABLE),
        (SparkConnectGrpcException("a"), RECOVERABLE),
        (PySparkException("java.lang.OutOfMemoryError: Java heap space"), RECOVERABLE),
        (PySparkException("java.lang.NoSuchMethodError: 'void a.b()'"), PERMANENT),
        (PySparkException("java.lang.UnsupportedClassVersionError: a"), PERMANENT),
        (ValueError("java.lang.NoSuchMethodError: said a user"), RECOVERABLE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.name,
)
def test_errors_of_the_driver(error: BaseException, kind: ThrowableType) -> None:
    assert throwable_type(error) is kind


BUILTINS = [
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, (UnicodeError, Warning))
    if not kind.__name__.endswith("Group")
]
MISFITS = (AttributeError, ImportError, NameError, NotImplementedError, SyntaxError, TypeError)


@given(st.sampled_from(BUILTINS), st.text(max_size=80), st.booleans(), st.integers(0, 3))
def test_the_class_that_a_python_worker_raised_decides(
    kind: type[Exception], said: str, connect: bool, depth: int
) -> None:
    """Whatever the message is: it may have several lines that look like a traceback."""

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise kind("\n".join(f"x{line}" for line in said.splitlines()))

    try:
        try:
            raise PermissionError("the cause counts for nothing")
        except PermissionError:
            deep(depth)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
    java = f"Job aborted: org.apache.spark.api.python.PythonException: {text}\n\tat org.apache.spark.Task(Task.scala:1)"
    spark = ConnectPythonException(java) if connect else PythonException(java)
    assert refused_by_spark(spark) == issubclass(kind, MISFITS)
    assert fails_always(spark) == issubclass(kind, (ImportError, NotImplementedError, SyntaxError))
    assert not refused_by_spark(RuntimeError(java)), "it is not Spark's"


def test_workers_of_another_python_are_told_from_other_failures() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "worker_util.py", line 92, in check_python_version\n'
        "    raise PySparkRuntimeError(\n"
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different\n"
    )
    assert refused_by_spark(PythonException(text))
    assert not refused_by_spark(PythonException(text.replace("[PYTHON_VERSION_MISMATCH]", "[OTHER]")))


@given(st.sampled_from([*BUILTINS, KeyboardInterrupt, SystemExit, GeneratorExit]))
def test_a_user_function_restarts_the_job_unless_code_is_missing(kind: type[BaseException]) -> None:
    error = user_error(kind(), what="map()", operator="it", subtask=0)
    again = error_from_json(error_to_json(error))
    missing = issubclass(kind, (ImportError, NotImplementedError, SyntaxError, KeyboardInterrupt))
    for each in (error, again, pickle.loads(pickle.dumps(again))):
        assert isinstance(each, UserFunctionError)
        assert (throwable_type(each) is PERMANENT) == missing
    assert throwable_type(UserFunctionError) is RECOVERABLE


@given(st.sampled_from([name for name in errors.__all__ if issubclass(getattr(errors, name), FlinkPyError)]))
def test_a_users_class_is_of_the_kind_of_its_base(name: str) -> None:
    base = getattr(errors, name)
    assert throwable_type(type("Own", (base,), {})) is throwable_type(base)
    assert throwable_type(type("Both", (base, AttributeError), {})) is throwable_type(base)


def test_an_error_of_ours_in_a_cause_changes_nothing() -> None:
    error = StorageError("no bucket")
    error.__cause__ = ImportError("boto3")
    assert throwable_type(error) is RECOVERABLE
