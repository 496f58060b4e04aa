"""All errors that a user can see, as a tree of classes.

Each message says what is wrong, where, and what to do about it. This module imports nothing else of the library.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import ClassVar

__all__ = [
    "AccessDeniedError",
    "CheckpointError",
    "CheckpointTimeoutError",
    "CommitRefusedError",
    "CommittableLostError",
    "ConditionalWritesUnsupportedError",
    "ConfigurationError",
    "CorruptMetadataError",
    "CorruptStateError",
    "DuplicateUidError",
    "ExecutorLostError",
    "FencedError",
    "FlinkPyError",
    "HeadLostError",
    "IllegalStateTransitionError",
    "InputAfterEndError",
    "InputChangedError",
    "InputExpiredError",
    "InputTypeError",
    "JavaNotFoundError",
    "JobCancelledError",
    "JobGraphError",
    "JobNotFoundError",
    "JobNotRunningError",
    "JobRestartedError",
    "MissingUidError",
    "MissingUidWarning",
    "NamedSegmentLostError",
    "NoEffectWarning",
    "NoResourceAvailableError",
    "ObjectNotFoundError",
    "ParallelismError",
    "PastTimerError",
    "PathEscapesPrefixError",
    "PreconditionFailedError",
    "PythonWorkerLostError",
    "RelativePathWarning",
    "RequestFailedError",
    "RequestOutcomeUnknownError",
    "RequestTimeoutError",
    "RestoreError",
    "SavepointOutcomeUnknownError",
    "SegmentLostError",
    "SinkCommitError",
    "SlotLostError",
    "SlotProtocolError",
    "SourceReadError",
    "SparkRefusedError",
    "SparkUnavailableError",
    "SplitLostError",
    "StalledEventTimeWarning",
    "StateSchemaError",
    "StorageError",
    "StoreUnreachableError",
    "TypeMismatchError",
    "UnknownRequestError",
    "UnsupportedEnvironmentError",
    "UnsupportedKeyTypeError",
    "UnsupportedSavepointError",
    "UploadNotFoundError",
    "UserFunctionError",
]


_MESSAGE_CHARACTERS = 10_000
_VALUE_CHARACTERS = 500
_TRACEBACK_CHARACTERS = 20_000


def shorten(text: str, characters: int) -> str:
    """Returns a text, without its middle if it is too long.

    Args:
        text: The text.
        characters: The maximum length; at least 40.
    """
    if len(text) <= characters:
        return text
    half = (characters - 40) // 2  # leaves room for the number of missing characters
    return f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[len(text) - half :]}"


def add_note(error: BaseException, note: str) -> None:
    """Adds a note to an error, as Python does from 3.11 on, whose tracebacks show it."""
    error.__dict__.setdefault("__notes__", []).append(note)


def message_of(error: BaseException) -> str:
    """Returns what an error says, whatever its class does: without the traceback of a user function, and never empty.

    Args:
        error: The error, which may be of any class.
    """
    said = error.args[0] if isinstance(error, FlinkPyError) and error.args else error
    try:
        return str(said) or type(error).__name__
    except BaseException as unsayable:  # whatever a user's class raises
        return f"<{type(error).__name__}, whose str() raised {type(unsayable).__name__}>"


class ThrowableType(Enum):
    """What a restart can do about an error (Flink: ``ThrowableType``)."""

    RECOVERABLE_ERROR = auto()
    """Trying again may help: a worker was lost, the store or a source had a hiccup, a user function raised."""
    ENVIRONMENT_ERROR = auto()
    """Trying again in this attempt of the job does not help; another attempt may."""
    NON_RECOVERABLE_ERROR = auto()
    """Trying again fails in the same way until somebody changes something."""


class FlinkPyError(Exception):
    """Base of all errors raised by dagster-flinkpy. Messages may quote users' data, so long ones are shortened."""

    throwable_type: ClassVar[ThrowableType] = ThrowableType.RECOVERABLE_ERROR
    """What a restart can do about it. Of a single error, ``runtime.throwables`` may know more."""
    suppressed_by: str = ""
    """Why the restart strategy of the program allowed no other restart (Flink: "Recovery is suppressed by ..."). Empty
    if no strategy decided that."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shorten(arg, _MESSAGE_CHARACTERS) if isinstance(arg, str) else arg for arg in args))


# --- what the user declared -------------------------------------------------------------------------------------------


class ConfigurationError(FlinkPyError, ValueError):
    """An option or argument has a value that cannot work."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class JobGraphError(ConfigurationError):
    """The declared program is not a valid job graph."""


class DuplicateUidError(JobGraphError):
    """Two operators share a uid, so their state could not be distinguished."""


class MissingUidError(JobGraphError):
    """A stateful operator has no uid, so its state could not be found again."""


class MissingUidWarning(UserWarning):
    """A stateful operator has no uid. If checkpoints are kept, this is a `MissingUidError` instead."""


