"""A transaction that replaces what a Dagster asset has written into a table: staged, then committed once.

A transaction goes through these steps. Whoever dies in between leaves a table that is as before or as after, and
something that the next transaction of the output finds in the ledger:

1. *begin*: it takes the next token. Open transactions over the same partitions are dropped from the ledger, so they can
   no longer commit. Those that are being committed are committed first.
2. *write*: rows are staged where no reader looks.
3. *prepare*: the ledger gets all committables, if the transaction is still in it. From here on it is committed.
4. *commit*: the sink's own committer publishes the rows, and replaces those of older tokens. This is idempotent.
5. *end*: the transaction leaves the ledger.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.clock import current_millis
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.connectors.commit.output_ledger import (
    LedgerState,
    OutputLedger,
    StagedOutput,
    Stages,
    TransactionRecord,
)
from dagster_flinkpy.connectors.commit.staged_files import FileNames
from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    CommitRequestState,
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    FencedError,
    SinkCommitError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.runtime.master.commits.commit_retries import commit_requests
from dagster_flinkpy.storage import ObjectStore, StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Output", "OutputTransaction", "abort_transactions", "writer_context"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Output:
    """What one asset writes into one table."""

    asset: str
    """The key of the asset, as text."""
    table: str
    """The name of the table."""
    sink: TwoPhaseCommittingSink
    """Its committer replaces what this asset has written, and nothing of others."""
    location: StorageLocation
    """The folder of all tables, or of the rows that are staged for them. The table has a folder in it."""
    stages: Stages
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the sink, as JSON."""

    @property
    def ledger(self) -> OutputLedger:
        """The transactions of the output."""
        return OutputLedger(self.location.open(), self.asset, self.table)

    def committer(self, token: int, type_info: TypeInformation | None) -> Committer:
        """Returns the committer of a transaction."""
        return self.sink.create_committer(CommitterInitContext(self.asset, self.table, token, type_info))

    def finish(self, record: TransactionRecord) -> None:
        """Commits a transaction that is being committed, whoever began it, and removes it from the ledger.

        Raises:
            CommittableLostError: Some of its rows are gone.
            ConfigurationError: The table does not fit the rows. Nothing was written.
            SinkCommitError: The table does not take its rows.
            StorageError: It is not committed just now, or that is unknown; it can be tried again.
        """
        type_info = None if record.record_type is None else type_from_json(record.record_type)
        committer = self.committer(record.token, type_info)
        staged = record.staged or ()
        requests = [CommitRequest(record.token, index, each.committable) for index, each in enumerate(staged)]
        try:
            commit_requests(committer, requests, self.table)
        except SinkCommitError as error:
            if any(request.state is CommitRequestState.RETRY for request in requests):
                raise StorageError(
                    f"transaction {record.token} of asset {self.asset!r} into table {self.table!r} could not be "
                    f"committed; the next one commits it: {requests[0].error}"
                ) from error
            raise
        for partition in [None] if record.partitions is None else record.partitions:
            committer.replace_partition(partition, record.token)
        self.drop(record, committed=True)

    def drop(self, record: TransactionRecord, *, committed: bool = False) -> None:
        """Removes a transaction from the ledger, and what it has staged."""
        self.ledger.change(lambda state: state.committed(record) if committed else state.without(record.token))
        self.discard(lambda each: each == record.token)

    def discard(self, ended: Callable[[int], bool]) -> int:
        """Deletes what transactions that can no longer commit have staged, and returns how much that was."""
        return _discard(self.location.child(self.table).open(), self.asset, self.table, self.stages, ended)


