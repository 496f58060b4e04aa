"""Forms of savepoints that are not among the files of Flink here: compressed state, and values of thread mode."""

from __future__ import annotations

import pickle
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.common import Row, RowKind, Types
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import CorruptStateError, TypeMismatchError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.header import StateHeader
from dagster_flinkpy.flink_savepoint.metadata import read_metadata
from dagster_flinkpy.flink_savepoint.pickled_data import load_data
from dagster_flinkpy.flink_savepoint.serializers import Serializer
from dagster_flinkpy.flink_savepoint.subtask_state import StateRows
from dagster_flinkpy.state_processor import FlinkSavepointReader, read_savepoint
from dagster_flinkpy.state_processor.flink_columns import DeclaredState, FlinkColumns
from tests.flink_savepoint.corpus import DECLARED, SAVEPOINTS

JAVA = b"\xac\xed\0\5"
"""How an object of Java begins."""
BYTE_ARRAY = b"org.apache.flink.api.common.typeutils.base.array.BytePrimitiveArraySerializer$"


def framed(data: bytes) -> bytes:
    """Returns a stream of snappy in two chunks, each with a checksum that is not read."""
    stream = b"\xff\x06\x00\x00sNaPpY"
    for part in (data[:5], data[5:]):
        body = b"sum!" + pa.compress(part, codec="snappy", asbytes=True)
        stream += b"\0" + len(body).to_bytes(3, "little") + body if part else b""
    return stream


def compress(folder: Path) -> None:
    """Compresses the key groups of a savepoint, as ``execution.checkpointing.snapshot-compression`` does."""
    metadata = (folder / "_metadata").read_bytes()
    for operator in read_metadata(metadata).operators:
        for handle in (each.keyed for each in operator.subtasks if each.keyed is not None):
            assert handle.stream is not None
            file, plain = folder / handle.stream.path, 4 if handle.format.name == "HEAP_NATIVE" else 0
            data = file.read_bytes()
            starts = [offset for offset in handle.offsets if offset]
            if not starts:
                continue
            out, moved = bytearray(data[:4] + b"\1" + data[5 : starts[0]]), {0: 0}
            for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
                moved[start] = len(out)
                out += data[start : start + plain] + framed(data[start + plain : end])
            file.write_bytes(out)
            count = len(handle.offsets)
            before = struct.pack(f">{count}q", *handle.offsets)
            at = metadata.index(before, metadata.rindex(bytes.fromhex(operator.id)))
            after = struct.pack(f">{count}q", *(moved[offset] for offset in handle.offsets))
            metadata = metadata[:at] + after + metadata[at + len(before) :]
            size = metadata.index(handle.stream.path.encode()) + len(handle.stream.path)
            metadata = metadata[:size] + struct.pack(">q", len(out)) + metadata[size + 8 :]
    (folder / "_metadata").write_bytes(metadata)


@pytest.mark.parametrize(
    "name", ["values-hashmap-canonical", "connected-hashmap-canonical", "connected-hashmap-native"]
)
def test_compressed_key_groups_are_read(name: str, tmp_path: Path) -> None:
    plain, folder = SAVEPOINTS / name / "savepoint", tmp_path / "compressed"
    shutil.copytree(plain, folder)
    compress(folder)
    one, other = (read_savepoint(str(each), DECLARED[name]) for each in (plain, folder))
    for mine, theirs in zip(one.states, other.states, strict=True):
        assert mine.to_arrow().equals(theirs.to_arrow())


STRING, LONG, BYTES = Serializer("String"), Serializer("Long"), Serializer("BytePrimitiveArray")


def columns(kind: str, stored: str, value: Serializer, declared: TypeInformation, **more: Any) -> FlinkColumns:
    """Returns the columns of a state of thread mode, whose keys are texts."""
    serializers = {"VALUE_SERIALIZER": value, "NAMESPACE_SERIALIZER": Serializer("VoidNamespace")}
    header = StateHeader("s", 0, {"KEYED_STATE_TYPE": stored}, serializers)
    key = Serializer("Row", (STRING,))
    state: Any = DeclaredState("s", kind, declared, **more)  # type: ignore[arg-type]
    return FlinkColumns("state 's'", header, key, 128, state)


def of_pyflink(value: Any) -> bytes:
    """Pickles a value as PyFlink does, in a form in which names of modules are lines of text."""
    pickled = pickle.dumps(value, protocol=2)
    return pickled.replace(b"cdagster_flinkpy.common.types\n", b"cpyflink.common.types\n")


def rows(values: list[Any], map_keys: list[Any] | None = None) -> StateRows:
    return StateRows(6, [Row("k1")] * len(values), [None] * len(values), map_keys or [], values)


def utf(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def rows_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    savepoint = read_savepoint(str(folder), DECLARED["values-hashmap-canonical"])
    found = {each.name: each.to_arrow().to_pylist() for each in savepoint.states if each.uid == "values"}
    return {name: rows for name, rows in found.items() if rows}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_savepoint_of_an_older_flink_is_read(version: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVEPOINTS / "values-hashmap-canonical" / "savepoint", tmp_path / "savepoint"))
    before, data = rows_of(folder), (folder / "_metadata").read_bytes()
    assert len(before) == 6
    for operator in read_metadata(data).operators if version < 5 else ():
        named = utf(operator.name) + utf(operator.uid) + bytes.fromhex(operator.id)
        assert data.count(named) == 1
        data = data.replace(named, bytes.fromhex(operator.id))
    data = data[:4] + struct.pack(">i", version) + (data[8:] if version > 3 else data[8 : data.index(JAVA)])
    (folder / "_metadata").write_bytes(data)
    assert read_metadata(data).version == version
    assert rows_of(folder) == before


