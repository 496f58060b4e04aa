"""Targets of transactions, for tests: each makes outputs, and reads its table."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from dagster_flinkpy.connectors import DeltaSink, IcebergSink, ParquetSink, PostgresSink
from dagster_flinkpy.connectors.commit.output_ledger import Stages
from dagster_flinkpy.connectors.delta.table import storage_options
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.orchestration.outputs.output_rows import write_rows
from dagster_flinkpy.orchestration.outputs.output_transaction import Output, OutputTransaction
from dagster_flinkpy.storage import StorageLocation

Rows = list[tuple[str, str | None, int]]


class Target(ABC):
    """A table ``t``.

    Args:
        location: Where it is, or where its rows are staged.
    """

    stages: ClassVar[Stages] = "uploads"
    table = "t"

    def __init__(self, location: StorageLocation) -> None:
        self.location = location

    @abstractmethod
    def sink(self) -> TwoPhaseCommittingSink: ...

    @abstractmethod
    def rows(self) -> Rows:
        """Returns asset, partition and value of each row, sorted."""

    def output(self, asset: str = "a") -> Output:
        return Output(asset, self.table, self.sink().for_owner(asset), self.location, self.stages)

    def begin(self, partitions: Iterable[str] | None = None, asset: str = "a", run: str = "run") -> OutputTransaction:
        wanted = None if partitions is None else list(partitions)
        return OutputTransaction.begin(self.output(asset), wanted, run)

    def stage(self, values: dict[str | None, list[int]], asset: str = "a") -> OutputTransaction:
        """Begins a transaction and writes rows by partition."""
        transaction = self.begin(None if None in values else [key for key in values if key is not None], asset)
        for partition, numbers in values.items():
            write(transaction, numbers, partition)
        return transaction

    def put(self, values: dict[str | None, list[int]], asset: str = "a") -> None:
        self.stage(values, asset).commit()

    def staged(self) -> int:
        store = self.location.open()
        folders = [] if self.stages == "uploads" else [i for i in store.list() if not i.key.startswith(".transactions")]
        return len(list(store.list_uploads())) + len(folders)


def write(transaction: OutputTransaction, numbers: list[int], partition: str | None = None) -> None:
    if numbers:
        write_rows(transaction, pa.table({"n": pa.array(numbers, pa.int64())}), partition)


class Files(Target):
    def sink(self) -> ParquetSink:
        return ParquetSink(self.location.child("t"), max_file_bytes=1)  # a file for each batch

    def rows(self) -> Rows:
        store, found = self.location.child("t").open(), Rows()
        for info in store.list():
            *folders, name = info.key.split("/")
            partition = folders[0].partition("=")[2] if folders else None
            asset, _, _ = name.partition(".")
            table = pq.read_table(pa.BufferReader(store.get(info.key)[0]))
            found += [(asset, partition, n) for n in table["n"].to_pylist()]
        return _sorted(found)


class Delta(Target):
    def sink(self) -> DeltaSink:
        return DeltaSink(self.location.child("t"))

    def rows(self) -> Rows:
        location = self.location.child("t")
        if not DeltaTable.is_deltatable(location.url, storage_options(location)):
            return []
        table = DeltaTable(location.url, storage_options=storage_options(location)).to_pyarrow_table()
        columns = (table[name].to_pylist() for name in ("dagster_asset_key", "dagster_partition_key", "n"))
        return _sorted(zip(*columns, strict=True))

    def opened(self) -> DeltaTable:
        location = self.location.child("t")
        return DeltaTable(location.url, storage_options=storage_options(location))

    def drop(self) -> None:
        store = self.location.child("t").open()
        store.delete_many([info.key for info in store.list()])


class Iceberg(Target):
    table = "main.t"

    def sink(self) -> IcebergSink:
        database = self.location.url.removeprefix("file://") + "/catalog.db"
        properties = {"type": "sql", "uri": f"sqlite:///{database}"}
        return IcebergSink(self.table, self.location.child(self.table), catalog="test", properties=properties)

    def rows(self) -> Rows:
        sink = self.sink()
        catalog = load_catalog("test", **sink.properties)
        if not catalog.table_exists(self.table):
            return []
        table = catalog.load_table(self.table).scan().to_arrow()
        columns = (table[name].to_pylist() for name in ("dagster_asset_key", "dagster_partition_key", "n"))
        return _sorted(zip(*columns, strict=True))

    def opened(self) -> Table:
        return load_catalog("test", **self.sink().properties).load_table(self.table)

    def drop(self) -> None:
        self.opened().catalog.drop_table(self.table)


class Postgres(Target):
    """Args:
    location: Where rows are staged.
    conninfo: How to connect.
    schema: The schema of the table, which is made here.
    """

    stages: ClassVar[Stages] = "files"

    def __init__(self, location: StorageLocation, conninfo: str, schema: str | None = None) -> None:
        super().__init__(location)
        self.conninfo = conninfo
        self.schema = schema or f"s{uuid.uuid4().hex}"
        self.table = f"{self.schema}.t"
        self.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def sink(self) -> PostgresSink:
        return PostgresSink(self.conninfo, self.table, self.location.child(self.table))

    def rows(self) -> Rows:
        if not self.execute(f"SELECT 1 WHERE to_regclass('{self.schema}.t') IS NOT NULL"):
            return []
        return _sorted(self.execute(f"SELECT dagster_asset_key, dagster_partition_key, n FROM {self.schema}.t"))


def _sorted(rows: Iterable[Any]) -> Rows:
    return sorted((tuple(row) for row in rows), key=lambda row: (row[0], row[1] or "", row[2]))
