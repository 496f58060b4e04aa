"""Executes :class:`~dagster_flinkpy.datastream.two_phase_commit_sink_function.TwoPhaseCommitSinkFunction`.

Each transaction has an entry in the function's folder from its begin to its end. So an attempt finds the transactions
that dead executions left open.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.commit.staged_files import Committable, FileNames, file_name
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    Json,
    WriterInitContext,
)
from dagster_flinkpy.datastream.two_phase_commit_sink_function import TwoPhaseCommitSinkFunction
from dagster_flinkpy.errors import ObjectNotFoundError, TypeMismatchError
from dagster_flinkpy.storage import ObjectStore, StorageLocation

__all__ = ["TransactionCommitter", "TransactionWriter"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry(Committable):
    """A transaction as checkpoint metadata and the folder of open transactions describe it."""

    key: str
    transaction: Any
    started_ms: int
    fencing_token: int
    """The attempt that began it."""


class TransactionWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask in a transaction."""

    def __init__(
        self, function: TwoPhaseCommitSinkFunction, context: WriterInitContext, type_info: TypeInformation
    ) -> None:
        self._function, self._type_info = function, type_info
        self._store = _open(function)
        self._rows = 0
        transaction = function.begin_transaction()
        self._entry = _Entry(f"{file_name(context)}.json", transaction, function.clock.now(), context.fencing_token)
        try:
            self._check_json()
            self._store.put(self._entry.key, self._entry.to_bytes())
        except BaseException:
            with suppress(Exception):
                function.abort(transaction)
            raise

    def _check_json(self) -> None:
        transaction = self._entry.transaction
        with suppress(TypeError, ValueError):
            if json.loads(json.dumps(transaction)) == transaction:
                return
        function = type(self._function).__qualname__
        raise TypeMismatchError(
            f"{function}.begin_transaction() returned {transaction!r:.200}, which is not JSON: return a dict, a list "
            "or a string with what is needed to find it again, and keep connections and files in attributes"
        )

    def write(self, column: pa.Array) -> None:
        invoke, transaction = self._function.invoke, self._entry.transaction
        for record in self._type_info.from_arrow(column):
            invoke(transaction, record)
        self._rows += len(column)

    def prepare_commit(self) -> list[Json]:
        self._function.pre_commit(self._entry.transaction)
        self._check_json()  # it may have changed
        return [{**self._entry.to_json(), "rows": self._rows}]

    def abort(self) -> None:
        self._function.abort(self._entry.transaction)
        self._store.delete(self._entry.key)


class TransactionCommitter(Committer):
    """Commits transactions, and aborts those that dead executions left open.

    It has a copy of the function, because that is pickled for each epoch.
    """

    def __init__(self, function: TwoPhaseCommitSinkFunction, context: CommitterInitContext) -> None:
        self._function = copy.copy(function)
        self._context = context
        self._store = _open(function)
        self._names = FileNames(context)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        for request in requests:
            entry = _Entry.from_json(request.committable)
            try:
                self._commit(entry, recovers=request.number_of_retries > 0)
                # Deleted before the checkpoint counts as committed, so it is never taken for an open transaction.
                self._store.delete(entry.key)
            except Exception as error:
                request.retry_later(error)

    def _commit(self, entry: _Entry, *, recovers: bool) -> None:
        function = self._function
        age, timeout = function.clock.now() - entry.started_ms, function.transaction_timeout
        if timeout is not None and function.warning_ratio is not None and age > timeout * function.warning_ratio:
            _log.warning(
                "sink %r commits transaction %r, which has been open for %d ms: that is close to its timeout of %d ms, "
                "or beyond. Take checkpoints more often, or set a longer timeout.",
                *(self._context.uid, entry.transaction, age, timeout),
            )
        if not recovers and entry.fencing_token == self._context.fencing_token:
            function.commit(entry.transaction)
            return
        try:
            function.recover_and_commit(entry.transaction)
        except Exception:
            if not function.ignore_failures or timeout is None or age <= timeout:
                raise
            _log.exception(
                "sink %r gives up transaction %r, which has been open for %d ms, longer than its timeout of %d ms: its "
                "rows may be lost",
                *(self._context.uid, entry.transaction, age, timeout),
            )

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return len(self._lingering(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        aborted = 0
        for key in self._lingering(keep):
            with suppress(ObjectNotFoundError):  # its execution has just ended it
                entry = _Entry.from_json(json.loads(self._store.get(key)[0]))
                self._function.recover_and_abort(entry.transaction)
                self._store.delete(key)
                aborted += 1
        return aborted

    def _lingering(self, keep: Sequence[CommitRequest]) -> list[str]:
        kept = {_Entry.from_json(request.committable).key for request in keep}
        return [info.key for info in self._store.list() if self._names.mine(info.key) and info.key not in kept]


def _open(function: TwoPhaseCommitSinkFunction) -> ObjectStore:
    place = function.transactions
    return (place if isinstance(place, StorageLocation) else StorageLocation(place)).open()