@pytest.mark.parametrize("name", ["kryo.KryoSerializerSnapshot", "PojoSerializerSnapshot", "AvroSerializerSnapshot"])
def test_states_before_one_of_an_unknown_serializer_are_read(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SAVEPOINTS / "values-hashmap-canonical" / "savepoint", tmp_path / "savepoint"))
    before = rows_of(folder)
    file = folder / "557e5c49-4cf9-4af9-8535-f2e900e74acc"
    data = file.read_bytes()
    at = data.index(BYTE_ARRAY, data.rindex(b"python-state-"))
    file.write_bytes(data[:at] + f"org.{name}".encode().ljust(len(BYTE_ARRAY), b"x") + data[at + len(BYTE_ARRAY) :])
    savepoint = read_savepoint(str(folder), DECLARED["values-hashmap-canonical"])
    assert isinstance(savepoint, FlinkSavepointReader)
    (problem,) = savepoint.unreadable
    state = problem.state.removeprefix("python-state-")
    assert re.search(f"operator 'values', state '{problem.state}' .*{name}", problem.problem)
    assert rows_of(folder) == {known: rows for known, rows in before.items() if known != state}
    with pytest.raises(UnsupportedSavepointError, match=name):
        savepoint.state("values", state)


def test_values_of_thread_mode_are_those_of_java_or_pickles_of_data() -> None:
    row = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    pair = Types.TUPLE([Types.LONG(), Types.STRING()])
    found = columns("VALUE", "VALUE", LONG, Types.INT()).columns(rows([7]))
    assert (found["key"].to_pylist(), found["value"].to_pylist()) == (["k1"], [7])
    found = columns("VALUE", "VALUE", BYTES, row).columns(rows([of_pyflink(Row(a=1, b="x"))]))
    assert found["value"].to_pylist() == [{"a": 1, "b": "x"}]
    found = columns("REDUCING", "VALUE", BYTES, pair).columns(rows([pickle.dumps((1, "x"))]))
    assert found["value"].to_pylist() == [{"f0": 1, "f1": "x"}]
    listed = columns("LIST", "LIST", Serializer("List", (BYTES,)), Types.LIST(pair))
    assert listed.columns(rows([[pickle.dumps((1, "x")), pickle.dumps((2, "y"))]]))["value"].to_pylist() == [
        [{"f0": 1, "f1": "x"}, {"f0": 2, "f1": "y"}]
    ]
    mapped = columns("MAP", "MAP", Serializer("Map", (STRING, BYTES)), pair, map_key_type=Types.STRING())
    found = mapped.columns(rows([pickle.dumps((1, "x")), None], ["one", "none"]))
    assert (found["map_key"].to_pylist(), found["value"].to_pylist()) == (["one", "none"], [{"f0": 1, "f1": "x"}, None])


def test_kinds_of_rows_are_read_as_each_python_pickles_them() -> None:
    by_value = b"\x80\x02cpyflink.common.types\nRowKind\nK\x03\x85R."
    by_name = b"\x80\x02c__builtin__\ngetattr\ncpyflink.common.types\nRowKind\nX\x06\x00\x00\x00DELETE\x86R."
    assert load_data(by_value) is load_data(by_name) is RowKind.DELETE
    code = b"\x80\x02c__builtin__\ngetattr\ncbuiltins\nset\nX\x03\x00\x00\x00pop\x86R."
    with pytest.raises(UnsupportedSavepointError, match="an attribute of"):
        load_data(code)


def test_a_value_of_thread_mode_with_a_time_to_live_expires_when_it_would_have() -> None:
    state = columns("VALUE", "VALUE", Serializer("Ttl", (LONG,)), Types.LONG(), ttl_ms=1000)
    found = state.columns(rows([(5000, 7)]))
    assert (found["value"].to_pylist(), found["expires_at"].to_pylist()) == ([7], [6000])
    with pytest.raises(TypeMismatchError, match="with a time to live"):
        columns("VALUE", "VALUE", LONG, Types.LONG(), ttl_ms=1000)


def test_what_is_not_the_declared_state_is_an_error_that_names_it() -> None:
    with pytest.raises(TypeMismatchError, match=r"state 's'.*kind LIST"):
        columns("VALUE", "LIST", Serializer("List", (LONG,)), Types.LONG())
    with pytest.raises(TypeMismatchError, match="state 's'"):
        columns("VALUE", "VALUE", STRING, Types.LONG()).columns(rows(["x"]))
    with pytest.raises(CorruptStateError, match="belong to others, such as 14"):
        columns("VALUE", "VALUE", LONG, Types.LONG()).columns(StateRows(6, [Row("k0")], [None], [], [1]))
    with pytest.raises(UnsupportedSavepointError, match="state 's': a pickle holds"):
        columns("VALUE", "VALUE", BYTES, Types.PICKLED_BYTE_ARRAY()).columns(rows([pickle.dumps(Path("a"))]))
