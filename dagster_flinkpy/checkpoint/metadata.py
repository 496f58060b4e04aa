"""The ``_metadata`` of a checkpoint or savepoint, version 1.

A file is one JSON document, which is gzipped if it is large. Read it with ``jq . _metadata`` or
``zcat < _metadata | jq .``. Both forms contain a checksum of their bytes, so that damage is detected. Fields that a
later release of the same version adds survive a round trip. The file never contains pickled objects.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.checkpoint.validation import INVENTORY, check_inventory, inventory_of, validate
from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError, FlinkPyError
from dagster_flinkpy.json_records import Json, JsonRecord, without_collector
from dagster_flinkpy.storage import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Self

    from dagster_flinkpy.state.handles import TableSnapshot

__all__ = [
    "ANCESTORS",
    "COMMITS",
    "END_OF",
    "METADATA_NAME",
    "REPEATS",
    "RESTORED_BY",
    "STOPPED",
    "WINDOW",
    "CheckpointKind",
    "CheckpointMetadata",
    "fetch_metadata",
]

METADATA_NAME = "_metadata"
COMMITS = "commits"
"""Property of a checkpoint at which sinks have nothing to commit: for each, the last checkpoint before it at which it
had something."""
ANCESTORS = "ancestors"
"""Property of the checkpoints of a job that has begun with the state of another one; see
`CheckpointMetadata.ancestors`."""
END_OF = "end_of"
"""Property of a checkpoint that repeats the end state of a time partition; see `CheckpointMetadata.end_of`."""
REPEATS = "repeats"
"""Property of a checkpoint that has read nothing since another one; see `CheckpointMetadata.read_by`."""
RESTORED_BY = "restored_by"
"""Property of a checkpoint; see `CheckpointMetadata.restored_by`."""
STOPPED = "stopped"
"""Property of the checkpoint with which a job was stopped."""
WINDOW = "window"
"""Property of the end state of a time partition: the partition's start and end, in milliseconds since 1970."""
METADATA_VERSION = 1
_OF_FLINK = bytes.fromhex("4960672d")
"""How ``_metadata`` of Flink begins."""
_ADVICE = "Restore another checkpoint or a savepoint with restore_from"


_COMPRESS_ABOVE = 16 * 1024
_FIRST_READ = 1 << 20
MAX_FILE_BYTES = 256 << 20
"""The maximum size of a file. A larger one is not metadata."""
MAX_DOCUMENT_BYTES = 1 << 30
"""The maximum size of a decompressed document."""
_FORMAT = "dagster-flinkpy checkpoint metadata"
_VERSION = re.compile(rb'\{"format":"' + _FORMAT.encode() + rb'","version":(\d{1,9}),')
_HEAD = re.compile(_VERSION.pattern + rb'"sha256":"([0-9a-f]{64})","checkpoint":(?=\{)')
# A gzip header (RFC 1952) without time and system. Its comment is the checksum of everything that follows.
_GZIP_HEAD = b"\x1f\x8b\x08\x10\x00\x00\x00\x00\x00\xffsha256:"
_GZIP_HEAD_SIZE = len(_GZIP_HEAD) + 64 + 1
_GZIP_MAGIC = b"\x1f\x8b"


class CheckpointKind(str, Enum):
    """Whether it is a checkpoint or a savepoint."""

    CHECKPOINT = "checkpoint"
    """The job owns it. Later checkpoints subsume it and share its files."""
    SAVEPOINT = "savepoint"
    """The user owns it. It is kept until the user disposes of it, and is self-contained unless it is native."""


