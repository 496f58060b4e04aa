"""A schema of a real PostgreSQL server, and what a job does with a sink that writes there."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from dagster_flinkpy.common import Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors import PostgresSink
from dagster_flinkpy.datastream.connectors.base import CommitRequest, Committer, CommitterInitContext, WriterInitContext
from dagster_flinkpy.storage import StorageLocation
from tests.committing import commit_requests

ROW = Types.ROW_NAMED(["n", "s"], [Types.LONG(), Types.STRING()])
CONTEXT = WriterInitContext("job", "sink", subtask=0, fencing_token=1, checkpoint_id=1, execution="e")


class Database:
    """A schema of the server.

    Args:
        conninfo: How to connect to the server.
        staging: The folder for staged rows.
    """

    def __init__(self, conninfo: str, staging: Path) -> None:
        self.conninfo, self.staging = conninfo, staging
        self.schema = f"s{uuid.uuid4().hex[:12]}"
        self.sql(f"CREATE SCHEMA {self.schema}")

    def sql(self, statement: str) -> list[Any]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '20s'")
            cursor = connection.execute(statement.replace("{}", self.schema))
            return cursor.fetchall() if cursor.description else []

    def create(self, columns: str = "n bigint, s text") -> None:
        self.sql(f"CREATE TABLE {{}}.t ({columns})")

    def rows(self, columns: str = "n") -> list[Any]:
        return sorted(row if len(row) > 1 else row[0] for row in self.sql(f"SELECT {columns} FROM {{}}.t"))

    def ledger(self) -> list[Any]:
        return [row[0] for row in self.sql("SELECT checkpoint FROM {}.flinkpy_commits ORDER BY checkpoint")]

    def prepared(self) -> int:
        return len(self.sql("SELECT gid FROM pg_prepared_xacts"))

    def sink(self, **options: Any) -> PostgresSink:
        staging = None if options.get("prepare_transactions") else str(self.staging)
        return PostgresSink(self.conninfo, f"{self.schema}.t", staging, **options)

    def staged(self) -> int:
        return len(list(StorageLocation(str(self.staging)).open().list()))


def stage(sink: PostgresSink, records: list[Any], type_info: TypeInformation = ROW, **changes: Any) -> CommitRequest:
    """Writes one epoch of one subtask up to the barrier. The committable makes a round trip through metadata."""
    context = replace(CONTEXT, **changes)
    writer = sink.create_writer(context, type_info)
    for record in records:
        writer.write(type_info.to_arrow([record]))
    [committable] = json.loads(json.dumps(writer.prepare_commit()))
    return CommitRequest(context.checkpoint_id, context.subtask, committable)


def numbers(*values: int) -> list[Any]:
    return [(value, f"text {value}") for value in values]


def committer(sink: PostgresSink, token: int = 1, type_info: TypeInformation = ROW) -> Committer:
    return sink.create_committer(CommitterInitContext("job", "sink", token, type_info))


def commit(sink: PostgresSink, *requests: CommitRequest, token: int = 1, type_info: TypeInformation = ROW) -> int:
    # Another attempt gets requests of its own.
    fresh = [CommitRequest(r.checkpoint_id, r.subtask, r.committable) for r in requests]
    return commit_requests(committer(sink, token, type_info), fresh, "sink")


# --- append -----------------------------------------------------------------------------------------------------------
