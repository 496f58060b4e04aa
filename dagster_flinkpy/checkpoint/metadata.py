"""The ``_metadata`` of a checkpoint or savepoint, version 1.

A file is one JSON document, gzipped where it would be large: ``jq . _metadata`` or ``zcat < _metadata | jq .``. Both
forms carry a checksum of their bytes, so that no damage goes unseen. Fields that a later release of the same version
adds are kept through a round trip. It never holds pickled objects.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dagster_flinkpy.errors import CheckpointError, CorruptMetadataError, FlinkPyError
from dagster_flinkpy.key_groups import UPPER_BOUND_MAX_PARALLELISM, compute_key_group_range_for_operator_index
from dagster_flinkpy.state.handles import KeyedSnapshot
from dagster_flinkpy.state.state_files import files_of
from dagster_flinkpy.storage import ObjectStore

__all__ = [
    "METADATA_NAME",
    "STOPPED",
    "CheckpointKind",
    "CheckpointMetadata",
    "DistributionMode",
    "OperatorState",
    "OperatorStateHandle",
    "SubtaskState",
    "fetch_metadata",
]

METADATA_NAME = "_metadata"
STOPPED = "stopped"
"""Property of the checkpoint that a job was stopped with."""
METADATA_VERSION = 1

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""

_COMPRESS_ABOVE = 16 * 1024
_FIRST_READ = 1 << 20
MAX_FILE_BYTES = 256 << 20
"""A larger file is no metadata."""
MAX_DOCUMENT_BYTES = 1 << 30
"""Nor is one that decompresses to more."""
_FORMAT = "dagster-flinkpy checkpoint metadata"
_VERSION = re.compile(rb'\{"format":"' + _FORMAT.encode() + rb'","version":(\d{1,9}),')
_HEAD = re.compile(_VERSION.pattern + rb'"sha256":"([0-9a-f]{64})","checkpoint":(?=\{)')
# A gzip header (RFC 1952) without time and system, whose comment is the checksum of all that follows.
_GZIP_HEAD = b"\x1f\x8b\x08\x10\x00\x00\x00\x00\x00\xffsha256:"
_GZIP_HEAD_SIZE = len(_GZIP_HEAD) + 64 + 1
_GZIP_MAGIC = b"\x1f\x8b"


class CheckpointKind(str, Enum):
    """Who owns it."""

    CHECKPOINT = "checkpoint"
    """The job: subsumed by later ones, shares files with them."""
    SAVEPOINT = "savepoint"
    """The user: kept until disposed of, self-contained."""


class DistributionMode(str, Enum):
    """How operator state is shared out when the parallelism changes (Flink: ``OperatorStateHandle.Mode``)."""

    SPLIT_DISTRIBUTE = "SPLIT_DISTRIBUTE"
    """Each partition to one subtask."""
    UNION = "UNION"
    """All partitions to every subtask."""
    BROADCAST = "BROADCAST"
    """Equal at all subtasks: each takes one copy."""


@dataclass(frozen=True)
class OperatorStateHandle:
    """One named operator state of one subtask."""

    name: str
    mode: DistributionMode
    partitions: tuple[Json, ...]
    """The list's elements; what redistribution moves. See ``state.operator_state``."""
    types: dict[str, Json] = field(default_factory=dict)
    """Type information as JSON: of an element's ``value``, or of an entry's ``key`` and ``value``."""
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields this release does not know."""

    def to_json(self) -> dict[str, Json]:
        """For ``_metadata``."""
        types = {"types": self.types} if self.types else {}
        return {**self.extra, "name": self.name, "mode": self.mode.value, "partitions": list(self.partitions), **types}

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> OperatorStateHandle:
        """What :meth:`to_json` wrote."""
        return cls(
            name=data["name"],
            mode=DistributionMode(data["mode"]),
            partitions=_tuple(data["partitions"]),
            types=dict(data.get("types", {})),
            extra=_extra(cls, data),
        )


@dataclass(frozen=True)
class SubtaskState:
    """What one subtask acknowledged (Flink: ``OperatorSubtaskState``)."""

    index: int
    keyed: KeyedSnapshot | None = None
    """Keyed state; None if there is none."""
    operator_state: tuple[OperatorStateHandle, ...] = ()
    raw_keyed: tuple[Json, ...] = ()
    """Raw keyed state: per key group its number and the partition with its bytes."""
    channel_state: tuple[Json, ...] = ()
    """In-flight buffers of an unaligned checkpoint; empty for aligned ones."""
    splits: tuple[Json, ...] = ()
    """Source splits with their offsets."""
    watermark: int | None = None
    """Event time in milliseconds; None before the first watermark."""
    committables: tuple[Json, ...] = ()
    """What a sink's committer publishes when the checkpoint completes."""
    metrics: dict[str, int | float] = field(default_factory=dict)
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields this release does not know."""

    @property
    def has_state(self) -> bool:
        """Whether anything would be lost without it (Flink: ``OperatorSubtaskState.hasState``)."""
        return bool(
            self.keyed is not None
            or self.operator_state
            or self.raw_keyed
            or self.channel_state
            or self.splits
            or self.committables
        )

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return self.keyed.bytes if self.keyed else 0

    def files(self) -> set[str]:
        """Paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return (self.keyed.files() if self.keyed else set()) | self.operator_state_files()

    def operator_state_files(self) -> set[str]:
        """Those of operator state, raw keyed state and in-flight data."""
        partitions = (p for handle in self.operator_state for p in handle.partitions)
        return files_of([*partitions, *self.raw_keyed, *self.channel_state])

    def to_json(self) -> dict[str, Json]:
        """For ``_metadata``; what is empty is left out."""
        data: dict[str, Json] = {**self.extra, "index": self.index}
        if self.keyed is not None:
            data["keyed"] = self.keyed.to_json()
        if self.operator_state:
            data["operator_state"] = [handle.to_json() for handle in self.operator_state]
        for name in ("raw_keyed", "channel_state", "splits", "committables"):
            if values := getattr(self, name):
                data[name] = list(values)
        if self.watermark is not None:
            data["watermark"] = self.watermark
        if self.metrics:
            data["metrics"] = self.metrics
        return data

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> SubtaskState:
        """What :meth:`to_json` wrote."""
        return cls(
            index=_integer(data["index"]),
            keyed=KeyedSnapshot.from_json(data["keyed"]) if "keyed" in data else None,
            operator_state=tuple(map(OperatorStateHandle.from_json, data.get("operator_state", []))),
            raw_keyed=_tuple(data.get("raw_keyed", [])),
            channel_state=_tuple(data.get("channel_state", [])),
            splits=_tuple(data.get("splits", [])),
            watermark=_integer(data["watermark"]) if "watermark" in data else None,
            committables=_tuple(data.get("committables", [])),
            metrics=dict(data.get("metrics", {})),
            extra=_extra(cls, data),
        )