@dataclass(frozen=True)
class CheckpointMetadata(JsonRecord, omit_defaults=True):
    """A whole checkpoint or savepoint."""

    job_id: str
    checkpoint_id: int
    kind: CheckpointKind
    parent_id: int | None
    """The checkpoint that this one continues from; None for the first one of a job."""
    timestamp_ms: int
    """When it was triggered, in milliseconds since 1970."""
    partition: str | None
    """The Dagster partition whose end state this is, or None."""
    fencing_token: int
    """Fencing token of the execution attempt that took it."""
    graph_fingerprint: str
    """Fingerprint of the job graph that took it."""
    end_of_input: bool
    """Whether all sources were read to their end."""
    operators: tuple[OperatorState, ...]
    properties: dict[str, Json]
    master_states: dict[str, Json] = field(default_factory=dict)
    """States of the job's master hooks, by identifier."""
    extra: Json = field(default_factory=dict)
    """Fields that this release does not know."""

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return sum(operator.state_bytes for operator in self.operators)

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped with it. If so, no run continues from it unless it is restored."""
        return self.properties.get(STOPPED) is True

    @property
    def commits(self) -> dict[str, int]:
        """The last checkpoint at which a sink had something to commit, this one or one before it, by uid of the sink.

        It is empty for the end of a partition: a partition that runs again replaces what was committed.

        Raises:
            CorruptMetadataError: The property is something else.
        """
        before = self.commits_before
        if self.partition is not None:
            return {}
        own = [operator.uid for operator in self.operators if any(s.committables for s in operator.subtasks)]
        return {**before, **dict.fromkeys(own, self.checkpoint_id)}

    @property
    def commits_before(self) -> dict[str, int]:
        """The same without this checkpoint. Earlier releases have left out the sinks that have committed at it.

        Raises:
            CorruptMetadataError: The property is something else.
        """
        stored = self.properties.get(COMMITS, {})
        if not isinstance(stored, dict) or not all(type(number) is int for number in stored.values()):
            raise CorruptMetadataError(f"property {COMMITS!r} of checkpoint {self.checkpoint_id} is {stored!r:.100}")
        return stored

    @property
    def ancestors(self) -> tuple[tuple[str, int], ...]:
        """The jobs with whose state the job has begun, and the checkpoints of these: its own origin comes first.

        Raises:
            CorruptMetadataError: The property is something else.
        """
        stored = self.properties.get(ANCESTORS, [])
        if type(stored) is list and all(type(each) is list for each in stored):
            found = [(each[0], each[1]) for each in stored if [type(part) for part in each] == [str, int]]
            if len(found) == len(stored):
                return tuple(found)
        raise CorruptMetadataError(f"property {ANCESTORS!r} of checkpoint {self.checkpoint_id} is {stored!r:.100}")

    @property
    def read_by(self) -> tuple[str, int]:
        """The job and the checkpoint that have last read input: this one, or one whose state it has taken over.

        Raises:
            CorruptMetadataError: The property is something else.
        """
        stored = self.properties.get(REPEATS, [self.job_id, self.checkpoint_id])
        if type(stored) is list and [type(part) for part in stored] == [str, int]:
            return stored[0], stored[1]
        raise CorruptMetadataError(f"property {REPEATS!r} of checkpoint {self.checkpoint_id} is {stored!r:.100}")

    @property
    def end_of(self) -> str | None:
        """The time partition whose end state it has, which this checkpoint has read, or one that it repeats; or None.

        Raises:
            CorruptMetadataError: The property is something else.
        """
        stored = self.properties.get(END_OF, self.partition)
        if stored is None or type(stored) is str:
            return stored
        raise CorruptMetadataError(f"property {END_OF!r} of checkpoint {self.checkpoint_id} is {stored!r:.100}")

    @property
    def restored_by(self) -> tuple[str, ...]:
        """The last runs of the job that restored a savepoint or an older checkpoint, or started from empty state.

        Each of them has completed a checkpoint since, this one or one before it. A run's retries have its id.

        Raises:
            CorruptMetadataError: The property is something else.
        """
        stored = self.properties.get(RESTORED_BY, [])
        if type(stored) is str:  # earlier releases knew the last one only
            return (stored,)
        if type(stored) is list and all(type(each) is str for each in stored):
            return tuple(stored)
        raise CorruptMetadataError(f"property {RESTORED_BY!r} of checkpoint {self.checkpoint_id} is {stored!r:.100}")

    def ancestors_of(self, job_id: str) -> tuple[tuple[str, int], ...]:
        """Returns the ancestors of a job that continues from this checkpoint or savepoint.

        Args:
            job_id: The job. What came before its own state, such as if it is restored from its fork, does not count.
        """
        line = ((self.job_id, self.checkpoint_id), *self.ancestors)
        own = [number for number, (job, _) in enumerate(line) if job == job_id]
        return line[own[-1] + 1 :] if own else line

    def last_of(self, job_id: str) -> int:
        """Returns the last checkpoint of a job whose state it has: its own, or an ancestor's; 0 if there is none."""
        line = ((self.job_id, self.checkpoint_id), *self.ancestors)
        return next((number for job, number in line if job == job_id), 0)

    def files(self) -> set[str]:
        """Returns the paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return {path for operator in self.operators for path in operator.files()}

    def operator(self, uid: str) -> OperatorState | None:
        """Returns the state of one operator, or None."""
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def timers(self, name: str) -> Iterator[tuple[str, TableSnapshot]]:
        """Yields the tables of pending timers of a name, each with the uid of its operator."""
        for operator in self.operators:
            for table in operator.tables:
                if table.kind == "TIMER" and table.name == name and table.rows:
                    yield operator.uid, table

    def to_json(self) -> dict[str, Json]:
        """Encodes the body of ``_metadata``."""
        return {**super().to_json(), INVENTORY: self._inventory()}

    def _validate(self) -> None:
        self.files()  # checks the paths of operator state
        validate(self.operators)

    def _inventory(self) -> dict[str, Json]:
        what = f"{self.kind.value} {self.checkpoint_id} of {self.job_id}"
        return inventory_of(what, self.operators, self.properties, self.master_states)

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Decodes what :meth:`to_json` returned; :meth:`from_bytes` checks the relations between fields."""
        metadata = super().from_json(data)
        metadata.extra.pop(INVENTORY, None)
        return metadata

    @without_collector()
    def to_bytes(self) -> bytes:
        """Encodes the file. Equal metadata gives equal bytes.

        Raises:
            CheckpointError: A split, committable, operator state, master state or property is not JSON, or the parts do
                not fit together, so that the checkpoint could not be restored.
        """
        try:
            self._validate()
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"checkpoint {self.checkpoint_id} of job {self.job_id!r} was not written, because it could not be "
                f"restored: {_told(error)}"
            ) from error
        try:
            body = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"checkpoint {self.checkpoint_id} of job {self.job_id!r} cannot be written as JSON ({error}); splits, "
                "committables, operator state and master states may contain only None, bool, finite numbers, str, list "
                "and dict"
            ) from error
        checksum = hashlib.sha256(body).hexdigest()
        head = f'{{"format":"{_FORMAT}","version":{METADATA_VERSION},"sha256":"{checksum}","checkpoint":'
        document = head.encode() + body + b"}"
        return document if len(document) <= _COMPRESS_ABOVE else _compress(document)

    @classmethod
    @without_collector()
    def from_bytes(cls, data: bytes, name: str) -> CheckpointMetadata:
        """Reads a file that :meth:`to_bytes` wrote.

        Args:
            data: The whole file.
            name: Names the file in error messages, such as by its URL.

        Raises:
            CorruptMetadataError: The file is truncated, damaged, inconsistent or of a newer version. The message names
                it.
        """
        document = _decompress(data, name) if data.startswith(_GZIP_MAGIC) else data
        if version := _VERSION.match(document):
            number = int(version[1])
            if number > METADATA_VERSION:
                raise CorruptMetadataError(
                    f"{name} has format version {number}, and this release reads versions up to {METADATA_VERSION}. "
                    "Restore it with the release that wrote it, or a newer one."
                )
        head = _HEAD.match(document)
        if head is None or int(head[1]) != METADATA_VERSION or not document.endswith(b"}}"):
            raise CorruptMetadataError(
                f"{name} is not checkpoint metadata, or is truncated ({len(data)} bytes). {_ADVICE}."
            )
        body = document[head.end() : -1]
        if hashlib.sha256(body).hexdigest().encode() != head[2]:
            raise CorruptMetadataError(f"{name} is damaged: its content does not match its checksum. {_ADVICE}.")
        try:
            raw = json.loads(body)
            metadata = cls.from_json(raw)
            metadata._validate()
            check_inventory(metadata._inventory(), raw.get(INVENTORY))
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            FlinkPyError,
        ) as error:
            raise CorruptMetadataError(
                f"{name} is not valid checkpoint metadata: {_told(error)}. {_ADVICE}."
            ) from error
        return metadata