def _discard(store: ObjectStore, asset: str, table: str, stages: Stages, ended: Callable[[int], bool]) -> int:
    """Deletes what transactions that can no longer commit have staged.

    Args:
        store: The folder of the table.
        asset: The key of the asset, as text.
        table: The name of the table.
        stages: How the sink stages rows.
        ended: Whether the transaction with a token can no longer commit.

    Returns:
        How many uploads and files that were.
    """

    def is_dead(key: str) -> bool:
        token = names.checkpoint(key)
        return token is not None and ended(token)

    names = FileNames(CommitterInitContext(asset, table, 0))
    uploads = [upload for upload in store.list_uploads() if is_dead(upload.key)]
    for upload in uploads:
        store.abort_upload(upload.key, upload.upload_id)
    if stages == "uploads":
        return len(uploads)
    files = [info.key for info in store.list() if is_dead(info.key)]
    store.delete_many(files)
    return len(uploads) + len(files)


def abort_transactions(ledger: OutputLedger, store: ObjectStore, tokens: set[int]) -> set[int]:
    """Aborts open transactions. Those that are being committed are left alone.

    Returns:
        Those that were aborted.
    """
    aborted: dict[int, TransactionRecord] = {}

    def remove(state: LedgerState) -> LedgerState:
        nonlocal aborted
        aborted = {each.token: each for each in state.transactions if each.token in tokens and not each.is_committing}
        return state.without(*aborted)

    ledger.change(remove)
    for stages in {each.stages for each in aborted.values()}:
        _discard(store, ledger.asset, ledger.table, stages, lambda token: token in aborted)
    return set(aborted)


