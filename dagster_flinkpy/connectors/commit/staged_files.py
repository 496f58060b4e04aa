"""The two phases of file sinks: files are staged as invisible uploads, and completed after the checkpoint.

An upload that is already completed is recognised by the content of the object.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from dagster_flinkpy.datastream.connectors.base import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    Json,
    WriterInitContext,
)
from dagster_flinkpy.errors import (
    CommittableLostError,
    ConfigurationError,
    PathEscapesPrefixError,
    PreconditionFailedError,
    SinkCommitError,
    StorageError,
    UploadNotFoundError,
)
from dagster_flinkpy.json_records import JsonRecord
from dagster_flinkpy.storage import ObjectStore, UploadedPart, UploadInfo, check_relative

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "PART_BYTES",
    "Committable",
    "FileNames",
    "Staged",
    "StagedFile",
    "StagedFileCommitter",
    "StagedUpload",
    "file_name",
    "partition_folder",
    "partition_of",
    "partition_text",
    "partition_values",
    "signal_failure",
    "still_staged",
    "value_folder",
    "written_by",
]

PART_BYTES = 8 << 20
"""Size of the parts of an upload, in bytes. S3 requires at least 5 MiB in every part but the last."""

_COMMIT_THREADS = 8
_PARTITION = re.compile(r"(?:.*?/)?partition=[^/]*(?=/)")
_ASCII = re.compile(r"[\x00-\x7f]+")
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for a null in the name of a folder."""


class Committable(JsonRecord):
    """What a sink needs to commit a file, as checkpoint metadata describes it."""

    key: str

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Reads what :meth:`to_json` returned."""
        try:
            found = super().from_json(data)
            found.check_key()
        except (ValueError, PathEscapesPrefixError) as error:
            raise SinkCommitError(f"not a committable ({cls.__name__.lstrip('_')}): {error}") from error
        return found

    def check_key(self) -> None:
        """Checks that the key does not lead out of the location."""
        check_relative(self.key)


@dataclass(frozen=True)
class StagedFile(Committable):
    """A staged file, as checkpoint metadata describes it."""

    key: str
    """Relative to the sink's location."""
    upload_id: str
    parts: tuple[UploadedPart, ...]
    rows: int
    bytes: int
    sha256: str
    """SHA-256 of the whole file, in hex."""


@contextmanager
def still_staged() -> Iterator[None]:
    """Says what to do if others have deleted what an epoch is staging."""
    try:
        yield
    except UploadNotFoundError as error:
        raise UploadNotFoundError(
            f"{error}. Somebody has deleted staged rows while the epoch was writing them. Run again, which writes them "
            "anew; and let no clean-up or lifecycle rule delete uploads that are younger than an epoch takes."
        ) from error