def fetch_metadata(store: ObjectStore, key: str) -> bytes:
    """Reads the ``_metadata`` of a checkpoint or savepoint. Of any other file, it reads only the beginning.

    Args:
        store: The object store.
        key: Key of the file.

    Raises:
        ObjectNotFoundError: There is no such file.
        CorruptMetadataError: The file is not metadata, or is larger than 256 MiB. The message names it.
    """
    name = f"{store.url}/{key}"
    data = store.get_range(key, 0, _FIRST_READ)
    if data.startswith(_OF_FLINK):
        raise CorruptMetadataError(
            f"{name} is that of a savepoint of Flink: 'flinkpy savepoint import', or the import job in Dagster, makes "
            "one for a program here of it."
        )
    if not data.startswith((_GZIP_HEAD, b'{"format":"')):
        raise CorruptMetadataError(
            f"{name} is not checkpoint metadata, or is truncated ({len(data)} bytes). {_ADVICE}."
        )
    if len(data) == _FIRST_READ:
        data += store.get_range(key, _FIRST_READ, MAX_FILE_BYTES + 1 - _FIRST_READ)
    if len(data) > MAX_FILE_BYTES:
        raise CorruptMetadataError(
            f"{name} is larger than {MAX_FILE_BYTES} bytes, so it is not checkpoint metadata. {_ADVICE}."
        )
    return data


def _compress(document: bytes) -> bytes:
    packed = gzip.compress(document, compresslevel=6, mtime=0)[10:]  # our header replaces Python's
    return _GZIP_HEAD + hashlib.sha256(packed).hexdigest().encode() + b"\0" + packed


def _decompress(data: bytes, name: str) -> bytes:
    head, packed = data[:_GZIP_HEAD_SIZE], data[_GZIP_HEAD_SIZE:]
    if head != _GZIP_HEAD + hashlib.sha256(packed).hexdigest().encode() + b"\0":
        raise CorruptMetadataError(
            f"{name} is damaged or truncated ({len(data)} bytes): its checksum does not match. {_ADVICE}."
        )
    unpacker = zlib.decompressobj(wbits=31)
    try:
        document = unpacker.decompress(data, MAX_DOCUMENT_BYTES)
    except zlib.error as error:
        raise CorruptMetadataError(f"{name} cannot be decompressed: {error}. {_ADVICE}.") from error
    if unpacker.unconsumed_tail:
        raise CorruptMetadataError(
            f"{name} decompresses to more than {MAX_DOCUMENT_BYTES} bytes, so it is not checkpoint metadata. {_ADVICE}."
        )
    if not unpacker.eof or unpacker.unused_data:
        raise CorruptMetadataError(f"{name} cannot be decompressed: it is incomplete or has extra data. {_ADVICE}.")
    return document


def _told(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