@dataclass(frozen=True)
class OperatorState:
    """All of one operator's state (Flink: ``OperatorState``)."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    coordinator_state: Json | None = None
    """State of the operator's coordinator, such as a source's split enumerator."""
    subtasks: tuple[SubtaskState, ...] = ()
    """By index; a subtask without any state may be missing."""
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields this release does not know."""

    @property
    def has_state(self) -> bool:
        """Whether anything would be lost without it."""
        return self.coordinator_state is not None or any(subtask.has_state for subtask in self.subtasks)

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return sum(subtask.state_bytes for subtask in self.subtasks)

    def files(self) -> set[str]:
        """Paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return {path for subtask in self.subtasks for path in subtask.files()}

    def to_json(self) -> dict[str, Json]:
        """For ``_metadata``."""
        data: dict[str, Json] = {
            **self.extra,
            "uid": self.uid,
            "name": self.name,
            "parallelism": self.parallelism,
            "max_parallelism": self.max_parallelism,
            "subtasks": [subtask.to_json() for subtask in self.subtasks],
        }
        if self.coordinator_state is not None:
            data["coordinator_state"] = self.coordinator_state
        return data

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> OperatorState:
        """What :meth:`to_json` wrote."""
        return cls(
            uid=_text(data["uid"]),
            name=_text(data["name"]),
            parallelism=_integer(data["parallelism"]),
            max_parallelism=_integer(data["max_parallelism"]),
            coordinator_state=data.get("coordinator_state"),
            subtasks=tuple(map(SubtaskState.from_json, data["subtasks"])),
            extra=_extra(cls, data),
        )


@dataclass(frozen=True)
class CheckpointMetadata:
    """A whole checkpoint or savepoint."""

    job_id: str
    checkpoint_id: int
    kind: CheckpointKind
    parent_id: int | None
    """The checkpoint that the state was before; None for the first of a job."""
    timestamp_ms: int
    """When it was triggered, in milliseconds since 1970."""
    partition: str | None
    """Dagster partition whose end state this is, where there is one."""
    fencing_token: int
    """Of the execution attempt that took it."""
    graph_fingerprint: str
    """Of the JobGraph that took it."""
    end_of_input: bool
    """Whether all sources were read to their end."""
    operators: tuple[OperatorState, ...]
    properties: dict[str, Json] = field(default_factory=dict)
    master_states: dict[str, Json] = field(default_factory=dict)
    """What the job's master hooks gave, by their identifiers."""
    extra: dict[str, Json] = field(default_factory=dict)
    """Fields this release does not know."""

    @property
    def state_bytes(self) -> int:
        """Size of the keyed state, in bytes."""
        return sum(operator.state_bytes for operator in self.operators)

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped with it: nothing goes on from it unless somebody restores it."""
        return self.properties.get(STOPPED) is True

    def files(self) -> set[str]:
        """Paths of the state files, relative to the prefix of the job (or of the savepoint)."""
        return {path for operator in self.operators for path in operator.files()}

    def operator(self, uid: str) -> OperatorState | None:
        """The state of one operator, or None."""
        return next((operator for operator in self.operators if operator.uid == uid), None)

    def to_json(self) -> dict[str, Json]:
        """The body of ``_metadata``."""
        return {
            **self.extra,
            "job_id": self.job_id,
            "checkpoint_id": self.checkpoint_id,
            "kind": self.kind.value,
            "parent_id": self.parent_id,
            "timestamp_ms": self.timestamp_ms,
            "partition": self.partition,
            "fencing_token": self.fencing_token,
            "graph_fingerprint": self.graph_fingerprint,
            "end_of_input": self.end_of_input,
            "properties": self.properties,
            **({"master_states": self.master_states} if self.master_states else {}),
            "operators": [operator.to_json() for operator in self.operators],
        }

    @classmethod
    def from_json(cls, data: dict[str, Json]) -> CheckpointMetadata:
        """What :meth:`to_json` wrote; the relations between fields are checked by :meth:`from_bytes`."""
        return cls(
            job_id=_text(data["job_id"]),
            checkpoint_id=_integer(data["checkpoint_id"]),
            kind=CheckpointKind(data["kind"]),
            parent_id=None if data["parent_id"] is None else _integer(data["parent_id"]),
            timestamp_ms=_integer(data["timestamp_ms"]),
            partition=None if data["partition"] is None else _text(data["partition"]),
            fencing_token=_integer(data["fencing_token"]),
            graph_fingerprint=_text(data["graph_fingerprint"]),
            end_of_input=bool(data["end_of_input"]),
            operators=tuple(map(OperatorState.from_json, data["operators"])),
            properties=dict(data["properties"]),
            master_states=dict(data.get("master_states", {})),
            extra=_extra(cls, data),
        )

    def to_bytes(self) -> bytes:
        """The file. Equal metadata gives equal bytes.

        Raises:
            CheckpointError: a split, committable, operator state, master state or property is not JSON.
        """
        try:
            body = json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"checkpoint {self.checkpoint_id} of job {self.job_id!r} cannot be written as JSON ({error}); splits, "
                "committables, operator state and master states must hold None, bool, finite numbers, str, list and "
                "dict only"
            ) from error
        checksum = hashlib.sha256(body).hexdigest()
        head = f'{{"format":"{_FORMAT}","version":{METADATA_VERSION},"sha256":"{checksum}","checkpoint":'
        document = head.encode() + body + b"}"
        return document if len(document) <= _COMPRESS_ABOVE else _compress(document)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> CheckpointMetadata:
        """Read a file that :meth:`to_bytes` wrote.

        Args:
            data: the whole file.
            name: for the error message, such as its URL.

        Raises:
            CorruptMetadataError: truncated, damaged, of a newer version, or inconsistent in itself; names the file.
        """
        document = _decompress(data, name) if data.startswith(_GZIP_MAGIC) else data
        if version := _VERSION.match(document):
            number = int(version[1])
            if number > METADATA_VERSION:
                raise CorruptMetadataError(
                    f"{name} has format version {number}; this release reads up to {METADATA_VERSION}. Restore "
                    "it with the release that wrote it, or a newer one."
                )
        head = _HEAD.match(document)
        if head is None or int(head[1]) != METADATA_VERSION or not document.endswith(b"}}"):
            raise CorruptMetadataError(f"{name} is not checkpoint metadata, or is truncated ({len(data)} bytes)")
        body = document[head.end() : -1]
        if hashlib.sha256(body).hexdigest().encode() != head[2]:
            raise CorruptMetadataError(f"{name} is damaged: its content does not have the checksum it names")
        try:
            metadata = cls.from_json(json.loads(body))
            _validate(metadata)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            FlinkPyError,
        ) as error:
            detail = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise CorruptMetadataError(f"{name} is not valid checkpoint metadata: {detail}") from error
        return metadata


def fetch_metadata(store: ObjectStore, key: str) -> bytes:
    """Read the file of a checkpoint or savepoint, but no more than the beginning of what is none.

    Args:
        store: where.
        key: of the file.

    Raises:
        ObjectNotFoundError: there is none.
        CorruptMetadataError: it is no metadata, or larger than 256 MiB; names it.
    """
    name = f"{store.url}/{key}"
    data = store.get_range(key, 0, _FIRST_READ)
    if not data.startswith((_GZIP_HEAD, b'{"format":"')):
        raise CorruptMetadataError(f"{name} is not checkpoint metadata, or is truncated ({len(data)} bytes)")
    if len(data) == _FIRST_READ:
        data += store.get_range(key, _FIRST_READ, MAX_FILE_BYTES + 1 - _FIRST_READ)
    if len(data) > MAX_FILE_BYTES:
        raise CorruptMetadataError(f"{name} is larger than {MAX_FILE_BYTES} bytes, as no metadata is")
    return data


def _validate(metadata: CheckpointMetadata) -> None:
    """Check what types do not say; raises ValueError. Handles of keyed state check their paths themselves."""
    metadata.files()  # checks those of operator state
    _unique("uid", (operator.uid for operator in metadata.operators))
    for operator in metadata.operators:
        where = f"operator {operator.uid!r}"
        if not 1 <= operator.parallelism <= operator.max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
            raise ValueError(f"{where} has parallelism {operator.parallelism} of at most {operator.max_parallelism}")
        _unique(f"subtask of {where}", (subtask.index for subtask in operator.subtasks))
        for subtask in operator.subtasks:
            if not 0 <= subtask.index < operator.parallelism:
                raise ValueError(f"{where} has parallelism {operator.parallelism} and a subtask {subtask.index}")
            if subtask.keyed is not None:
                _validate_key_groups(f"subtask {subtask.index} of {where}", operator, subtask.index, subtask.keyed)


def _validate_key_groups(where: str, operator: OperatorState, index: int, keyed: KeyedSnapshot) -> None:
    """Each key group belongs to one subtask, or state would be lost or counted twice."""
    own = compute_key_group_range_for_operator_index(operator.max_parallelism, operator.parallelism, index)
    if keyed.key_groups != own:
        raise ValueError(
            f"{where} has key groups {keyed.key_groups.start} to {keyed.key_groups.end}, but with parallelism "
            f"{operator.parallelism} and max parallelism {operator.max_parallelism} it owns {own.start} to {own.end}"
        )
    for run in (run for table in keyed.tables for run in table.runs):
        if not own.start <= run.key_groups.start <= run.key_groups.end <= own.end:
            raise ValueError(
                f"a run of {where} has key groups {run.key_groups.start} to {run.key_groups.end}, which are not its own"
            )


def _unique(what: str, values: Iterable[Any]) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} occurs twice")
        seen.add(value)


def _compress(document: bytes) -> bytes:
    packed = gzip.compress(document, compresslevel=6, mtime=0)[10:]  # our own header stands for Python's
    return _GZIP_HEAD + hashlib.sha256(packed).hexdigest().encode() + b"\0" + packed


def _decompress(data: bytes, name: str) -> bytes:
    head, packed = data[:_GZIP_HEAD_SIZE], data[_GZIP_HEAD_SIZE:]
    if head != _GZIP_HEAD + hashlib.sha256(packed).hexdigest().encode() + b"\0":
        raise CorruptMetadataError(f"{name} is damaged or truncated ({len(data)} bytes): its checksum does not fit")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        document = unpacker.decompress(data, MAX_DOCUMENT_BYTES)
    except zlib.error as error:
        raise CorruptMetadataError(f"{name} cannot be decompressed: {error}") from error
    if unpacker.unconsumed_tail:
        raise CorruptMetadataError(f"{name} decompresses to more than {MAX_DOCUMENT_BYTES} bytes, as no metadata does")
    if not unpacker.eof or unpacker.unused_data:
        raise CorruptMetadataError(f"{name} cannot be decompressed: it does not end where its data does")
    return document


def _extra(cls: type[Any], data: dict[str, Json]) -> dict[str, Json]:
    known = cls.__dataclass_fields__
    return {key: value for key, value in data.items() if key not in known or key == "extra"}


def _integer(value: Json) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} should be a whole number")
    return value


def _text(value: Json) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} should be text")
    return value


def _tuple(value: Json) -> tuple[Json, ...]:
    if type(value) is not list:
        raise TypeError(f"{value!r} should be a list")
    return tuple(value)