class StagedUpload(io.RawIOBase):
    """A file that is uploaded in parts while it is written. A part is sent while the next one is filled."""

    def __init__(self, store: ObjectStore, key: str, part_bytes: int = PART_BYTES) -> None:
        self._store = store
        self._key = key
        self._part_bytes = part_bytes
        self._upload_id: str | None = None
        self._parts: list[UploadedPart] = []
        self._part, self._filled = bytearray(), 0
        self._sent = bytearray()
        """Memory of the part before, which takes the next one: new memory costs more than what is written to it."""
        self._sender: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self._aborted = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._aborted:  # the Parquet footer, when the writer is dropped
            return len(view)
        self._size += len(view)
        rest = view
        while rest:
            taken, rest = rest[: self._part_bytes - self._filled], rest[self._part_bytes - self._filled :]
            end = self._filled + len(taken)
            if end > len(self._part):
                del self._part[self._filled :]
                self._part += taken
            else:
                self._part[self._filled : end] = taken
            self._filled = end
            if end == self._part_bytes:
                self._send()
        return len(view)

    def _send(self) -> None:
        """Sends a part when the one before has arrived."""
        self._await_part()
        if self._sender is None:
            self._sender = ThreadPoolExecutor(1, "upload")
        self._sending = self._sender.submit(self._upload, self._part)
        self._part, self._sent, self._filled = self._sent, self._part, 0

    def _await_part(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def _upload(self, data: bytearray) -> None:
        self._digest.update(data)
        if self._upload_id is None:
            self._upload_id = self._store.create_upload(self._key)
        number, digest = len(self._parts) + 1, self._digest.hexdigest()
        with still_staged():
            part = self._store.upload_part(self._key, self._upload_id, number, data, sha256_of_all=digest)
        self._parts.append(part)

    def finish(self, rows: int) -> StagedFile:
        """Sends the last part, and returns what is needed to complete the upload."""
        self._await_part()
        if self._filled:
            del self._part[self._filled :]
            self._upload(self._part)
        self._end()
        return StagedFile(
            self._key, self._upload_id or "", tuple(self._parts), rows, self._size, self._digest.hexdigest()
        )

    def _end(self) -> None:
        if self._sender is not None:
            self._sender.shutdown()
            self._sender = None
        self._part, self._sent, self._filled = bytearray(), bytearray(), 0

    def abort(self) -> None:
        self._aborted = True
        with suppress(Exception):  # the writer has failed already
            self._await_part()
        self._end()
        if self._upload_id is not None:
            with suppress(StorageError):  # abort_lingering finds what remains
                self._store.abort_upload(self._key, self._upload_id)


def signal_failure(
    requests: Sequence[CommitRequest], error: Exception, *, retried: tuple[type[Exception], ...] = ()
) -> None:
    """Signals why requests are not committed: they are lost, nobody knows or can help now, or trying again may help.

    ``retried`` is what the client of the target raises if trying again may help; a `StorageError` always may. An error
    that is none of these is raised.
    """
    for request in requests:
        if isinstance(error, CommittableLostError):
            request.signal_failed_with_known_reason(error)
        elif isinstance(error, SinkCommitError):
            request.signal_failed_with_unknown_reason(error)
        elif isinstance(error, (StorageError, *retried)):
            request.retry_later(error)
        elif isinstance(error, (KeyError, TypeError, ValueError)):  # of a committable, or of the target's metadata
            request.signal_failed_with_unknown_reason(error)
        else:
            raise error


class Staged:
    """What is staged for the checkpoints of a job and sink, in a store."""

    _store: ObjectStore
    _names: FileNames

    def delete(self, requests: Sequence[CommitRequest]) -> None:
        """Deletes what is of no use any more when the requests are committed. Files that are completed stay."""

    def missing_rows(self, requests: Sequence[CommitRequest]) -> int:
        """Returns how many rows of the requests are neither staged nor completed."""
        return sum(request.committable["rows"] for request in requests if not self._is_there(request.committable))

    def _is_there(self, committable: Json) -> bool:
        key, upload_id = committable["key"], committable.get("upload_id")
        if not key or any(upload.upload_id == upload_id for upload in self._store.list_uploads(key)):
            return True
        return self._store.head(key) is not None

    def lingering(self, keep: Sequence[CommitRequest]) -> int:
        """Returns the number of items that `abort_lingering` would delete."""
        return len(self._uploads(keep)) + len(self._files(keep))

    def abort_lingering(self, keep: Sequence[CommitRequest]) -> int:
        """Deletes what this job and sink have staged, except what is kept or of newer attempts. Returns how much."""
        uploads, files = self._uploads(keep), self._files(keep)
        for upload in uploads:
            self._store.abort_upload(upload.key, upload.upload_id)
        self._store.delete_many(files)
        return len(uploads) + len(files)

    def _uploads(self, keep: Sequence[CommitRequest]) -> list[UploadInfo]:
        kept = {(request.committable.get("key"), request.committable.get("upload_id")) for request in keep}
        mine = (upload for upload in self._store.list_uploads() if self._names.mine(upload.key))
        return [upload for upload in mine if (upload.key, upload.upload_id) not in kept]

    def _files(self, keep: Sequence[CommitRequest]) -> list[str]:
        return []


class StagedFileCommitter(Staged, Committer):
    """Completes staged uploads, several at a time."""

    def __init__(self, store: ObjectStore, context: CommitterInitContext, *, prefix: str = "") -> None:
        self._store = store
        self._names = FileNames(context, prefix)
        self._start = f"{prefix}{_name_start(context.job_id, context.uid)}"

    def committed_after(self, checkpoint_id: int) -> int | None:
        """Returns a later checkpoint that has files, at most three ids away, as epochs without rows leave gaps.

        Those in folders of partitions are not seen. One request finds the files of ten ids.
        """
        ids = range(checkpoint_id + 1, checkpoint_id + 4)
        tens = sorted({number // 10 for number in ids})
        found = (
            self._names.checkpoint(info.key) for ten in tens for info in self._store.list(f"{self._start}{ten:09d}")
        )
        return next((each for each in found if each in ids), None)

    def _uploads(self, keep: Sequence[CommitRequest]) -> list[UploadInfo]:
        for request in keep:
            if request.committable.get("key") != "":
                StagedFile.from_json(request.committable)  # nobody knows which upload a damaged one keeps
        return super()._uploads(keep)

    def commit(self, requests: Sequence[CommitRequest]) -> None:
        with ThreadPoolExecutor(_COMMIT_THREADS, "file-commit") as pool:
            for done in [pool.submit(self._commit_one, request) for request in requests]:
                done.result()

    def _commit_one(self, request: CommitRequest) -> None:
        try:
            file = StagedFile.from_json(request.committable)
            where = f"{self._store.url}/{file.key} of checkpoint {request.checkpoint_id} (subtask {request.subtask})"
            there = self._exists(file.key)
            self._complete(file, where, request.checkpoint_id)
            if there and request.number_of_retries == 0:  # a retry may find what this attempt has completed
                request.signal_already_committed()
        except StorageError as error:
            signal_failure([request], StorageError(f"{self._store.url}/{file.key}: {error}"))
        except SinkCommitError as error:
            signal_failure([request], error)

    def complete(self, requests: Sequence[CommitRequest]) -> None:
        """Completes the files of a checkpoint that is committed as a whole, by something else that names them."""
        staged = [replace(request) for request in requests if request.committable["key"]]  # with states of their own
        self.commit(staged)
        for request in staged:
            if request.error is not None:
                raise request.error

    def _complete(self, file: StagedFile, where: str, checkpoint_id: int) -> None:
        try:
            self._store.complete_upload(file.key, file.upload_id, file.parts, if_none_match=True)
        except PreconditionFailedError as error:
            if self._is(file):
                return
            if not self._exists(file.key):
                raise  # another attempt is completing it just now
            raise SinkCommitError(
                f"cannot commit {where}: another object has this name. Its {file.rows} rows are not in the table; they "
                f"stay staged as upload {file.upload_id!r}. Move the other object away and run again."
            ) from error
        except UploadNotFoundError as error:
            if self._is(file):
                return
            raise CommittableLostError.of(
                checkpoint_id,
                f"cannot commit {where}: neither its upload nor the file exists, so its {file.rows} rows are "
                "lost. The upload was aborted (by a lifecycle rule of the bucket?), or the file was deleted after it "
                "was committed, or the sink had another location then",
            ) from error

    def _exists(self, key: str) -> bool:
        return self._store.find(key) is not None

    def _is(self, file: StagedFile) -> bool:
        """Returns whether the object is this file. Compares the content: ETags of encrypted objects are arbitrary."""
        if (there := self._store.find(file.key)) is None or there.size != file.bytes:
            return False
        digest = hashlib.sha256()
        for start in range(0, file.bytes, PART_BYTES):
            digest.update(self._store.get_range(file.key, start, PART_BYTES))
        return digest.hexdigest() == file.sha256

    def replace_partition(self, partition: str | None, checkpoint_id: int) -> int:
        found = self._store.list(partition_folder(partition))
        older = [info.key for info in found if self._names.before(info.key, checkpoint_id)]
        self._store.delete_many(older)
        return len(older)

    def replace_epochs(self, checkpoint_id: int, requests: Sequence[CommitRequest], after: int, before: int) -> None:
        """Deletes the files after the commit: for a moment, readers see both."""
        self.check_replaceable(after, before)
        self.commit(requests)
        if any(request.error is not None for request in requests):
            return
        found = ((info.key, self._names.replaced_checkpoint(info.key)) for info in self._store.list())
        self._store.delete_many(
            [key for key, checkpoint in found if checkpoint is not None and after < checkpoint < before]
        )

    def check_replaceable(self, after: int, before: int) -> None:
        for info in self._store.list():
            name = info.key.rpartition("/")[2]
            known = written_by(name) or self._names.replaced_checkpoint(name)  # its prefix may have a dot
            if known is None and not name.startswith(("_", ".")):
                raise ConfigurationError(
                    f"{self._store.url} has files of others, such as {info.key}, and its rows may have been moved into "
                    "one, as a compaction does. If that is not so, move these away until the rows are replaced"
                )

    def last_committed(self) -> int | None:
        found = (self._names.checkpoint(info.key) for info in self._store.list())
        return max((checkpoint for checkpoint in found if checkpoint is not None), default=None)


class FileNames:
    """Recognises the files of a job and sink by the names that `file_name` gave them, after the prefix of the sink."""

    def __init__(self, context: CommitterInitContext, prefix: str = "") -> None:
        starts = {start(context.job_id, context.uid) for start in (_name_start, _former_name_start)}
        start = rf"{re.escape(prefix)}(?:{'|'.join(re.escape(each) for each in starts if each)})"
        self._pattern = re.compile(rf"{start}(?P<checkpoint>\d+)\.\d+\.(?P<token>\d+)-")
        self._fencing_token = context.fencing_token
        self._before = [
            (FileNames(replace(context, job_id=job_id, ancestors=()), prefix), last)
            for job_id, last in context.ancestors
        ]
        """The files of the jobs with whose state this one has begun, and their last checkpoints before that."""

    def checkpoint(self, key: str) -> int | None:
        """Returns the checkpoint of a file of this job and sink, or None for another file."""
        name = self._pattern.match(key.rpartition("/")[2])
        return None if name is None else int(name["checkpoint"])

    def replaced_checkpoint(self, key: str) -> int | None:
        """Returns the checkpoint of a file that is replaced if epochs are read again, or None for another file.

        It is one of this job and sink, or of a job with whose state this one has begun, from before that.
        """
        if (found := self.checkpoint(key)) is not None:
            return found
        theirs = ((names.checkpoint(key), last) for names, last in self._before)
        return next((number for number, last in theirs if number is not None and number <= last), None)

    def before(self, key: str, checkpoint_id: int) -> bool:
        """Returns whether a file is of this job and sink before a checkpoint, or of a job with whose state it began."""
        if (found := self.checkpoint(key)) is not None:
            return found < checkpoint_id
        return any(names.checkpoint(key) is not None for names, _ in self._before)

    def of_this_attempt(self, key: str) -> bool:
        """Returns whether this attempt has written a file, so that its columns are those of the program."""
        name = self._pattern.match(key.rpartition("/")[2])
        return name is not None and int(name["token"]) == self._fencing_token

    def mine(self, key: str) -> bool:
        """Returns whether a file is of this job and sink, but not of a newer attempt, which a fenced one must spare."""
        name = self._pattern.match(key.rpartition("/")[2])
        return name is not None and int(name["token"]) <= self._fencing_token


_WRITTEN = re.compile(r"(?P<job>[^.]+)\.(?P<uid>[^.]+)\.(?P<checkpoint>\d+)\.\d+\.\d+-")


def written_by(key: str) -> tuple[str, str, int] | None:
    """Returns the job, sink and checkpoint of a file of any sink. None: something else has written it."""
    name = _WRITTEN.match(key.rpartition("/")[2])
    if name is None:
        return None
    job_id, uid = (unquote(name[part].replace("~", ".")) for part in ("job", "uid"))
    return job_id, uid, int(name["checkpoint"])


def _plain(text: str) -> str:
    """Escapes slashes and writes dots as ``~``, so that a dot separates the parts of a name."""
    return quote(text, safe="").replace("~", "%7E").replace(".", "~")


def _name_start(job_id: str, uid: str) -> str:
    return f"{_plain(job_id)}.{_plain(uid)}."


def _former_name_start(job_id: str, uid: str) -> str | None:
    """Returns how earlier releases began a file name, or None if a current name of another sink could begin so."""
    start = "".join(quote(text, safe="").replace(".", "%2E") + "." for text in (job_id, uid))
    return None if "~" in start else start


def partition_folder(partition: str | None) -> str:
    """Returns the folder of a Dagster partition's files, or an empty string if the run has no partition."""
    return "" if partition is None else f"partition={quote(partition, safe='')}/"


def partition_of(key: str) -> str | None:
    """Returns the folder of a Dagster partition that a file is in, or None. A sink has one checkpoint there."""
    found = _PARTITION.match(key)
    return None if found is None else found[0]


def value_folder(name: str, value: str | None, *, empty_is_null: bool = True) -> str:
    """Returns the folder of the rows with a value, or null, in a column, as Hive has it.

    In Spark ``empty_is_null``: empty text is in the folder of null.
    """
    null = value is None or (empty_is_null and not value)
    return f"{_escaped(name)}={_NULL_FOLDER if null else _escaped(str(value))}/"


def _escaped(text: str) -> str:
    """Escapes ASCII only: Spark would take the bytes of other letters for letters (``é`` for ``Ã©``)."""
    return _ASCII.sub(lambda found: quote(found[0], safe=""), text)


def partition_text(value: Any) -> str | None:
    """Returns the value of a partition column as its folder names it."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def partition_values(key: str) -> dict[str, str | None]:
    """Returns the values of the columns in the folders of a file. That of a Dagster partition is not a column."""
    folders = (folder.partition("=") for folder in key.split("/")[:-1])
    return {
        unquote(name): None if value == _NULL_FOLDER else unquote(value)
        for name, equals, value in folders
        if equals and name != "partition"
    }


def file_name(context: WriterInitContext) -> str:
    """Returns the file name of a writer, unique by job, uid, checkpoint, subtask, attempt and execution."""
    return (
        f"{_name_start(context.job_id, context.uid)}{context.checkpoint_id:010d}.{context.subtask:05d}."
        f"{context.fencing_token}-{_plain(context.execution)}"
    )
