"""Executes :class:`~dagster_flinkpy.datastream.connectors.file_system.FileSink`: writes lines in two phases."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.commit.staged_files import (
    StagedFile,
    StagedFileCommitter,
    StagedUpload,
    file_name,
    partition_folder,
)
from dagster_flinkpy.datastream.connectors.base import (
    CommitterInitContext,
    CommittingSinkWriter,
    Json,
    WriterInitContext,
)
from dagster_flinkpy.datastream.connectors.file_system import FileSink
from dagster_flinkpy.storage import StorageLocation

__all__ = ["FileWriter", "file_committer"]


def file_committer(sink: FileSink, context: CommitterInitContext) -> StagedFileCommitter:
    """Creates the committer of a sink."""
    prefix = f"{sink.output_file_config.part_prefix}-"
    return StagedFileCommitter(StorageLocation(sink.base_path).open(), context, prefix=prefix)


class FileWriter(CommittingSinkWriter):
    """Writes one epoch of one subtask: one file, or several if one reaches the part size or the folder changes."""

    def __init__(self, sink: FileSink, context: WriterInitContext, type_info: TypeInformation) -> None:
        self._sink = sink
        self._type_info = type_info
        self._store = StorageLocation(sink.base_path).open()
        self._mark = "".encode(sink.encoder.charset_name)
        """The byte order mark with which this charset begins each text. A file has it once."""
        self._name = file_name(context)
        self._folder = partition_folder(context.partition)
        self._bucket = ""
        self._upload: StagedUpload | None = None
        self._rows = 0
        self._finished: list[StagedFile] = []
        self._uploads: list[StagedUpload] = []

    def write(self, column: pa.Array) -> None:
        encode, limit = self._sink.encoder.encode, self._sink.rolling_policy.part_size
        bucket = self._sink.bucket_assigner.bucket_id(datetime.now(timezone.utc))
        if bucket != self._bucket:
            self._finish()
            self._bucket = bucket
        for record in self._type_info.from_arrow(column):
            line = encode(self._type_info, record)
            if self._upload is None:
                self._upload = self._begin()
            else:
                line = line.removeprefix(self._mark)
            self._upload.write(line)
            self._rows += 1
            if limit is not None and self._upload.tell() >= limit:
                self._finish()

    def _begin(self) -> StagedUpload:
        bucket, config = self._bucket, self._sink.output_file_config
        name = f"{config.part_prefix}-{self._name}-{len(self._finished)}{config.part_suffix}"
        upload = StagedUpload(self._store, f"{self._folder}{bucket}/{name}" if bucket else f"{self._folder}{name}")
        self._uploads.append(upload)
        return upload

    def _finish(self) -> None:
        if self._upload is not None:
            self._finished.append(self._upload.finish(self._rows))
        self._upload, self._rows = None, 0

    def prepare_commit(self) -> list[Json]:
        self._finish()
        return [file.to_json() for file in self._finished]

    def abort(self) -> None:
        for upload in self._uploads:
            upload.abort()