class OutputTransaction:
    """A transaction of an output. Begin it with `begin`."""

    def __init__(self, output: Output, record: TransactionRecord) -> None:
        self.output, self.record = output, record
        self.type_info: TypeInformation | None = None
        """The type of the records, once some were written."""
        self._writers: dict[str | None, CommittingSinkWriter] = {}
        self._rows: dict[str | None, int] = {}
        self._staged: list[StagedOutput] = []

    @staticmethod
    def begin(
        output: Output, partitions: Sequence[str] | None, run_id: str, writer: str | None = None
    ) -> OutputTransaction:
        """Begins a transaction, and fences older ones over the same partitions.

        Args:
            output: The output.
            partitions: The partitions that it replaces, or None for the whole output.
            run_id: The Dagster run.
            writer: The try of the run, if the table cannot replace what it has. Default: it can.

        Raises:
            ConfigurationError: The writer has written already, or the table has rows of a time without partitions.
            StorageError: The store failed, or an earlier transaction that has to be committed first cannot be just now.
        """
        ledger = output.ledger
        wanted = None if partitions is None else tuple(partitions)
        state = ledger.read()
        # If the ledger was lost, the table may know older tokens.
        floor = 0 if state.exists else (output.committer(0, None).last_committed() or 0)

        def enter(state: LedgerState) -> LedgerState:
            if any(each.is_committing for each in state.overlapping(wanted)):
                raise _Busy
            if writer in state.writers:
                raise ConfigurationError(
                    f"asset {output.asset!r} has written to {output.table!r} in this run already, and what is there "
                    "cannot be replaced: write all of it in one transaction"
                )
            if state.whole and wanted is not None and writer is None:
                raise ConfigurationError(
                    f"asset {output.asset!r} has written to {output.table!r} without partitions, and these rows would "
                    "stay beside those of its partitions. Run it once as it was, without rows, which deletes them. Or "
                    f"delete the rows whose dagster_asset_key is {output.asset!r}, and then {ledger.url}"
                )
            token = max(state.last_token, floor) + 1
            others = state.without(*(each.token for each in state.overlapping(wanted))).transactions
            record = TransactionRecord(
                token, wanted, run_id, current_millis(), dict(output.options), output.stages, writer=writer
            )
            return replace(state, last_token=token, transactions=(*others, record))

        while True:
            for each in ledger.read().overlapping(wanted):
                if each.is_committing:
                    _finish_earlier(output, each)
            with suppress(_Busy):  # meanwhile another one is being committed
                state = ledger.change(enter)
                break
        record = state.transactions[-1]
        known = {each.token for each in state.transactions}
        output.discard(lambda token: token < record.token and token not in known)
        return OutputTransaction(output, record)

    @property
    def token(self) -> int:
        """Its number among the transactions of the output."""
        return self.record.token

    def rows(self, partition: str | None) -> int:
        """Returns how many rows of a partition were written."""
        return self._rows.get(partition, 0)

    def write(self, columns: Iterator[pa.Array], partition: str | None) -> None:
        """Stages records of `type_info`, given as arrays of structs.

        Raises:
            FencedError: A newer transaction has deleted what this one had staged.
        """
        assert self.type_info is not None
        if partition not in self._writers:
            context = writer_context(self.output, self.token, partition, len(self._writers))
            self._writers[partition] = self.output.sink.create_writer(context, self.type_info)
        with self._fencing():
            for column in columns:
                self._writers[partition].write(column)
                self._rows[partition] = self._rows.get(partition, 0) + len(column)

    def add(self, staged: Sequence[StagedOutput]) -> None:
        """Adds what was staged elsewhere."""
        self._staged += staged
        for each in staged:
            self._rows[each.partition] = self._rows.get(each.partition, 0) + each.rows

    def commit(self) -> None:
        """Replaces the rows of the partitions by those that were written.

        Raises:
            FencedError: A newer transaction over one of the partitions has begun, or this one was aborted. Nothing is
                committed.
            ConfigurationError: The table does not fit the rows. Nothing is committed.
            SinkCommitError: The table does not take the rows.
            StorageError: It is unknown whether they are committed. The next transaction commits them.
        """
        staged = list(self._staged)
        with self._fencing():
            for partition, writer in self._writers.items():
                writer.flush()
                staged += [StagedOutput(partition, 0, each) for each in writer.prepare_commit()]
        record_type = None if self.type_info is None else self.type_info.to_json()
        record = replace(self.record, staged=tuple(staged), record_type=record_type)

        def prepare(state: LedgerState) -> LedgerState:
            if state.find(self.token) is None:
                raise self._fenced()
            kept = tuple(record if each.token == self.token else each for each in state.transactions)
            return replace(state, transactions=kept)

        self.output.ledger.change(prepare)
        self.record = record
        try:
            with self._fencing():
                self.output.finish(record)
        except ConfigurationError:
            self.output.drop(record)
            raise

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """Explains why something is gone: a newer transaction has deleted it, or has committed and replaced it."""
        try:
            yield
        except (CommittableLostError, UploadNotFoundError) as error:
            if self.output.ledger.read().find(self.token) is None:
                raise self._fenced() from error
            raise

    def _fenced(self) -> FencedError:
        return FencedError(
            f"transaction {self.token} of asset {self.output.asset!r} into table {self.output.table!r} is not "
            "committed: a newer one over the same partitions has begun, or somebody aborted it"
        )

    def abort(self) -> None:
        """Deletes what was staged. A transaction that is being committed stays: the next one commits it."""
        if self.record.is_committing:
            return
        try:
            self.output.ledger.change(lambda state: state.without(self.token))  # from here on nobody commits it
            for writer in self._writers.values():
                writer.abort()
            self.output.discard(lambda token: token == self.token)
        except StorageError:  # the next transaction does it
            _log.warning("transaction %d of %r is not aborted yet", self.token, self.output.asset, exc_info=True)


class _Busy(Exception):
    """A transaction over the same partitions is being committed."""


def _finish_earlier(output: Output, record: TransactionRecord) -> None:
    """Commits a transaction whose run died meanwhile. If the table refuses its rows for good, it is dropped."""
    try:
        output.finish(record)
    except (SinkCommitError, ConfigurationError) as error:
        if output.ledger.read().find(record.token) is None:  # its run is alive and has committed it
            return
        _log.warning(
            "transaction %d of asset %r (run %s) cannot be committed, so its partitions (%s) must be run again: %s",
            *(record.token, output.asset, record.run_id, ", ".join(record.partitions or ("all",)), error),
        )
        output.drop(record)


def writer_context(output: Output, token: int, partition: str | None, subtask: int) -> WriterInitContext:
    """Returns the context of a new writer."""
    return WriterInitContext(output.asset, output.table, subtask, token, token, uuid.uuid4().hex, partition)
