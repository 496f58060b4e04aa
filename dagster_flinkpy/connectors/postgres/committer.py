"""The committers of the PostgreSQL sink."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.connectors.commit.checkpoint_committer import (
    BY_KEY,
    BY_PARTITION,
    CheckpointCommitter,
    StagedCheckpoint,
    other_writer,
)
from dagster_flinkpy.connectors.commit.staged_files import FileNames, Staged
from dagster_flinkpy.connectors.commit.staged_rows import RowFile, StagedContent, StagedRows, digest_of
from dagster_flinkpy.connectors.postgres.connection import listed, row_of, value_of
from dagster_flinkpy.connectors.postgres.session import EpochRows, PostgresTarget, Session, may_pass
from dagster_flinkpy.connectors.postgres.sink import PostgresSink
from dagster_flinkpy.datastream.connectors.base import CommitRequest, CommitterInitContext
from dagster_flinkpy.errors import (
    CommitRefusedError,
    CommittableLostError,
    ConfigurationError,
    ObjectNotFoundError,
)
from dagster_flinkpy.storage import ObjectStore

__all__ = ["LedgerCommitter", "PostgresPartitionCommitter", "PreparedTransactionCommitter"]

_LEDGER_DAYS = 30
"""After this time no dead attempt can come back to commit a checkpoint again."""

_COPIED_BYTES = 256 << 10
"""So much is unpacked at a time: less than the server needs to be busy in the meantime."""
_ORDER = "flinkpy_order"


class _PostgresCommitter(CheckpointCommitter):
    """What all committers of the sink have in common."""

    _client_errors = (psycopg.Error,)

    def __init__(self, sink: PostgresSink, context: CommitterInitContext, session: Session, staged: Staged) -> None:
        super().__init__(context, staged, f"table {sink.uri()}")
        self._owned = sink.filled is not None and sink.filled.owner is not None
        self._sink, self._session = sink, session
        self._table = PostgresTarget(sink, context.type_info, session)
        self._checked = False
        self._last: int | None = None
        """The newest checkpoint that is known to have been committed."""

    def _begin(self) -> None:
        if not self._checked:
            self._connect().close()

    def _signal(self, requests: Sequence[CommitRequest], error: Exception) -> None:
        if isinstance(error, psycopg.Error) and not may_pass(error):
            error = self._refused(requests[0].checkpoint_id, error)
        super()._signal(requests, error)

    def _connect(self, staged: int | None = None) -> psycopg.Connection[Any]:
        """Connects. The first time it also checks that the table is as the sink needs it.

        ``staged`` is the checkpoint whose rows an earlier attempt has staged, if they are to be committed now.
        """
        connection = self._session.connect()
        try:
            if not self._checked:
                self._check(connection)
                if staged is not None:
                    self._check_ledger(connection, staged)
                self._session.create_ledger(connection)
                self._last, self._checked = self._session.last_committed(connection), True
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        self._table.create(connection)
        self._table.check(connection)

    def _check_ledger(self, connection: psycopg.Connection[Any], checkpoint_id: int) -> None:
        """Checks that the ledger is there, and the one that an earlier attempt had."""
        ledger = self._session.ledger.as_string(connection)
        if (schema := self._session.other_schema(connection)) is not None:
            raise CommitRefusedError(
                f"sink {self._context.uid!r} has entries in schema {schema!r} of what it has committed, and none in "
                f"table {ledger} that search_path leads to now, so the rows of checkpoint {checkpoint_id} could be "
                f"written twice. Set search_path back, and run again, which commits them. After that run, name the "
                f"schema: table='{schema}.{self._sink.table}'"
            )
        if self._session.exists(connection, self._session.ledger):
            return
        raise CommitRefusedError(
            f"table {ledger} is gone, which knows what sink {self._context.uid!r} has committed, so nobody knows "
            f"whether the rows of checkpoint {checkpoint_id} are in table {self._sink.uri()}. Look there. If they are, "
            f"restore 'chk-{checkpoint_id}' to continue without them. If not, create the table and run again: "
            f"{self._session.ledger_statement(connection)}"
        )

    def _check_last(self, connection: psycopg.Connection[Any]) -> None:
        """Checks that what was committed last, by this attempt or before it, or what came after it, is still there."""
        if self._last is not None and not self._session.registered(connection, "checkpoint >= %s", self._last):
            raise self._forgotten(connection)

    def _forgotten(self, connection: psycopg.Connection[Any]) -> ConfigurationError:
        return ConfigurationError(
            f"table {self._session.ledger.as_string(connection)} does not know all of checkpoint {self._last} any "
            f"more, which was committed to table {self._sink.uri()}: the database was restored from a backup, a "
            "standby took over that lacked it, or somebody has deleted the entry. Look whether its rows are there"
        )

    def last_committed(self) -> int | None:
        with self._reaching(), self._session.connect() as connection:
            return self._session.last_committed(connection)

    def is_record_with_rows(self) -> bool:
        return True  # the ledger forgets no sink

    def _refused(self, checkpoint_id: int, error: Exception) -> CommitRefusedError:
        return CommitRefusedError(
            f"table {self._sink.uri()} refuses the rows of checkpoint {checkpoint_id} of sink {self._context.uid!r}: "
            f"{str(error).strip().rstrip('.')}. They stay staged: change the table so that it takes them, and run "
            "again."
        )


class LedgerCommitter(_PostgresCommitter):
    """Writes the staged rows of a checkpoint in one transaction, together with its entry in the ledger."""

    def __init__(self, sink: PostgresSink, context: CommitterInitContext) -> None:
        assert sink.staging is not None
        session = Session(sink, context.job_id, context.uid)
        super().__init__(sink, context, session, StagedRows(sink.staging, context))
        self._store: ObjectStore = sink.staging.open()
        self._names = FileNames(context)
        if sink.key:
            self._never_replaces = BY_KEY

    def _put(self, checkpoint: StagedCheckpoint) -> bool:
        """Writes the rows in one transaction, unless that was done before. Returns whether it did."""
        written, checkpoint_id = False, checkpoint.checkpoint_id
        older = any(not self._names.of_this_attempt(file.key) for file in checkpoint.files)
        with self._connect(checkpoint_id if older else None) as connection, self._session.transaction(connection):
            self._check_last(connection)
            for partition, files in checkpoint.by_partition.items():
                digest, rows = digest_of(files), sum(file.rows for file in files)
                if self._session.register(connection, checkpoint_id, digest, rows, partition):
                    if checkpoint.replaced is not None:
                        self._rows_of(*checkpoint.replaced).delete(connection)
                    self._replace(connection, checkpoint_id, files)
                    written = True
            if written:
                self._session.forget(connection, checkpoint_id, _LEDGER_DAYS)
                self._table.check(connection)  # what was written to cannot be altered before the end
        self._last = checkpoint_id
        return written

    def _rows_of(self, after: int, before: int) -> EpochRows:
        return EpochRows(self._session, self._what, self._context, after, before)

    def _check_epochs(self, after: int, before: int) -> None:
        with self._session.connect() as connection:
            try:
                self._rows_of(after, before).check(connection)
            except psycopg.Error as error:
                if may_pass(error):
                    raise
                raise ConfigurationError(f"Its rows in {self._what} cannot be found: {str(error).strip()}") from error

    def _remove_epochs(self, checkpoint_id: int, after: int, before: int) -> None:
        with self._connect() as connection, self._session.transaction(connection):
            if self._session.register(connection, checkpoint_id, "", 0, None):
                self._rows_of(after, before).delete(connection)

    def _replace(self, connection: psycopg.Connection[Any], checkpoint_id: int, files: list[RowFile]) -> None:
        if not self._sink.key:
            self._copy(connection, self._session.target, checkpoint_id, files)
            return
        names = self._columns()
        staged = sql.Identifier("flinkpy_staged")
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                staged, listed(names), self._session.target
            )
        )
        order = sql.Identifier(_ORDER)
        connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} bigserial").format(staged, order))
        self._copy(connection, staged, checkpoint_id, files)
        values = [name for name in names if name not in self._sink.key]
        rows = sum(file.rows for file in files)
        updates = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in values)
        written = connection.execute(
            # Of several rows with the same key the last one counts. An identity column takes values, as with COPY.
            sql.SQL(
                "INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE "
                "SELECT DISTINCT ON ({key}) {columns} FROM {staged} ORDER BY {key}, {order} DESC "
                "ON CONFLICT ({key}) DO {action}"
            ).format(
                target=self._session.target,
                columns=listed(names),
                key=listed(self._sink.key),
                staged=staged,
                order=order,
                action=sql.SQL("UPDATE SET {}").format(updates) if values else sql.SQL("NOTHING"),
            )
        )
        if written.rowcount < rows:
            self._check_keys(connection, staged)

    def _check_keys(self, connection: psycopg.Connection[Any], staged: sql.Identifier) -> None:
        """Checks that the target has all rows. A trigger may skip updates that change nothing, but no others."""
        key, names = self._sink.key, self._columns()

        def of(table: str, columns: Sequence[str]) -> sql.Composed:
            return sql.SQL(", ").join(sql.Identifier(table, name) for name in columns)

        statement = sql.SQL(
            "SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM {target} t WHERE ({t_key}) = ({s_key}) AND "
            "(t.xmin::text = (pg_current_xact_id()::text::bigint % 4294967296)::text "
            "OR ROW({t_all})::text = ROW({s_all})::text))) FROM (SELECT DISTINCT ON ({key}) {columns} FROM {staged} "
            "ORDER BY {key}, {order} DESC) s WHERE ROW({s_key}) IS NOT NULL"
        ).format(
            target=self._session.target,
            staged=staged,
            order=sql.Identifier(_ORDER),
            key=listed(key),
            columns=listed(names),
            t_key=of("t", key),
            s_key=of("s", key),
            t_all=of("t", names),
            s_all=of("s", names),
        )
        rows, taken = row_of(connection, statement)
        self._session.check_taken(taken, rows)

    def _columns(self) -> list[str]:
        assert self._context.type_info is not None
        columns = list(columns_of(self._context.type_info))
        return columns if self._sink.filled is None else [*columns, *self._sink.filled.names]

    def _copy(
        self, connection: psycopg.Connection[Any], table: sql.Identifier, checkpoint_id: int, files: list[RowFile]
    ) -> None:
        cursor = connection.cursor()
        with cursor.copy(self._session.copy_into(table, self._columns())) as copy:
            for file in files:
                for data in self._read(checkpoint_id, file):
                    copy.write(data)
        self._session.check_taken(cursor.rowcount, sum(file.rows for file in files))

    def _read(self, checkpoint_id: int, file: RowFile) -> Any:
        """Yields the content of a staged file."""
        what = f"{self._store.url}/{file.key}, with {file.rows} rows of checkpoint {checkpoint_id}"
        advice = "Nothing of the checkpoint is in the table"
        with StagedContent(self._store, file.key, file.bytes) as staged:
            try:
                with pa.CompressedInputStream(pa.PythonFile(staged, "r"), "lz4") as content:
                    while data := content.read(_COPIED_BYTES):
                        yield data
            except ObjectNotFoundError as error:
                raise CommittableLostError.of(
                    checkpoint_id, f"{what}, is gone. Was it deleted by a rule of the bucket? {advice}"
                ) from error
            except OSError as error:
                raise CommittableLostError.of(checkpoint_id, f"{what}, is damaged: {error}. {advice}") from error
            if staged.sha256() != file.sha256:
                raise CommittableLostError.of(checkpoint_id, f"{what}, is not what was written. {advice}")


class PostgresPartitionCommitter(LedgerCommitter):
    """Replaces the rows of a partition in the transaction that writes the new ones."""

    _never_replaces = BY_PARTITION

    def _replace(self, connection: psycopg.Connection[Any], checkpoint_id: int, files: list[RowFile]) -> None:
        self._delete(connection, files[0].partition)
        super()._replace(connection, checkpoint_id, files)

    def _delete(self, connection: psycopg.Connection[Any], partition: str | None) -> int:
        assert self._sink.filled is not None
        replaced = self._sink.filled.replaced(partition)
        conditions = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in replaced)
        if not self._owned:
            self._check_own(connection, partition, conditions, list(replaced.values()))
        statement = sql.SQL("DELETE FROM {} WHERE {}").format(self._session.target, conditions)
        deleted = connection.execute(statement, list(replaced.values())).rowcount
        left = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(self._session.target, conditions)
        if value_of(connection, left, *replaced.values()):
            raise ConfigurationError(
                f"table {self._sink.uri()} keeps rows of partition {partition!r} that are to be replaced: a trigger or "
                "a rule does not let them be deleted. Drop it"
            )
        return deleted

    def _check_own(
        self, connection: psycopg.Connection[Any], partition: str | None, conditions: sql.Composed, values: list[str]
    ) -> None:
        """Checks that rows of a partition are not those of another job: the entry of these has their transaction."""
        line = [self._context.job_id, *(job_id for job_id, _ in self._context.ancestors)]
        statement = sql.SQL(
            "SELECT l.job, l.uid FROM {} l WHERE l.partition = %s AND l.job <> ALL(%s) AND EXISTS "
            "(SELECT FROM {} t WHERE t.xmin = l.xmin AND {}) LIMIT 1"
        ).format(self._session.ledger, self._session.target, conditions)
        if (found := connection.execute(statement, [partition, line, *values]).fetchone()) is not None:
            raise other_writer(self._what, partition, *found)

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Deletes the rows of a partition that was run again without any rows. Otherwise the commit replaced them."""
        with self._reaching():
            if self._context.type_info is None:  # there were no rows at all, so nobody has created the table
                with self._session.connect() as connection:
                    if not self._session.exists(connection, self._session.target):
                        return 0
            with self._connect() as connection, self._session.transaction(connection):
                same = "checkpoint = %s AND partition IS NOT DISTINCT FROM %s"
                if self._session.registered(connection, same, checkpoint_id, partition):
                    return 0
                self._session.register(connection, checkpoint_id, "", 0, partition)
                return self._delete(connection, partition)


