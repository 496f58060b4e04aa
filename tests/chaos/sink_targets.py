"""The sinks of the kill matrix. Another one takes an entry of `TARGETS`."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink, PostgresSink
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.storage import StorageLocation
from tests import servers
from tests.conftest import fresh_bucket

__all__ = ["TARGETS", "Hook", "Place", "Target", "new_place", "running_server"]


@dataclass(frozen=True)
class Place:
    """Where one case runs."""

    name: str
    folder: StorageLocation
    """Contains checkpoints, and the table if it consists of files."""
    server: str = ""
    """How to connect to the target's server, if it has one."""


@dataclass(frozen=True)
class Hook:
    """A moment: before or after the call of a method."""

    owner: str
    """``module:Class``."""
    method: str
    after: bool = False

    def find(self) -> Any:
        """Returns the class."""
        module, _, name = self.owner.partition(":")
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class Target:
    """A sink and how to read what it has written."""

    title: str
    sink: Callable[[Place], TwoPhaseCommittingSink]
    """Records are rows of ``key``, ``time`` and ``value``."""
    read: Callable[[Place], Iterable[int]]
    """Returns the values that a reader of the table sees."""
    first_part: Hook
    amid: Mapping[str, Hook]
    """Steps within a commit."""
    server: str = ""
    prepare: Callable[[Place], object] = lambda place: None


_CONNECTORS = "dagster_flinkpy.connectors"
_LOCAL = "dagster_flinkpy.storage.local:LocalObjectStore"
_S3 = "dagster_flinkpy.storage.s3:S3ObjectStore"
_FILE_BYTES = 400
"""So that a subtask writes several files in an epoch."""


def _values_of_files(place: Place) -> list[int]:
    store = place.folder.child("table").open()
    files = [store.get(info.key)[0] for info in store.list() if info.key.endswith(".parquet")]
    return [value for file in files for value in pq.read_table(io.BytesIO(file)).column("value").to_pylist()]


def _files(place: Place) -> ParquetSink:
    return ParquetSink(place.folder.child("table"), max_file_bytes=_FILE_BYTES)


def _delta(place: Place) -> DeltaSink:
    return DeltaSink(place.folder.child("table"), max_file_bytes=_FILE_BYTES)


def _values_of_delta(place: Place) -> list[int]:
    url = place.folder.child("table").url
    if not DeltaTable.is_deltatable(url):
        return []
    values: list[int] = DeltaTable(url).to_pyarrow_table().column("value").to_pylist()
    return values


def _catalog(place: Place) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place.folder.url.removeprefix('file://')}/catalog.db"}


def _iceberg(place: Place) -> IcebergSink:
    location = place.folder.child("table")
    return IcebergSink("db.t", location, properties=_catalog(place), max_file_bytes=_FILE_BYTES)


def _values_of_iceberg(place: Place) -> list[int]:
    catalog = load_catalog("default", **_catalog(place))
    if not catalog.table_exists("db.t"):
        return []
    values: list[int] = catalog.load_table("db.t").scan().to_arrow().column("value").to_pylist()
    return values


def _sql(place: Place, statement: str) -> list[Any]:
    with psycopg.connect(place.server, autocommit=True) as connection:
        cursor = connection.execute(statement.replace("{}", f"case_{place.name}").encode())
        return cursor.fetchall() if cursor.description else []


def _create(place: Place) -> None:
    _sql(place, "CREATE SCHEMA {}")
    _sql(place, "CREATE TABLE {}.t (key text, time bigint, value bigint)")


def _values_of_postgres(place: Place) -> list[int]:
    return [value for (value,) in _sql(place, "SELECT value FROM {}.t")]


_COPY = {
    "after the ledger row": Hook(f"{_CONNECTORS}.postgres.session:Session", "register", after=True),
    "before COMMIT": Hook("psycopg:Transaction", "__exit__"),
    "after COMMIT": Hook("psycopg:Transaction", "__exit__", after=True),
}

TARGETS = {
    "files": Target(
        "Parquet files in a folder",
        _files,
        _values_of_files,
        Hook(_LOCAL, "upload_part", after=True),
        {
            "before the first upload is removed": Hook("dagster_flinkpy.storage.local_upload:LocalUpload", "remove"),
            "after the first file": Hook(_LOCAL, "complete_upload", after=True),
        },
    ),
    "s3": Target(
        "Parquet files on S3 (MiniStack)",
        _files,
        _values_of_files,
        Hook(_S3, "upload_part", after=True),
        {
            "before the first file": Hook(_S3, "complete_upload"),
            "after the first file": Hook(_S3, "complete_upload", after=True),
        },
        server="s3",
    ),
    "delta": Target(
        "Delta Lake",
        _delta,
        _values_of_delta,
        Hook(_LOCAL, "upload_part", after=True),
        {
            "after the first file": Hook(_LOCAL, "complete_upload", after=True),
            "before the version": Hook("deltalake:DeltaTable", "create_write_transaction"),
            "after the version": Hook("deltalake:DeltaTable", "create_write_transaction", after=True),
        },
    ),
    "iceberg": Target(
        "Iceberg (catalog in SQLite)",
        _iceberg,
        _values_of_iceberg,
        Hook(_LOCAL, "upload_part", after=True),
        {
            "after the first file": Hook(_LOCAL, "complete_upload", after=True),
            "before the snapshot": Hook("pyiceberg.catalog.sql:SqlCatalog", "commit_table"),
            "after the snapshot": Hook("pyiceberg.catalog.sql:SqlCatalog", "commit_table", after=True),
        },
    ),
    "postgres": Target(
        "PostgreSQL",
        lambda place: PostgresSink(place.server, f"case_{place.name}.t", place.folder.child("staging")),
        _values_of_postgres,
        Hook(_LOCAL, "upload_part", after=True),
        _COPY,
        server="postgres",
        prepare=_create,
    ),
    "prepared": Target(
        "PostgreSQL, PREPARE TRANSACTION",
        lambda place: PostgresSink(place.server, f"case_{place.name}.t", prepare_transactions=True),
        _values_of_postgres,
        Hook(f"{_CONNECTORS}.postgres.writer:PreparingWriter", "write", after=True),
        {
            "after the first COMMIT PREPARED": Hook(
                f"{_CONNECTORS}.postgres.committer:PreparedTransactionCommitter", "_commit", after=True
            )
        },
        server="postgres",
        prepare=_create,
    ),
}


def new_place(folder: StorageLocation, server: str = "") -> Place:
    """Returns a place in a folder."""
    name = uuid.uuid4().hex[:12]
    return Place(name, folder.child(name), server)


@contextmanager
def running_server(kind: str, folder: Path) -> Iterator[Callable[[], Place]]:
    """Runs the server of a target, and yields what makes a place for each case."""
    local = StorageLocation(str(folder))
    if kind == "postgres":
        with servers.postgres() as conninfo:
            yield partial(new_place, local, conninfo)
    elif kind == "s3":
        with servers.ministack(folder) as endpoint:
            yield partial(new_place, fresh_bucket(endpoint, "test", "test"))
    else:
        yield partial(new_place, local)
