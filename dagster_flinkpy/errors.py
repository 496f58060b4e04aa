"""Every error a user can meet, as one typed tree.

Each message says what is wrong, where, and what to do about it. Nothing here imports anything of ours.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CommittableLostError",
    "ConditionalWritesUnsupportedError",
    "ConfigurationError",
    "CorruptMetadataError",
    "CorruptStateError",
    "DuplicateUidError",
    "FencedError",
    "FlinkPyError",
    "JavaNotFoundError",
    "JobGraphError",
    "MissingUidError",
    "MissingUidWarning",
    "ObjectNotFoundError",
    "ParallelismError",
    "PastTimerError",
    "PathEscapesPrefixError",
    "PreconditionFailedError",
    "RestoreError",
    "SinkCommitError",
    "SourceReadError",
    "SparkUnavailableError",
    "StateSchemaError",
    "StorageError",
    "TypeMismatchError",
    "UnsupportedKeyTypeError",
    "UploadNotFoundError",
    "UserFunctionError",
]


class FlinkPyError(Exception):
    """Base of all errors raised by dagster-flinkpy."""


# --- what the user declared -------------------------------------------------------------------------------------------


class ConfigurationError(FlinkPyError, ValueError):
    """An option or argument has a value that cannot work."""


class JobGraphError(ConfigurationError):
    """The declared program is not a valid job graph."""


class DuplicateUidError(JobGraphError):
    """Two operators share one uid, so their state could not be told apart."""


class MissingUidError(JobGraphError):
    """A stateful operator has no uid, so its state could not be found again."""


class MissingUidWarning(UserWarning):
    """A stateful operator has no uid: where checkpoints are kept that is a :class:`MissingUidError`."""


class ParallelismError(JobGraphError):
    """A parallelism or max parallelism is out of range."""


class UnsupportedKeyTypeError(FlinkPyError, TypeError):
    """A key has a type without a stable hash."""


class TypeMismatchError(FlinkPyError, TypeError):
    """A value does not have the type that was declared for it."""


# --- storage ----------------------------------------------------------------------------------------------------------


class StorageError(FlinkPyError):
    """The object store could not do what was asked."""


class ObjectNotFoundError(StorageError):
    """No object has this key."""


class PreconditionFailedError(StorageError):
    """A conditional write lost: the object exists already, or was changed since it was read."""


class ConditionalWritesUnsupportedError(StorageError):
    """The store accepts conditional headers and ignores them, so fencing would not hold."""


class UploadNotFoundError(StorageError):
    """A staged upload was aborted, was never begun, or lacks a part."""


class PathEscapesPrefixError(StorageError):
    """A path read from metadata points outside the prefix it belongs to."""


# --- state and checkpoints --------------------------------------------------------------------------------------------


class CorruptStateError(FlinkPyError):
    """A state file is missing, truncated or does not have its recorded checksum."""


class CorruptMetadataError(FlinkPyError):
    """A checkpoint's ``_metadata`` cannot be read."""


class StateSchemaError(FlinkPyError):
    """Stored state and declared state have types that do not fit."""


class CheckpointError(FlinkPyError):
    """A checkpoint was not completed."""


class RestoreError(FlinkPyError):
    """Stored state cannot be given to this job."""


class FencedError(FlinkPyError):
    """A newer execution attempt took over; this one must stop."""


# --- running ----------------------------------------------------------------------------------------------------------


class UserFunctionError(FlinkPyError):
    """A user function raised.

    Args:
        message: What happened, in one line.
        operator: Uid of the operator.
        subtask: Index of the subtask.
        key: ``repr`` of the key that was processed, if any.
        user_traceback: The original traceback.
    """

    def __init__(
        self,
        message: str,
        *,
        operator: str = "",
        subtask: int | None = None,
        key: str | None = None,
        user_traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.operator = operator
        self.subtask = subtask
        self.key = key
        self.user_traceback = user_traceback

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n{self.user_traceback}" if self.user_traceback else message


class PastTimerError(FlinkPyError, ValueError):
    """A timer was registered for a time that has passed, in a program that is strict."""


class SourceReadError(FlinkPyError):
    """A source could not read its input."""


class SinkCommitError(FlinkPyError):
    """A committable could not be committed."""


class CommittableLostError(SinkCommitError):
    """What a sink had prepared is neither committed nor staged any more."""


class SparkUnavailableError(FlinkPyError):
    """No Spark session can be had."""


class JavaNotFoundError(SparkUnavailableError):
    """No Java 17 or newer was found for a local Spark server."""