class NoEffectWarning(UserWarning):
    """A setting that Flink has does nothing here."""


class RelativePathWarning(UserWarning):
    """A path that several processes use is relative, so each of them may find another folder."""


class StalledEventTimeWarning(UserWarning):
    """An input gives no event time and does not end, so windows and timers behind it never fire."""


class ParallelismError(JobGraphError):
    """A parallelism or max parallelism is out of range."""


class UnsupportedKeyTypeError(FlinkPyError, TypeError):
    """A key has a type without a stable hash."""


class TypeMismatchError(FlinkPyError, TypeError):
    """A value does not have the type that was declared for it."""


# --- storage ----------------------------------------------------------------------------------------------------------


class StorageError(FlinkPyError):
    """An operation of the object store failed."""


class StoreUnreachableError(StorageError):
    """There is no way from this machine to the store: no network, or another directory under its path."""


class AccessDeniedError(StorageError):
    """The store, or the file system, does not allow the operation."""


class ObjectNotFoundError(StorageError):
    """There is no object with this key."""


class PreconditionFailedError(StorageError):
    """A conditional write failed: the object exists, or has changed since it was read."""


class ConditionalWritesUnsupportedError(StorageError):
    """The store accepts conditional headers but ignores them, so fencing would not work."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR


class UploadNotFoundError(StorageError):
    """A staged upload was aborted, was never begun, or lacks a part."""


class PathEscapesPrefixError(StorageError):
    """A path read from metadata points outside the prefix it belongs to."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR


# --- state and checkpoints --------------------------------------------------------------------------------------------


class CorruptStateError(FlinkPyError):
    """A state file is missing or truncated, or does not match its checksum."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR


class CorruptMetadataError(FlinkPyError):
    """A checkpoint's ``_metadata``, or another object that a job needs to continue, cannot be read."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR


class HeadLostError(CorruptMetadataError):
    """``HEAD``, which names a job's latest checkpoint, was lost, although the job has run before."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class UnsupportedSavepointError(FlinkPyError):
    """A savepoint of Flink, or a state in it, is of a form that cannot be read or imported."""


class StateSchemaError(FlinkPyError):
    """The types of stored state and declared state do not match."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class CheckpointError(FlinkPyError):
    """A checkpoint was not completed."""


class CheckpointTimeoutError(CheckpointError):
    """A step of a run, such as a master hook, a write or a commit, took longer than the checkpoint timeout."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR  # a step of the driver still hangs, and may go on at any time


class SavepointOutcomeUnknownError(CheckpointError):
    """A savepoint may have been written or not; the message names it."""


class RestoreError(FlinkPyError):
    """Stored state cannot be restored into this job."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class FencedError(FlinkPyError):
    """A newer execution attempt has taken over, so this one must stop."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


# --- requests to a running job ----------------------------------------------------------------------------------------


class JobCancelledError(FlinkPyError):
    """Somebody asked for the job to be cancelled (Flink: ``JobCancellationException``)."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class RequestFailedError(FlinkPyError):
    """A running job could not do what it was asked for; the message has its reason."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class UnknownRequestError(RequestFailedError):
    """A running job does not know this kind of request, or cannot read it. Its release may be older."""


class JobNotFoundError(ConfigurationError):
    """No run of a job has stored anything in a folder."""


class JobNotRunningError(RequestFailedError):
    """No run of the job is at work that could carry out a request. The request was not carried out."""


class JobRestartedError(RequestFailedError):
    """The job restarted before the checkpoint that was asked for was complete (Flink: "coordinator is suspending")."""


class RequestTimeoutError(RequestFailedError):
    """A request was not answered in time; the message says whether it can still be carried out."""


class RequestOutcomeUnknownError(RequestFailedError):
    """The run that took a request ended before it answered. No other run carries the request out."""


# --- running ----------------------------------------------------------------------------------------------------------


class UserFunctionError(FlinkPyError):
    """A user function raised, or ended the process it runs in.

    Args:
        message: One line that says what happened.
        operator: The uid of the operator.
        subtask: The index of the subtask.
        key: The ``repr`` of the key that was being processed, if any.
        value: The ``repr`` of the record that was being processed, if it is known.
        user_traceback: The original traceback.
        permanent: Whether the function raises whenever it is tried, because code is not there that it needs.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str = "",
        subtask: int | None = None,
        key: str | None = None,
        value: str | None = None,
        user_traceback: str = "",
        permanent: bool = False,
    ) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.operator = operator
        self.subtask = subtask
        self.key = None if key is None else shorten(key, _VALUE_CHARACTERS)
        self.value = None if value is None else shorten(value, _VALUE_CHARACTERS)
        self.user_traceback = shorten(user_traceback, _TRACEBACK_CHARACTERS)

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n{self.user_traceback}" if self.user_traceback else message


