"""The committers of the PostgreSQL sink."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql

from dagster_flinkpy.connectors.column_types import columns_of
from dagster_flinkpy.connectors.postgres_session import Session
from dagster_flinkpy.connectors.postgres_types import sql_type
from dagster_flinkpy.connectors.staged_content import StagedContent
from dagster_flinkpy.connectors.staged_files import FileNames
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    ObjectNotFoundError,
    PathEscapesPrefixError,
    SinkCommitError,
    StorageError,
)
from dagster_flinkpy.storage import ObjectStore, check_relative

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.postgres_sink import PostgresSink

__all__ = ["LedgerCommitter", "PartitionCommitter", "PreparedTransactionCommitter"]

_LEDGER_DAYS = 30
"""After this time no dead attempt can come back to commit a checkpoint again."""

_COPIED_BYTES = 256 << 10
"""So much is unpacked at a time: less than the server needs to be busy in the meantime."""
_ORDER = "flinkpy_order"
_TO_RETRY = (psycopg.OperationalError, psycopg.InterfaceError, StorageError)


class _PostgresCommitter(Committer):
    """What all committers of the sink have in common.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    def __init__(self, sink: PostgresSink, context: CommitterInitContext) -> None:
        self._sink, self._context = sink, context
        self._session = Session(sink, context.job_id, context.uid)
        self._checked = False

    def _connect(self) -> psycopg.Connection[Any]:
        """Connects. The first time it also checks that the table is as the sink needs it."""
        connection = self._session.connect()
        try:
            if not self._checked:
                self._check(connection)
                self._session.create_ledger(connection)
                self._checked = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        target, type_info = self._session.target.as_string(connection), self._context.type_info
        wanted = {} if type_info is None else {name: sql_type(name, k) for name, k in columns_of(type_info).items()}
        filled = [] if self._sink.filled is None else self._sink.filled.names
        wanted.update(dict.fromkeys(filled, "text"))
        quoted = {name: f"{sql.Identifier(name).as_string(connection)} {kind}" for name, kind in wanted.items()}
        if not self._session.exists(connection, self._session.target):
            key = ", ".join(sql.Identifier(name).as_string(connection) for name in self._sink.key)
            parts = [*quoted.values(), *([f"PRIMARY KEY ({key})"] if key else [])]
            statement = f"CREATE TABLE {target} ({', '.join(parts)})"
            if self._sink.filled is None or self._sink.filled.owner is None:
                raise ConfigurationError(f"table {self._sink.uri()} does not exist. Create it: {statement}")
            self._session.create_table(connection, statement, filled)
        found = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(self._session.target)).description or ()
        names = {column.name for column in found}
        if missing := [name for name in wanted if name not in names]:
            raise ConfigurationError(
                f"table {self._sink.uri()} has no column {missing[0]!r}. Add it: "
                f"ALTER TABLE {target} ADD COLUMN {quoted[missing[0]]}"
            )
        if self._sink.key:
            self._check_key(connection, target)

    def _check_key(self, connection: psycopg.Connection[Any], target: str) -> None:
        unique = connection.execute(
            "SELECT array_agg(a.attname::text) FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
            "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL "
            "GROUP BY i.indexrelid",
            [target],
        ).fetchall()
        if not any(set(columns) == set(self._sink.key) for (columns,) in unique):
            key = ", ".join(sql.Identifier(name).as_string(connection) for name in self._sink.key)
            raise ConfigurationError(
                f"table {self._sink.uri()} has no unique index on its key. Add it: "
                f"CREATE UNIQUE INDEX ON {target} ({key})"
            )

    def last_committed(self) -> int | None:
        try:
            with self._session.connect() as connection:
                return self._session.last_committed(connection)
        except psycopg.Error as error:
            raise _unreachable(self._sink, error) from error

    def _refused(self, checkpoint_id: int, error: Exception) -> SinkCommitError:
        return SinkCommitError(
            f"table {self._sink.uri()} refuses the rows of checkpoint {checkpoint_id} of sink {self._context.uid!r}: "
            f"{error}. They stay staged: change the table so that it takes them, and run again."
        )


