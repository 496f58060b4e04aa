"""What sinks of Flink have written, but not finished: results to commit, and open part files.

Source: Flink's ``CommittableCollectorSerializer``, ``FileWriterBucketStateSerializer``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dagster_flinkpy.errors import CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader

__all__ = ["COMMITTER_STATE", "WRITER_STATE", "committables", "open_part_file"]

COMMITTER_STATE = "streaming_committer_raw_states"
"""What committers of sinks call their state."""
WRITER_STATE = "writer_raw_states"
"""What writers of sinks call their state."""
_COLLECTOR_VERSION, _COLLECTOR_MAGIC = 2, 0xB91F252C
_BUCKET_VERSION, _BUCKET_MAGIC = 3, 0x1E764B79


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