class PythonWorkerLostError(CheckpointError):
    """A Python worker of Spark died: a function ended or crashed the process, or the system killed it.

    Args:
        message: What is known about it.
        operator: The uid of the operator that was running, if it is known.
        subtask: The index of the subtask, if it is known.
    """

    def __init__(self, message: str, *, operator: str = "", subtask: int | None = None) -> None:
        super().__init__(message)
        self.operator = operator
        self.subtask = subtask


class SlotLostError(CheckpointError):
    """A slot of the job is gone: its process died, or it does not answer."""


class SlotProtocolError(CheckpointError):
    """What came to a port of the exchange is not of this execution attempt, or is damaged."""


class ExecutorLostError(CheckpointError):
    """Spark gave up a Spark job because it lost executors, or the shuffle files that were on them."""


class UnsupportedEnvironmentError(FlinkPyError):
    """Spark, its workers, or what is installed here or there cannot run the program, however often it is tried."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class NoResourceAvailableError(FlinkPyError):
    """Spark has fewer task slots than are needed at once (Flink: ``NoResourceAvailableException``).

    Args:
        message: What needs them.
        needed: How many slots are needed.
        had: How many slots there are.
    """

    def __init__(self, message: str, *, needed: int = 0, had: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.had = had


class PastTimerError(FlinkPyError, ValueError):
    """A strict program registered a timer for a time in the past."""


class IllegalStateTransitionError(FlinkPyError):
    """A job or task was told to enter a state that cannot follow its current one: an error in the library."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR


class SourceReadError(FlinkPyError):
    """A source could not read its input."""


class SegmentLostError(SourceReadError):
    """A segment of a blocking edge is gone. The region that wrote it has to run again.

    Args:
        message: What happened.
        edge: The uid of the sink that wrote the segment.
        key: The key of the segment, below the folder of the edge.
    """

    def __init__(self, message: str, *, edge: str = "", key: str = "") -> None:
        super().__init__(message)
        self.edge = edge
        self.key = key


class SplitLostError(SourceReadError):
    """What a split stands for is gone, but the input is there: it can be read once it is planned anew."""


class InputChangedError(SourceReadError):
    """Input is no longer what a source has read, or is nothing that it can read, until somebody changes that."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class InputTypeError(InputChangedError, TypeMismatchError):
    """A column of the input has another type than was declared for it, or a value that this type does not have."""


class InputExpiredError(SourceReadError):
    """Input that a source has not read yet is gone: its retention has passed."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class NamedSegmentLostError(SegmentLostError):
    """A segment of a blocking edge is gone that the last completed checkpoint names. No restart writes it again."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class InputAfterEndError(FlinkPyError):
    """A source has input that came after its end and would never be read."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class SinkCommitError(FlinkPyError):
    """A committable could not be committed."""


class CommitRefusedError(SinkCommitError):
    """A table does not take what a sink has staged, until somebody changes the table.

    The rows stay staged, unless somebody has deleted them with the table; the message says so.
    """

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR

    @classmethod
    def of(cls, sink: str, checkpoint_id: int, why: Exception, *, owned: bool, gone: int = 0) -> CommitRefusedError:
        """Returns the error of a sink, with what to do.

        Args:
            sink: The uid of the sink.
            checkpoint_id: The checkpoint or transaction.
            why: What the table refuses.
            owned: Whether the sink belongs to a plain asset.
            gone: How many of its rows are no longer staged.
        """
        what = "transaction" if owned else "its output of checkpoint"
        staged = f"{gone} staged rows are gone, too" if gone else "The rows stay staged"
        if owned:
            advice = "Change the table, and run again, which writes them anew."
        else:
            mend = (
                "Put the folder back with all that was in it, and run again. Or"
                if gone
                else "Change the table, and run again, which commits them. Or change the program, and"
            )
            advice = (
                f"{mend} restore a savepoint or an older checkpoint to write them again, as all sinks then do with "
                f"their rows since, or 'chk-{checkpoint_id}' to continue without them."
            )
        return cls(f"sink {sink!r} cannot commit {what} {checkpoint_id}: {why}. {staged}. {advice}")


class CommittableLostError(SinkCommitError):
    """The output that a sink had prepared is neither committed nor still staged."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR

    @classmethod
    def of(cls, checkpoint_id: int, problem: str) -> CommittableLostError:
        """Returns the error of a checkpoint, with what to do."""
        return cls(
            f"{problem}. Restore a savepoint or an older checkpoint to write the rows again, as all sinks then do with "
            f"theirs since, or 'chk-{checkpoint_id}' to continue without them."
        )


class SparkUnavailableError(FlinkPyError):
    """No Spark session is available."""


class SparkRefusedError(SparkUnavailableError):
    """Spark does not take this process: its token or its settings, or it has a session of the other kind."""

    throwable_type = ThrowableType.NON_RECOVERABLE_ERROR


class JavaNotFoundError(SparkUnavailableError):
    """No Java 17 or newer was found for a local Spark server."""

    throwable_type = ThrowableType.ENVIRONMENT_ERROR