class LedgerCommitter(_PostgresCommitter):
    """Writes the staged rows of a checkpoint in one transaction, together with its entry in the ledger.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    def __init__(self, sink: PostgresSink, context: CommitterInitContext) -> None:
        super().__init__(sink, context)
        assert sink.staging is not None
        self._store: ObjectStore = sink.staging.open()
        self._names = FileNames(context)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        checkpoint_id = requests[0].checkpoint_id
        try:
            files = [_checked(request) for request in requests]
            if not self._write(checkpoint_id, files):
                for request in requests:
                    request.signal_already_committed()
        except _TO_RETRY as error:
            for request in requests:
                request.retry_later(error)
        except CommittableLostError as error:
            for request in requests:
                request.signal_failed_with_known_reason(error)
        except (psycopg.Error, SinkCommitError) as error:
            failure = self._refused(checkpoint_id, error) if isinstance(error, psycopg.Error) else error
            for request in requests:
                request.signal_failed_with_unknown_reason(failure)
        else:
            with suppress(StorageError):  # abort_lingering deletes what remains
                self._store.delete_many([file["key"] for file in files])

    def _write(self, checkpoint_id: int, files: list[dict[str, Any]]) -> bool:
        """Writes the rows in one transaction, unless that was done before. Returns whether it did."""
        written = False
        with self._connect() as connection, connection.transaction():
            for partition in dict.fromkeys(file["partition"] for file in files):
                of_partition = [file for file in files if file["partition"] == partition]
                identity = json.dumps([[file["key"], file["sha256"]] for file in of_partition])
                digest, rows = hashlib.sha256(identity.encode()).hexdigest(), sum(file["rows"] for file in of_partition)
                if self._session.register(connection, checkpoint_id, digest, rows, partition):
                    self._replace(connection, checkpoint_id, of_partition)
                    written = True
            if written:
                self._session.forget(connection, checkpoint_id, _LEDGER_DAYS)
        return written

    def _replace(self, connection: psycopg.Connection[Any], checkpoint_id: int, files: list[dict[str, Any]]) -> None:
        if not self._sink.key:
            self._copy(connection, self._session.target, checkpoint_id, files)
            return
        names = self._columns()
        staged = sql.Identifier("flinkpy_staged")
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                staged, _listed(names), self._session.target
            )
        )
        order = sql.Identifier(_ORDER)
        connection.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} bigserial").format(staged, order))
        self._copy(connection, staged, checkpoint_id, files)
        values = [name for name in names if name not in self._sink.key]
        rows = sum(file["rows"] for file in files)
        updates = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in values)
        written = connection.execute(
            # Of several rows with the same key the last one counts.
            sql.SQL(
                "INSERT INTO {target} ({columns}) SELECT DISTINCT ON ({key}) {columns} FROM {staged} "
                "ORDER BY {key}, {order} DESC ON CONFLICT ({key}) DO {action}"
            ).format(
                target=self._session.target,
                columns=_listed(names),
                key=_listed(self._sink.key),
                staged=staged,
                order=order,
                action=sql.SQL("UPDATE SET {}").format(updates) if values else sql.SQL("NOTHING"),
            )
        )
        if written.rowcount < rows:
            self._check_keys(connection, staged)

    def _check_keys(self, connection: psycopg.Connection[Any], staged: sql.Identifier) -> None:
        """Checks that the target has all keys. A trigger may skip updates that change nothing, but not rows."""
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self._sink.key)
        some = sql.SQL(" AND ").join(
            sql.SQL("s.{} IS NOT NULL").format(sql.Identifier(name)) for name in self._sink.key
        )
        statement = sql.SQL(
            "SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT 1 FROM {target} t WHERE {same})) "
            "FROM (SELECT DISTINCT {key} FROM {staged}) s WHERE {some}"
        ).format(target=self._session.target, same=same, key=_listed(self._sink.key), staged=staged, some=some)
        rows, taken = connection.execute(statement).fetchone() or (0, 0)
        self._session.check_taken(taken, rows)

    def _columns(self) -> list[str]:
        assert self._context.type_info is not None
        columns = list(columns_of(self._context.type_info))
        return columns if self._sink.filled is None else [*columns, *self._sink.filled.names]

    def _copy(
        self,
        connection: psycopg.Connection[Any],
        table: sql.Identifier,
        checkpoint_id: int,
        files: list[dict[str, Any]],
    ) -> None:
        cursor = connection.cursor()
        with cursor.copy(self._session.copy_into(table, self._columns())) as copy:
            for file in files:
                for data in self._read(checkpoint_id, file):
                    copy.write(data)
        self._session.check_taken(cursor.rowcount, sum(file["rows"] for file in files))

    def _read(self, checkpoint_id: int, file: dict[str, Any]) -> Any:
        """Yields the content of a staged file.

        Raises:
            CommittableLostError: It does not exist, or is not what was written.
        """
        what = f"{self._store.url}/{file['key']}, with {file['rows']} rows of checkpoint {checkpoint_id}"
        advice = (
            "Nothing of the checkpoint is in the table. Restore a savepoint or an older checkpoint to write the rows "
            f"again, or 'chk-{checkpoint_id}' to continue without them."
        )
        with StagedContent(self._store, file["key"], file["bytes"]) as staged:
            try:
                with pa.CompressedInputStream(pa.PythonFile(staged, "r"), "lz4") as content:
                    while data := content.read(_COPIED_BYTES):
                        yield data
            except ObjectNotFoundError as error:
                raise CommittableLostError(
                    f"{what}, is gone. Was it deleted by a rule of the bucket? {advice}"
                ) from error
            except OSError as error:
                raise CommittableLostError(f"{what}, is damaged: {error}. {advice}") from error
            if staged.sha256() != file["sha256"]:
                raise CommittableLostError(f"{what}, is not what was written. {advice}")

    def is_record_with_rows(self) -> bool:
        return True

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        return len(self._staged(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        if not self._checked:  # when an attempt starts
            try:
                self._connect().close()
            except psycopg.Error as error:
                raise _unreachable(self._sink, error) from error
        for upload in self._store.list_uploads():
            if self._names.mine(upload.key):
                self._store.abort_upload(upload.key, upload.upload_id)
        staged = self._staged(keep)
        self._store.delete_many(staged)
        return len(staged)

    def _staged(self, keep: Sequence[CommitRequest]) -> list[str]:
        kept = {_checked(request)["key"] for request in keep}
        return [info.key for info in self._store.list() if self._names.mine(info.key) and info.key not in kept]


class PartitionCommitter(LedgerCommitter):
    """Replaces the rows of a partition in the transaction that writes the new ones."""

    def _replace(self, connection: psycopg.Connection[Any], checkpoint_id: int, files: list[dict[str, Any]]) -> None:
        self._delete(connection, files[0]["partition"])
        super()._replace(connection, checkpoint_id, files)

    def _delete(self, connection: psycopg.Connection[Any], partition: str | None) -> int:
        assert self._sink.filled is not None
        replaced = self._sink.filled.replaced(partition)
        conditions = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in replaced)
        statement = sql.SQL("DELETE FROM {} WHERE {}").format(self._session.target, conditions)
        return connection.execute(statement, list(replaced.values())).rowcount

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        """Deletes the rows of a partition that was run again without any rows. Otherwise the commit replaced them."""
        try:
            return self._empty(partition, checkpoint_id)
        except psycopg.Error as error:
            raise _unreachable(self._sink, error) from error

    def _empty(self, partition: str | None, checkpoint_id: int) -> int:
        if self._context.type_info is None:  # there were no rows at all, so nobody has created the table
            with self._session.connect() as connection:
                if not self._session.exists(connection, self._session.target):
                    return 0
        with self._connect() as connection, connection.transaction():
            same = "checkpoint = %s AND partition IS NOT DISTINCT FROM %s"
            if self._session.registered(connection, same, checkpoint_id, partition):
                return 0
            self._session.register(connection, checkpoint_id, "", 0, partition)
            return self._delete(connection, partition)


class PreparedTransactionCommitter(_PostgresCommitter):
    """Commits transactions that subtasks have prepared.

    Args:
        sink: The sink.
        context: Who is committing.
    """

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        found = connection.execute("SHOW max_prepared_transactions").fetchone()
        if found is None or int(found[0]) == 0:
            raise ConfigurationError(
                f"table {self._sink.uri()}: prepare_transactions needs a server that allows prepared transactions, and "
                "max_prepared_transactions is 0. Run ALTER SYSTEM SET max_prepared_transactions = 64 and restart the "
                "server (it needs two for each subtask of the sink), or use staging"
            )
        super()._check(connection)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        try:
            with self._connect() as connection:
                for request in requests:
                    self._commit(connection, request)
        except _TO_RETRY as error:
            for request in requests:
                request.retry_later(error)

    def _commit(self, connection: psycopg.Connection[Any], request: CommitRequest) -> None:
        gid = str(request.committable.get("gid"))
        try:
            connection.execute(self._session.two_phase("COMMIT PREPARED", gid))
        except psycopg.errors.UndefinedObject:
            if self._session.registered(connection, "checkpoint = %s AND digest = %s", request.checkpoint_id, gid):
                request.signal_already_committed()
                return
            request.signal_failed_with_known_reason(
                CommittableLostError(
                    f"{request.committable.get('rows')} rows of checkpoint {request.checkpoint_id} for table "
                    f"{self._sink.uri()} are lost: somebody rolled back transaction {gid!r}. Restore a savepoint or an "
                    "older checkpoint to write the rows again, or "
                    f"'chk-{request.checkpoint_id}' to continue without them."
                )
            )
        except psycopg.errors.ObjectNotInPrerequisiteState as error:  # another attempt is committing it
            request.retry_later(error)
        except _TO_RETRY:
            raise
        except psycopg.Error as error:
            request.signal_failed_with_unknown_reason(self._refused(request.checkpoint_id, error))

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        with self._session.connect() as connection:
            return len(self._lingering(connection, keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        try:
            with self._connect() as connection:
                lingering = self._lingering(connection, keep)
                for gid in lingering:
                    with suppress(psycopg.errors.UndefinedObject):  # somebody else was faster
                        connection.execute(self._session.two_phase("ROLLBACK PREPARED", gid))
                return len(lingering)
        except psycopg.Error as error:
            raise _unreachable(self._sink, error) from error

    def _lingering(self, connection: psycopg.Connection[Any], keep: Sequence[CommitRequest]) -> list[str]:
        kept = {request.committable.get("gid") for request in keep}
        found = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)",
            [self._session.gid_prefix],
        )
        # The last parts are checkpoint, subtask, fencing token and execution. A fenced attempt spares newer ones.
        return [
            gid for (gid,) in found if gid not in kept and int(gid.rsplit(":", 2)[1]) <= self._context.fencing_token
        ]


def _checked(request: CommitRequest) -> dict[str, Any]:
    """Returns a committable of staged rows.

    Raises:
        SinkCommitError: It is something else.
    """
    file = request.committable
    try:
        check_relative(file["key"])
        if not isinstance(file["rows"], int) or not isinstance(file["bytes"], int):
            raise TypeError("rows and bytes are numbers")
        return {**file, "sha256": str(file["sha256"]), "partition": file["partition"]}
    except (KeyError, TypeError, AttributeError, PathEscapesPrefixError) as error:
        raise SinkCommitError(f"not a committable of a PostgreSQL sink: {file!r} ({error!r})") from error


def _unreachable(sink: PostgresSink, error: Exception) -> StorageError:
    return StorageError(
        f"cannot use table {sink.uri()}: {error}. Check that the server runs, and conninfo, user and password."
    )


def _listed(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
