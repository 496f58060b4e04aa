"""The sinks of the kill matrix. Another one takes an entry of `TARGETS`."""

from __future__ import annotations

import io
import json
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
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors.base import TwoPhaseCommittingSink
from dagster_flinkpy.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from dagster_flinkpy.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from dagster_flinkpy.storage import StorageLocation
from tests import servers
from tests.conftest import fresh_bucket
from tests.connectors.kafka.topics import PARTITIONS, Topic, received
from tests.runtime.programs import EVENT, event_time, events

__all__ = ["RECORDS", "TARGETS", "Hook", "Place", "Target", "new_place", "running_server"]


PER_EPOCH = 16
RECORDS = [(f"k{i % 4}", i, i) for i in range(3 * PER_EPOCH)]
"""Key, time and value of each record of a job."""


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
    read_from: Callable[[StreamExecutionEnvironment, Place], DataStream] = lambda env, place: events(
        env, RECORDS, per_epoch=PER_EPOCH, batch_size=2
    )
    """What the records come from, `PER_EPOCH` in an epoch."""


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


def _kafka(place: Place) -> KafkaSink:
    schema = KafkaRecordSerializationSchema.builder().set_topic(f"case_{place.name}")
    schema.set_value_serialization_schema(JsonRowSerializationSchema.builder().with_type_info(EVENT).build())
    sink = KafkaSink.builder().set_bootstrap_servers(place.server).set_record_serializer(schema.build())
    return sink.set_staging(place.folder.child("staging")).build()


def _values_of_kafka(place: Place) -> list[int]:
    return [json.loads(message.value())["value"] for message in received(place.server, f"case_{place.name}")]


def _orders(place: Place) -> str:
    return f"orders_{place.name}"


def _produce(place: Place) -> None:
    Topic(place.server, f"case_{place.name}")
    orders = Topic(place.server, _orders(place))
    for number, record in enumerate(RECORDS):
        orders.send(json.dumps(dict(zip(EVENT.get_field_names(), record, strict=True))), partition=number % PARTITIONS)


def _consume(env: StreamExecutionEnvironment, place: Place) -> DataStream:
    source = KafkaSource.builder().set_bootstrap_servers(place.server).set_topics(_orders(place))
    source.set_value_only_deserializer(JsonRowDeserializationSchema.builder().type_info(EVENT).build())
    source.set_bounded(KafkaOffsetsInitializer.latest()).set_max_records_per_epoch(PER_EPOCH)
    return env.from_source(source.build(), event_time(), "orders").uid("orders")


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
            "before the first upload is removed": Hook("dagster_flinkpy.storage.local_files:LocalUpload", "remove"),
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
    "kafka": Target(
        "Kafka to Kafka (noida-db)",
        _kafka,
        _values_of_kafka,
        Hook(_LOCAL, "upload_part", after=True),
        {
            "after older producers are fenced": Hook(
                f"{_CONNECTORS}.kafka.committer:KafkaCommitter", "_fencing_producer", after=True
            ),
            "after the records": Hook(f"{_CONNECTORS}.kafka.committer:KafkaCommitter", "_produce", after=True),
            "after the transaction": Hook(f"{_CONNECTORS}.kafka.committer:KafkaCommitter", "_put", after=True),
        },
        server="kafka",
        prepare=_produce,
        read_from=_consume,
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
    elif kind == "kafka":
        with servers.kafka(folder) as brokers:
            yield partial(new_place, local, brokers)
    elif kind == "s3":
        with servers.ministack(folder) as endpoint:
            yield partial(new_place, fresh_bucket(endpoint, "test", "test"))
    else:
        yield partial(new_place, local)
