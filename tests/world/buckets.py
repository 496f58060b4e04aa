"""Buckets of S3: files that a job reads, files that it writes, and its checkpoints."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from botocore.awsrequest import AWSResponse

from dagster_flinkpy.common import Duration, Row
from dagster_flinkpy.common.watermark_strategy import WatermarkStrategy
from dagster_flinkpy.connectors import ParquetSink, ParquetSource
from dagster_flinkpy.datastream import DataStream, StreamExecutionEnvironment
from dagster_flinkpy.datastream.connectors import base
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.errors import (
    CommittableLostError,
    SinkCommitError,
    SourceReadError,
    StorageError,
)
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.s3 import s3_client
from tests.world.stage import EVENT, Act, Record, Sink, Source, System, Undo, nothing

__all__ = ["SYSTEMS", "Bucket", "forbids", "turns_versioning_on"]


class Bucket(System):
    """Has a bucket of its own."""

    needs: ClassVar[str] = "s3"

    def begin(self) -> None:
        assert self.place.s3 is not None
        self.name = f"world-{uuid.uuid4().hex}"
        self.client.create_bucket(Bucket=self.name)

    @cached_property
    def location(self) -> StorageLocation:
        """The bucket."""
        assert self.place.s3 is not None
        return replace(self.place.s3, url=f"s3://{self.name}")

    @cached_property
    def client(self) -> Any:
        """The client that the job has, too."""
        s3 = self.place.s3
        assert s3 is not None
        return s3_client(s3.endpoint_url, s3.region, s3.access_key_id, s3.secret_access_key)

    def keys(self, prefix: str = "") -> list[str]:
        """Returns the keys of objects, sorted."""
        return [info.key for info in self.location.open().list(prefix)]

    def get(self, key: str) -> bytes:
        """Returns an object."""
        return self.location.open().get(key)[0]

    def write(self, key: str, content: bytes) -> None:
        """Writes an object, as somebody does who does not know the library."""
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def delete(self, *keys: str) -> None:
        """Deletes objects."""
        self.location.open().delete_many(keys)


class ParquetObjects(Bucket, Source):
    title, suffix = "Files on S3 as a source", ".parquet"
    patient = True
    count = 0

    def put(self, records: Sequence[Record]) -> None:
        if records:
            self.write(f"in/{self.count:03}{self.suffix}", self.content(records))
            self.count += 1

    def content(self, records: Sequence[Record]) -> bytes:
        """Returns a file."""
        file = io.BytesIO()
        pq.write_table(pa.Table.from_struct_array(EVENT.to_arrow(list(records))), file)
        return file.getvalue()

    def records(self, key: str) -> list[Record]:
        """Returns what is in an object."""
        rows = pq.read_table(io.BytesIO(self.get(key))).to_pylist()
        return [(row["key"], row["time"], row["value"]) for row in rows]

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        source = ParquetSource(self.location.child("in"), row_type=EVENT, bounded=False, batch_rows=2)
        return env.from_source(source, WatermarkStrategy.no_watermarks(), "files").uid("files")

    @property
    def files(self) -> list[str]:
        """The keys of the files, the newest last."""
        return [key for key in self.keys("in/") if key.endswith(self.suffix) and "/." not in key]


def _parsed(line: str) -> Row:
    key, time, value = line.split(",")
    return Row(key=key, time=int(time), value=int(value))


class TextObjects(ParquetObjects):
    suffix = ".txt"

    def content(self, records: Sequence[Record]) -> bytes:
        return "".join(f"{key},{time},{value}\n" for key, time, value in records).encode()

    def records(self, key: str) -> list[Record]:
        return [tuple(_parsed(line)) for line in self.get(key).decode().splitlines()]  # type: ignore[misc]

    def stream(self, env: StreamExecutionEnvironment) -> DataStream:
        builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), self.location.child("in"))
        source: base.Source = builder.monitor_continuously(Duration.of_seconds(1)).build()
        lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "files").uid("files")
        return lines.map(_parsed, EVENT).uid("parse")


# --- what others do to a bucket ---------------------------------------------------------------------------------------


def turns_versioning_on(system: Bucket) -> Undo | None:
    system.client.put_bucket_versioning(Bucket=system.name, VersioningConfiguration={"Status": "Enabled"})
    return nothing


class _Refusal:
    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def forbids(system: Bucket) -> Undo | None:
    """The server refuses each request about the bucket: MiniStack takes any credentials."""

    def refuse(request: Any, **_: Any) -> AWSResponse | None:
        return AWSResponse(request.url, 403, {}, _Refusal()) if f"/{system.name}" in request.url else None

    system.client.meta.events.register("before-send.s3", refuse, unique_id=system.name)
    return lambda failed: system.client.meta.events.unregister("before-send.s3", unique_id=system.name)


def _abort_uploads(system: Bucket) -> bool:
    uploads = list(system.location.open().list_uploads())
    for upload in uploads:
        system.client.abort_multipart_upload(Bucket=system.name, Key=upload.key, UploadId=upload.upload_id)
    return bool(uploads)


def _away(find: Callable[[Any], list[str]], *, bucket: bool = False) -> Callable[[Any], Undo | None]:
    """Deletes objects, and maybe the bucket, and puts them back later."""

    def act(system: Bucket) -> Undo | None:
        kept = {key: system.get(key) for key in find(system)}
        if not kept:
            return None
        system.delete(*kept)
        if bucket:
            system.client.delete_bucket(Bucket=system.name)

        def undo(failed: bool) -> None:
            if bucket:
                system.client.create_bucket(Bucket=system.name)
            for key, content in kept.items():
                system.write(key, content)

        return undo

    return act


# --- to files that are read -------------------------------------------------------------------------------------------


def deletes_read(system: ParquetObjects) -> Undo | None:
    if len(system.files) < 2:
        return None
    system.delete(system.files[0])
    return nothing


def writes_again(system: ParquetObjects) -> Undo | None:
    system.write(system.files[-1], system.get(system.files[-1]))
    return nothing


def _with_one_more(system: ParquetObjects, key: str) -> Undo:
    number, kept = 1000 + len(system.may), system.get(key)
    system.may.add(number)
    system.write(key, system.content([*system.records(key), ("k0", number, number)]))
    return lambda failed: system.write(key, kept) if failed else None


def overwrites_newest(system: ParquetObjects) -> Undo | None:
    return _with_one_more(system, system.files[-1])


def overwrites_read(system: ParquetObjects) -> Undo | None:
    return _with_one_more(system, system.files[0]) if len(system.files) > 1 else None


def renames(system: ParquetObjects) -> Undo | None:
    newest = system.files[-1]
    system.write(newest.replace(system.suffix, f"-renamed{system.suffix}"), system.get(newest))
    system.delete(newest)
    return nothing


def adds_objects(system: ParquetObjects) -> Undo | None:
    system.write("in/", b"")
    system.write(f"in/.hidden{system.suffix}", b"rubbish")
    system.client.create_multipart_upload(Bucket=system.name, Key=f"in/{system.count:03}-open{system.suffix}")
    return nothing


def adds_late(system: ParquetObjects) -> Undo | None:
    key = f"in/000-late{system.suffix}"
    system.may.add(2000)
    system.write(key, system.content([("k0", 2000, 2000)]))
    return lambda failed: system.delete(key) if failed else None


_READ = (SourceReadError,)
ParquetObjects.acts = TextObjects.acts = (
    Act("deletes an object that was read", deletes_read),
    Act("writes the newest object again, as it is", writes_again),
    Act("gives the newest object another name", renames, at=("before planning",)),
    Act("adds an object for a folder, a hidden one and an upload that is not complete", adds_objects),
    Act("turns versioning on", turns_versioning_on),
    Act("deletes the newest object, and puts it back later", _away(lambda system: system.files[-1:]), _READ),
    Act("empties the bucket, and restores a backup later", _away(lambda system: system.keys()), _READ),
    Act("deletes the bucket, and restores a backup later", _away(lambda system: system.keys(), bucket=True), _READ),
    Act("overwrites the newest object", overwrites_newest, _READ),
    Act("overwrites an object that was read", overwrites_read, _READ),
    Act("adds an object with an earlier name", adds_late, _READ),
    Act("forbids the bucket for a while", forbids, _READ),
)


# --- to files that are written ----------------------------------------------------------------------------------------


class ParquetOnS3(Bucket, Sink):
    title = "Files on S3 as a sink"
    hooks = (("dagster_flinkpy.storage.s3:S3ObjectStore", "complete_upload", True),)

    def sink(self) -> base.TwoPhaseCommittingSink:
        return ParquetSink(self.location.child("out"))

    @property
    def files(self) -> list[str]:
        """The keys of the files that readers see."""
        return [key for key in self.keys("out/") if key.endswith(".parquet")]

    def rows(self) -> Sequence[Record]:
        found = [row for key in self.files for row in pq.read_table(io.BytesIO(self.get(key))).to_pylist()]
        return [(row["key"], row["time"], row["value"]) for row in found]


def deletes_committed(system: ParquetOnS3) -> Undo | None:
    system.gone |= {value for _, _, value in system.rows()}
    system.delete(*system.files)
    return nothing


def adds_foreign(system: ParquetOnS3) -> Undo | None:
    system.write("out/_SUCCESS", b"")
    system.write("out/notes.txt", b"by somebody")
    return nothing


def _restores_older(system: ParquetOnS3) -> Undo:
    """Follows the advice to restore an older checkpoint."""

    def undo(failed: bool) -> None:
        if failed:
            head = json.loads((system.place.folder / "job" / "job" / "HEAD").read_text())
            system.restore_from = f"chk-{head['checkpoint_id'] - 1}"

    return undo


def aborts_uploads(system: ParquetOnS3) -> Undo | None:
    return _restores_older(system) if _abort_uploads(system) else None


def makes_bucket_anew(system: ParquetOnS3) -> Undo | None:
    staged = _abort_uploads(system)
    deletes_committed(system)
    system.delete(*system.keys())
    system.client.delete_bucket(Bucket=system.name)
    system.client.create_bucket(Bucket=system.name)
    return _restores_older(system) if staged else nothing


def takes_names(system: ParquetOnS3) -> Undo | None:
    staged = [upload.key for upload in system.location.open().list_uploads()]
    for key in staged:
        system.write(key, b"by somebody")
    return (lambda failed: system.delete(*staged)) if staged else None


_STAGED = ("before _metadata", "before HEAD", "before commit")
ParquetOnS3.acts = (
    Act("deletes objects that were committed", deletes_committed),
    Act("adds objects of their own", adds_foreign),
    Act("turns versioning on", turns_versioning_on),
    Act("forbids the bucket for a while", forbids, (StorageError, SinkCommitError)),
    Act("aborts the open uploads, as a lifecycle rule does", aborts_uploads, (CommittableLostError,), at=_STAGED),
    Act("deletes the bucket, and makes it anew, empty", makes_bucket_anew, (CommittableLostError,), at=_STAGED),
    Act("writes other objects where the open uploads go", takes_names, (SinkCommitError,), at=_STAGED),
)

SYSTEMS = (ParquetObjects, TextObjects, ParquetOnS3)
