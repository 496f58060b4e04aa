"""A sink as begin, invoke, pre-commit, commit and abort of transactions (Flink: ``TwoPhaseCommitSinkFunction``)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from dagster_flinkpy.common.clock import Clock, SystemClock
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

__all__ = ["TwoPhaseCommitSinkFunction"]


class TwoPhaseCommitSinkFunction(TwoPhaseCommittingSink):
    """Writes each epoch of each subtask in a transaction of another system.

    Give it to ``stream.sink_to()``. A transaction is begun when an epoch begins, and pre-committed at its barrier. It
    is committed when the checkpoint is complete, and aborted if the epoch fails.

    - ``begin_transaction``, ``invoke``, ``pre_commit`` and ``abort`` run in the subtask, in one copy of the function.
      ``commit``, ``recover_and_commit`` and ``recover_and_abort`` run on the driver, in another copy. So a transaction
      must name everything that is needed to find it again. Connections and open files belong into attributes.
    - A transaction is a JSON value, because checkpoint metadata contains it.
    - Committing or aborting a transaction twice must do no harm.

    Args:
        transactions: A folder, local or ``s3://bucket/prefix``, or a ``StorageLocation``. It records which transactions
            are open, so that an attempt can abort those of attempts that died.
        clock: Tells how long a transaction has been open. Default: the clock of the machine.
    """

    transaction_timeout: int | None = None
    """Milliseconds after which the other system ends a transaction, or None."""
    warning_ratio: float | None = None
    """The share of the timeout after which a transaction that is still open is a warning, or None."""
    ignore_failures: bool = False
    """Whether a transaction that is older than its timeout and cannot be committed is given up."""

    def __init__(self, transactions: Any, *, clock: Clock | None = None) -> None:
        self.transactions = transactions
        self.clock = clock or SystemClock()

    @abstractmethod
    def begin_transaction(self) -> Any:
        """Begins a transaction, and returns what is needed to find it again, as JSON."""

    @abstractmethod
    def invoke(self, transaction: Any, value: Any) -> None:
        """Writes a record within a transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Any) -> None:
        """Is called at the barrier. When it returns, `commit` must be able to succeed, even after a crash."""

    @abstractmethod
    def commit(self, transaction: Any) -> None:
        """Commits a transaction that was pre-committed. If it raises, `recover_and_commit` tries again."""

    @abstractmethod
    def abort(self, transaction: Any) -> None:
        """Aborts a transaction, pre-committed or not."""

    def recover_and_commit(self, transaction: Any) -> None:
        """Commits a transaction of an earlier attempt, or tries again. It may be committed. Default: `commit`."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        """Aborts a transaction that an earlier execution left open. Default: `abort`."""
        self.abort(transaction)

    def set_transaction_timeout(self, transaction_timeout: int) -> TwoPhaseCommitSinkFunction:
        """Says how long the other system keeps a transaction open.

        Args:
            transaction_timeout: Milliseconds.
        """
        if transaction_timeout <= 0:
            raise ConfigurationError(f"transaction_timeout must be positive, not {transaction_timeout} ms")
        self.transaction_timeout = transaction_timeout
        return self

    def enable_transaction_timeout_warnings(self, warning_ratio: float) -> TwoPhaseCommitSinkFunction:
        """Logs a warning when a transaction is committed after a share of its timeout.

        Args:
            warning_ratio: The share, from 0 to 1.
        """
        if not 0 <= warning_ratio <= 1:
            raise ConfigurationError(f"warning_ratio must be between 0 and 1, not {warning_ratio}")
        self._check_timeout("enable_transaction_timeout_warnings()")
        self.warning_ratio = warning_ratio
        return self

    def ignore_failures_after_transaction_timeout(self) -> TwoPhaseCommitSinkFunction:
        """Gives up a transaction whose `recover_and_commit` fails when it is older than the timeout.

        Its rows are lost, and the job continues; an error is logged. Without it, each attempt fails.
        """
        self._check_timeout("ignore_failures_after_transaction_timeout()")
        self.ignore_failures = True
        return self

    def _check_timeout(self, call: str) -> None:
        if self.transaction_timeout is None:
            raise ConfigurationError(f"{call} has no effect without a timeout: call set_transaction_timeout() first")

    def validate(self, type_info: TypeInformation | None) -> None:
        """Accepts records of any type."""

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        return call_registered("transaction_writer", self, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return call_registered("transaction_committer", self, context)

    @property
    def replaces_whole_partitions(self) -> bool:
        return False