class PreparedTransactions(Staged):
    """The transactions that subtasks have prepared. The server keeps them until they are committed or rolled back."""

    def __init__(self, session: Session, context: CommitterInitContext) -> None:
        self._session, self._token = session, context.fencing_token

    def missing_rows(self, requests: Sequence[CommitRequest]) -> int:
        return 0

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        with self._session.connect() as connection:
            return len(self._lingering(connection, keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        with self._session.connect() as connection:
            lingering = self._lingering(connection, keep)
            for gid in lingering:
                with suppress(psycopg.errors.UndefinedObject):  # somebody else was faster
                    connection.execute(self._session.two_phase("ROLLBACK PREPARED", gid))
            return len(lingering)

    def _lingering(self, connection: psycopg.Connection[Any], keep: Sequence[CommitRequest]) -> list[str]:
        kept = {request.committable.get("gid") for request in keep}
        found = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
            [self._session.gid_prefix],
        )
        # The last parts are checkpoint, subtask, fencing token and execution. A fenced attempt spares newer ones.
        return [gid for (gid,) in found if gid not in kept and _token(gid) <= self._token]


class PreparedTransactionCommitter(_PostgresCommitter):
    """Commits transactions that subtasks have prepared."""

    _never_replaces = "Each subtask commits a transaction of its own (prepare_transactions), not all at once"

    def __init__(self, sink: PostgresSink, context: CommitterInitContext) -> None:
        session = Session(sink, context.job_id, context.uid)
        super().__init__(sink, context, session, PreparedTransactions(session, context))
        self._done: Sequence[CommitRequest] = ()
        """What this attempt has committed last."""

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        if int(value_of(connection, "SHOW max_prepared_transactions")) == 0:
            raise ConfigurationError(
                f"table {self._sink.uri()}: prepare_transactions needs a server that allows prepared transactions, and "
                "max_prepared_transactions is 0. Run ALTER SYSTEM SET max_prepared_transactions = 64 and restart the "
                "server (it needs two for each subtask of the sink), or use staging"
            )
        super()._check(connection)

    def check_committed(self, latest: int) -> None:
        with self._reaching(), self._session.connect() as connection:
            if not self._session.exists(connection, self._session.ledger):
                return
            early = sql.SQL("FROM {} WHERE starts_with(digest, {}) AND checkpoint > {}").format(
                self._session.ledger, sql.Literal(self._session.gid_prefix), sql.Literal(latest)
            )
            rows, gid = row_of(connection, sql.SQL("SELECT sum(rows), min(digest) ") + early)
            if gid is None:
                return
            table, entries = self._session.target.as_string(connection), early.as_string(connection)
            raise CommitRefusedError(
                f"somebody has committed what sink {self._context.uid!r} had prepared, such as {gid!r}: {rows} rows of "
                f"table {self._sink.uri()} are of a checkpoint that did not become complete, and would be written "
                f"again. Delete them, and run again: BEGIN; DELETE FROM {table} WHERE xmin IN (SELECT xmin {entries}); "
                f"DELETE {entries}; COMMIT"
            )

    def _put(self, checkpoint: StagedCheckpoint) -> bool:
        """Commits one transaction after the other, and says of each what became of it."""
        requests = checkpoint.requests
        older = any(_token(str(r.committable.get("gid"))) != self._context.fencing_token for r in requests)
        with self._connect(checkpoint.checkpoint_id if older else None) as connection:
            self._check_last(connection)
            for request in requests:
                self._commit(connection, request)
        if any(request.error is None for request in requests):
            self._last, self._done = checkpoint.checkpoint_id, [each for each in requests if each.error is None]
        return True

    def _check_last(self, connection: psycopg.Connection[Any]) -> None:
        super()._check_last(connection)
        for request in self._done:  # a standby that took over may lack some, and still have what was prepared
            gid = request.committable.get("gid")
            if not self._session.registered(connection, "digest = %s", gid):
                self._commit(connection, request)
                if not self._session.registered(connection, "digest = %s", gid):
                    raise self._forgotten(connection)

    def _commit(self, connection: psycopg.Connection[Any], request: CommitRequest) -> None:
        gid = str(request.committable.get("gid"))
        try:
            connection.execute(self._session.two_phase("COMMIT PREPARED", gid))
        except psycopg.errors.UndefinedObject:
            if self._session.registered(connection, "checkpoint = %s AND digest = %s", request.checkpoint_id, gid):
                request.signal_already_committed()
                return
            request.signal_failed_with_known_reason(
                CommittableLostError.of(
                    request.checkpoint_id,
                    f"{request.committable.get('rows')} rows of checkpoint {request.checkpoint_id} for table "
                    f"{self._sink.uri()} are lost: somebody rolled back transaction {gid!r}, or the database was "
                    "restored from a backup",
                )
            )
        except psycopg.errors.ObjectNotInPrerequisiteState as error:  # another attempt is committing it
            request.retry_later(error)
        except psycopg.Error as error:
            if may_pass(error):
                raise
            request.signal_failed_with_unknown_reason(self._refused(request.checkpoint_id, error))


def _token(gid: str) -> int:
    """Returns the fencing token in the id of a prepared transaction, or -1 if it is none of the sink's."""
    token = gid.rsplit(":", 2)[1:2]
    return int(token[0]) if token and token[0].isdecimal() else -1
