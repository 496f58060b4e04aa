"""The ``_metadata`` of a savepoint of Flink: its operators, and where their state is.

Source: Flink's ``MetadataV2V3SerializerBase``, ``MetadataV3Serializer`` to ``MetadataV6Serializer``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dagster_flinkpy.errors import CorruptMetadataError, CorruptStateError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader
from dagster_flinkpy.key_groups import UPPER_BOUND_MAX_PARALLELISM
from dagster_flinkpy.storage import check_relative

__all__ = [
    "FlinkMetadata",
    "FlinkOperator",
    "FlinkSubtask",
    "KeyedFormat",
    "KeyedHandle",
    "OperatorStateOffsets",
    "StreamHandle",
    "is_flink_metadata",
    "operator_id",
    "read_metadata",
]

_MAGIC = b"\x49\x60\x67\x2d"
_VERSIONS = range(3, 7)
_STOPPING = tuple(b"t" + len(each).to_bytes(2, "big") + each for each in (b"Suspend Savepoint", b"Terminate Savepoint"))
"""What Flink calls the savepoints of ``flink stop``, as Java writes it: ``SavepointType``."""


@dataclass(frozen=True)
class StreamHandle:
    """Some bytes of a savepoint: a file in its folder, or bytes in the metadata."""

    path: str = ""
    """Relative to the savepoint; empty for bytes in the metadata."""
    size: int = 0
    data: bytes | None = None


class KeyedFormat(Enum):
    """How keyed state is written."""

    CANONICAL = "canonical"
    HEAP_NATIVE = "native format of the heap state backend"
    ROCKSDB_NATIVE = "native format of the RocksDB state backend"
    CHANGELOG = "changelog"


@dataclass(frozen=True)
class KeyedHandle:
    """The keyed state of one subtask."""

    format: KeyedFormat
    first_group: int = 0
    offsets: tuple[int, ...] = ()
    """Where each key group begins; 0 for one that was left out because it is empty."""
    stream: StreamHandle | None = None


@dataclass(frozen=True)
class OperatorStateOffsets:
    """Where the elements of one operator state are."""

    mode: int
    """0: split, 1: union, 2: broadcast."""
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class FlinkSubtask:
    """The state of one subtask."""

    index: int
    finished: bool = False
    operator_state: Mapping[str, OperatorStateOffsets] | None = None
    operator_stream: StreamHandle | None = None
    keyed: KeyedHandle | None = None
    raw: tuple[str, ...] = ()
    """Names of the kinds of state that cannot be read: raw state, and data in flight."""


@dataclass(frozen=True)
class FlinkOperator:
    """One operator with its state."""

    id: str
    """32 hexadecimal digits; the hash of the uid."""
    name: str
    """Empty before metadata of version 5."""
    uid: str
    """Empty if the program set none, and before version 5."""
    parallelism: int
    max_parallelism: int
    coordinator: StreamHandle | None
    subtasks: tuple[FlinkSubtask, ...]
    fully_finished: bool = False


@dataclass(frozen=True)
class FlinkMetadata:
    """The contents of ``_metadata``."""

    version: int
    checkpoint_id: int
    operators: tuple[FlinkOperator, ...]
    stopped: bool = False
    """Whether the job was stopped with it, so that its sinks have committed; False if that is not known."""

    def operator(self, uid: str) -> FlinkOperator | None:
        """Returns the operator with a uid, which is known by its hash, or with an id."""
        wanted = operator_id(uid)
        return next((each for each in self.operators if each.id in (wanted, uid)), None)


def is_flink_metadata(data: bytes) -> bool:
    """Returns whether this begins like the metadata of a savepoint of Flink."""
    return data[:4] == _MAGIC


def read_metadata(data: bytes) -> FlinkMetadata:
    """Parses ``_metadata``. Of the Java object at its end, only the name of the kind of savepoint is looked for.

    Raises:
        CorruptMetadataError: It is damaged, or no metadata of Flink.
        UnsupportedSavepointError: It is of another version, or a checkpoint that is not self-contained.
        PathEscapesPrefixError: A path leads out of the savepoint.
    """
    if not is_flink_metadata(data):
        raise CorruptMetadataError("_metadata is not of a savepoint of Flink")
    reader = ByteReader(data, "_metadata")
    try:
        reader.take(4)
        version = reader.int32()
        if version not in _VERSIONS:
            raise UnsupportedSavepointError(
                f"_metadata has version {version}, and versions 3 to 6 can be read (Flink 1.11 to 2.3); restore the "
                "savepoint with a Flink of these and take a new one with --type canonical"
            )
        checkpoint_id = reader.int64()
        if masters := reader.int32():
            raise UnsupportedSavepointError(
                f"the savepoint has {masters} states of master hooks, of which nothing is known"
            )
        operators = tuple(_operator(reader, version) for _ in range(reader.count(33)))
    except CorruptStateError as error:
        raise CorruptMetadataError(str(error)) from None
    properties = reader.take(reader.left)
    return FlinkMetadata(version, checkpoint_id, operators, any(each in properties for each in _STOPPING))


def _operator(reader: ByteReader, version: int) -> FlinkOperator:
    name, uid = (reader.utf(), reader.utf()) if version >= 5 else ("", "")
    identity = reader.take(16).hex()
    parallelism, max_parallelism = reader.int32(), reader.int32()
    if not 1 <= parallelism <= UPPER_BOUND_MAX_PARALLELISM or not -1 <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise reader.corrupt(f"an operator has parallelism {parallelism} and max parallelism {max_parallelism}")
    coordinator = _stream(reader)
    count = reader.int32()
    finished = count < 0
    subtasks = () if finished else tuple(_subtask(reader) for _ in range(reader.check_count(count, 4)))
    for keyed in (each.keyed for each in subtasks if each.keyed is not None):
        if keyed.first_group + len(keyed.offsets) > max_parallelism:
            raise reader.corrupt(f"an operator of max parallelism {max_parallelism} has more key groups")
    return FlinkOperator(identity, name, uid, parallelism, max_parallelism, coordinator, subtasks, finished)


def _subtask(reader: ByteReader) -> FlinkSubtask:
    index = reader.int32()
    if index < 0:
        return FlinkSubtask(-index - 1, finished=True)
    states, stream = _operator_states(reader) if _present(reader) else (None, None)
    raw = []
    if _present(reader):
        _operator_states(reader)
        raw.append("raw operator state")
    keyed = _keyed(reader)
    if _keyed(reader) is not None:
        raw.append("raw keyed state")
    if reader.int32() or reader.int32():
        raise UnsupportedSavepointError(
            "there is data in flight in it: this is an unaligned checkpoint. Take a savepoint with --type canonical"
        )
    return FlinkSubtask(index, False, states, stream, keyed, tuple(raw))


def _present(reader: ByteReader) -> bool:
    count = reader.int32()
    if count not in (0, 1):
        raise reader.corrupt(f"a subtask has {count} states of one kind")
    return count == 1


def _stream(reader: ByteReader) -> StreamHandle | None:
    kind = reader.byte()
    if kind == 0:
        return None
    if kind == 1:
        reader.utf()
        data = reader.take(reader.int32())
        return StreamHandle(size=len(data), data=data)
    if kind == 6:
        path, size = reader.utf(), reader.int64()
        return StreamHandle(check_relative(path), _size(reader, size))
    if kind == 16:
        return StreamHandle(data=b"")
    if kind in (2, 15):
        raise UnsupportedSavepointError(
            "its state is in files outside of its folder: this is a checkpoint, not a savepoint. Take a savepoint "
            "with --type canonical"
        )
    raise reader.corrupt(f"there is no state handle of type {kind}")


def _size(reader: ByteReader, size: int) -> int:
    if size < 0:
        raise reader.corrupt(f"a file of {size} bytes")
    return size


def _keyed(reader: ByteReader) -> KeyedHandle | None:
    kind = reader.byte()
    if kind == 0:
        return None
    if kind in (3, 7, 12):
        first, count = reader.int32(), reader.count(8)
        if first < 0 or first + count > UPPER_BOUND_MAX_PARALLELISM:
            raise reader.corrupt(f"key groups {first} to {first + count - 1} do not exist")
        offsets = reader.longs(count)
        stream = _stream(reader)
        if kind == 12:
            reader.utf()
        return KeyedHandle(KeyedFormat.CANONICAL if kind == 7 else KeyedFormat.HEAP_NATIVE, first, offsets, stream)
    if kind in (5, 11):
        reader.int64(), reader.utf()
        first = reader.int32()
        reader.int32(), reader.int64()
        _stream(reader)
        for _ in range(2):
            for _ in range(reader.count(3)):
                reader.utf()
                _stream(reader)
        if kind == 11:
            reader.utf()
        return KeyedHandle(KeyedFormat.ROCKSDB_NATIVE, first)
    if 8 <= kind <= 14:
        raise UnsupportedSavepointError(
            "its state is a changelog (state.changelog.enabled). Take a savepoint with --type canonical"
        )
    raise reader.corrupt(f"there is no handle of keyed state of type {kind}")


def _operator_states(reader: ByteReader) -> tuple[dict[str, OperatorStateOffsets], StreamHandle | None]:
    kind = reader.byte()
    if kind == 0:
        return {}, None
    if kind not in (4, 14):
        raise reader.corrupt(f"there is no handle of operator state of type {kind}")
    if kind == 14:
        raise UnsupportedSavepointError("its files were merged. Take a savepoint with --type canonical")
    states = {}
    for _ in range(reader.count(7)):
        name, mode = reader.utf(), reader.byte()
        if mode > 2:
            raise reader.corrupt(f"operator state {name!r} has mode {mode}")
        states[name] = OperatorStateOffsets(mode, reader.longs(reader.count(8)))
    return states, _stream(reader)


def operator_id(uid: str) -> str:
    """Returns the id that Flink makes of a uid: the murmur3 hash with 128 bits of its UTF-8.

    Source: Flink's ``StreamGraphHasherV2``; Austin Appleby's MurmurHash3_x64_128, seed 0.
    """
    data = uid.encode("utf-8", "surrogatepass")
    a = b = 0
    for start in range(0, len(data), 16):
        first = int.from_bytes(data[start : start + 8], "little") * _C1 & _ALL
        second = int.from_bytes(data[start + 8 : start + 16], "little") * _C2 & _ALL
        a ^= _rotated(first, 31) * _C2 & _ALL
        if len(data) - start < 16:  # the rest is not stirred
            b ^= _rotated(second, 33) * _C1 & _ALL
            break
        a = (_rotated(a, 27) + b) * 5 + 0x52DCE729 & _ALL
        b ^= _rotated(second, 33) * _C1 & _ALL
        b = (_rotated(b, 31) + a) * 5 + 0x38495AB5 & _ALL
    a ^= len(data)
    b ^= len(data)
    a = a + b & _ALL
    b = b + a & _ALL
    a, b = _mixed(a), _mixed(b)
    a = a + b & _ALL
    b = b + a & _ALL
    return a.to_bytes(8, "little").hex() + b.to_bytes(8, "little").hex()


_ALL = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _ALL


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _ALL
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _ALL
    return value ^ value >> 33
