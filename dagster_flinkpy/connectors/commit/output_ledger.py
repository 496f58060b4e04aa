"""Which transactions of an output are open: the ledger of what a Dagster asset writes into a table.

An output is what one asset writes into one table. Its ledger is one small object beside the tables, which is only
replaced with If-Match. A transaction that is not in it any longer can no longer commit.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import quote, unquote

import tenacity

from dagster_flinkpy.datastream.connectors.base import Json
from dagster_flinkpy.errors import CorruptMetadataError, FencedError, ObjectNotFoundError, PreconditionFailedError
from dagster_flinkpy.json_records import ArrayRecord, Count, Id, JsonRecord, load_object
from dagster_flinkpy.storage import ObjectStore
from dagster_flinkpy.storage.object_store import put_if

__all__ = ["LedgerState", "OutputLedger", "StagedOutput", "Stages", "TransactionRecord"]

Stages = Literal["uploads", "files"]
"""How a sink stages rows: as uploads, which it completes when it commits, or as files, which it deletes then."""

_FOLDER = ".transactions"
_VERSION = 1
_WRITERS = 1000
"""How many writers a ledger remembers. One that asks again is a run that is at work."""
_TRIES = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(PreconditionFailedError),
    wait=tenacity.wait_random_exponential(multiplier=0.01, max=0.2),
    stop=tenacity.stop_after_attempt(100),
)


class StagedOutput(ArrayRecord, frozen=True):
    """What a writer has staged."""

    partition: str | None
    rows: Count
    """How many, if its writer ran elsewhere; otherwise 0."""
    committable: Json
    """What the sink needs to commit it."""


@dataclass(frozen=True)
class TransactionRecord(JsonRecord):
    """A transaction that has begun and has not ended."""

    token: Id
    """Its number among the transactions of the output. A newer one has a greater one."""
    partitions: tuple[str, ...] | None
    """The partitions that it replaces, or None for the whole output."""
    run_id: str
    """The Dagster run."""
    began_ms: Count
    options: Json
    """The options of the sink."""
    stages: Stages
    staged: tuple[StagedOutput, ...] | None = None
    """None while it is open. Otherwise it is being committed: it will not be aborted, whatever happens."""
    record_type: Json | None = None
    """The type of the records, if it has any and is being committed."""
    writer: str | None = None
    """The try of a run that may write only once, because the table cannot replace what it has."""

    @property
    def is_committing(self) -> bool:
        """Whether it has prepared its rows and is being committed."""
        return self.staged is not None


@dataclass(frozen=True)
class LedgerState(JsonRecord):
    """The content of a ledger."""

    last_token: Count
    """The token that was given last."""
    transactions: tuple[TransactionRecord, ...] = ()
    """Those that have begun and have not ended, oldest first."""
    writers: tuple[str, ...] = ()
    """The last ones that may write only once, and have."""
    whole: bool = False
    """Whether the table has rows that were written for no partition."""
    exists: bool = field(default=False, compare=False)
    """Whether the ledger has been written."""

    def find(self, token: int) -> TransactionRecord | None:
        """Returns a transaction, or None if it has ended or a newer one has taken over."""
        return next((each for each in self.transactions if each.token == token), None)

    def without(self, *tokens: int) -> LedgerState:
        """Returns the state without some transactions."""
        return replace(self, transactions=tuple(each for each in self.transactions if each.token not in tokens))

    def committed(self, record: TransactionRecord) -> LedgerState:
        """Returns the state after a transaction was committed, unless somebody else has said so."""
        if self.find(record.token) is None:
            return self
        state, writer = self.without(record.token), record.writer
        if writer is not None and writer not in self.writers:
            state = replace(state, writers=(*self.writers, writer)[-_WRITERS:])
        return replace(state, whole=bool(record.staged)) if record.partitions is None else state

    def overlapping(self, partitions: tuple[str, ...] | None) -> list[TransactionRecord]:
        """Returns the transactions that replace some of these partitions; None stands for the whole output."""
        if partitions is None:
            return list(self.transactions)
        wanted = set(partitions)
        return [each for each in self.transactions if each.partitions is None or wanted & set(each.partitions)]


class OutputLedger:
    """The ledger of an output, in the store where its tables, or the rows for them, are staged."""

    def __init__(self, store: ObjectStore, asset: str, table: str) -> None:
        self._store = store
        self.asset, self.table = asset, table
        self._key = f"{_FOLDER}/{quote(table, safe='')}/{quote(asset, safe='')}.json"
        self.url = f"{store.url}/{self._key}"

    @staticmethod
    def all(store: ObjectStore) -> Iterator[OutputLedger]:
        """Yields all ledgers of a store, by table and asset."""
        for info in store.list(f"{_FOLDER}/"):
            _, table, asset = info.key.split("/")
            yield OutputLedger(store, unquote(asset.removesuffix(".json")), unquote(table))

    def read(self) -> LedgerState:
        return self._read()[0]

    def change(self, change: Callable[[LedgerState], LedgerState]) -> LedgerState:
        """Replaces the content, and returns it. If the store fails, it is unknown whether the content was replaced.

        ``change`` is called again if somebody else was faster. What it raises ends the change.
        """
        try:
            for trial in _TRIES:
                state, etag = self._read()
                changed = change(state)
                if state.exists and changed == state:
                    break
                with trial:
                    put_if(self._store, self._key, _encoded(changed), etag)
        except tenacity.RetryError as error:
            message = f"{self.url} is changed by too many others at once; run again"
            raise FencedError(message) from error
        return replace(changed, exists=True)

    def _read(self) -> tuple[LedgerState, str | None]:
        try:
            data, etag = self._store.get(self._key)
        except ObjectNotFoundError:
            return LedgerState(0), None
        try:
            record = load_object(data)
            if (version := record.get("version")) != _VERSION:
                raise ValueError(f"version {version} was written by a newer release")
            return replace(LedgerState.from_json(record), exists=True), etag
        except ValueError as error:
            raise CorruptMetadataError(f"cannot read the transactions of {self.url}: {error}") from error


def _encoded(state: LedgerState) -> bytes:
    record = {**state.to_json(), "version": _VERSION}
    record["write"] = uuid.uuid4().hex  # so that no two writes are equal, see put_if
    del record["exists"]
    return json.dumps(record).encode()
