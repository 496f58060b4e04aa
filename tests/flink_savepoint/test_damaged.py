"""A damaged or hostile savepoint is a typed error or is read; nothing else happens."""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_flinkpy.errors import CorruptStateError, FlinkPyError, UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.pickled_data import load_data
from dagster_flinkpy.flink_savepoint.stored_bytes import decompress
from dagster_flinkpy.state_processor import read_savepoint
from tests.flink_savepoint.corpus import DECLARED, READABLE, SAVEPOINTS

MUTATIONS = 500 * int(os.environ.get("SOAK", "0")) or 200
"""Mutation n is always the same."""
MOST_KB = 32 << 10
"""By how much reading files of a few kilobytes may add to the memory of a process that has read one."""
FAR_LENGTHS = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\xff\xff\xff")


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Returns the bytes with a few changes: other bytes, great lengths, and parts that are cut, doubled or moved."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                changed[at : at + 4] = draw.choice(FAR_LENGTHS)
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + draw.randrange(1, 40)]
            case 4:
                changed[at:at] = changed[at : at + draw.randrange(1, 40)]
            case _ if at < len(changed):
                changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def read_all(folder: Path, name: str, *, declared: bool) -> None:
    savepoint = read_savepoint(str(folder), DECLARED[name] if declared else None)
    for state in savepoint.states:
        try:
            state.to_arrow()
        except (CorruptStateError, UnsupportedSavepointError) as error:
            assert str(error)


@pytest.mark.parametrize("part", range(4))
def test_a_mutated_savepoint_is_read_or_is_a_typed_error(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {"read": 0, "refused": 0}
    opened: set[Path] = set()
    of_path = Path.open

    def watched(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.add(path)
        return of_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", watched)
    read_all(SAVEPOINTS / READABLE[0] / "savepoint", READABLE[0], declared=True)  # what is imported counts, too
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(part, MUTATIONS, 4):
        draw = random.Random(number)
        name = draw.choice(READABLE)
        folder = tmp_path / str(number)
        shutil.copytree(SAVEPOINTS / name / "savepoint", folder)
        victim = draw.choice(sorted(folder.iterdir()))
        original = victim.read_bytes()
        data = mutated(original, draw)
        if victim.name != "_metadata" and draw.randrange(4):  # else another size than in the metadata is all it tests
            data = data[: len(original)].ljust(len(original), b"\0")
        victim.write_bytes(data)
        opened.clear()
        try:
            read_all(folder, name, declared=bool(draw.randrange(2)))
            outcomes["read"] += 1
        except FlinkPyError as error:
            assert str(error), number
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"mutation {number} of {name}/{victim.name}") from error
        assert {path.resolve().parent for path in opened} == {folder.resolve()}, number
        shutil.rmtree(folder)
    assert min(outcomes.values()) > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most < MOST_KB


@pytest.mark.short("_metadata")
@pytest.mark.parametrize("part", ["_metadata", "557e5c49-4cf9-4af9-8535-f2e900e74acc"])
def test_a_length_that_is_too_great_allocates_nothing(part: str, tmp_path: Path) -> None:
    shutil.copytree(SAVEPOINTS / "values-hashmap-canonical" / "savepoint", tmp_path / "sp")
    file = tmp_path / "sp" / part
    data = file.read_bytes()
    for at in range(0, len(data), len(data) // 40):
        file.write_bytes(data[:at] + b"\x7f\xff\xff\xf0" + data[at + 4 :])
        tracemalloc.start()
        with suppress(FlinkPyError):
            read_all(tmp_path / "sp", "values-hashmap-canonical", declared=True)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64_000_000, at  # modules and threads of earlier tests need some, too; the length would be 2 GB


def test_a_path_that_leads_out_of_the_savepoint_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SAVEPOINTS / "values-hashmap-canonical" / "savepoint", tmp_path / "sp")
    metadata = tmp_path / "sp" / "_metadata"
    data, name = metadata.read_bytes(), b"557e5c49-4cf9-4af9-8535-f2e900e74acc"
    (tmp_path / "outside").write_bytes((tmp_path / "sp" / name.decode()).read_bytes())
    for path in (b"../outside", str(tmp_path / "outside").encode()):
        metadata.write_bytes(data.replace(b"\0" + bytes([len(name)]) + name, len(path).to_bytes(2, "big") + path))
        with pytest.raises(FlinkPyError):
            read_all(tmp_path / "sp", "values-hashmap-canonical", declared=True)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/flinkpy-evil",)


@pytest.mark.parametrize(
    "pickled",
    [
        pickle.dumps(_Evil()),
        pickle.dumps(_Evil(), protocol=0),
        pickle.dumps(os.system),
        pickle.dumps(Path("a")),
        pickle.dumps(bytearray(5), protocol=5),
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x041+1\x85R.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(S'1'\nibuiltins\neval\n.",
    ],
)
def test_a_pickle_of_anything_but_data_is_refused(pickled: bytes) -> None:
    with pytest.raises(UnsupportedSavepointError, match="a pickle holds"):
        load_data(pickled)


def test_a_damaged_pickle_allocates_nothing_and_is_an_error() -> None:
    tracemalloc.start()
    for pickled in (
        b"\x80\x04\x96\x00\x00\x00\x00\xff\x00\x00\x00.",  # BYTEARRAY8
        b"\x80\x04\x8e\x00\x00\x00\x00\xff\x00\x00\x00.",  # BINBYTES8
        b"\x80\x04r\xff\xff\xff\x7f.",  # LONG_BINPUT far away
        b"\x80\x04\x8b\xff\xff\xff\x7f.",  # LONG4
        b"0.",
        b"",
    ):
        with pytest.raises((ValueError, UnsupportedSavepointError)):
            assert load_data(pickled) is not None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_chunks_of_snappy_are_joined() -> None:
    def chunk(kind: int, body: bytes) -> bytes:
        return bytes([kind]) + len(body).to_bytes(3, "little") + body

    text = b"state " * 1000
    data = b"\xff\x06\x00\x00sNaPpY" + chunk(0, b"crc!" + pa.compress(text, codec="snappy", asbytes=True))
    data += chunk(0xFE, b"padding") + chunk(1, b"crc!end")
    assert decompress(data, "a group") == text + b"end"
    for damaged in (data[:-1], b"x" + data, data + chunk(2, b""), data.replace(b"\xf0", b"\xf1")):
        with pytest.raises(CorruptStateError, match="a group"):
            decompress(damaged, "a group")
