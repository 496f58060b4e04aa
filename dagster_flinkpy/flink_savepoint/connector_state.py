"""What sources and sinks of Flink remember: what sources have read, and what sinks have not committed or finished.

Source: Flink's ``SourceCoordinatorSerdeUtils``, ``PendingSplitsCheckpointSerializer``,
``FileSourceSplitSerializer``, ``IteratorSourceSplit``, ``NumberSequenceSource.SplitSerializer``,
``KafkaPartitionSplitSerializer``, ``KafkaSourceEnumStateSerializer``, ``CommittableCollectorSerializer`` and
``FileWriterBucketStateSerializer``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader
from dagster_flinkpy.flink_savepoint.java_encoders import int32, int64, utf
from dagster_flinkpy.flink_savepoint.serializers import Serializer, decoder_of

__all__ = [
    "COMMITTER_STATE",
    "WRITER_STATE",
    "FileSplit",
    "FoundFiles",
    "KafkaPartition",
    "NumberSplit",
    "committables",
    "file_split",
    "files_coordinator",
    "found_files",
    "kafka_partitions",
    "number_splits",
    "numbers_coordinator",
    "open_part_file",
]

_VERSION = 1
_FILES_MAGIC = 0xDEADBEEF
_NO_OFFSET = -1
_NO_STOP = -(1 << 63)
COMMITTER_STATE = "streaming_committer_raw_states"
"""What committers of sinks call their state."""
WRITER_STATE = "writer_raw_states"
"""What writers of sinks call their state."""
_COLLECTOR_VERSION, _COLLECTOR_MAGIC = 2, 0xB91F252C
_BUCKET_VERSION, _BUCKET_MAGIC = 3, 0x1E764B79


class FileSplit(NamedTuple):
    """A part of a file that is not read to the end."""

    path: str
    """The file, as Flink writes paths."""
    size: int
    """The size of the file in bytes."""
    is_whole: bool
    """Whether the part is the file."""
    records: int
    """How many records of it were read; -1 if Flink has noted bytes instead."""


class FoundFiles(NamedTuple):
    """The files that a ``FileSource`` has found."""

    paths: tuple[str, ...]
    """All of them, as Flink writes paths: ``file:/folder/name``."""
    pending: tuple[FileSplit, ...]
    """Parts of them that no reader has got yet."""


class NumberSplit(NamedTuple):
    """A part of a sequence of numbers."""

    next: int
    """The number that is read next."""
    last: int
    """The last number, which belongs to it."""


class KafkaPartition(NamedTuple):
    """A partition of Kafka that a reader has."""

    topic: str
    partition: int
    offset: int
    """The offset that is read next; negative if reading has not begun."""
    stop: int | None
    """The first offset that is not read; None without end."""


def _versioned(data: bytes, what: str, known: Sequence[int] = (_VERSION,)) -> tuple[int, ByteReader]:
    """Returns a version, and a reader of what follows it and a length."""
    reader = ByteReader(data, what)
    if (version := reader.int32()) not in known:
        raise UnsupportedSavepointError(f"{what}: it has version {version}; known is {' and '.join(map(str, known))}")
    body = reader.take(reader.int32())
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    return version, ByteReader(body, what)


def _enumerator(data: bytes, what: str, known: Sequence[int] = (_VERSION,)) -> tuple[int, ByteReader]:
    reader = ByteReader(data, what)
    if (version := reader.int32()) != _VERSION:
        raise UnsupportedSavepointError(f"{what}: its coordinator has version {version}; 1 is the one that is known")
    return _versioned(reader.take(reader.left), what, known)


def found_files(coordinator: bytes, what: str) -> FoundFiles:
    """Decodes the state of the enumerator of a ``FileSource`` that watches folders.

    Args:
        coordinator: The coordinator's state.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another version, or of another source.
        CorruptStateError: It is damaged.
    """
    _, reader = _enumerator(coordinator, what)
    if reader.left < 16 or struct.unpack_from("<I", reader.data)[0] != _FILES_MAGIC:
        raise UnsupportedSavepointError(f"{what}: the state of its enumerator is not that of a FileSource")
    _, _, splits, paths = struct.unpack("<IiiI", reader.take(16))
    parts = [reader.take(int.from_bytes(reader.take(4), "little")) for _ in range(reader.check_count(splits, 4))]
    found = [reader.take(int.from_bytes(reader.take(4), "little")) for _ in range(reader.check_count(paths, 4))]
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    try:
        texts = tuple(path.decode("utf-8") for path in found)
    except UnicodeDecodeError as error:
        raise reader.corrupt(f"a path is not text: {error}") from None
    return FoundFiles(texts, tuple(_file_split(ByteReader(part, what)) for part in parts))


def file_split(element: bytes, what: str) -> FileSplit:
    """Decodes a split that a reader of a ``FileSource`` has.

    Args:
        element: The split.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another version, or of another source.
        CorruptStateError: It is damaged.
    """
    return _file_split(_versioned(element, what)[1])


def _file_split(reader: ByteReader) -> FileSplit:
    reader.utf()
    path = _path(reader)
    offset, length, _, size = (reader.int64() for _ in range(4))
    for _ in range(reader.count(2)):
        reader.utf()  # a host
    records = 0
    if reader.flag():
        position, records = reader.int64(), reader.int64()
        records = records if position == _NO_OFFSET else -1
    if reader.left or size < 0:
        raise reader.corrupt("this is not a part of a file")
    return FileSplit(path, size, offset == 0 and length == size, records)


def _path(reader: ByteReader) -> str:
    """Reads a ``Path``: the parts of a URI."""
    if not reader.flag():
        raise reader.corrupt("a path is missing")
    scheme, _, host = (_text(reader) for _ in range(3))
    reader.int32()  # the port
    path, _, _ = (_text(reader) for _ in range(3))
    return f"{scheme}://{host}{path}" if host else f"{scheme}:{path}"


def _text(reader: ByteReader) -> str:
    """Reads a text that may be null, for which it returns an empty one."""
    if not reader.flag():
        return ""
    try:
        text, reader.position = decoder_of(Serializer("String"))(reader.data, reader.position)
    except (IndexError, ValueError) as error:
        raise reader.corrupt(str(error)) from None
    return text or ""


def number_splits(coordinator: bytes, elements: Sequence[bytes], what: str) -> list[NumberSplit]:
    """Decodes the splits of a ``NumberSequenceSource`` that are not read to the end.

    Args:
        coordinator: The coordinator's state, which has the splits that no reader has got yet.
        elements: The splits of the readers.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another version.
        CorruptStateError: It is damaged.
    """
    found = [_number_split(_versioned(each, what)[1]) for each in elements]
    _, reader = _enumerator(coordinator, what)
    found += [_number_split(reader) for _ in range(reader.count(18))]
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    unread = [split for split in found if split.next <= split.last]
    return sorted(unread)


def _number_split(reader: ByteReader) -> NumberSplit:
    reader.utf()
    split = NumberSplit(reader.int64(), reader.int64())
    if split.next > split.last + 1:
        raise CorruptStateError(f"{reader.what}: a split goes from {split.next} to {split.last}")
    return split


def kafka_partitions(
    coordinator: bytes, elements: Sequence[bytes], what: str
) -> tuple[list[KafkaPartition], set[tuple[str, int]]]:
    """Decodes the partitions of a ``KafkaSource``.

    Args:
        coordinator: The coordinator's state.
        elements: The partitions of the readers.
        what: The operator, for messages.

    Returns:
        The partitions of the readers, sorted; and topic and partition of those that no reader has.

    Raises:
        UnsupportedSavepointError: It is of another version, or of another source.
        CorruptStateError: It is damaged.
    """
    found = [_kafka_partition(_versioned(each, what, (0,))[1]) for each in elements]
    version, reader = _enumerator(coordinator, what, (1, 2, 3))
    known = set()
    count = reader.int32()
    if version == 3 and (split_version := reader.int32()) != 0:
        raise UnsupportedSavepointError(f"{what}: a partition has version {split_version}; known is 0")
    for _ in range(reader.check_count(count, 6)):
        if version == 3:
            each = _kafka_partition(ByteReader(reader.take(reader.int32()), what))
            known.add((each.topic, each.partition))
        else:
            known.add((reader.utf(), reader.int32()))
        if version > 1:
            reader.int32()  # whether a reader has it
    if version > 1:
        reader.flag()
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
    return sorted(found), known - {(each.topic, each.partition) for each in found}


def _kafka_partition(reader: ByteReader) -> KafkaPartition:
    topic, partition, offset, stop = reader.utf(), reader.int32(), reader.int64(), reader.int64()
    if reader.left or partition < 0:
        raise reader.corrupt(f"this is not partition {partition} of a topic")
    return KafkaPartition(topic, partition, offset, None if stop == _NO_STOP else stop)


def files_coordinator(paths: Sequence[str]) -> bytes:
    """Returns the state of the coordinator of a ``FileSource`` that has read some files to the end.

    Args:
        paths: The files, as Flink writes paths: ``file:/folder/name``.
    """
    body = struct.pack("<IiiI", _FILES_MAGIC, _VERSION, 0, len(paths))
    for path in paths:
        text = path.encode("utf-8")
        body += len(text).to_bytes(4, "little") + text
    return _coordinator(body)


def numbers_coordinator(first: int, last: int) -> bytes:
    """Returns the state of the coordinator of a ``NumberSequenceSource`` that no reader has got a part of.

    Args:
        first: The number that is read next.
        last: The last number. If it is less than ``first``, all are read.
    """
    splits = [utf("rest") + int64(first) + int64(last)] if first <= last else []
    return _coordinator(int32(len(splits)) + b"".join(splits))


def _coordinator(body: bytes) -> bytes:
    return int32(_VERSION) + int32(_VERSION) + int32(len(body)) + body


def committables(element: bytes, what: str) -> int:
    """Returns how many results of a sink were to be committed.

    Args:
        element: An element of the state of a committer.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another form.
    """
    try:
        reader = _body(element, what, _COLLECTOR_VERSION, _COLLECTOR_MAGIC)
        return sum(_of_checkpoint(version, checkpoint) for version, checkpoint in _list(reader, last=True))
    except CorruptStateError:  # Flink before 1.20 has other fields with the same version
        raise _unknown(what) from None


def open_part_file(element: bytes, what: str) -> str:
    """Returns the folder in which the writer of a ``FileSink`` has an open part file, or nothing if it has none.

    Args:
        element: An element of its state.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: It is of another form, or of another sink.
        CorruptStateError: It is damaged.
    """
    reader = _body(element, what, _BUCKET_VERSION, _BUCKET_MAGIC)
    reader.int32()
    reader.take(reader.int32())  # the id of the bucket
    folder = reader.utf()
    reader.int64()
    return folder if reader.flag() else ""


def _unknown(what: str) -> UnsupportedSavepointError:
    return UnsupportedSavepointError(
        f"{what}: it is of a form that is not known, so the output of the sink may be unfinished. Stop the job with "
        "--drain, look whether all output is there, and leave this state behind"
    )


def _body(element: bytes, what: str, version: int, magic: int) -> ByteReader:
    """Returns a reader of what follows the magic number."""
    head = ByteReader(element, what)
    found = head.left >= 12 and (head.int32(), head.take(4), head.int32() & 0xFFFFFFFF)
    if not found or (found[0], found[2]) != (version, magic) or int.from_bytes(found[1], "big") != len(element) - 8:
        raise _unknown(what)
    return head


def _list(reader: ByteReader, *, last: bool = False) -> Iterator[tuple[int, ByteReader]]:
    """Yields the elements of a list with their version."""
    version = reader.int32()
    for _ in range(reader.count(4)):
        yield version, ByteReader(reader.take(reader.int32()), reader.what)
    if last:
        _check_end(reader)


def _of_checkpoint(version: int, reader: ByteReader) -> int:
    reader.int64()
    if version >= 1:
        reader.int32()  # the number of subtasks
    return sum(_of_subtask(of_subtask, subtask) for of_subtask, subtask in _list(reader, last=True))


def _of_subtask(version: int, reader: ByteReader) -> int:
    if version >= 1:
        reader.int32()  # its number
    requests = sum(1 for _ in _list(reader))
    reader.take(8 if version >= 2 else 12)  # numbers of results
    _check_end(reader)
    return requests


def _check_end(reader: ByteReader) -> None:
    if reader.left:
        raise reader.corrupt(f"{reader.left} bytes are left")
